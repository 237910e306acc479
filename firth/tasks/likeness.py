"""What `compare` reads and how it is judged: files of pairs and triplets -> examples; similarities -> figures.

In: tables with two texts and a label or a score, with two texts that belong together, or with columns `anchor`,
`positive`, `negative`. Out: examples of two or three texts whose gold is a name, a number, or None where the rows
themselves say what is alike.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from firth import metrics, rng
from firth.data.items import Item, Window, cut_window, text_items
from firth.errors import BadConfig, BadInput
from firth.tasks import columns
from firth.tasks.table_files import Rows, read_rows
from firth.tokenizers.vocab import windows
from firth.types import Example, Prediction, Problem

Whitening = tuple[np.ndarray, np.ndarray]
"""The mean of some vectors, and the matrix that gives the centred vectors the unit covariance."""
TRIPLET = ("anchor", "positive", "negative")
RANKED = 100
"""Places of a ranking that are looked at; what stands behind them counts as not found."""
AT = (1, 10)
LOSSES = {
    "number": ("regression",),
    "one": ("contrastive", "regression", "ranking"),
    "positives": ("ranking",),
    "triplets": ("ranking",),
}
"""The losses that each kind of gold can teach, the usual one first."""


class Named(columns.Named, Protocol):
    @property
    def third_column(self) -> str: ...


# Reading


def read(path: Path, config: Named, problems: list[Problem], *, labelled: bool) -> list[Example]:
    names = _unlabelled(read_rows(path), config, labelled=labelled)
    if not names:
        rows = columns.read(path, config, problems, labelled=labelled)
        kept = [_pair(row, problems) for row in rows]
        return _numbers([row for row in kept if row]) if config.kind == "guess" else [row for row in kept if row]
    examples = []
    for row, values in read_rows(path).take(names, problems):
        texts = tuple(values[name] for name in names)
        if all(isinstance(text, str) and text.strip() for text in texts):
            examples.append(Example(tuple(text.strip() for text in texts), None, row))
        else:
            problems.append(Problem(row, "an empty text", "fill it in or remove the row"))
    return examples


def kind_of(example: Example) -> str:
    if len(example.texts) == 3:
        return "triplets"
    return "positives" if example.gold is None else "number" if isinstance(example.gold, float) else "one"


def learned(config: Any, examples: Sequence[Example]) -> dict[str, Any]:
    """What only the rows tell of their kind, the loss that suits it and the highest score; raises where none does."""
    kind = kind_of(examples[0]) if config.kind == "guess" else config.kind
    loss = LOSSES[kind][0] if config.loss == "guess" else config.loss
    if config.way == "siamese" and loss not in LOSSES[kind]:
        raise BadConfig(f"Rows of kind {kind} do not go with loss={loss} but with {', '.join(LOSSES[kind])}.")
    if config.way == "cross" and kind == "positives":
        raise BadConfig("Pairs without labels cannot teach a cross-encoder; use way=siamese or add pairs unlike.")
    names = {row.gold for row in examples if isinstance(row.gold, str)}
    if kind == "one" and config.positive not in names:
        raise BadInput(
            f"No row has the label '{config.positive}' for texts that are alike; name it with "
            f"tasks.compare.positive=NAME (the labels are {', '.join(sorted(names)[:10])})."
        )
    highest = config.highest
    if kind == "number" and not highest:
        highest = max(float(row.gold) for row in examples)
        if highest <= config.lowest:
            raise BadInput(f"No score is above {config.lowest}; set tasks.compare.lowest and highest.")
    return {"kind": kind, "loss": loss, "highest": highest}


def example(value: Any, config: Named) -> Example:
    """A pair, a triplet, or a row with named columns."""
    if isinstance(value, Mapping):
        rows = Rows(Path("the input"), list(value), ())
        names = _unlabelled(rows, config, labelled=False) or columns.find(rows, config, labelled=False)[0]
        value = [value.get(name) for name in names]
    if not isinstance(value, list | tuple) or len(value) not in (2, 3) or not all(isinstance(t, str) for t in value):
        raise BadInput(f"An input must be two texts to compare; it is {value!r:.80}.")
    return Example(tuple(value))


def _unlabelled(rows: Rows, config: Named, *, labelled: bool) -> tuple[str, ...]:
    """The text columns of a file whose rows need no label; none where there is a label to read."""
    named = tuple(name for name in (config.text_column, config.second_column, config.third_column) if name)
    triplet = named if config.third_column else TRIPLET
    if config.kind in ("guess", "triplets") and rows.layout(triplet) and (config.third_column or not named):
        return triplet
    if config.kind in ("guess", "positives") and not named and rows.layout(TRIPLET[:2]):
        return TRIPLET[:2]
    if config.kind == "triplets" and labelled:
        wanted = ", ".join(triplet)
        raise BadInput(f"{rows.path} has no columns {wanted} but {', '.join(rows.columns)}; name them, the last with "
                       "third_column.")  # fmt: skip
    return columns.find(rows, config, labelled=False)[0] if config.kind in ("positives", "triplets") else ()


def _pair(row: Example, problems: list[Problem]) -> Example | None:
    if len(row.texts) == 2:
        return row
    problems.append(Problem(row.row, "one text where two are compared", "name the second with `second_column=`"))
    return None


def _numbers(rows: list[Example]) -> list[Example]:
    """Labels other than names and 0 or 1 are scores."""
    try:
        values = [float(row.gold) for row in rows if row.gold is not None]
    except ValueError:
        return rows
    if not values or {*values} <= {0.0, 1.0} or not np.isfinite(values).all():
        return rows
    return [replace(row, gold=value) for row, value in zip(rows, values, strict=True)]


# Sequences


def apart(examples: Sequence[Example], tokenizer: Any, *, max_length: int, max_windows: int | None) -> list[Item]:
    """Each text in windows of its own; an item's facts count the windows of its texts."""
    texts = list(dict.fromkeys(text for example in examples for text in example.texts))
    specials = tokenizer.vocab.frame.size()
    size, cuts = max_length - specials, dict[str, list[Window]]()
    lengths = dict[str, int]()
    for text, encoding in zip(texts, tokenizer.encode_batch(texts), strict=True):
        spans = windows(len(encoding), size, size)[:max_windows]
        cuts[text] = [cut_window(tokenizer.vocab, (encoding, a, b)) for a, b in spans]
        lengths[text] = len(encoding)
    items = []
    for example in examples:
        parts = [cuts[text] for text in example.texts]
        found, total = [w for part in parts for w in part], sum(lengths[text] for text in example.texts)
        cut = total - sum(len(w.ids) - specials for w in found)
        items.append(Item(example, tuple(found), total, cut, tuple(map(len, parts))))
    return items


