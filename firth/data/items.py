"""Labelled examples as the sequences an encoder reads, and the order in which training sees them.

An `Item` is one example cut into windows: a single one for most, several for a text longer than the model or for an
example with options. Batches hold whole items; which items make up batch i of an epoch is a pure function of the seed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from firth import rng
from firth.data.loader import BatchAddress
from firth.data.packing import Specials, pack_tokens
from firth.ragged import bounds_of, owners_of
from firth.tensors import Batch
from firth.tokenizers import Tokenizer
from firth.tokenizers.vocab import windows
from firth.types import Encoding, Example

Stretch = tuple[Encoding, int, int]
"""The tokens from a start up to but not including an end of an encoded text."""


@dataclass(frozen=True, slots=True)
class Window:
    """A sequence of the encoder, special tokens included."""

    ids: np.ndarray
    segments: np.ndarray
    start: int = 0
    """The token of the text that the window begins with."""
    facts: Any = None
    """What the task needs to know about it; each task puts in its own type."""
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
    """Of these, the tokens that are in no window."""
    facts: Any = None
    """What the task needs to know about it; each task puts in its own type."""


def window(specials: Specials, *texts: np.ndarray, start: int = 0, facts: Any = None) -> Window:
    """One text or a pair in its frame of special tokens."""
    ids = specials.frame.join(*texts)
    segments = specials.frame.segments(*texts)
    parts = specials.parts(ids)
    if parts is None:
        return Window(ids, segments, start, facts)
    parts_M, part_sizes_N = parts
    return Window(ids, segments, start, facts, parts_M, part_sizes_N)


def cut_window(specials: Specials, *pieces: Stretch, start: int | None = None, facts: Any = None) -> Window:
    """Stretches of one text or two in their frame, with their tokens' parts where they have any."""
    first_encoding, first_start, _ = pieces[0]
    if start is None:
        start = first_start
    texts = [encoding.ids[a:b] for encoding, a, b in pieces]
    made = window(specials, *texts, start=start, facts=facts)
    if first_encoding.parts is None:
        return made
    # The text knows the parts of its tokens better than the vocabulary, which knows only ids.
    frame = specials.frame
    rows = [_parts_of(specials, frame.opening)]
    for encoding, a, b in pieces:
        rows.append(encoding.parts_between(a, b))
        rows.append(_parts_of(specials, frame.between))
    rows[-1] = _parts_of(specials, frame.closing)
    parts, sizes = zip(*rows, strict=True)
    return replace(made, parts=np.concatenate(parts), part_sizes=np.concatenate(sizes))


