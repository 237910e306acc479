"""What BERT's parts are worth: the same run with one of them changed, then two tasks."""

from pathlib import Path

from firth.study import sets
from firth.study.design import Cell, Claim, Study
from firth.study.lineage import SEEDS, System, finetuned, pretrained

DATASETS = ("classify-en", "classify-zh")
BERT = System("bert")
ONLY_MASKED_LM = 'objectives={"masked_lm": {}}'
VARIANTS: dict[str, tuple[System, tuple[str, ...]]] = {
    "bert": (BERT, ()),
    "no next sentence": (BERT, (ONLY_MASKED_LM,)),
    "left to right": (System("gpt"), ()),
    "whole words": (System("bert-wwm"), ()),
    "static masks": (BERT, ("objectives.masked_lm.fresh=false",)),
    "30 % masked": (BERT, ("objectives.masked_lm.rate=0.3",)),
    "50 % masked": (BERT, ("objectives.masked_lm.rate=0.5",)),
    "always [MASK]": (BERT, ("objectives.masked_lm.mask_share=1", "objectives.masked_lm.random_share=0")),
}
"""By name: a recipe, and what differs from it."""


def cells(folder: Path) -> list[Cell]:
    texts = sets.corpus(folder)
    found = []
    for seed in range(1, SEEDS + 1):
        for dataset in DATASETS:
            for name, (system, changes) in VARIANTS.items():
                start = pretrained(system, texts, changes)
                found.append(Cell(name, dataset, seed, finetuned(folder, start, name, dataset, seed)))
    return found


def _claim(better: str, worse: str, english: str, chinese: str) -> Claim:
    return Claim(better, worse, {"en": english, "zh": chinese})


STUDY = Study(
    name="ablations",
    question={
        "en": "What are next sentence prediction, both directions, whole words and the share of masks worth?",
        "zh": "下一句预测、双向、整词遮盖和遮盖比例各值多少？",
    },
    design={
        "en": "BERT at the size tiny with one thing changed, pre-trained on the embedded text, then fine-tuned on "
        "embedded rows.",
        "zh": "规模为 tiny 的 BERT，每次只改一处，用自带文本预训练，再用自带的标注行微调。",
    },
    cells=cells,
    claims=(
        _claim("bert", "left to right", "Both directions are better than left to right", "双向优于从左到右"),
        _claim("bert", "no next sentence", "Next sentence prediction helps", "下一句预测有帮助"),
        _claim("whole words", "bert", "Masking whole words helps", "整词遮盖有帮助"),
        _claim("bert", "static masks", "Fresh masks are better than static ones", "动态遮盖优于静态遮盖"),
        _claim("bert", "50 % masked", "15 % masked is better than 50 %", "遮盖 15 % 优于 50 %"),
        _claim("bert", "always [MASK]", "80/10/10 is better than always [MASK]", "80/10/10 优于总是 [MASK]"),
    ),
)
