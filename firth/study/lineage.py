"""Does each step of the lineage beat the one before? Every system at one size and number of steps, then tasks."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from firth.starts import CLASSIC, FEW_ROWS
from firth.study import sets
from firth.study.design import Cell, Claim, Experiment, Setting, Study

SEEDS = 3
STEPS = 300
DATASETS = ("classify-en", "entities-zh", "classify-zh", "entities-en")
TASK_OF = {"classify": "classify", "entities": "tag"}
VOCAB_SIZE = 6000
# Many small steps and short sequences: what learns soonest on one megabyte of text.
PRETRAINING = (
    "batches.tokens=1024",
    "batches.max_length=64",
    "batches.held_out_rate=0.03",
    "train.evaluate_every=1000000",
    "train.checkpoint_every=1000000",
)
FINE_TUNING = {
    "classify": (*FEW_ROWS, "batch_size=8", "epochs=6"),
    "tag": (*FEW_ROWS, "batch_size=8", "epochs=8"),
}
TOKENIZERS: dict[str, dict[str, str | int | bool]] = {
    "pieces": {"vocab_size": VOCAB_SIZE},
    "bpe": {"tokenizer": "bpe", "vocab_size": VOCAB_SIZE},
    "letters": {"tokenizer": "characters", "cased": True},
}


@dataclass(frozen=True)
class System:
    """A recipe, and how it is used here."""

    recipe: str
    tokens: str = "pieces"
    """A name in `TOKENIZERS`; `words` for word vectors, which read the text itself."""
    seconds: float = 15.0
    """Of its pre-training."""


CORE = {
    "tf-idf": System("tf-idf", "words", 2),
    "word2vec": System("word2vec-sg-ns", "words", 5),
    "elmo": System("elmo", "letters", 40),
    "gpt": System("gpt", "bpe"),
    "bert": System("bert"),
}
"""The claim of the documents is about these."""
OTHERS = {
    "electra": System("electra", seconds=20),
    "roberta": System("roberta", "bpe"),
    "ulmfit": System("ulmfit", seconds=30),
    "glove": System("glove", "words", 5),
    "fasttext": System("fasttext-sg", "words", 8),
    "lsa": System("lsa", "words", 2),
    "spanbert": System("spanbert"),
    "albert": System("albert"),
    "xlnet": System("xlnet", seconds=30),
    "unilm": System("unilm"),
    "t5": System("t5", seconds=20),
    "bart": System("bart", "bpe", 20),
}
COUNTED = ("tf-idf", "lsa")
"""Systems that describe whole texts and not tokens, so they cannot tag."""


def cells(folder: Path) -> list[Cell]:
    """The core on two sets with all seeds, then the same of the others, then the other two sets."""
    texts = sets.corpus(folder)
    found = []
    for datasets in (DATASETS[:2], DATASETS[2:]):
        for systems in (CORE, OTHERS):
            found += _block(folder, texts, systems, datasets)
    return found


def _block(folder: Path, texts: tuple[Path, ...], systems: dict[str, System], datasets: Iterable[str]) -> list[Cell]:
    found = []
    for seed in range(1, SEEDS + 1):
        for dataset in datasets:
            if systems is CORE:
                found.append(Cell("random weights", dataset, seed, random_weights(folder, texts, dataset, seed)))
            for name, system in systems.items():
                is_tagged = dataset.startswith("entities")
                if is_tagged and name in COUNTED:
                    continue
                start = pretrained(system, texts)
                found.append(Cell(name, dataset, seed, finetuned(folder, start, name, dataset, seed)))
    return found


def pretrained(system: System, texts: tuple[Path, ...], changes: tuple[str, ...] = ()) -> Experiment:
    """The run of a system's pre-training."""
    if system.tokens == "words":
        settings: dict[str, Setting] = {"recipe": system.recipe, "min_count": 2}
        return Experiment("pretrain", settings, files={"texts": texts}, seconds=system.seconds)
    return Experiment(
        "pretrain",
        {"recipe": system.recipe, "size": "tiny", "steps": STEPS, "changes": (*PRETRAINING, *changes)},
        needs={"data": shards(system.tokens, texts)},
        seconds=system.seconds,
    )


def shards(tokens: str, texts: tuple[Path, ...]) -> Experiment:
    return Experiment("prepare", TOKENIZERS[tokens], files={"texts": texts}, seconds=6)


def finetuned(folder: Path, start: Experiment, name: str, dataset: str, seed: int) -> Experiment:
    """The run that learns a set from a pre-trained start."""
    train, test = sets.labelled(folder, dataset)
    task = TASK_OF[dataset.partition("-")[0]]
    changes = CLASSIC["classify"] if name in COUNTED else FINE_TUNING[task]
    return Experiment(
        "finetune",
        {"task": task, "seed": seed, "changes": changes},
        files={"train": (train,), "test": (test,)},
        needs={"model": start},
        seconds=8,
    )


def random_weights(folder: Path, texts: tuple[Path, ...], dataset: str, seed: int) -> Experiment:
    """BERT's shape from random weights."""
    train, test = sets.labelled(folder, dataset)
    task = TASK_OF[dataset.partition("-")[0]]
    return Experiment(
        "finetune",
        {"task": task, "seed": seed, "random": True, "changes": FINE_TUNING[task]},
        files={"train": (train,), "test": (test,)},
        needs={"model": pretrained(CORE["bert"], texts)},
        seconds=8,
    )


def _claim(better: str, worse: str) -> Claim:
    return Claim(better, worse, {"en": f"{better} is better than {worse}", "zh": f"{better} 优于 {worse}"})


STUDY = Study(
    name="lineage",
    question={
        "en": "Does each step of the lineage, from word counts to BERT, beat the one before it at an equal budget?",
        "zh": "在相同的预算下，从词频到 BERT，每一步都比前一步好吗？",
    },
    design={
        "en": f"Every system is pre-trained on the embedded text of both languages for {STEPS} steps of 1,024 tokens "
        "at the size tiny (word vectors and counts: their usual passes), then fine-tuned on embedded rows.",
        "zh": f"每个系统都用自带的中英文文本预训练 {STEPS} 步，每步 1,024 个词元，"
        "规模为 tiny（词向量和词频用各自通常的遍数），再用自带的标注行微调。",
    },
    cells=cells,
    claims=(
        _claim("word2vec", "tf-idf"),
        _claim("elmo", "word2vec"),
        _claim("gpt", "elmo"),
        _claim("bert", "gpt"),
        _claim("bert", "random weights"),
        _claim("electra", "bert"),
        _claim("roberta", "bert"),
        _claim("bert", "ulmfit"),
    ),
)