def together(examples: Sequence[Example], tokenizer: Any, *, max_length: int, both_orders: bool = False) -> list[Item]:
    """The first text with each other one in a sequence; with `both_orders` in a second one the other way round."""
    pairs = [Example((example.texts[0], other)) for example in examples for other in example.texts[1:]]
    read = iter(text_items(pairs, tokenizer, max_length=max_length, both_orders=both_orders))
    items = []
    for example in examples:
        parts = [next(read) for _ in example.texts[1:]]
        cuts = tuple(w for part in parts for w in part.windows)
        counts = tuple(len(part.windows) for part in parts)
        items.append(Item(example, cuts, sum(p.tokens for p in parts), sum(p.cut for p in parts), counts))
    return items


# Learning and judging


class Compared(Prediction):
    """A similarity with the vectors it rests on, which rankings need. They are no field: answers do not show them."""

    vectors: tuple[np.ndarray, ...] = ()


def with_vectors(similarity: float, vectors: tuple[np.ndarray, ...]) -> Compared:
    made = Compared(similarity)
    object.__setattr__(made, "vectors", vectors)
    return made


def by_text(predictions: Sequence[Prediction], examples: Sequence[Example]) -> dict[str, np.ndarray]:
    """The vector of each text, where predictions have them."""
    return {
        text: vector
        for p, example in zip(predictions, examples, strict=True)
        if isinstance(p, Compared) and p.vectors
        for text, vector in zip(example.texts, p.vectors, strict=True)
    }


