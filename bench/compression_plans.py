"""What the compression benches make: the data sets with their budgets, and the plans, one for each row of the table.

A plan is a start and some steps. A step is a method of `firth compress`, or `finetune`. Every distillation names the
plan of the same student without a teacher, with the same rows and epochs: `against`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bench.texts import unpacked
from firth import rng
from firth.config import from_dict
from firth.finetuning import labelled
from firth.tasks import resolve

ORIGINAL = "original"
"""The plan of the fine-tuned model itself."""
FINETUNE = "finetune"


@dataclass(frozen=True)
class DataSet:
    """Where the rows of a set are, and how long a model learns from them."""

    archive: str
    train: str
    test: str
    preset: str = ""
    language: str = "en"
    num_rows: int = 0
    """Rows to learn from; 0: all of the file."""
    epochs: float = 3.0
    batch_size: int = 32
    max_length: int = 128


SETS = {
    "sst-2": DataSet(
        "en/glue.tar.xz", "SST-2/train.tsv", "SST-2/dev.tsv", "sst-2", num_rows=24_000, epochs=1.0, batch_size=64
    ),
    "mrpc": DataSet("en/glue.tar.xz", "MRPC/msr_paraphrase_train.txt", "MRPC/msr_paraphrase_test.txt", "mrpc"),
    "chnsenticorp": DataSet(
        "zh/chnsenticorp.tar.xz", "chnsenticorp/train.tsv", "chnsenticorp/test.tsv", language="zh", epochs=2.0
    ),
}
ORIGINAL_EPOCHS = 2
"""The original learns so many times as long as what is made of it."""
MOST_PICKED = 1000
"""Rows to choose strengths on."""
UNLABELLED = 3
"""Texts that only a teacher labels, as a multiple of the rows to learn from."""
MOST_TEXTS = 4000
"""Lines of the plain text that general methods learn from."""


@dataclass(frozen=True)
class Step:
    """A method with its settings. In them {before} is the folder of the step before, {others} the other originals,
    {unlabelled} the file of texts that only a teacher labels, and {long} a number of epochs: as many steps as those of
    a student that also reads these texts."""

    by: str
    changes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Plan:
    """One row of the table."""

    name: str
    steps: tuple[Step, ...]
    against: str = ""
    """The plan of the same student without a teacher."""
    start: Literal["tuned", "pretrained"] = "tuned"
    """The fine-tuned original, or what it was fine-tuned from."""

    @property
    def trains(self) -> bool:
        from firth import compression

        return any(step.by == FINETUNE or compression.resolve(step.by).trains for step in self.steps)

    @property
    def needs_all_originals(self) -> bool:
        return any("{others}" in change for step in self.steps for change in step.changes)


ALONE = ("soft_weight=0", "label_weight=1")
"""Distillation without a teacher."""
HALF_FFN = Step("ffn", ("remove=0.5", "max_rows=400"))
SPREAD = Step("layers", ("which=spread",))

TRAINED = (
    Plan("half the layers, no teacher", (Step("distil", ALONE),)),
    Plan("distil, half the layers", (Step("distil"),), against="half the layers, no teacher"),
    Plan("pkd, half the layers", (Step("pkd"),), against="half the layers, no teacher"),
    Plan("minilm, half the layers", (Step("minilm"),), against="half the layers, no teacher"),
    Plan("tinybert, half the layers", (Step("tinybert"),), against="half the layers, no teacher"),
    Plan(
        "ensemble, half the layers",
        (Step("ensemble", ("teachers={others}",)),),
        against="half the layers, no teacher",
    ),
    Plan("theseus, half the layers", (Step("theseus"),), against="half the layers, no teacher"),
    Plan("layerdrop, half the layers", (Step("layerdrop"),)),
    Plan("1 layer, no teacher", (Step("distil", ("num_layers=1", *ALONE)),)),
    Plan("distil, 1 layer", (Step("distil", ("num_layers=1",)),), against="1 layer, no teacher"),
    Plan(
        "half the ffn, no teacher",
        (HALF_FFN, Step("mobilebert", ("student={before}", "state_weight=0", "attention_weight=0"))),
    ),
    Plan(
        "mobilebert, half the ffn",
        (HALF_FFN, Step("mobilebert", ("student={before}",))),
        against="half the ffn, no teacher",
    ),
    Plan("BiLSTM, no teacher", (Step("bilstm", ALONE),)),
    Plan("bilstm", (Step("bilstm"),), against="BiLSTM, no teacher"),
    Plan("bag of words, no teacher", (Step("bilstm", ("kind=bag", *ALONE)),)),
    Plan("bilstm, bag of words", (Step("bilstm", ("kind=bag",)),), against="bag of words, no teacher"),
    Plan("magnitude, 50 %", (Step("magnitude"),)),
    Plan("movement, 50 %", (Step("movement"),)),
    Plan("quantise-aware, 4 bits", (Step("quantise-aware"),)),
    Plan("share, then fine-tuned", (Step("share"), Step(FINETUNE))),
    Plan(
        "vocabulary, distil, 1 layer, 3 bits",
        (Step("vocabulary"), Step("distil", ("num_layers=1",)), Step("weights", ("bits=3",))),
    ),
    Plan("vocabulary, bilstm, 4 bits", (Step("vocabulary"), Step("bilstm"), Step("weights", ("bits=4",)))),
    # General methods make a student of a model that is not fine-tuned. Without a teacher it is fine-tuned for an epoch
    # more, which is what the general stage takes.
    Plan("half of the pre-trained, no teacher", (SPREAD, Step(FINETUNE, ("epochs+1",))), start="pretrained"),
    Plan(
        "vectors, half the layers, then fine-tuned",
        (Step("vectors", ("epochs=1",)), Step(FINETUNE)),
        against="half of the pre-trained, no teacher",
        start="pretrained",
    ),
    Plan(
        "distilbert, half the layers, then fine-tuned",  # only for a model that predicts masked tokens
        (Step("distilbert", ("epochs=1",)), Step(FINETUNE)),
        against="half of the pre-trained, no teacher",
        start="pretrained",
    ),
)
LONG = "epochs={long}"
TEXTS = "unlabelled={unlabelled}"
WITH_TEXTS = (
    Plan("half the layers, no teacher, long", (Step("distil", (*ALONE, LONG)),)),
    Plan(
        "distil with texts, half the layers", (Step("distil", (TEXTS,)),), against="half the layers, no teacher, long"
    ),
    Plan("pkd with texts, half the layers", (Step("pkd", (TEXTS,)),), against="half the layers, no teacher, long"),
    Plan(
        "tinybert with texts, half the layers",
        (Step("tinybert", (TEXTS,)),),
        against="half the layers, no teacher, long",
    ),
    Plan(
        "ensemble with texts, half the layers",
        (Step("ensemble", ("teachers={others}", TEXTS)),),
        against="half the layers, no teacher, long",
    ),
    Plan("1 layer, no teacher, long", (Step("distil", ("num_layers=1", *ALONE, LONG)),)),
    Plan(
        "distil with texts, 1 layer",
        (Step("distil", ("num_layers=1", TEXTS)),),
        against="1 layer, no teacher, long",
    ),
    Plan("BiLSTM, no teacher, long", (Step("bilstm", (*ALONE, LONG)),)),
    Plan("bilstm with texts", (Step("bilstm", (TEXTS,)),), against="BiLSTM, no teacher, long"),
    Plan("bag of words, no teacher, long", (Step("bilstm", ("kind=bag", *ALONE, LONG)),)),
    Plan(
        "bilstm with texts, bag of words",
        (Step("bilstm", ("kind=bag", TEXTS)),),
        against="bag of words, no teacher, long",
    ),
)
"""Students that also learn from texts which only their teacher labels. Without a teacher, as many steps are made."""
UNTRAINED = (
    Plan("heads, 25 %", (Step("heads", ("remove=0.25", "max_rows=400")),)),
    Plan("heads, 50 %", (Step("heads", ("remove=0.5", "max_rows=400")),)),
    Plan("ffn, 25 %", (Step("ffn", ("remove=0.25", "max_rows=400")),)),
    Plan("ffn, 50 %", (HALF_FFN,)),
    Plan("layers, half, spread", (SPREAD,)),
    Plan("low-rank, 0.95", (Step("low-rank", ("energy=0.95",)),)),
    Plan("low-rank, 0.9", (Step("low-rank", ("energy=0.9",)),)),
    Plan("share", (Step("share"),)),
    Plan("vocabulary", (Step("vocabulary"),)),
    Plan("weights, 8 bits", (Step("weights", ("bits=8",)),)),
    Plan("weights, 4 bits", (Step("weights", ("bits=4",)),)),
    Plan("weights, 3 bits", (Step("weights", ("bits=3",)),)),
)
ON_CPU = (Plan("int8", (Step("int8"),)), Plan("onnx", (Step("onnx"),)))
"""What depends on the processor: made where speed is measured."""
PLANS = {plan.name: plan for plan in (*UNTRAINED, *TRAINED, *WITH_TEXTS)}


def chosen_plans(names: Sequence[str]) -> Iterator[Plan]:
    """The plans with these names, or whose name begins so, and those that they are compared with; all without names."""
    found = [plan for plan in PLANS.values() if not names or any(_is_called(plan, name) for name in names)]
    needed = {plan.against for plan in found}
    for plan in PLANS.values():
        if plan in found or plan.name in needed:
            yield plan


def _is_called(plan: Plan, name: str) -> bool:
    return plan.name == name if name in PLANS else plan.name.startswith(name)


def write_rows(name: str, folder: Path, *, limit: int = 0) -> dict[str, Path]:
    """The files of a set in `folder`: rows to learn from (train), to choose strengths on (picked), to measure on
    (test), and as plain text the learned rows, all of them (text) and those that general methods read (general), and
    other rows of the training file (unlabelled).

    Nothing learns from the rows for choosing: they are a part of the training file. `limit` is for rehearsals: no file
    has more rows.
    """
    data = SETS[name]
    folder.mkdir(parents=True, exist_ok=True)
    header, rows = _shuffled(unpacked(data.archive, data.train, folder), "train")
    num_picked = min(MOST_PICKED, len(rows) // 10)
    test_header, test = _shuffled(unpacked(data.archive, data.test, folder), "test")
    parts = {
        "picked": (header, rows[:num_picked]),
        "train": (header, rows[num_picked:][: data.num_rows or None]),
        "test": (test_header, test),
    }
    files: dict[str, Path] = {}
    for part, (first, lines) in parts.items():
        files[part] = folder / f"{part}.tsv"
        files[part].write_text("\n".join([first, *lines[: limit or None]]) + "\n", "utf-8")
    config = from_dict(resolve("classify").Config, {"preset": data.preset} if data.preset else {})
    examples = labelled.read("classify", config, {"train": files["train"]}).examples["train"]
    texts = [" ".join(text.split()) for example in examples for text in example.texts]
    num_learned = len(parts["train"][1][: limit or None])
    rest = rows[num_picked + num_learned :][: UNLABELLED * num_learned]
    unlabelled = folder / "rest.tsv"
    unlabelled.write_text("\n".join([header, *rest]) + "\n", "utf-8")
    others = labelled.read("classify", config, {"train": unlabelled}).examples["train"] if rest else []
    other_texts = [" ".join(example.texts[0].split()) for example in others]
    for part, kept in (("text", texts), ("general", texts[:MOST_TEXTS]), ("unlabelled", other_texts)):
        files[part] = folder / f"{part}.txt"
        files[part].write_text("\n".join(kept) + "\n", "utf-8")
    return files


def _shuffled(path: Path, part: str) -> tuple[str, list[str]]:
    """The header and the other lines of a file, always in the same random order."""
    header, *lines = path.read_text("utf-8-sig").splitlines()
    order = rng.permutation(rng.key(f"compress: {part}"), len(lines))
    return header, [lines[row] for row in order]
