"""Label bias on made words (Lafferty, McCallum and Pereira 2001): the MEMM against the CRF, with the same features.

Two words are read letter by letter, rib and rob, each with its own tags, r1 i b and r2 o b. After the first letter
there is only one way on, so the second letter, which tells the words apart, comes too late for a model that is
normalised at every step: it stays with the word that was more frequent in training. docs/label-bias.md works it out.
"""

import json
from pathlib import Path

from firth import rng
from firth.study import sets
from firth.study.design import Cell, Claim, Experiment, Setting, Study
from firth.study.sets import Sources

SEEDS = 5
SHARES = (50, 60, 70, 80)
"""Percent of the training words that are rib; of the test words it is half. With 90 and the noise, a word that is read
as rob would be rib as often as not."""
NUM_WORDS = 300
NOISE = 0.1
"""How often the middle letter is that of the other word."""
TAGS = ("r1", "r2", "i", "o", "b")
WAYS = {("^", "r1"), ("^", "r2"), ("r1", "i"), ("r2", "o"), ("i", "b"), ("o", "b"), ("b", "$")}
SPELLED = {"rib": ("r1", "i", "b"), "rob": ("r2", "o", "b")}
DATASET = "rib and rob"


def _forbidden() -> list[str]:
    """All pairs of tags that are no way."""
    pairs = []
    for before in ("^", *TAGS):
        for after in (*TAGS, "$"):
            if (before, after) not in WAYS and (before, after) != ("^", "$"):
                pairs.append(f"{before} {after}")
    return pairs


SETTINGS = (
    # Equal words are held out together, so holding out some would take one of the two kinds away.
    "held_out_rate=0",
    "pick=last",
    "tasks.tag.scheme=none",
    f"tasks.tag.forbidden={json.dumps(_forbidden())}",
    'templates.templates=["%x[0,unit]"]',
)


def cells(sources: Sources) -> list[Cell]:
    found = []
    for share in SHARES:
        for seed in range(1, SEEDS + 1):
            train = _words(sources, "train", share, seed)
            test = _words(sources, "test", 50, seed)
            for tagger in ("hmm", "memm", "crf"):
                settings: dict[str, Setting] = {
                    "task": "tag",
                    "seed": seed,
                    "encoder": "bag",
                    "changes": (*SETTINGS, f"tasks.tag.tagger={tagger}"),
                }
                run = Experiment("finetune", settings, files={"train": (train,), "test": (test,)}, seconds=1)
                found.append(Cell(tagger, DATASET, seed, run, x=float(share)))
    return found


def _words(sources: Sources, part: str, share: int, seed: int) -> Path:
    """A file of words, a letter and its tag on each line."""
    rows = []
    for number in range(NUM_WORDS):
        key = rng.key("label bias", part, share, seed, number)
        word = "rib" if rng.uniform(key, 0) < share / 100 else "rob"
        tags = SPELLED[word]
        letters = list(word)
        if rng.uniform(key, 1) < NOISE:
            letters[1] = "o" if word == "rib" else "i"
        lines = [f"{letter} {tag}" for letter, tag in zip(letters, tags, strict=True)]
        rows.append("\n".join(lines))
    path = sources.folder / "label-bias" / f"{part}.{share}.{seed}.conll"
    return sets.write_rows(path, rows, sets.SENTENCE)


def _claim(x: float, english: str, chinese: str) -> Claim:
    return Claim("crf", "memm", {"en": english, "zh": chinese}, x=x)


STUDY = Study(
    name="label-bias",
    question={
        "en": "Does a MEMM stay with the path that was frequent in training, whatever the text says later?",
        "zh": "MEMM 是否不顾后文证据，停留在训练中常见的路径上？",
    },
    design={
        "en": f"{NUM_WORDS} made words, rib or rob, letter by letter, the middle letter wrong in {NOISE:.0%} of them; "
        "the same features and rules for all taggers; share of right tags on as many words, half of them rob.",
        "zh": f"{NUM_WORDS} 个人造词 rib 或 rob，逐个字母读，{NOISE:.0%} 的中间字母是错的；"
        "各标注器的特征和规则相同；在同样多的词（一半是 rob）上计算标注正确率。",
    },
    cells=cells,
    claims=(
        _claim(
            80.0, "With 80 % rib in training, the CRF is better than the MEMM", "训练中 80 % 是 rib 时 CRF 优于 MEMM"
        ),
        _claim(
            60.0, "With 60 % rib in training, the CRF is better than the MEMM", "训练中 60 % 是 rib 时 CRF 优于 MEMM"
        ),
    ),
    x_label="% of the training words that are rib",
)
