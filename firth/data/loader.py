"""Views of a corpus -> batches, in this process or in workers, always the same ones in the same order.

A batch is a pure function of (epoch, index): workers share nothing, and a resumed run continues at its place at once.
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from types import TracebackType
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from firth import rng
from firth.data.languages import cut_by_language
from firth.data.order import deal
from firth.data.packing import Pack, Plan, Specials, finish, lay_out, token_ranges, usual_sequences
from firth.data.settings import BatchConfig
from firth.data.sources import PackSizes, pack_sizes, room_taken
from firth.data.stream import CorpusView
from firth.errors import BadInput, FirthError
from firth.tensors import Batch

PREFETCH = 16
"""How many packs ahead text is fetched from an object store."""


@dataclass(frozen=True)
class BatchAddress:
    """A batch's address: which epoch and which pack of it."""

    epoch: int = 0
    index: int = 0


class Batches(Protocol):
    """Batches by their address: packs of running text, or labelled examples."""

    workers: int

    def num_packs(self, epoch: int) -> int: ...
    def __getitem__(self, place: BatchAddress, /) -> Batch: ...


class Corrupter(Protocol):
    """What the packs need of a pre-training objective (`firth.objectives.objective.Objective`)."""

    def set_text(self, stream: CorpusView) -> None: ...
    def sequences(self, stream: CorpusView, epoch: int) -> Plan: ...
    def corrupt(self, pack: Pack, epoch: int) -> None: ...


class _Epoch(NamedTuple):
    """An epoch's sequences, and for each pack the numbers of its sequences."""

    plan: Plan
    packs: list[np.ndarray]


class Packs(Dataset[Batch]):
    """All the packs of all epochs, made on demand."""

    def __init__(
        self,
        stream: CorpusView,
        objectives: Sequence[Corrupter],
        config: BatchConfig,
        *,
        specials: Specials,
        seed: int,
    ) -> None:
        self.stream = stream
        self.objectives = objectives
        self.config = config
        self.specials = specials
        self.seed = seed
        self.workers = config.workers
        self._planned: tuple[int, _Epoch] | None = None
        self._last_index = -1
        self._stride = 0
        for objective in objectives:
            objective.set_text(stream)

    def num_packs(self, epoch: int) -> int:
        return len(self._plan(epoch).packs)

    def __getitem__(self, place: BatchAddress) -> Batch:  # type: ignore[override]
        epoch = self._plan(place.epoch)
        self._prefetch(epoch, place.index)
        # An objective may append a short sequence for each.
        max_sequences = self._max_sequences
        if epoch.plan.appended:
            max_sequences *= 2
        pack = lay_out(
            self.stream.shards,
            epoch.plan,
            epoch.packs[place.index],
            specials=self.specials,
            num_tokens=self._sizes.target,
            source_tokens=self._sizes.source,
            max_sequences=max_sequences,
            max_length=self.config.max_length,
        )
        for objective in self.objectives:
            objective.corrupt(pack, place.epoch)
        return finish(pack, specials=self.specials)

    def _prefetch(self, epoch: _Epoch, index: int) -> None:
        """Has the text of the next packs fetched meanwhile. Of several workers or ranks each reads every n-th pack."""
        if not self.stream.shards.is_remote:
            return
        stride = max(1, index - self._last_index)
        self._last_index = index
        last = index + PREFETCH * stride
        # Of packs in a row only the last one was not asked for before.
        first = last if stride == self._stride else index
        self._stride = stride
        for later in range(first, min(last + 1, len(epoch.packs)), stride):
            starts, ends = token_ranges(epoch.plan, epoch.packs[later])
            self.stream.shards.prefetch(starts, ends)

    def _plan(self, epoch: int) -> _Epoch:
        """The plan of an epoch; the last one is kept, because batches are read epoch by epoch."""
        if self._planned is None or self._planned[0] != epoch:
            plan = self._sequences(epoch)
            key = rng.key(self.seed, "order", epoch)
            packs = deal(
                plan,
                key=key,
                num_tokens=self.config.tokens,
                max_sequences=self._max_sequences,
                lengths_S=room_taken(plan, self._sizes),
                window=self.config.shuffle_tokens,
            )
            self._planned = (epoch, _Epoch(plan, packs))
        _, planned = self._planned
        return planned

    @cached_property
    def _sizes(self) -> PackSizes:
        """The same in every epoch, whichever epoch a run begins with."""
        return pack_sizes(self._sequences(0), self.config.tokens)

    @cached_property
    def _max_sequences(self) -> int:
        """The same in every epoch, too."""
        return usual_sequences(room_taken(self._sequences(0), self._sizes), self.config.tokens)

    def _sequences(self, epoch: int) -> Plan:
        plan = self._cut(epoch)
        if not len(plan):
            raise BadInput("The corpus is too small to make a single sequence; add text.")
        if self.config.segments == "languages":
            return replace(plan, segment_of_language=self._segment_of_language)
        return plan

    def _cut(self, epoch: int) -> Plan:
        """Cuts the text as the first objective does; where it has languages, each on its own."""
        first = self.objectives[0]
        if self.stream.shards.languages is None:
            return first.sequences(self.stream, epoch)
        key = rng.key(self.seed, "languages", epoch)
        cut = partial(first.sequences, epoch=epoch)
        return cut_by_language(self.stream, cut, alpha=self.config.language_alpha, key=key)

    @cached_property
    def _segment_of_language(self) -> np.ndarray:
        """For each language of the shards the number that the model has for it; for text without any, 0."""
        names = self.stream.shards.language_names
        numbers = [self.config.languages.index(name) for name in names]
        return np.array(numbers or [0], np.int64)


