"""Chains of labels: HMM, MEMM, CRF and a pre-trained encoder, by the amount of training text.

With public sets: Chinese words (PKU: People's Daily as training text; SXU) and English entities (CoNLL-2003), from
samples of the training sentences. Without: entities in the embedded sentences.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from firth.starts import FEW_ROWS
from firth.study import sets
from firth.study.design import Cell, Claim, Experiment, Setting, Study
from firth.study.sets import Sources

SEEDS = 5
TEST_SENTENCES = 300
CHAINS = ("hmm", "memm", "crf")
ENCODER = "bert"
ENCODER_CRF = "bert + crf"
ENCODER_SETTINGS = (*FEW_ROWS, "batch_size=4", "epochs=3")


@dataclass(frozen=True)
class TaggedSet:
    """A set of tagged sentences."""

    model: str
    """The pre-trained encoder for its language."""
    files: Callable[[Sources], tuple[Path, Path]]
    """The training and the test file."""
    separator: str = sets.SENTENCE
    changes: tuple[str, ...] = ()
    """How the files are read."""
    seconds: float = 0.1
    """Of the encoder on a training sentence."""


def _pku(sources: Sources) -> tuple[Path, Path]:
    train = sources.public("zh/pd199801", "pd199801/199801.txt")
    return train, sources.public("zh/icwb2", "icwb2/gold/pku_test_gold.utf8")


def _sxu(sources: Sources) -> tuple[Path, Path]:
    return sources.public("zh/cws_sxu", "sxu/train.txt"), sources.public("zh/cws_sxu", "sxu/test.txt")


def _conll(sources: Sources) -> tuple[Path, Path]:
    train = sources.public("en/conll2003", "ner/conll2003/eng.train")
    return train, sources.public("en/conll2003", "ner/conll2003/eng.testb")


WORDS = ("tasks.tag.format=words",)
PUBLIC = {
    "conll": TaggedSet("en-small", _conll, changes=("tasks.tag.repair=true",)),
    "sxu": TaggedSet("zh-small", _sxu, sets.LINE, WORDS, seconds=0.2),
    "pku": TaggedSet("zh-small", _pku, sets.LINE, (*WORDS, "tasks.tag.drop_tags=true"), seconds=0.3),
}
EMBEDDED = {
    "entities-en": TaggedSet("en-small", lambda sources: sources.labelled("entities-en")),
    "entities-zh": TaggedSet("zh-small", lambda sources: sources.labelled("entities-zh")),
}


def cells(sources: Sources) -> list[Cell]:
    if sources.data is None:
        return _cells(sources, EMBEDDED, (10.0, 30.0, 100.0), encoder_shares=(10.0, 100.0))
    return _cells(sources, PUBLIC, (1.0, 3.0, 10.0, 30.0), encoder_shares=(1.0, 3.0))


def _cells(
    sources: Sources, tagged_sets: dict[str, TaggedSet], shares: tuple[float, ...], *, encoder_shares: tuple[float, ...]
) -> list[Cell]:
    """Shares are percent of the training sentences; an encoder takes too long on large ones."""
    found = []
    for name, tagged in tagged_sets.items():
        train, test = tagged.files(sources)
        num_sentences = len(sets.read_rows(train, tagged.separator))
        # The sentences to test on are the same for all.
        test = sources.sample(test, TEST_SENTENCES, seed=0, separator=tagged.separator)
        for share in shares:
            systems: tuple[str, ...] = CHAINS
            if share in encoder_shares:
                systems = (*CHAINS, ENCODER, ENCODER_CRF)
            count = max(1, round(num_sentences * share / 100))
            for seed in range(1, SEEDS + 1):
                part = sources.sample(train, count, seed=seed, separator=tagged.separator)
                for system in systems:
                    run = _run(tagged, system, part, test, count=count, seed=seed)
                    found.append(Cell(system, name, seed, run, x=share))
    return found


def _run(tagged: TaggedSet, system: str, train: Path, test: Path, *, count: int, seed: int) -> Experiment:
    files: dict[str, tuple[Path, ...]] = {"train": (train,), "test": (test,)}
    settings: dict[str, Setting] = {"task": "tag", "seed": seed}
    if system in CHAINS:
        settings["encoder"] = "bag"
        settings["changes"] = (*FEW_ROWS, *tagged.changes, f"tasks.tag.tagger={system}")
        return Experiment("finetune", settings, files=files, seconds=2 + 0.012 * count)
    tagger = "crf" if system == ENCODER_CRF else "softmax"
    settings["model"] = tagged.model
    settings["changes"] = (*ENCODER_SETTINGS, *tagged.changes, f"tasks.tag.tagger={tagger}")
    files["weights"] = sets.weights(tagged.model)
    return Experiment("finetune", settings, files=files, seconds=5 + tagged.seconds * count)


def _claims(small: float, large: float, datasets: tuple[str, ...]) -> tuple[Claim, ...]:
    """The claims with little text, and what an encoder is worth in text."""
    few = f"{small:g} %"
    many = f"{large:g} %"

    def claim(better: str, worse: str, english: str, chinese: str, worse_x: float = small) -> Claim:
        return Claim(better, worse, {"en": english, "zh": chinese}, datasets, x=small, worse_x=worse_x)

    return (
        claim("memm", "hmm", f"With {few} of the text, a MEMM is better than an HMM", f"{few} 文本时 MEMM 优于 HMM"),
        claim("crf", "memm", f"With {few} of the text, a CRF is better than a MEMM", f"{few} 文本时 CRF 优于 MEMM"),
        claim(ENCODER, "crf", f"With {few} of the text, BERT is better than a CRF", f"{few} 文本时 BERT 优于 CRF"),
        claim(
            ENCODER,
            "crf",
            f"BERT with {few} of the text is better than a CRF with {many}",
            f"BERT 用 {few} 的文本优于 CRF 用 {many} 的文本",
            large,
        ),
        claim(ENCODER_CRF, ENCODER, f"With {few}, a CRF on top of BERT helps", f"{few} 文本时 BERT 上加 CRF 有帮助"),
    )


STUDY = Study(
    name="chains",
    question={
        "en": "HMM, MEMM, CRF, BERT: in which order, and what is a pre-trained encoder worth in training text?",
        "zh": "HMM、MEMM、CRF、BERT：顺序如何？预训练编码器相当于多少训练文本？",
    },
    design={
        "en": "Samples of the training sentences, a new one for each seed and the same for all systems; F1 of entities "
        f"or words on {TEST_SENTENCES} test sentences. HMM, MEMM and CRF read hand-written features; BERT is en-small "
        "or zh-small, fine-tuned.",
        "zh": f"从训练句子中抽样，每个种子抽一次，各系统用同样的句子；在 {TEST_SENTENCES} 个测试句上计算实体或词的 F1。"
        "HMM、MEMM、CRF 用手写特征；BERT 是微调后的 en-small 或 zh-small。",
    },
    cells=cells,
    claims=(*_claims(1.0, 10.0, tuple(PUBLIC)), *_claims(10.0, 100.0, tuple(EMBEDDED))),
    x_label="% of the training sentences",
    log_x=True,
)