def _parts_of(specials: Specials, ids: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """The parts of special tokens and how many each has: none where the vocabulary knows no parts."""
    parts = specials.parts(ids)
    if parts is None:
        return np.empty(0, np.int64), np.zeros(len(ids), np.int64)
    return parts


def text_items(
    examples: Sequence[Example],
    tokenizer: Tokenizer,
    *,
    max_length: int,
    max_windows: int | None = None,
    both_orders: bool = False,
) -> list[Item]:
    """An item for each text or pair.

    A long text is cut into windows that overlap by a quarter. A pair must be read together, so it is cut to fit; with
    `both_orders` a second window has its texts the other way round.
    """
    items = []
    for example, encoded in zip(examples, encoded_texts(examples, tokenizer), strict=True):
        if len(encoded) > 1:
            item = _pair_item(example, encoded, tokenizer.vocab, max_length=max_length, both_orders=both_orders)
        else:
            item = _single_item(example, encoded[0], tokenizer.vocab, max_length=max_length, max_windows=max_windows)
        items.append(item)
    return items


def encoded_texts(examples: Sequence[Example], tokenizer: Tokenizer) -> list[list[Encoding]]:
    """The encodings of each example's texts. All texts are encoded in one call, which is faster."""
    all_texts: list[str] = []
    for example in examples:
        all_texts += example.texts
    encodings = iter(tokenizer.encode_batch(all_texts))
    rows = []
    for example in examples:
        rows.append(list(islice(encodings, len(example.texts))))
    return rows


def text_sequences(texts: Sequence[str], tokenizer: Tokenizer, *, max_length: int) -> list[np.ndarray]:
    """The ids of each text with its special tokens, cut to this length."""
    frame = tokenizer.vocab.frame
    room = max_length - frame.size()
    sequences = []
    for ids in tokenizer.ids_batch(list(texts)):
        cut = np.array(ids[:room], np.int64)
        sequences.append(frame.join(cut))
    return sequences


def _pair_item(
    example: Example,
    encoded: Sequence[Encoding],
    specials: Specials,
    *,
    max_length: int,
    both_orders: bool,
) -> Item:
    num_tokens = sum(len(encoding) for encoding in encoded)
    room = max_length - specials.frame.size(2)
    first_length, second_length = shorten(len(encoded[0]), len(encoded[1]), room)
    first = (encoded[0], 0, first_length)
    second = (encoded[1], 0, second_length)
    cuts = [cut_window(specials, first, second)]
    if both_orders:
        cuts.append(cut_window(specials, second, first))
    return Item(example, tuple(cuts), num_tokens, num_tokens - first_length - second_length)


def _single_item(
    example: Example,
    encoding: Encoding,
    specials: Specials,
    *,
    max_length: int,
    max_windows: int | None,
) -> Item:
    num_tokens = len(encoding)
    size = max_length - specials.frame.size()
    stride = max(1, size * 3 // 4)
    spans = windows(num_tokens, size, stride)[:max_windows]
    cuts = [cut_window(specials, (encoding, start, end)) for start, end in spans]
    # Windows overlap, so the end of the last one says how much is covered.
    _, last_end = spans[-1]
    return Item(example, tuple(cuts), num_tokens, num_tokens - last_end)


def pack_windows(windows: Sequence[Window]) -> Batch:
    """A batch of windows end to end."""
    ids = [window.ids for window in windows]
    segments = [window.segments for window in windows]
    batch = pack_tokens(ids, segments=segments)
    # Either all windows have parts or none has.
    parts = [window.parts for window in windows if window.parts is not None]
    if not parts:
        return batch
    part_sizes_N = np.concatenate([window.part_sizes for window in windows if window.part_sizes is not None])
    part_bounds_N1 = bounds_of(part_sizes_N)
    parts_M = np.concatenate(parts).astype(np.int64)
    return replace(batch, parts_M=torch.from_numpy(parts_M), part_bounds_N1=torch.from_numpy(part_bounds_N1))


def pack_items(items: Sequence[Item]) -> tuple[Batch, Tensor]:
    """All windows of some items end to end, and for each window the number of its item."""
    num_windows = [len(item.windows) for item in items]
    owners = owners_of(num_windows)
    return pack_windows(all_windows(items)), torch.from_numpy(owners)


def all_windows(items: Sequence[Item]) -> list[Window]:
    """The windows of some items, in their order."""
    windows: list[Window] = []
    for item in items:
        windows += item.windows
    return windows


def shorten(first: int, second: int, room: int) -> tuple[int, int]:
    """Lengths of a pair that fit into `room`: the longer text is cut first, as in BERT."""
    if first + second <= room:
        return first, second
    # A text shorter than half the room is kept whole, and the other one gets the rest.
    half = room // 2
    kept_first = min(first, max(room - second, room - half))
    kept_second = min(second, room - kept_first)
    return kept_first, kept_second


class BatchMaker(Protocol):
    """What makes batches of one task's items: its head."""

    def batch(self, items: Sequence[Item]) -> Batch: ...


_Dealt = list[tuple[str, np.ndarray]]
"""For each batch of an epoch its task, and the numbers of its items."""


@dataclass
class ItemBatches:
    """The batches of all epochs over one task's items, or over several tasks' in turn.

    With several tasks each batch is of one of them, drawn in proportion to size^alpha. An epoch is as many batches as
    all of them together need; a task that is drawn more often starts its items again in another order.
    """

    tasks: Mapping[str, BatchMaker]
    items: Mapping[str, Sequence[Item]]
    size: int
    seed: int
    alpha: float = 1.0
    workers: int = 0
    _plan: tuple[int, _Dealt] | None = field(default=None, repr=False)
    """The epoch last asked for, and its batches."""

    def num_packs(self, epoch: int) -> int:
        """The number of batches in an epoch."""
        return sum(-(-len(items) // self.size) for items in self.items.values())

    def __getitem__(self, place: BatchAddress) -> Batch:
        if self._plan is None or self._plan[0] != place.epoch:
            self._plan = (place.epoch, self._deal(place.epoch))
        _, dealt = self._plan
        name, rows = dealt[place.index]
        task_items = self.items[name]
        batch = self.tasks[name].batch([task_items[row] for row in rows])
        return replace(batch, goal=name)

    def _deal(self, epoch: int) -> _Dealt:
        """Draws the task of every batch, and deals each task's items to its batches."""
        names = list(self.items)
        num_items = [len(self.items[name]) for name in names]
        sizes = np.array(num_items, float) ** self.alpha
        key = rng.key(self.seed, "task", epoch)
        draws = rng.uniform(key, np.arange(self.num_packs(epoch)))
        # The draw of a batch falls into the interval of one task.
        interval_ends = np.cumsum(sizes / sizes.sum())
        turns = np.searchsorted(interval_ends, draws, side="right")
        # The sum of the shares may be rounded to less than 1.
        turns = turns.clip(max=len(names) - 1)
        batches_left = {}
        for i, name in enumerate(names):
            num_batches = int((turns == i).sum())
            batches_left[name] = iter(self._rows(name, epoch, num_batches))
        dealt = []
        for turn in turns:
            name = names[turn]
            dealt.append((name, next(batches_left[name])))
        return dealt

    def _rows(self, name: str, epoch: int, count: int) -> list[np.ndarray]:
        """The first `count` batches of one task, as numbers of items."""
        total = len(self.items[name])
        batches: list[np.ndarray] = []
        times_through = 0
        while len(batches) < count:
            key = rng.key(self.seed, "order", name, epoch, times_through)
            order = rng.permutation(key, total)
            for start in range(0, total, self.size):
                batches.append(order[start : start + self.size])
            times_through += 1
        return batches[:count]
