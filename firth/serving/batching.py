"""Requests that arrive one by one, computed together: payloads in, results out, each as if it had been computed alone.

Nothing waits for a batch to fill. An idle worker starts at once with what is queued, and what arrives while it computes
is its next batch. So a single request never waits, and under load batches fill by themselves. A batch is the oldest
request and those with the same operation that are closest to it in length, within a budget of tokens. Packed batches
need no padding.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from firth.data.items import Item
from firth.inference.embedding import BATCH_TOKENS, Embedder
from firth.inference.filling import MaskedText, MaskFiller
from firth.inference.model import Model
from firth.inference.rewriting import Rewriter, RewriteSettings
from firth.inference.tokenized_texts import TokenizedTexts
from firth.serving.limits import Limits
from firth.serving.prometheus import ServerMetrics
from firth.serving.responses import HttpError, overloaded
from firth.types import Fill, Prediction, Rewritten

PayloadT = TypeVar("PayloadT")
ResultT = TypeVar("ResultT")
_PayloadT_contra = TypeVar("_PayloadT_contra", contravariant=True)
_ResultT_co = TypeVar("_ResultT_co", covariant=True)


class BatchOperation(Protocol[_PayloadT_contra, _ResultT_co]):
    """What a batch computes: a model, what it does and with which settings. Equal operations can share a batch."""

    def compute(self, payloads: Sequence[_PayloadT_contra]) -> Sequence[_ResultT_co]:
        """A result for each payload, in order."""
        ...


@dataclass(frozen=True)
class EmbedOperation:
    embedder: Embedder
    pooling: str | None = None
    normalise: bool | None = None

    def compute(self, payloads: Sequence[TokenizedTexts]) -> list[np.ndarray]:
        return self.embedder.embed_tokenized(payloads, pooling=self.pooling, normalise=self.normalise)


@dataclass(frozen=True)
class FillOperation:
    mask_filler: MaskFiller
    top: int

    def compute(self, payloads: Sequence[MaskedText]) -> list[list[Fill]]:
        return self.mask_filler.fill_batch(payloads, top=self.top)


@dataclass(frozen=True)
class PredictOperation:
    model: Model
    task: str

    def compute(self, payloads: Sequence[Sequence[Item]]) -> list[list[Prediction]]:
        all_items = list(chain.from_iterable(payloads))
        return _split_by_request(self.model.predict_items(all_items, task=self.task), payloads)


@dataclass(frozen=True)
class RewriteOperation:
    rewriter: Rewriter
    settings: RewriteSettings

    def compute(self, payloads: Sequence[Sequence[Item]]) -> list[list[Rewritten]]:
        all_items = list(chain.from_iterable(payloads))
        return _split_by_request(self.rewriter.rewrite(all_items, self.settings), payloads)


def _split_by_request(results: Sequence[ResultT], payloads: Sequence[Sequence[Item]]) -> list[list[ResultT]]:
    """The results of all items, by the requests that the items belong to."""
    by_request = []
    start = 0
    for items in payloads:
        end = start + len(items)
        by_request.append(list(results[start:end]))
        start = end
    return by_request


@dataclass(frozen=True, eq=False)
class UnsharedOperation(Generic[ResultT]):
    """A function that shares its batch with no other request: it is equal to no other operation."""

    function: Callable[[], ResultT]

    def compute(self, payloads: Sequence[None]) -> list[ResultT]:
        return [self.function() for _ in payloads]


@dataclass(eq=False)
class QueuedRequest:
    """A request that waits for its batch. Only `Batcher.submit` knows the types of its payload and result."""

    operation: BatchOperation[Any, object]
    payload: object
    tokens: int
    result: "asyncio.Future[Any]"
    queued_at: float = field(default_factory=time.perf_counter)


class Batcher:
    """A queue of requests and the worker thread that computes them."""

    def __init__(self, limits: Limits, metrics: ServerMetrics) -> None:
        self.limits = limits
        self.metrics = metrics
        self.queue: list[QueuedRequest] = []
        self.condition = threading.Condition()
        """Guards the queue; the worker waits for it."""
        self.is_closed = False
        self.tokens_per_second = 10_000.0
        """A first guess; every batch corrects it."""
        self.worker = threading.Thread(target=self._work, name="batches", daemon=True)
        self.worker.start()

    async def submit(self, operation: BatchOperation[PayloadT, ResultT], payload: PayloadT, *, tokens: int) -> ResultT:
        """The operation's result for this payload. If the caller is cancelled, the request leaves the queue."""
        # The worker is a thread: the lock guards the queue, and the future brings the result back to this loop.
        future = asyncio.get_running_loop().create_future()
        request = QueuedRequest(operation, payload, tokens, future)
        with self.condition:
            self._check_load(tokens)
            self.queue.append(request)
            self.metrics.queued.set(len(self.queue))
            self.condition.notify()
        try:
            result: ResultT = await request.result
        except asyncio.CancelledError:
            with self.condition:
                # The worker may already have taken it.
                if request in self.queue:
                    self.queue.remove(request)
                    self.metrics.queued.set(len(self.queue))
                    self.metrics.dropped.inc()
            raise
        return result

    def close(self) -> None:
        """Lets the worker finish what is queued, and ends it."""
        with self.condition:
            self.is_closed = True
            self.condition.notify()
        self.worker.join()

    def _check_load(self, tokens: int) -> None:
        """Refuses a request that the queue has no room for, or that would not be answered in time."""
        if self.is_closed:
            raise HttpError(503, "stopping", "The server is stopping.")
        queued_tokens = sum(request.tokens for request in self.queue)
        seconds = (queued_tokens + tokens) / self.tokens_per_second
        is_full = len(self.queue) >= self.limits.queued
        # A request that finds an empty queue is always accepted, however long it takes.
        is_too_slow = bool(self.queue) and seconds > self.limits.answer_seconds
        if is_full or is_too_slow:
            self.metrics.turned_away.inc()
            raise overloaded("The server has more requests than it can answer in time; try again later.", seconds)

    def _work(self) -> None:
        """Computes one batch after another until the batcher is closed and its queue is empty."""
        while True:
            with self.condition:
                self.condition.wait_for(lambda: self.queue or self.is_closed)
                if not self.queue:
                    return
                batch = self._take_batch()
            start = time.perf_counter()
            results = _compute(batch)
            self._record(batch, start, time.perf_counter())
            loop = batch[0].result.get_loop()
            # A loop that has ended raises, but then nobody waits for the results.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(_deliver, batch, results)

    def _take_batch(self) -> list[QueuedRequest]:
        """The oldest request and those that share its batch, removed from the queue."""
        oldest, *others = self.queue
        room = min(BATCH_TOKENS, self.limits.batch_tokens) - oldest.tokens
        batch = [oldest]
        # Sequences of similar length are computed with the least waste.
        for request in sorted(others, key=lambda request: abs(request.tokens - oldest.tokens)):
            if request.operation == oldest.operation and request.tokens <= room:
                batch.append(request)
                room -= request.tokens
        taken = set(batch)
        self.queue = [request for request in self.queue if request not in taken]
        self.metrics.queued.set(len(self.queue))
        return batch

    def _record(self, batch: Sequence[QueuedRequest], start: float, end: float) -> None:
        """Updates the metrics and the estimate of the speed after a batch."""
        tokens = sum(request.tokens for request in batch)
        seconds = end - start
        speed = tokens / max(seconds, 1e-6)
        # An exponential moving average.
        self.tokens_per_second += 0.1 * (speed - self.tokens_per_second)
        self.metrics.batch_jobs.observe(len(batch))
        self.metrics.batch_tokens.observe(tokens)
        self.metrics.batch_seconds.observe(seconds)
        for request in batch:
            self.metrics.wait_seconds.observe(start - request.queued_at)


def _compute(batch: Sequence[QueuedRequest]) -> list[object]:
    """A result or an exception for each request.

    If a batch fails, each of its requests is computed alone, so that only the faulty one gets the error.
    """
    operation = batch[0].operation
    try:
        return list(operation.compute([request.payload for request in batch]))
    except Exception as error:
        if len(batch) == 1:
            return [error]
    results = []
    for request in batch:
        results += _compute([request])
    return results


def _deliver(batch: Sequence[QueuedRequest], results: Sequence[object]) -> None:
    """Runs in the event loop: hands the results to the callers that still wait."""
    for request, result in zip(batch, results, strict=True):
        if request.result.done():
            continue
        if isinstance(result, Exception):
            request.result.set_exception(result)
        else:
            request.result.set_result(result)
