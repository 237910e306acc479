"""Does each step of the lineage beat the one before? Every system at one size and number of steps, read by probes."""

from dataclasses import dataclass
from pathlib import Path

from firth.study.design import Cell, Claim, Experiment, Setting, Study
from firth.study.probe_sets import probe_files
from firth.study.probing import ALL_LAYERS
from firth.study.sets import BETWEEN, Sources

SEEDS = 5
STEPS = 600
VOCAB_SIZE = 8000
# Many small steps and short sequences: what learns soonest on a few megabytes of text.
PRETRAINING = (
    "batches.tokens=1024",
    "batches.max_length=64",
    "batches.held_out_rate=0.03",
    "train.evaluate_every=1000000",
    "train.checkpoint_every=200",
)
# For a short run of a small Transformer, found with `firth demo`.
TRANSFORMER = ("train.optim.rate=1e-3", "train.optim.beta2=0.98")
TOKENIZERS: dict[str, dict[str, str | int | bool]] = {
    "pieces": {"vocab_size": VOCAB_SIZE},
    "bpe": {"tokenizer": "bpe", "vocab_size": VOCAB_SIZE},
    "letters": {"tokenizer": "characters", "cased": True},
}
PROBES = {"public": ("pos", "entities", "order"), "embedded": ("entities", "order")}
LANGUAGES = {"public": ("en", "zh"), "embedded": ("en",)}
"""Of the embedded text, only the English part is large enough to learn from."""


@dataclass(frozen=True)
class System:
    """A recipe, and how it is used here."""

    recipe: str
    tokens: str = "pieces"
    """A name in `TOKENIZERS`; `words` for word vectors, which read the text itself."""
    seconds: float = 60.0
    """Of its pre-training."""
    steps: int = STEPS
    changes: tuple[str, ...] = ()


def _small(encoder: str) -> tuple[str, ...]:
    return (*TRANSFORMER, f"encoder.{encoder}.dropout=0", f"encoder.{encoder}.init_std=0.05")


RANDOM = "random weights"
BERT = System("bert", changes=_small("bert"))
SYSTEMS = {
    RANDOM: System("bert", steps=1, seconds=3, changes=_small("bert")),
    "word2vec": System("word2vec-sg-ns", "words", 8),
    "elmo": System("elmo", "letters", 150),
    "gpt": System("gpt", "bpe", changes=_small("gpt")),
    "bert": BERT,
    "electra": System("electra", seconds=90, changes=TRANSFORMER),
    "roberta": System("roberta", "bpe", changes=TRANSFORMER),
    "albert": System("albert", changes=TRANSFORMER),
    "glove": System("glove", "words", 8),
    "fasttext": System("fasttext-sg", "words", 12),
    "ulmfit": System("ulmfit", seconds=120),
    "spanbert": System("spanbert", changes=TRANSFORMER),
    "xlnet": System("xlnet", seconds=120, changes=TRANSFORMER),
    "unilm": System("unilm", changes=TRANSFORMER),
}
"""The documents' claim is about the first five; the others follow if there is time."""


def cells(sources: Sources) -> list[Cell]:
    found = []
    for name, system in SYSTEMS.items():
        found += probed_cells(sources, name, pretrained(system, sources.corpus))
    return found


def probed_cells(sources: Sources, name: str, start: Experiment) -> list[Cell]:
    """A pre-trained start on every set of probes."""
    found = []
    for language in LANGUAGES[sources.origin]:
        for task in PROBES[sources.origin]:
            for seed in range(1, SEEDS + 1):
                train, test = probe_files(sources, task, language, seed=seed)
                files: dict[str, tuple[Path, ...]] = {"train": (train,), "test": (test,)}
                settings: dict[str, Setting] = {"between": BETWEEN[language]}
                run = Experiment("probe", settings, files=files, needs={"model": start}, seconds=3)
                found.append(Cell(name, f"{task}-{language}", seed, run, ALL_LAYERS))
    return found


def pretrained(system: System, texts: tuple[Path, ...]) -> Experiment:
    """The run of a system's pre-training."""
    if system.tokens == "words":
        settings: dict[str, Setting] = {"recipe": system.recipe, "min_count": 2}
        return Experiment("pretrain", settings, files={"texts": texts}, seconds=system.seconds)
    shards = Experiment("prepare", TOKENIZERS[system.tokens], files={"texts": texts}, seconds=6)
    settings = {
        "recipe": system.recipe,
        "size": "tiny",
        "steps": system.steps,
        "changes": (*PRETRAINING, *system.changes),
    }
    return Experiment("pretrain", settings, needs={"data": shards}, seconds=system.seconds)


def _claim(better: str, worse: str) -> Claim:
    return Claim(better, worse, {"en": f"{better} is better than {worse}", "zh": f"{better} 优于 {worse}"})


STUDY = Study(
    name="lineage",
    question={
        "en": "Does each step of the lineage, from word vectors to BERT, know more than the one before it after the "
        "same number of steps?",
        "zh": "训练步数相同时，从词向量到 BERT，每一步都比前一步知道得更多吗？",
    },
    design={
        "en": f"Every network is pre-trained once, for {STEPS} steps of 1,024 tokens at the size tiny (word vectors: "
        "their usual passes), then stays as it is; a linear layer over all its layers reads words of labelled "
        "sentences. pos: part of speech; entities: type of entity; order: was the word exchanged with its right "
        "neighbour (half by chance)? Each seed draws other sentences, not another pre-training.",
        "zh": f"每个网络预训练一次，{STEPS} 步，每步 1,024 个词元，规模为 tiny（词向量用通常的遍数），之后保持不变；"
        "线性层读取其所有层，标注句子中的词。pos：词性；entities：实体类型；order：该词是否与右边的词交换过"
        "（随机为一半）。种子只改变抽取的句子，不改变预训练。",
    },
    cells=cells,
    claims=(
        _claim("word2vec", RANDOM),
        _claim("elmo", "word2vec"),
        _claim("gpt", "elmo"),
        _claim("bert", "gpt"),
        _claim("bert", RANDOM),
    ),
    score="accuracy",
)
