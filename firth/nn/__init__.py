"""The layers and algorithms that encoders, objectives and tasks are made of."""

TAGGERS = {
    "softmax": "firth.nn.taggers:SoftmaxTagger",
    "hmm": "firth.nn.taggers:HMMTagger",
    "memm": "firth.nn.taggers:MEMMTagger",
    "crf": "firth.nn.taggers:CRFTagger",
}
"""The taggers by name; listed here because help texts name them and must not import torch."""
