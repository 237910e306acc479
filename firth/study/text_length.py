"""SimHash or vectors, by the length of the text: which of them sees how much of a text was changed?"""

from pathlib import Path

import numpy as np

from firth import rng, samples
from firth.data.spoken import words_of
from firth.study import sets
from firth.study.design import Cell, Claim, Experiment, Setting, Study
from firth.study.sets import BETWEEN, MODELS, Sources
from firth.study.similarities import SIMHASH

LENGTHS = (8, 32, 128, 256)
"""Words of a text."""
SHORTEST = float(LENGTHS[0])
LONGEST = float(LENGTHS[-1])
WAYS = ("mean", "embeddings", SIMHASH)
PAIRS = 20
"""Of each part."""


def cells(sources: Sources) -> list[Cell]:
    found = []
    for language, model in MODELS.items():
        words = words_of(" ".join(samples.documents(language)))
        for length in LENGTHS:
            pairs = _parts(sources, words, language, length)
            for way in WAYS:
                run = _run(way, model, pairs)
                for fold in range(1, sets.FOLDS + 1):
                    found.append(Cell(way, f"changed-{language}", fold, run, f"spearman_{fold}", x=float(length)))
    return found


def _run(way: str, model: str, pairs: tuple[Path, ...]) -> Experiment:
    if way == SIMHASH:
        return Experiment("similarity", {"way": way}, files={"pairs": pairs}, seconds=1)
    settings: dict[str, Setting] = {"way": way, "model": model}
    return Experiment("similarity", settings, files={"pairs": pairs, "weights": sets.weights(model)}, seconds=10)


def _parts(sources: Sources, words: list[str], language: str, length: int) -> tuple[Path, ...]:
    """Rows of a text, the same with some words exchanged for others, and the share that is left."""
    paths = []
    for fold in range(1, sets.FOLDS + 1):
        rows = []
        for number in range(PAIRS):
            key = rng.key("text length", language, length, fold, number)
            rows.append(_row(words, key, length, BETWEEN[language]))
        path = sources.folder / "changed" / f"{language}.{length}.{fold}.tsv"
        paths.append(sets.write_rows(path, rows))
    return tuple(paths)


def _row(words: list[str], key: np.uint64, length: int, between: str) -> str:
    begin = int(rng.below(key, len(words) - length, 0))
    original = words[begin : begin + length]
    changed = list(original)
    num_changed = round(float(rng.uniform(key, 1)) * length)
    places = rng.permutation(key, length)[:num_changed]
    for number, place in enumerate(places):
        other = int(rng.below(key, len(words), 2, number))
        changed[place] = words[other]
    share_left = 1 - num_changed / length
    return "\t".join((between.join(original), between.join(changed), f"{share_left:.4f}"))


def _claim(better: str, worse: str, x: float, english: str, chinese: str) -> Claim:
    return Claim(better, worse, {"en": english, "zh": chinese}, x=x)


STUDY = Study(
    name="text-length",
    question={
        "en": "SimHash or vectors: which sees better how much of a text was changed, by the length of the text?",
        "zh": "SimHash 还是向量：文本长短不同时，谁更能看出改动了多少？",
    },
    design={
        "en": f"Made pairs: words of the embedded text, and the same with a random share of the words exchanged for "
        f"others; Spearman correlation of the similarity with the share that is left, {sets.FOLDS} parts of {PAIRS} "
        "pairs. mean and embeddings are vectors of en-small and zh-small.",
        "zh": f"人造文本对：自带文本的一段词，以及随机换掉一部分词的同一段；相似度与剩余比例的 Spearman 相关，"
        f"{sets.FOLDS} 份，每份 {PAIRS} 对。mean 和 embeddings 是 en-small 与 zh-small 的向量。",
    },
    cells=cells,
    claims=(
        _claim(
            "embeddings", SIMHASH, SHORTEST, "With 8 words, vectors are better than SimHash", "8 个词时向量优于 SimHash"
        ),
        _claim(SIMHASH, "embeddings", LONGEST, "With 256 words, SimHash is better", "256 个词时 SimHash 更好"),
        _claim(
            "embeddings",
            "mean",
            LONGEST,
            "With 256 words, static vectors are better than states",
            "256 个词时静态向量优于上下文状态",
        ),
        Claim(
            SIMHASH,
            SIMHASH,
            {"en": "SimHash is better with 256 words than with 8", "zh": "SimHash 在 256 个词时好于 8 个词"},
            x=LONGEST,
            worse_x=SHORTEST,
        ),
    ),
    x_label="words of a text",
    log_x=True,
)
