"""A made-up but lifelike pre-training run."""

import math

import numpy as np
import pytest

from firth import rng
from firth.report.pretraining import PretrainingReport

KEY = rng.key("demo", 1)


def ranked(line: str) -> list[tuple[str, float]]:
    """`word 0.5, two words 0.2` as pairs."""
    return [(word, float(value)) for word, value in (part.rsplit(" ", 1) for part in line.split(", "))]


SENTENCE = "the old bridge across the river was closed , so we took the fer ##ry ."
FILLS = [
    ("The capital of France is [MASK].", ranked("paris 0.71, lyon 0.08, brussels 0.04, versailles 0.02, france 0.015")),
    (
        "She opened the [MASK] and read the first page.",
        ranked("book 0.44, letter 0.21, door 0.09, newspaper 0.05, envelope 0.03"),
    ),
    ("中国的首都是北[MASK]。", ranked("京 0.93, 平 0.02, 方 0.012, 海 0.006, 部 0.004")),
    (
        "Water freezes at zero [MASK] Celsius.",
        ranked("degrees 0.88, degree 0.06, ##° 0.01, percent 0.008, temperatures 0.002"),
    ),
]
NEIGHBOURS = [
    (
        "The train was late again.",
        ranked("Our bus did not come on time. 0.86, He missed the last tram home. 0.71, The soup was too salty. 0.34"),
    ),
    (
        "Prices rose sharply in March.",
        ranked("Inflation climbed in the spring. 0.88, Shares fell on Tuesday. 0.69, Cats sleep most of the day. 0.21"),
    ),
]


def noise(*counters: int) -> float:
    return float(rng.uniform(KEY, *counters)) - 0.5


def metrics(steps: int = 20000, every: int = 50) -> list[dict[str, float | str]]:
    rows: list[dict[str, float | str]] = []
    for step in range(every, steps + 1, every):
        loss = 2.35 + 3.1 * math.exp(-step / 3500) + 4.9 * math.exp(-step / 450)
        pairs = 0.5 + 0.43 / (1 + math.exp(-(step - 5000) / 1300)) - 0.43 / (1 + math.exp(5000 / 1300))
        rate = 1e-3 * min(step / 1000, (steps - step) / (steps - 1000))
        for split, wobble, gap in (("train", 0.35, 0.0), ("held-out", 0.04, 0.08)):
            if split == "held-out" and step % 1000:
                continue
            row: dict[str, float | str] = {"step": step, "split": split}
            row["masked_lm"] = loss + gap + wobble * noise(step, 1)
            row["masked_lm_accuracy"] = 0.62 * math.exp(-(loss - 2.0) / 3.4) + 0.03 * wobble * noise(step, 2)
            row["next_sentence"] = 0.69 - 1.2 * (pairs - 0.5)
            row["next_sentence_accuracy"] = pairs + 0.15 * wobble * noise(step, 3)
            if split == "train":
                spike = 2.5 if step == 7300 else 0.0
                row |= {"rate": rate, "gradient_norm": 0.6 + 2 * math.exp(-step / 600) + 0.3 * noise(step, 4) + spike}
            rows.append(row)
    return rows


def attention(tokens: list[str], layers: int, heads: int) -> np.ndarray:
    """Heads of the kinds real models have: the neighbour, [SEP], itself, everywhere, one far word."""
    size = len(tokens)
    steps = np.arange(size)[:, None] - np.arange(size)[None, :]
    kinds = [
        -((steps - 1) ** 2) * 1.5, -((steps + 1) ** 2) * 1.5, -(steps**2) * 0.2, np.zeros((size, size)),
        np.tile([3.5 if token == "[SEP]" else 0.0 for token in tokens], (size, 1)),
        np.tile([2.5 if token == "[CLS]" else 0.0 for token in tokens], (size, 1)),
        4.0 * (rng.uniform(KEY, np.arange(size)[:, None], np.arange(size)[None, :]) > 0.93),
    ]  # fmt: skip
    maps = np.empty((layers, heads, size, size))
    for layer in range(layers):
        for head in range(heads):
            kind = kinds[int(rng.below(KEY, len(kinds), layer, head, 77))]
            maps[layer, head] = kind + 1.5 * rng.uniform(KEY, *np.ogrid[:size, :size], layer * heads + head)
    shares = np.exp(maps)
    return np.asarray(shares / shares.sum(-1, keepdims=True))


def demo(*, layers: int = 6, heads: int = 6) -> PretrainingReport:
    tokens = ["[CLS]", *SENTENCE.split(), "[SEP]"]
    return PretrainingReport(
        title="A small English BERT",
        facts={
            "recipe": "bert", "size": "small (6 by 384)", "parameters": 22_713_216, "steps": 20_000,
            "tokens seen": 655_360_000, "minutes": 11.4, "tokens/s": 958_000,
        },
        metrics=metrics(),
        unigram_floor=6.87,
        health={
            "documents": 12_480, "sentences": 402_113, "tokens": 46_120_554, "bytes_read": 203_412_900,
            "characters_per_token": 4.41, "unknown_rate": 0.00021, "entropy_nats": 6.87, "vocab_size": 30_522,
            "vocab_used": 30_410, "documents_read": 12_494, "lines_read": 415_002, "duplicate_documents": 14,
            "duplicate_lines": 12_889, "cut_lines": 0, "filled_by_documents": 0.972, "filled_by_sentences": 0.61,
            "sentence_lengths": {"4": 4200, "8": 21000, "16": 88000, "32": 160500, "64": 110000, "128": 18000},
            "document_lengths": {"64": 40, "128": 160, "512": 2400, "1024": 3900, "2048": 3300, "8192": 400},
            "warnings": ["12% of the lines repeated earlier ones and were dropped: look for boilerplate."],
        },
        fills=FILLS,
        neighbours=NEIGHBOURS,
        attention=(tokens, attention(tokens, layers, heads)),
    )  # fmt: skip


@pytest.fixture(scope="session")
def run() -> PretrainingReport:
    return demo(layers=2, heads=2)
