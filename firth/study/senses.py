"""Words with two senses: does the state of the word in its context tell them apart, where a static vector cannot?"""

from firth import samples
from firth.study import sets
from firth.study.design import Cell, Claim, Experiment, Study
from firth.study.sets import MODELS, Sources, num_layers

WORDS = {
    "en": {"bank": "bank", "bat": "bat", "seal": "seal"},
    "zh": {"苹果": "pingguo", "包袱": "baofu", "杜鹃": "dujuan"},
}
"""Words with two senses, and their files."""
DATASET = "six words"
STATIC = "word and place (layer 0)"
CONTEXT = "static vectors of the line"
MIDDLE = "middle layer"
LAST = "last layer"


def cells(sources: Sources) -> list[Cell]:
    """Every way on every word; the words take the place of seeds."""
    del sources
    found = []
    seed = 0
    for language, words in WORDS.items():
        lines = tuple(samples.senses(name) for name in words.values())
        files = {"lines": lines, "weights": sets.weights(MODELS[language])}
        run = Experiment("senses", {"model": MODELS[language], "words": tuple(words)}, files=files, seconds=10)
        figures = _figures(MODELS[language])
        for number in range(1, len(words) + 1):
            seed += 1
            for system, figure in figures.items():
                found.append(Cell(system, DATASET, seed, run, f"{figure}_{number}"))
    return found


def _figures(model: str) -> dict[str, str]:
    """What is compared, and its figure."""
    last = num_layers(model)
    return {STATIC: "layer_0", MIDDLE: f"layer_{last // 2}", LAST: f"layer_{last}", CONTEXT: "context"}


def _claim(better: str, worse: str, english: str, chinese: str) -> Claim:
    return Claim(better, worse, {"en": english, "zh": chinese})


STUDY = Study(
    name="senses",
    question={
        "en": "Does a word's state in its context tell its senses apart, where a static vector cannot?",
        "zh": "词在上下文中的状态能否区分词义，而静态向量不能？",
    },
    design={
        "en": "Six words with two senses (bank, bat, seal, 苹果, 包袱, 杜鹃), 16 to 21 sentences each: the share of "
        "occurrences whose most similar other occurrence has the same sense, half by chance. The words take the place "
        "of seeds; en-small and zh-small.",
        "zh": "六个有两种意思的词（bank、bat、seal、苹果、包袱、杜鹃），每个 16 到 21 句："
        "最相似的另一处意思相同的比例，随机为一半。以词代替种子；模型为 en-small 和 zh-small。",
    },
    cells=cells,
    claims=(
        _claim(LAST, STATIC, "The last layer tells senses apart better than the input", "最后一层比输入更能区分词义"),
        _claim(MIDDLE, STATIC, "The middle layer does so, too", "中间层也是如此"),
        _claim(
            LAST, CONTEXT, "It does so better than static vectors of all words of the line", "优于整句静态向量的平均"
        ),
    ),
    score="share with the same sense",
)
