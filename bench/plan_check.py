"""`firth plan` against runs that were measured: predicted and measured figures, side by side.

    python -m bench.plan_check

Prints the table of docs/results.md. Rows marked "fit" were used to find the numbers of the cost model; the others were
not. Nothing is run here: the measured figures are those of docs/results.md, docs/performance.md and docs/speedrun.md.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from firth import lineage
from firth.config import override
from firth.lineage import Recipe
from firth.planning.cost import Network, Work, memory_bytes, step_seconds, work_of
from firth.planning.estimate import estimate
from firth.planning.machines import GPUS, Cluster, cpu
from firth.planning.texts import TextSize

H200 = GPUS["H200"]
TWO_CORES = cpu(2, precision="fp32")
TWO_CORES_HALF = cpu(2, precision="bf16")
TIME_LIMIT = 0.15
MEMORY_LIMIT = 0.10


@dataclass(frozen=True)
class Compared:
    """One figure."""

    what: str
    unit: str
    measured: float
    predicted: float
    fitted: bool
    limit: float

    @property
    def ratio(self) -> float:
        return self.predicted / self.measured


def changed(name: str, size: str, *changes: str, vocab_size: int = 30016, dropout: float = 0.0) -> Recipe:
    """A recipe as it was measured."""
    recipe = lineage.make(name, size)
    encoder = {kind: replace(config, vocab_size=vocab_size, dropout=dropout) for kind, config in recipe.encoder.items()}
    return override(replace(recipe, encoder=encoder), changes)


STEP = "batches.tokens=65536"
FEW_MASKS = (
    "objectives.replaced_token.masking.rate=0.2",
    "objectives.replaced_token.kept_masks=0.3",
    "objectives.replaced_token.corrective_weight=1",
)
"""What `small` had when these figures were measured."""
PAIRS = 120.0
"""Mean length of sentence pairs of at most 128 tokens, weighted by tokens."""
PARAGRAPHS = 80.0
"""The same of paragraphs."""
SPEEDS: list[tuple[str, Recipe, float, float, bool]] = [
    ("`base`, pairs of 128", changed("bert", "base", STEP), PAIRS, 813e3, True),
    ("`base`, pairs of 128 (another run)", changed("bert", "base", STEP), PAIRS, 810e3, False),
    ("`base`, pairs, dropout 0.1", changed("bert", "base", STEP, dropout=0.1), PAIRS, 749e3, True),
    ("`base`, paragraphs", changed("roberta", "base", STEP), PARAGRAPHS, 805e3, True),
    ("`base`, paragraphs, dropout 0.1", changed("roberta", "base", STEP, dropout=0.1), PARAGRAPHS, 750e3, False),
    ("`base`, 8,192 tokens a step", changed("bert", "base", "batches.tokens=8192"), PAIRS, 619e3, False),
    ("`base`, 16,384 tokens a step", changed("bert", "base", "batches.tokens=16384"), PAIRS, 719e3, False),
    ("`base`, 131,072 tokens a step", changed("bert", "base", "batches.tokens=131072"), PAIRS, 814e3, False),
    ("`base`, sequences of 256", changed("bert", "base", STEP, "batches.max_length=256"), 241.0, 728e3, False),
    ("`base`, sequences of 512", changed("bert", "base", STEP, "batches.max_length=512"), 481.0, 676e3, True),
    ("`base`, recompute", changed("bert", "base", STEP, "train.recompute=true"), PAIRS, 617e3, True),
    ("`large`, 32,768 tokens a step", changed("bert", "large", "batches.tokens=32768"), PAIRS, 256e3, True),
    ("12 x 384, paragraphs", changed("roberta", "12x384", STEP), PARAGRAPHS, 1.94e6, True),
    ("12 x 256, paragraphs", changed("roberta", "12x256", STEP), PARAGRAPHS, 3.12e6, True),
    ("`small` 12 x 256, fewer masks", changed("small", "12x256", *FEW_MASKS, vocab_size=24000), PAIRS, 2.15e6, True),
    ("`small` 12 x 384, fewer masks", changed("small", "12x384", *FEW_MASKS, vocab_size=24000), PAIRS, 1.37e6, True),
    ("`small` 8 x 384", changed("small", "8x384", vocab_size=24000), PAIRS, 1.87e6, False),
    ("`small` 8 x 384, Chinese", changed("small", "8x384", vocab_size=10000), PAIRS, 2.15e6, False),
]
"""What, the recipe, the mean length, measured tokens a second, and whether the model was fitted to it."""
MEMORY: list[tuple[str, Recipe, float, bool]] = [
    ("`base`, 65,536 tokens", changed("bert", "base", STEP), 21.7e9, True),
    ("the same, dropout 0.1", changed("bert", "base", STEP, dropout=0.1), 23.0e9, True),
    ("the same, recompute", changed("bert", "base", STEP, "train.recompute=true"), 5.2e9, False),
    ("`large`, 32,768 tokens", changed("bert", "large", "batches.tokens=32768"), 31.0e9, True),
]
MINILM = Network(num_layers=6, width=384, ffn_width=1536, vocab_size=30522, predicted=0.0)
RTE = MINILM.work(tokens=32 * 70, length=90.0)
MRPC = MINILM.work(tokens=32 * 53, length=56.0)
CORES: list[tuple[str, Work, float, bool]] = [
    (
        "`mini`, paragraphs of mean 64",
        work_of(changed("roberta", "mini", dropout=0.1), length=PARAGRAPHS),
        4739.0,
        True,
    ),
    (
        "`mini`, another run",
        work_of(changed("roberta", "mini", dropout=0.1), length=PARAGRAPHS),
        4594.0,
        False,
    ),
    ("fine-tuning MiniLM on RTE, 32 rows", RTE, 2094.0, False),
    ("fine-tuning MiniLM on MRPC, 32 rows", MRPC, 2160.0, True),
]
"""In fp32: what, the work of a step, measured tokens a second, and whether the model was fitted to it."""
HALF_CORES: list[tuple[str, Work, float, bool]] = [
    (
        "`mini`, paragraphs of mean 61, bf16",
        work_of(changed("roberta", "mini", "batches.tokens=4096", vocab_size=12000, dropout=0.1), length=PARAGRAPHS),
        13119.0,
        True,
    ),
    ("fine-tuning MiniLM on RTE, 32 rows, bf16", RTE, 6570.0, False),
    ("fine-tuning MiniLM on MRPC, 32 rows, bf16", MRPC, 6420.0, True),
]
"""The same in bf16."""


def compared() -> Iterator[Compared]:
    """All figures."""
    for what, recipe, length, measured, fitted in SPEEDS:
        work = work_of(recipe, length=length)
        predicted = work.tokens / step_seconds(work, H200)
        yield Compared(f"H200, {what}", "tokens/s", measured, predicted, fitted, TIME_LIMIT)
    yield _whole_run()
    for device, measurements in ((TWO_CORES, CORES), (TWO_CORES_HALF, HALF_CORES)):
        for what, work, measured, fitted in measurements:
            predicted = work.tokens / step_seconds(work, device)
            yield Compared(f"2 cores, {what}", "tokens/s", measured, predicted, fitted, TIME_LIMIT)
    for what, recipe, measured, fitted in MEMORY:
        predicted = memory_bytes(work_of(recipe), H200)
        yield Compared(f"H200, {what}", "GB", measured / 1e9, predicted / 1e9, fitted, MEMORY_LIMIT)


def _whole_run() -> Compared:
    """The run that made `en-small`: 12,367 steps from start to end."""
    recipe = changed("small", "8x384", vocab_size=24000)
    result = estimate(recipe, TextSize(5.3e8, 1.178e8, ""), Cluster(H200), steps=12_367, length=PAIRS)
    return Compared(
        "H200, the whole run of `en-small` (12,367 steps)", "minutes", 8.6, 60 * result.hours, False, TIME_LIMIT
    )


def lines() -> Iterator[str]:
    """The table in Markdown."""
    yield "| run | measured | predicted | ratio | |"
    yield "|---|---|---|---|---|"
    for row in compared():
        number = ",.0f" if row.measured > 1000 else ".1f"
        note = "fit" if row.fitted else ""
        yield (
            f"| {row.what} | {row.measured:{number}} {row.unit} | {row.predicted:{number}} | {row.ratio:.2f} | {note} |"
        )


if __name__ == "__main__":
    print("\n".join(lines()))
