"""Chains of labels: HMM, MEMM, CRF and a pre-trained encoder, by the amount of training text.

Without public sets: entities in the embedded sentences, by cross-validation. With them also Chinese words (PKU:
People's Daily as training text; SXU) and English entities (CoNLL-2003). Every seed has its own sample of the training
sentences and its own part of the test sentences, so that chance is seen even where all sentences are used.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from firth import samples
from firth.study import sets
from firth.study.design import Cell, Claim, Experiment, Setting, Study
from firth.study.sets import Sources

SEEDS = sets.FOLDS
CHAINS = ("hmm", "memm", "crf")
ENCODER = "bert"
ENCODER_CRF = "bert + crf"
ENCODERS = (ENCODER, ENCODER_CRF)
ENCODER_TURN = 2
"""After all chains: a fine-tuned encoder takes ten times as long."""
ALL = 100.0
"""Percent of the training sentences."""
# Nothing is picked on the sentences that are held out.
SETTINGS = ("held_out_rate=0.01", "pick=last", "train.checkpoint_every=1000000")
ENCODER_SETTINGS = (*SETTINGS, "batch_size=4", "epochs=3")


@dataclass(frozen=True)
class TaggedSet:
    """A set of tagged sentences."""

    model: str
    """The pre-trained encoder for its language."""
    files: Callable[[Sources], tuple[Path, Path | None]]
    """The training and the test file; without one, each part of the training file is tested on by the others."""
    separator: str = sets.SENTENCE
    changes: tuple[str, ...] = ()
    """How the files are read."""
    chain_seconds: float = 0.01
    """Of a chain on a training sentence, about."""
    encoder_seconds: float = 0.1
    """Of the encoder on a training sentence."""
    turn: int = 0
    """That of its chains."""


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
    "sxu": TaggedSet("zh-small", _sxu, sets.LINE, WORDS, encoder_seconds=0.2, turn=1),
    "pku": TaggedSet("zh-small", _pku, sets.LINE, (*WORDS, "tasks.tag.drop_tags=true"), encoder_seconds=0.3),
}
PUBLIC_SHARES = (1.0, 3.0, 10.0, 30.0, ALL)
EMBEDDED = {
    "entities-en": TaggedSet("en-small", lambda sources: (samples.labelled("entities", "en"), None)),
    "entities-zh": TaggedSet("zh-small", lambda sources: (samples.labelled("entities", "zh"), None)),
}
# A tenth of them lacks some of the tags.
EMBEDDED_SHARES = (20.0, 50.0, ALL)


def cells(sources: Sources) -> list[Cell]:
    found = _cells(sources, EMBEDDED, EMBEDDED_SHARES)
    if sources.data is not None:
        found += _cells(sources, PUBLIC, PUBLIC_SHARES)
    return found


def _cells(sources: Sources, tagged_sets: Mapping[str, TaggedSet], shares: tuple[float, ...]) -> list[Cell]:
    found = []
    for name, tagged in tagged_sets.items():
        for share in shares:
            draws = _draws(sources, tagged, share)
            learns_once = len({drawn.train for drawn in draws}) == 1
            for drawn in draws:
                for system in CHAINS:
                    if learns_once:
                        run = _measured(_chain(tagged, system, draws[0]), drawn.test)
                    else:
                        run = _chain(tagged, system, drawn)
                    found.append(Cell(system, name, drawn.seed, run, x=share, turn=tagged.turn))
                for system in ENCODERS:
                    run = _encoder(tagged, system, drawn)
                    found.append(Cell(system, name, drawn.seed, run, x=share, turn=ENCODER_TURN))
    return found


@dataclass(frozen=True)
class Drawn:
    """What a seed learns from and is scored on."""

    seed: int
    train: Path
    count: int
    """Of the training sentences."""
    test: Path


def _draws(sources: Sources, tagged: TaggedSet, share: float) -> list[Drawn]:
    """The sentences of every seed."""
    train, test = tagged.files(sources)
    found = []
    for seed, (own_test, others) in enumerate(sources.parts(test or train, tagged.separator), start=1):
        learned = train if test else others
        count = max(1, round(len(sets.read_rows(learned, tagged.separator)) * share / 100))
        # There is one sample of all sentences of a file.
        sampled_by = 1 if share == ALL else seed
        sample = sources.sample(learned, count, seed=sampled_by, separator=tagged.separator)
        found.append(Drawn(seed, sample, count, own_test))
    return found


def _chain(tagged: TaggedSet, system: str, drawn: Drawn) -> Experiment:
    """A chain over hand-written features: only its sentences depend on the seed."""
    changes = (*SETTINGS, f"tasks.tag.tagger={system}")
    seconds = 4 + tagged.chain_seconds * drawn.count
    return _finetuned({"encoder": "bag", "seed": 1}, changes, tagged, drawn, seconds=seconds)


def _measured(trained: Experiment, test: Path) -> Experiment:
    """A run on other test sentences than its own."""
    return Experiment("evaluate", files={"data": (test,)}, needs={"model": trained}, seconds=2)


def _encoder(tagged: TaggedSet, system: str, drawn: Drawn) -> Experiment:
    tagger = "crf" if system == ENCODER_CRF else "softmax"
    changes = (*ENCODER_SETTINGS, f"tasks.tag.tagger={tagger}")
    seconds = 5 + tagged.encoder_seconds * drawn.count
    start: dict[str, Setting] = {"model": tagged.model, "seed": drawn.seed}
    weights = {"weights": sets.weights(tagged.model)}
    return _finetuned(start, changes, tagged, drawn, files=weights, seconds=seconds)


def _finetuned(
    start: Mapping[str, Setting],
    changes: tuple[str, ...],
    tagged: TaggedSet,
    drawn: Drawn,
    *,
    seconds: float,
    files: Mapping[str, tuple[Path, ...]] | None = None,
) -> Experiment:
    """A tagger that learns from the sentences of a seed."""
    settings = {"task": "tag", "changes": (*changes, *tagged.changes), **start}
    all_files = {"train": (drawn.train,), "test": (drawn.test,), **(files or {})}
    return Experiment("finetune", settings, files=all_files, seconds=seconds)


def _claims(small: float, large: float, datasets: tuple[str, ...]) -> tuple[Claim, ...]:
    """The order of the taggers with little text, and how much text a pre-trained encoder replaces."""
    few = f"{small:g} %"
    many = f"{large:g} %"

    def claim(better: str, worse: str, english: str, chinese: str, *, worse_x: float | None = None) -> Claim:
        return Claim(better, worse, {"en": english, "zh": chinese}, datasets, x=small, worse_x=worse_x)

    return (
        claim("memm", "hmm", f"With {few} of the text, MEMM is better than HMM", f"{few} 文本时 MEMM 优于 HMM"),
        claim("crf", "memm", f"With {few} of the text, CRF is better than MEMM", f"{few} 文本时 CRF 优于 MEMM"),
        claim(ENCODER, "crf", f"With {few} of the text, BERT is better than CRF", f"{few} 文本时 BERT 优于 CRF"),
        claim(
            ENCODER,
            "crf",
            f"BERT with {few} of the text is better than CRF with {many}",
            f"BERT 用 {few} 的文本优于 CRF 用 {many} 的文本",
            worse_x=large,
        ),
        claim(ENCODER_CRF, ENCODER, f"With {few}, a CRF on top of BERT helps", f"{few} 文本时 BERT 上加 CRF 有帮助"),
    )


def _claim_with_all(better: str, worse: str) -> Claim:
    names = (better.upper(), worse.upper())
    english = "With all the text, {} is better than {}".format(*names)
    chinese = "全部文本时 {} 优于 {}".format(*names)
    return Claim(better, worse, {"en": english, "zh": chinese}, x=ALL)


STUDY = Study(
    name="chains",
    question={
        "en": "HMM, MEMM, CRF, BERT: in which order, and what is a pre-trained encoder worth in training text?",
        "zh": "HMM、MEMM、CRF、BERT：顺序如何？预训练编码器相当于多少训练文本？",
    },
    design={
        "en": "F1 of entities (entities-en and entities-zh: embedded sentences; conll: CoNLL-2003) and of words (pku: "
        "People's Daily as training text, SIGHAN 2005 PKU as test; sxu). Each seed draws other training sentences, "
        f"which all systems share, and has its own one of {sets.FOLDS} parts of the test sentences (embedded: "
        "cross-validation). With 100 % of a public set all seeds learn from the same sentences, so the ranges of HMM, "
        "MEMM and CRF are those of the test sentences alone. These three read features written by hand, and nothing is "
        "tuned. BERT is en-small or zh-small, fine-tuned; its runs come last.",
        "zh": "实体的 F1（entities-en 和 entities-zh：自带句子；conll：CoNLL-2003）和词的 F1"
        "（pku：以人民日报为训练文本，在 SIGHAN 2005 PKU 上测试；sxu）。每个种子抽取不同的训练句子，各系统相同；"
        f"测试句子分成 {sets.FOLDS} 份，每个种子一份（自带句子：交叉验证）。"
        "用公开数据的 100 % 时，各种子的训练句子相同，HMM、MEMM、CRF 的区间只反映测试句子。这三者用手写特征，没有调参；"
        "BERT 是微调后的 en-small 或 zh-small，最后运行。",
    },
    cells=cells,
    claims=(
        _claim_with_all("memm", "hmm"),
        _claim_with_all("crf", "memm"),
        *_claims(1.0, 10.0, tuple(PUBLIC)),
        *_claims(20.0, ALL, tuple(EMBEDDED)),
    ),
    x_label="% of the training sentences",
    log_x=True,
)
