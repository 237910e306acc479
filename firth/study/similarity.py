"""How to compare two texts without labels: poolings of a pre-trained model, whitening, static vectors, SimHash."""

from pathlib import Path

from firth import samples
from firth.study import sets
from firth.study.design import Cell, Claim, Experiment, Setting, Study
from firth.study.sets import Sources
from firth.study.similarities import SIMHASH

MODELS = {"en-small": "en", "zh-small": "zh", sets.MINILM: "en"}
WAYS = ("cls", "mean", "first-last", "mean+whitened", "embeddings")
PERCENTILES = ("unrelated_percentile_5", "unrelated_percentile_50", "unrelated_percentile_95")
"""Of the cosines of unrelated texts."""
UNLABELLED_TEXTS = 1000
"""Texts that whitening is learned from."""


def cells(sources: Sources) -> list[Cell]:
    """Every way on every part of the pairs; the parts take the place of seeds."""
    found = []
    for model, language in MODELS.items():
        if model == sets.MINILM and not sets.has_minilm():
            continue
        pairs = _parts(sources, language)
        for way in (*WAYS, SIMHASH):
            run = _run(sources, model, way, pairs)
            for fold in range(1, sets.FOLDS + 1):
                found.append(Cell(way, f"pairs by {model}", fold, run, f"spearman_{fold}"))
                if way != SIMHASH:
                    found.append(Cell(way, f"unrelated by {model}", fold, run, f"unrelated_{fold}", also=PERCENTILES))
    return found


def _run(sources: Sources, model: str, way: str, pairs: tuple[Path, ...]) -> Experiment:
    files = {"pairs": pairs}
    settings: dict[str, Setting] = {"way": way}
    if way == SIMHASH:
        return Experiment("similarity", settings, files=files, seconds=2)
    settings["model"] = model
    files["weights"] = sets.weights(model)
    if "+" in way:
        files["sample"] = (_unlabelled(sources, MODELS[model]),)
    return Experiment("similarity", settings, files=files, seconds=10)


def _parts(sources: Sources, language: str) -> tuple[Path, ...]:
    """The pairs in parts, as rows of two texts and a score."""
    paths = []
    for fold, rows in enumerate(sets.folds(_pairs(sources, language, "test")), start=1):
        path = sources.folder / "pairs" / sources.origin / f"pairs.{language}.{fold}.tsv"
        paths.append(sets.write_rows(path, rows))
    return tuple(paths)


def _pairs(sources: Sources, language: str, part: str) -> list[str]:
    if sources.data is None:
        return sets.read_rows(samples.labelled("pairs", language))[1:]
    if language == "zh":
        return sets.read_rows(sources.public("zh/pairs", f"pairs/Chinese-STS-B/sts-b-{part}.txt"))
    rows = []
    for line in sets.read_rows(sources.public("en/glue", f"STS-B/original/sts-{part}.tsv")):
        # Genre, file, year, number, score, first, second; some rows have more columns.
        columns = line.split("\t")
        rows.append("\t".join((columns[5], columns[6], columns[4])))
    return rows


def _unlabelled(sources: Sources, language: str) -> Path:
    """Texts of other pairs, or the embedded essays."""
    if sources.data is None:
        return samples.prose(language)
    texts = []
    for row in sets.shuffled(_pairs(sources, language, "train")):
        texts += row.split("\t")[:2]
    return sets.write_rows(sources.folder / "pairs" / f"unlabelled.{language}.txt", texts[:UNLABELLED_TEXTS])


PAIRS = tuple(f"pairs by {model}" for model in MODELS)
UNRELATED = tuple(f"unrelated by {model}" for model in MODELS)


def _claim(better: str, worse: str, english: str, chinese: str) -> Claim:
    return Claim(better, worse, {"en": english, "zh": chinese}, PAIRS)


STUDY = Study(
    name="similarity",
    question={
        "en": "Which vector of a pre-trained model says most about the meaning of a text, without any labels?",
        "zh": "没有标注时，预训练模型的哪种向量最能反映文本的意思？",
    },
    design={
        "en": "pairs: Spearman correlation of cosines with scores that people gave, on STS-B's test pairs (without "
        "public sets: the embedded pairs) in five parts. unrelated: the median cosine of texts of different pairs. "
        "Whitening is learned from other texts; embeddings are what the model reads before any context; SimHash is "
        "the share of equal bits.",
        "zh": "pairs：余弦与人工分数的 Spearman 相关，用 STS-B 的测试句对（没有公开数据时用自带句对），分成五份。"
        "unrelated：不同句对的文本之间余弦的中位数。白化从别的文本学得；embeddings 是上下文之前的词向量；"
        "SimHash 是相同位的比例。",
    },
    cells=cells,
    claims=(
        _claim("mean", "cls", "The mean over the tokens is better than [CLS]", "词元平均优于 [CLS]"),
        _claim("first-last", "mean", "First and last layer together are better than the last", "首层加末层优于末层"),
        _claim("mean+whitened", "mean", "Whitening helps", "白化有帮助"),
        _claim("mean", "embeddings", "The last layer is better than static vectors", "末层优于静态向量"),
        _claim("mean", SIMHASH, "Vectors are better than SimHash", "向量优于 SimHash"),
        Claim(
            "mean",
            "mean+whitened",
            {
                "en": "Raw cosines of unrelated texts are higher than whitened ones",
                "zh": "不相关文本的原始余弦高于白化后的余弦",
            },
            UNRELATED,
        ),
    ),
    spread=PERCENTILES,
)
