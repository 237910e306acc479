"""Does each step of the lineage beat the one before? Every system at one size and number of steps, read by probes.

A seed is a pre-training of its own and a sample of the probed sentences of its own, so the intervals hold both kinds
of chance. All systems read the text with its capitals: they are much of what tells a name from another word.
"""

from dataclasses import dataclass
from pathlib import Path

from firth.study.design import Cell, Claim, Experiment, Sentences, Setting, Study
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
    "pieces": {"vocab_size": VOCAB_SIZE, "cased": True},
    "bpe": {"tokenizer": "bpe", "vocab_size": VOCAB_SIZE, "cased": True},
    "letters": {"tokenizer": "characters", "cased": True},
}
WORD_VECTORS = ("words", "subwords")
"""Tokenizers of word vectors, which read the text itself."""
PROBES = {"public": ("pos", "entities", "order"), "embedded": ("entities", "order")}
LANGUAGES = {"public": ("en", "zh"), "embedded": ("en",)}
"""Of the embedded text, only the English part is large enough to learn from."""


@dataclass(frozen=True)
class System:
    """A recipe, and how it is used here."""

    recipe: str
    tokens: str = "pieces"
    """A name in `TOKENIZERS` or `WORD_VECTORS`."""
    seconds: float = 30.0
    """Of its pre-training."""
    steps: int = STEPS
    changes: tuple[str, ...] = ()
    turn: int = 0
    """Systems of a lower turn are run first."""


def _small(encoder: str) -> tuple[str, ...]:
    return (*TRANSFORMER, f"encoder.{encoder}.dropout=0", f"encoder.{encoder}.init_std=0.05")


RANDOM = "random weights"
BERT = System("bert", changes=_small("bert"))
SYSTEMS = {
    RANDOM: System("bert", steps=1, seconds=3, changes=_small("bert")),
    "word2vec": System("word2vec-sg-ns", "words", 5),
    "gpt": System("gpt", "bpe", changes=_small("gpt")),
    "bert": BERT,
    # Its network over the letters of words takes seven times as long.
    "elmo": System("elmo", "letters", 200, turn=1),
    "electra": System("electra", changes=TRANSFORMER, turn=2),
    "roberta": System("roberta", "bpe", changes=TRANSFORMER, turn=2),
    "albert": System("albert", changes=TRANSFORMER, turn=2),
    "glove": System("glove", "words", 5, turn=2),
    "fasttext": System("fasttext", "subwords", 30, turn=2),
    "ulmfit": System("ulmfit", seconds=60, turn=2),
    "spanbert": System("spanbert", changes=TRANSFORMER, turn=2),
    "xlnet": System("xlnet", seconds=60, changes=TRANSFORMER, turn=2),
    "unilm": System("unilm", changes=TRANSFORMER, turn=2),
}
"""The claim is about the first five. Those that are pre-trained soonest come first, so that ten minutes decide
something; the others follow if there is time."""
DESCRIBED: dict[str, Sentences] = {
    RANDOM: {
        "en": "BERT's network before it has learned; what a probe reads here, it reads off the letters and places",
        "zh": "未经训练的 BERT 网络；探针在此读到的只是词形和位置",
    },
    "word2vec": {"en": "one vector for each word, whatever stands beside it", "zh": "每个词一个向量，与上下文无关"},
    "gpt": {
        "en": "a Transformer that reads from left to right and learns from every token, over byte pairs",
        "zh": "从左到右阅读、从每个词元学习的 Transformer，使用字节对",
    },
    "bert": {
        "en": "a Transformer that reads in both directions and learns from the 15 % of tokens that are masked, over "
        "word pieces",
        "zh": "双向阅读的 Transformer，从被遮盖的 15 % 词元中学习，使用词片",
    },
    "elmo": {"en": "two LSTMs over letters, one in each direction", "zh": "两个方向各一个基于字符的 LSTM"},
    "electra": {"en": "learns which tokens were replaced by a smaller model", "zh": "学习哪些词元被小模型替换过"},
    "roberta": {"en": "BERT without sentence pairs, over byte pairs", "zh": "没有句对的 BERT，使用字节对"},
    "albert": {"en": "BERT whose layers share their weights", "zh": "各层共享权重的 BERT"},
    "glove": {"en": "word vectors from counts of neighbours", "zh": "由邻词计数得到的词向量"},
    "fasttext": {"en": "word vectors summed over parts of words", "zh": "由词的片段相加得到的词向量"},
    "ulmfit": {"en": "an LSTM that reads from left to right", "zh": "从左到右阅读的 LSTM"},
    "spanbert": {"en": "BERT with whole spans masked", "zh": "遮盖连续片段的 BERT"},
    "xlnet": {"en": "predicts tokens in a random order", "zh": "按随机顺序预测词元"},
    "unilm": {"en": "one Transformer with three kinds of masks", "zh": "一个 Transformer，三种遮盖方式"},
}