def places(packs: Batches, start: BatchAddress) -> Iterator[BatchAddress]:
    """Addresses from `start` on, epoch after epoch without end."""
    epoch = start.epoch
    first_index = start.index
    while True:
        num_packs = packs.num_packs(epoch)
        for index in range(first_index, num_packs):
            yield BatchAddress(epoch, index)
        # A start behind the end of an epoch is a place in the next one: several ranks step over it together.
        first_index = max(0, first_index - num_packs)
        epoch += 1


def load(
    packs: Batches,
    addresses: Iterator[BatchAddress] | Sequence[BatchAddress],
    *,
    workers: int,
) -> Iterator[tuple[BatchAddress, Batch]]:
    """The batches at these addresses with their addresses, in order."""
    prefetch_factor = 4 if workers else None
    context = "fork" if workers else None
    loader: DataLoader[tuple[BatchAddress, Batch | FirthError]] = DataLoader(
        _Addressed(packs),
        batch_size=None,
        sampler=addresses,  # type: ignore[arg-type]
        num_workers=workers,
        prefetch_factor=prefetch_factor,
        pin_memory=torch.cuda.is_available(),
        multiprocessing_context=context,
        worker_init_fn=_start_worker,
    )
    return _without_errors(iter(loader))


class _Addressed(Dataset[tuple[BatchAddress, Batch | FirthError]]):
    """Batches together with their addresses.

    An error of ours is given in place of a batch: what a worker raises comes with its traceback as the text.
    """

    def __init__(self, packs: Batches) -> None:
        self.packs = packs

    def __getitem__(self, place: BatchAddress) -> tuple[BatchAddress, Batch | FirthError]:  # type: ignore[override]
        try:
            return place, self.packs[place]
        except FirthError as error:
            return place, error


def _without_errors(loaded: Iterator[tuple[BatchAddress, Batch | FirthError]]) -> Iterator[tuple[BatchAddress, Batch]]:
    """The batches; raises an error that came in place of one."""
    for place, batch in loaded:
        if isinstance(batch, FirthError):
            raise batch
        yield place, batch


def is_lost_worker(error: RuntimeError) -> bool:
    """Whether an error of torch says that a worker has died. It comes by a signal, so it is raised anywhere."""
    return str(error).startswith("DataLoader worker (pid")


def _start_worker(worker: int) -> None:
    """Workers leave the other cores to training, and say nothing if the training process ends before them."""
    torch.set_num_threads(1)
    # The thread that hands over memory shows its errors by this function.
    sys.excepthook = _show_unless_disconnected


def _show_unless_disconnected(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    if not isinstance(error, ConnectionError | EOFError):
        sys.__excepthook__(kind, error, traceback)
