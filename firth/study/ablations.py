"""What BERT's parts are worth: the same pre-training with one of them changed, read by probes."""

from dataclasses import replace

from firth.study.design import Cell, Claim, Sentences, Study
from firth.study.lineage import BERT, DESCRIBED, STEPS, SYSTEMS, System, probed_cells
from firth.study.sets import Sources


def _bert(*changes: str, recipe: str = "bert") -> System:
    return replace(BERT, recipe=recipe, changes=(*BERT.changes, *changes))


SYSTEMS_BY_CHANGE = {
    "bert": BERT,
    "left to right": SYSTEMS["gpt"],
    "no next sentence": _bert('objectives={"masked_lm": {}}'),
    "50 % masked": _bert("objectives.masked_lm.rate=0.5"),
    "albert": SYSTEMS["albert"],
    "electra": SYSTEMS["electra"],
    "always [MASK]": _bert("objectives.masked_lm.mask_share=1", "objectives.masked_lm.random_share=0"),
    "whole words": _bert(recipe="bert-wwm"),
    "sentence order": _bert('objectives={"sentence_order": {}, "masked_lm": {}}'),
    "30 % masked": _bert("objectives.masked_lm.rate=0.3"),
    "static masks": _bert("objectives.masked_lm.fresh=false"),
}
"""By name: BERT with one change."""
FIRST = ("bert", "left to right", "no next sentence", "50 % masked")
"""All seeds of these come before any other: a few changes decided are worth more than all of them with one seed."""
CHANGES: dict[str, Sentences] = {
    "bert": {"en": "15 % of the tokens masked, and pairs of sentences", "zh": "遮盖 15 % 的词元，并使用句对"},
    "left to right": {
        "en": "GPT: every token from those before it; its tokens are byte pairs, so two things change at once",
        "zh": "GPT：由前面的词元预测每个词元；它使用字节对，所以同时改变了两处",
    },
    "no next sentence": {"en": "masked tokens alone", "zh": "只有遮盖"},
    "50 % masked": {"en": "half of the tokens masked", "zh": "遮盖一半词元"},
    "albert": DESCRIBED["albert"],
    "electra": DESCRIBED["electra"],
    "always [MASK]": {
        "en": "no masked token is kept or exchanged, as 20 % of them are in BERT",
        "zh": "被遮盖的词元不保留也不替换（BERT 中占 20 %）",
    },
    "whole words": {"en": "all pieces of a word are masked together", "zh": "同一个词的片段一起遮盖"},
    "sentence order": {
        "en": "two sentences in their order or exchanged, in place of the next or any other",
        "zh": "判断两句的顺序，代替判断是否为下一句",
    },
    "30 % masked": {"en": "twice the tokens masked", "zh": "遮盖的词元加倍"},
    "static masks": {"en": "the same masks in every pass over the text", "zh": "每遍使用同样的遮盖"},
}


def cells(sources: Sources) -> list[Cell]:
    found = []
    for name, system in SYSTEMS_BY_CHANGE.items():
        found += probed_cells(sources, name, replace(system, turn=int(name not in FIRST)))
    return found


def _claim(better: str, worse: str, english: str, chinese: str) -> Claim:
    return Claim(better, worse, {"en": english, "zh": chinese})


STUDY = Study(
    name="ablations",
    question={
        "en": "What are next sentence prediction, both directions, whole words, the share of masks and BERT's heirs "
        "worth?",
        "zh": "下一句预测、双向、整词遮盖、遮盖比例以及 BERT 的后继者各值多少？",
    },
    design={
        "en": f"BERT at the size tiny with one thing changed, pre-trained for {STEPS} steps of 1,024 tokens by every "
        "seed and read by probes, as in the study `lineage`.",
        "zh": f"规模为 tiny 的 BERT，每次只改一处，每个种子预训练 {STEPS} 步，每步 1,024 个词元，"
        "与研究 `lineage` 一样用探针读取。",
    },
    cells=cells,
    claims=(
        _claim("bert", "left to right", "Both directions are better than left to right", "双向优于从左到右"),
        _claim("bert", "no next sentence", "Next sentence prediction helps", "下一句预测有帮助"),
        _claim("bert", "50 % masked", "15 % masked is better than 50 %", "遮盖 15 % 优于 50 %"),
        _claim("bert", "always [MASK]", "80/10/10 is better than always [MASK]", "80/10/10 优于总是 [MASK]"),
        _claim("whole words", "bert", "Masking whole words helps", "整词遮盖有帮助"),
        _claim("sentence order", "bert", "Sentence order is better than next sentence", "句序预测优于下一句预测"),
        _claim(
            "bert", "albert", "Layers of their own are better than ALBERT's shared one", "各层独立优于 ALBERT 的共享层"
        ),
        _claim(
            "electra", "bert", "Replaced tokens (ELECTRA) teach more than masked ones", "替换检测（ELECTRA）优于遮盖"
        ),
    ),
    score="accuracy",
    systems=CHANGES,
)