def cells(sources: Sources) -> list[Cell]:
    found = []
    for name, system in SYSTEMS.items():
        found += probed_cells(sources, name, system)
    return found


def probed_cells(sources: Sources, name: str, system: System) -> list[Cell]:
    """A system, pre-trained by every seed, on every set of probes."""
    found = []
    for seed in range(1, SEEDS + 1):
        start = pretrained(system, sources.corpus, seed=seed)
        for language in LANGUAGES[sources.origin]:
            for task in PROBES[sources.origin]:
                train, test = probe_files(sources, task, language, seed=seed)
                files: dict[str, tuple[Path, ...]] = {"train": (train,), "test": (test,)}
                settings: dict[str, Setting] = {"between": BETWEEN[language]}
                run = Experiment("probe", settings, files=files, needs={"model": start}, seconds=1)
                found.append(Cell(name, f"{task}-{language}", seed, run, ALL_LAYERS, turn=system.turn))
    return found


def pretrained(system: System, texts: tuple[Path, ...], *, seed: int = 1) -> Experiment:
    """The run of a system's pre-training."""
    if system.tokens in WORD_VECTORS:
        changes = (f"tokenizer.{system.tokens}.lowercase=false", f"train.seed={seed}")
        settings: dict[str, Setting] = {"recipe": system.recipe, "min_count": 2, "changes": changes}
        return Experiment("pretrain", settings, files={"texts": texts}, seconds=system.seconds)
    shards = Experiment("prepare", TOKENIZERS[system.tokens], files={"texts": texts}, seconds=2)
    settings = {
        "recipe": system.recipe,
        "size": "tiny",
        "steps": system.steps,
        "changes": (*PRETRAINING, *system.changes, f"train.seed={seed}"),
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
        "en": f"Every network is pre-trained for {STEPS} steps of 1,024 tokens at the size tiny (word vectors: their "
        "usual passes), then stays as it is; a linear layer over all its layers reads words of labelled sentences. "
        "pos: part of speech; entities: type of entity, or none (half of the words); order: was the word exchanged "
        "with its right neighbour (half by chance)? Each seed is another pre-training and draws other sentences.",
        "zh": f"每个网络预训练 {STEPS} 步，每步 1,024 个词元，规模为 tiny（词向量用通常的遍数），之后保持不变；"
        "线性层读取其所有层，标注句子中的词。pos：词性；entities：实体类型或非实体（占一半）；order：该词是否与右边的词"
        "交换过（随机为一半）。每个种子是另一次预训练，并抽取不同的句子。",
    },
    cells=cells,
    claims=(
        _claim("word2vec", RANDOM),
        _claim("elmo", "word2vec"),
        _claim("gpt", "word2vec"),
        _claim("gpt", "elmo"),
        _claim("bert", "gpt"),
        _claim("bert", RANDOM),
    ),
    score="accuracy",
    systems=DESCRIBED,
)
