"""Labelled examples as the sequences an encoder reads, and the order in which training sees them.

An `Item` is one example cut into windows: a single one for most, several for a text longer than the model or for an
example with options. Batches hold whole items; which items make up batch i of an epoch is a pure function of the seed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from firth import chance
from firth.data.loader import Place
from firth.data.packing import Specials, pack_tokens
from firth.tensors import Batch, Task
from firth.tokenizers.vocab import windows
from firth.types import Example


@dataclass(frozen=True, slots=True)
class Window:
    """A sequence of the encoder, special tokens included."""

    ids: np.ndarray
    segments: np.ndarray
    start: int = 0
    """Where in its text's tokens the window begins."""
    facts: Any = None
    """What the task needs to know of it."""


@dataclass(frozen=True, slots=True)
class Item:
    """An example ready for the encoder."""

    example: Example
    windows: tuple[Window, ...]
    tokens: int = 0
    """Tokens of its texts."""
    cut: int = 0
    """Of these, the tokens that no window holds."""
    facts: Any = None


def window(specials: Specials, *texts: np.ndarray, start: int = 0, facts: Any = None) -> Window:
    """`[CLS] first [SEP]` or `[CLS] first [SEP] second [SEP]`."""
    pieces: list[Any] = [[specials.cls]]
    for ids in texts:
        pieces += [ids, [specials.sep]]
    segments = np.zeros(sum(map(len, pieces)), np.int64)
    if len(texts) > 1:
        segments[len(texts[0]) + 2 :] = 1
    return Window(np.concatenate(pieces).astype(np.int64), segments, start, facts)


def text_items(
    examples: Sequence[Example], tokenizer: Any, *, max_length: int, max_windows: int | None = None
) -> list[Item]:
    """An item for each text or pair.

    A long text is cut into windows that overlap by a quarter. A pair must be read together, so it is cut to fit.
    """
    encodings = iter(tokenizer.encode_batch([text for example in examples for text in example.texts]))
    items = []
    for example in examples:
        texts = [next(encodings).ids for _ in example.texts]
        total, size = sum(map(len, texts)), max_length - 2
        if len(texts) > 1:
            first, second = shorten(len(texts[0]), len(texts[1]), max_length - 3)
            pair = window(tokenizer.vocab, texts[0][:first], texts[1][:second])
            items.append(Item(example, (pair,), total, total - first - second))
        else:
            spans = windows(total, size, max(1, size * 3 // 4))[:max_windows]
            cuts = tuple(window(tokenizer.vocab, texts[0][a:b], start=a) for a, b in spans)
            items.append(Item(example, cuts, total, total - spans[-1][1]))
    return items


def pack_windows(windows: Sequence[Window]) -> Batch:
    """Windows end to end."""
    return pack_tokens([w.ids for w in windows], segments=[w.segments for w in windows])


def pack_items(items: Sequence[Item]) -> tuple[Batch, Tensor]:
    """All windows of some items end to end, and for each window the item it belongs to."""
    owners = np.repeat(np.arange(len(items)), [len(item.windows) for item in items])
    return pack_windows([w for item in items for w in item.windows]), torch.from_numpy(owners)


def shorten(first: int, second: int, room: int) -> tuple[int, int]:
    """Lengths of a pair that fit: the longer text gives way first, as in BERT."""
    if first + second <= room:
        return first, second
    half = room // 2
    kept = min(first, max(room - second, room - half))
    return kept, min(second, room - kept)


@dataclass
class ItemBatches:
    """The batches of all epochs over one task's items, or over several tasks' in turn.

    With several tasks each batch is of one of them, drawn in proportion to size^alpha; an epoch is as many batches as
    all of them together need, and a task that is drawn more often begins its items anew in another order.
    """

    tasks: Mapping[str, Task]
    items: Mapping[str, Sequence[Item]]
    size: int
    seed: int
    alpha: float = 1.0
    workers: int = 0
    _plan: tuple[int, list[tuple[str, np.ndarray]]] | None = field(default=None, repr=False)

    def num_packs(self, epoch: int) -> int:
        return sum(-(-len(items) // self.size) for items in self.items.values())

    def __getitem__(self, place: Place) -> Batch:
        if self._plan is None or self._plan[0] != place.epoch:
            self._plan = place.epoch, self._deal(place.epoch)
        name, rows = self._plan[1][place.index]
        batch = self.tasks[name].batch([self.items[name][row] for row in rows])
        return Batch(**{**vars(batch), "goal": name})

    def _deal(self, epoch: int) -> list[tuple[str, np.ndarray]]:
        names = list(self.items)
        sizes = np.array([len(self.items[name]) for name in names], float) ** self.alpha
        draws = chance.uniform(chance.key(self.seed, "task", epoch), np.arange(self.num_packs(epoch)))
        turns = np.searchsorted(np.cumsum(sizes / sizes.sum()), draws, side="right").clip(max=len(names) - 1)
        streams = {name: self._rows(name, epoch, int((turns == i).sum())) for i, name in enumerate(names)}
        return [(names[turn], streams[names[turn]].pop(0)) for turn in turns]

    def _rows(self, name: str, epoch: int, count: int) -> list[np.ndarray]:
        """The first `count` batches of one task."""
        total, again = len(self.items[name]), 0
        batches: list[np.ndarray] = []
        while len(batches) < count:
            order = chance.permutation(chance.key(self.seed, "order", name, epoch, again), total)
            batches += [order[at : at + self.size] for at in range(0, total, self.size)]
            again += 1
        return batches[:count]
