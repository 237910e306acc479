"""Labelled examples as the sequences an encoder reads, and the order in which training sees them.

An `Item` is one example cut into windows: a single one for most, several for a text longer than the model or for an
example with options. Batches hold whole items; which items make up batch i of an epoch is a pure function of the seed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from firth import chance
from firth.data.loader import Place
from firth.data.packing import Specials, pack_tokens
from firth.tensors import Batch, Task
from firth.tokenizers.vocab import windows
from firth.types import Encoding, Example


@dataclass(frozen=True, slots=True)
class Window:
    """A sequence of the encoder, special tokens included."""

    ids: np.ndarray
    segments: np.ndarray
    start: int = 0
    """Where in its text's tokens the window begins."""
    facts: Any = None
    """What the task needs to know of it."""
    parts: np.ndarray | None = None
    """Where a token has many ids, those of all tokens end to end ..."""
    part_sizes: np.ndarray | None = None
    """... and how many each token has."""

    def __len__(self) -> int:
        return len(self.ids)


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
    """One text or a pair in its frame of special tokens."""
    ids = specials.frame.join(*texts)
    return Window(ids, specials.frame.segments(*texts), start, facts, *(specials.parts(ids) or (None, None)))


def cut_window(
    specials: Specials, *pieces: tuple[Encoding, int, int], start: int | None = None, facts: Any = None
) -> Window:
    """Stretches of one text or two in their frame, with their tokens' parts where they have any."""
    start = pieces[0][1] if start is None else start
    made = window(specials, *(encoding.ids[a:b] for encoding, a, b in pieces), start=start, facts=facts)
    if pieces[0][0].parts is None:
        return made
    frame = specials.frame
    rows = [_parts(specials, frame.opening)]
    for encoding, a, b in pieces:
        rows += [encoding.parts_between(a, b), _parts(specials, frame.between)]
    rows[-1] = _parts(specials, frame.closing)
    parts, sizes = zip(*rows, strict=True)
    return replace(made, parts=np.concatenate(parts), part_sizes=np.concatenate(sizes))


def _parts(specials: Specials, ids: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    return specials.parts(ids) or (np.empty(0, np.int64), np.zeros(len(ids), np.int64))


def text_items(
    examples: Sequence[Example],
    tokenizer: Any,
    *,
    max_length: int,
    max_windows: int | None = None,
    both_orders: bool = False,
) -> list[Item]:
    """An item for each text or pair.

    A long text is cut into windows that overlap by a quarter. A pair must be read together, so it is cut to fit; with
    `both_orders` a second window has its texts the other way round.
    """
    frame = tokenizer.vocab.frame
    encodings = iter(tokenizer.encode_batch([text for example in examples for text in example.texts]))
    items = []
    for example in examples:
        texts = [next(encodings) for _ in example.texts]
        total, size = sum(map(len, texts)), max_length - frame.size()
        if len(texts) > 1:
            first, second = shorten(len(texts[0]), len(texts[1]), max_length - frame.size(2))
            pair = (texts[0], 0, first), (texts[1], 0, second)
            orders = (pair, pair[::-1]) if both_orders else (pair,)
            cuts = tuple(cut_window(tokenizer.vocab, *order) for order in orders)
            items.append(Item(example, cuts, total, total - first - second))
        else:
            spans = windows(total, size, max(1, size * 3 // 4))[:max_windows]
            cuts = tuple(cut_window(tokenizer.vocab, (texts[0], a, b)) for a, b in spans)
            items.append(Item(example, cuts, total, total - spans[-1][1]))
    return items


def pack_windows(windows: Sequence[Window]) -> Batch:
    """Windows end to end."""
    batch = pack_tokens([w.ids for w in windows], segments=[w.segments for w in windows])
    parts, sizes = [w.parts for w in windows if w.parts is not None], [w.part_sizes for w in windows]
    if not parts:
        return batch
    bounds_N1 = np.concatenate([[0], np.cumsum(np.concatenate([s for s in sizes if s is not None]))])
    parts_M = torch.from_numpy(np.concatenate(parts).astype(np.int64))
    return replace(batch, parts_M=parts_M, part_bounds_N1=torch.from_numpy(bounds_N1))


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
