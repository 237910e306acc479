"""Studies: a question, a table of runs that answers it, and a verdict computed from intervals.

In: the name of a study and a time limit. Out: the rows of all runs as JSON lines, and a page with figures and verdicts.
A study is one file here and one line in the table.
"""

TABLE = {
    "lineage": "firth.study.lineage:STUDY",
    "ablations": "firth.study.ablations:STUDY",
    "similarity": "firth.study.similarity:STUDY",
    "text-length": "firth.study.text_length:STUDY",
    "chains": "firth.study.chains:STUDY",
    "label-bias": "firth.study.label_bias:STUDY",
    "layers": "firth.study.layers:STUDY",
    "heads": "firth.study.heads:STUDY",
    "senses": "firth.study.senses:STUDY",
    "few-labels": "firth.study.few_labels:STUDY",
    "compression": "firth.study.compressions:STUDY",
}
"""The studies by name."""
