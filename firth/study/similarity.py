"""How to compare two texts without labels: poolings of a pre-trained model, whitening, static vectors, SimHash."""

from pathlib import Path

from firth.study import sets
from firth.study.design import Cell, Claim, Experiment, Study
from firth.study.lineage import CORE, pretrained

MODELS = {"en": "en-small", "zh": "zh-small"}
WAYS = ("cls", "mean", "first-last", "mean+centred", "mean+whitened")


def cells(folder: Path) -> list[Cell]:
    """Every way on every part of the pairs; the parts take the place of seeds."""
    texts = sets.corpus(folder)
    word2vec = pretrained(CORE["word2vec"], texts)
    found = []
    for language, model in MODELS.items():
        prose = next(path for path in texts if path.name == f"prose.{language}.txt")
        pairs = tuple(sets.folds_of_pairs(folder, language))
        weights = sets.shipped_weights(model)
        runs = {}
        for way in WAYS:
            files = {"pairs": pairs, "weights": weights}
            if "+" in way:
                files["sample"] = (prose,)
            runs[way] = Experiment("similarity", {"way": way, "model": model}, files=files, seconds=5)
        runs["word2vec"] = Experiment("similarity", {"way": "mean"}, files={"pairs": pairs}, needs={"model": word2vec})
        runs["simhash"] = Experiment("similarity", {"way": "simhash"}, files={"pairs": pairs}, seconds=1)
        for name, run in runs.items():
            for fold in range(1, sets.FOLDS + 1):
                found.append(Cell(name, f"pairs-{language}", fold, run, figure=f"spearman_{fold}"))
    return found


def _claim(better: str, worse: str, english: str, chinese: str) -> Claim:
    return Claim(better, worse, {"en": english, "zh": chinese})


STUDY = Study(
    name="similarity",
    question={
        "en": "Which vector of a pre-trained model says most about the meaning of a text, without any labels?",
        "zh": "没有标注时，预训练模型的哪种向量最能反映文本的意思？",
    },
    design={
        "en": "Spearman correlation of cosines with scores that people gave, on the embedded pairs in five parts; "
        "en-small and zh-small, word2vec trained on the embedded text, and SimHash's share of equal bits.",
        "zh": "在自带的句对上（分成五份）计算余弦与人工分数的 Spearman 相关；模型为 en-small 和 "
        "zh-small，另有在自带文本上训练的 word2vec 和 SimHash 相同位的比例。",
    },
    cells=cells,
    claims=(
        _claim("mean", "cls", "The mean over the tokens is better than the first token", "词元平均优于首个词元"),
        _claim("first-last", "mean", "First and last layer together are better than the last", "首层加末层优于末层"),
        _claim("mean+whitened", "mean", "Whitening helps", "白化有帮助"),
        _claim("mean", "word2vec", "A contextual model is better than static vectors", "上下文模型优于静态向量"),
        _claim("mean", "simhash", "Vectors are better than SimHash", "向量优于 SimHash"),
    ),
)
