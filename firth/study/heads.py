"""Attention heads that do one thing: look at the word before, the word after, the same word, the special tokens."""

from pathlib import Path

from firth import samples
from firth.study import sets
from firth.study.design import Cell, Claim, Experiment, Study
from firth.study.probing import PATTERNS
from firth.study.sets import Sources

MODELS = {"en-small": "en", "zh-small": "zh", sets.MINILM: "en"}
LINES = 25
"""Lines of a part."""
LONGEST = 200
"""Characters of a line."""
BEST = "best head"
MEAN = "mean of all heads"


def cells(sources: Sources) -> list[Cell]:
    """Every pattern on every part of the text; the parts take the place of seeds."""
    found = []
    for model, language in MODELS.items():
        if model == sets.MINILM and not sets.has_minilm():
            continue
        chosen, *parts = _parts(sources, language)
        files = {"chosen": (chosen,), "texts": tuple(parts), "weights": sets.weights(model)}
        run = Experiment("heads", {"model": model}, files=files, seconds=10)
        for pattern in PATTERNS:
            dataset = f"{pattern} in {model}"
            also = (f"{pattern}_layer", f"{pattern}_head", f"{pattern}_heads")
            for fold in range(1, len(parts) + 1):
                found.append(Cell(BEST, dataset, fold, run, f"{pattern}_best_{fold}", also=also))
                found.append(Cell(MEAN, dataset, fold, run, f"{pattern}_mean_{fold}"))
    return found


def _parts(sources: Sources, language: str) -> list[Path]:
    """Files with lines of the embedded essays: one to choose heads on, the others to measure them."""
    lines = sets.read_rows(samples.prose(language))
    lines = [line[:LONGEST] for line in lines]
    paths = []
    for fold, own in enumerate(sets.folds(lines, sets.FOLDS + 1)):
        path = sources.folder / "heads" / f"prose.{language}.{fold}.txt"
        paths.append(sets.write_rows(path, own[:LINES]))
    return paths


THINGS = {
    "previous": ("the token before", "前一个词元"),
    "next": ("the token after", "后一个词元"),
    "same": ("equal tokens elsewhere", "别处的相同词元"),
    "separator": ("[CLS] and [SEP]", "[CLS] 和 [SEP]"),
}


def _claim(pattern: str) -> Claim:
    english, chinese = THINGS[pattern]
    text = {
        "en": f"One head looks at {english} more than heads do on average",
        "zh": f"有一个注意力头比平均更关注{chinese}",
    }
    return Claim(BEST, MEAN, text, tuple(f"{pattern} in {model}" for model in MODELS))


STUDY = Study(
    name="heads",
    question={
        "en": "Are there attention heads that do one thing?",
        "zh": "有没有只做一件事的注意力头？",
    },
    design={
        "en": "The share of attention that a head gives to one kind of token, over the tokens that have such a token. "
        f"The head is chosen on {LINES} lines of the embedded essays and measured on {sets.FOLDS} other parts. "
        "en-small and zh-small began their training with heads that look at neighbours "
        "(neighbour initialisation); all-MiniLM-L6-v2 did not.",
        "zh": "注意力头给予某类词元的注意力份额，只计有这类词元的位置。"
        f"在自带文章的 {LINES} 行上选出注意力头，在另外 {sets.FOLDS} 份上测量。"
        "en-small 和 zh-small 的初始权重里就有关注相邻词元的头（邻居初始化），all-MiniLM-L6-v2 没有。",
    },
    cells=cells,
    claims=tuple(_claim(pattern) for pattern in PATTERNS),
    score="share of attention",
)