def ignored(rows: Sequence[Example], alike: np.ndarray) -> np.ndarray:
    """Which texts of a batch are no negatives of which row: its own twins, and others known to be like it."""
    index = {text: i for i, text in enumerate(dict.fromkeys(text for row in rows for text in row.texts))}
    firsts_E = np.array([index[row.texts[0]] for row in rows])
    others = [np.array([index[row.texts[k]] for row in rows]) for k in range(1, len(rows[0].texts))]
    candidates_C = np.concatenate(others)
    same_EC = (candidates_C[None] == others[0][:, None]) | (candidates_C[None] == firsts_E[:, None])
    same_EC[:, : len(rows)] |= (firsts_E[None] == firsts_E[:, None]) & alike[None]
    same_EC[np.arange(len(rows)), np.arange(len(rows))] = False
    return np.asarray(same_EC)


def whitening(vectors: np.ndarray, width: int = 0) -> Whitening:
    """The mean, and the map after which the covariance is the unit matrix (Su et al. 2021, equation 5)."""
    mean = vectors.mean(0)
    spread, turned = np.linalg.eigh(np.cov((vectors - mean).T.astype(np.float64)))
    kept = [i for i in np.argsort(-spread) if spread[i] > spread.max() * 1e-7][: width or None]
    return mean, turned[:, kept] / np.sqrt(spread[kept])


def figures(alike: np.ndarray, values: np.ndarray, threshold: float) -> dict[str, float]:
    """Of pairs with labels."""
    sides = [[{"alike"} if one else set[str]() for one in side] for side in (alike, values >= threshold)]
    return {
        "auc": metrics.roc_auc(alike, values),
        "best_accuracy": metrics.best_accuracy(alike, values)[0],
        "accuracy": metrics.exact_match(*sides),
        "f1": metrics.multilabel_f1(*sides).micro.f1,
    }


def rankings(unit: Mapping[str, np.ndarray], examples: Sequence[Example], alike: Sequence[bool]) -> dict[str, float]:
    """Each text with a like one looks for it among the second (and third) texts of all rows, by cosine."""
    candidates = list(dict.fromkeys(text for row in examples for text in row.texts[1:]))
    index = {text: i for i, text in enumerate(candidates)}
    likes: dict[str, set[int]] = defaultdict(set)
    for row, is_alike in zip(examples, alike, strict=True):
        if is_alike:
            likes[row.texts[0]].add(index[row.texts[1]])
    if not likes or not unit:
        return {}
    candidates_CD = np.stack([unit[text] for text in candidates])
    texts, ranked = list(likes), []
    for at in range(0, len(texts), 512):
        cosines_QC = np.stack([unit[text] for text in texts[at : at + 512]]) @ candidates_CD.T
        for text, cosines_C in zip(texts[at : at + 512], cosines_QC, strict=True):
            if text in index and index[text] not in likes[text]:
                cosines_C[index[text]] = -np.inf  # a text does not look for itself
            best = np.argpartition(-cosines_C, min(RANKED, len(cosines_C)) - 1)[:RANKED]
            ranked.append(best[np.lexsort((best, -cosines_C[best]))].tolist())
    relevant = [likes[text] for text in texts]
    found = {f"recall@{k}": metrics.recall_at(ranked, relevant, k=k) for k in AT}
    return {"mrr": metrics.mean_reciprocal_rank(ranked, relevant), **found}


def own_direction(text: str) -> np.ndarray:
    """A vector that no other text is near."""
    return rng.uniform(rng.key("direction", text), np.arange(64)) - 0.5
