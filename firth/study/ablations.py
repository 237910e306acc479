"""What BERT's parts are worth: the same pre-training with one of them changed, read by probes."""

from dataclasses import replace

from firth.study.design import Cell, Claim, Study
from firth.study.lineage import BERT, STEPS, SYSTEMS, System, pretrained, probed_cells
from firth.study.sets import Sources


def _bert(*changes: str, recipe: str = "bert") -> System:
    return replace(BERT, recipe=recipe, changes=(*BERT.changes, *changes))


SYSTEMS_BY_CHANGE = {
    "bert": BERT,
    "no next sentence": _bert('objectives={"masked_lm": {}}'),
    "left to right": SYSTEMS["gpt"],
    "50 % masked": _bert("objectives.masked_lm.rate=0.5"),
    "30 % masked": _bert("objectives.masked_lm.rate=0.3"),
    "whole words": _bert(recipe="bert-wwm"),
    "static masks": _bert("objectives.masked_lm.fresh=false"),
    "always [MASK]": _bert("objectives.masked_lm.mask_share=1", "objectives.masked_lm.random_share=0"),
    "sentence order": _bert('objectives={"sentence_order": {}, "masked_lm": {}}'),
    "albert": SYSTEMS["albert"],
    "electra": SYSTEMS["electra"],
}
"""By name: BERT with one change."""


def cells(sources: Sources) -> list[Cell]:
    found = []
    for name, system in SYSTEMS_BY_CHANGE.items():
        found += probed_cells(sources, name, pretrained(system, sources.corpus))
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
        "en": f"BERT at the size tiny with one thing changed, pre-trained once for {STEPS} steps of 1,024 tokens and "
        "read by probes, as in the study `lineage`.",
        "zh": f"规模为 tiny 的 BERT，每次只改一处，预训练一次，{STEPS} 步，每步 1,024 个词元，"
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
)
