"""Questions that came one by one, computed together: jobs in, answers out, each as if it had been alone.

There is no waiting for company: an idle worker starts at once with what is there, and what arrives while it computes is
its next batch. So a lone request never waits, and under load batches fill by themselves. A batch is the oldest job and
those of its lane that are most like it in length, within a budget of tokens; packed batches need no padding.
"""

import asyncio
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

from firth.inference.model import BATCH_TOKENS
from firth.serving.limits import Limits
from firth.serving.prometheus import Meters
from firth.serving.responses import Refusal, overloaded


class Lane(Protocol):
    """What may share a batch: equal lanes are one. A model, what is asked of it and with which settings."""

    def compute(self, payloads: Sequence[Any]) -> Sequence[Any]:
        """An answer for each payload, in order."""
        ...


@dataclass(eq=False)
class Job:
    lane: Lane
    payload: Any
    tokens: int
    answer: "asyncio.Future[Any]"
    since: float = field(default_factory=time.perf_counter)


class Batcher:
    """Worker threads and the jobs that wait for them."""

    def __init__(self, limits: Limits, meters: Meters, *, workers: int = 1, threads: int | None = None) -> None:
        self.limits, self.meters, self.threads = limits, meters, threads
        self.waiting: list[Job] = []
        self.ready = threading.Condition()
        self.closed = False
        self.tokens_a_second = 10_000.0
        """A first guess; every batch corrects it."""
        self.workers = [threading.Thread(target=self._work, name=f"batches-{i}", daemon=True) for i in range(workers)]
        for worker in self.workers:
            worker.start()

    async def ask(self, lane: Lane, payload: Any, *, tokens: int) -> Any:
        """The lane's answer; whoever stops awaiting it takes the job out of the queue."""
        job = Job(lane, payload, tokens, asyncio.get_running_loop().create_future())
        with self.ready:
            self._admit(tokens)
            self.waiting.append(job)
            self.ready.notify()
        try:
            return await job.answer
        except asyncio.CancelledError:
            with self.ready:
                if job in self.waiting:
                    self.waiting.remove(job)
                    self.meters.dropped.inc()
            raise

    def close(self) -> None:
        """Lets the workers finish what waits, and ends them."""
        with self.ready:
            self.closed = True
            self.ready.notify_all()
        for worker in self.workers:
            worker.join()

    def _admit(self, tokens: int) -> None:
        seconds = (sum(job.tokens for job in self.waiting) + tokens) / self.tokens_a_second
        if self.closed:
            raise Refusal(503, "stopping", "The server is stopping.")
        if len(self.waiting) >= self.limits.queued or (self.waiting and seconds > self.limits.answer_seconds):
            self.meters.turned_away.inc()
            raise overloaded("The server has more requests than it can answer in time; try again later.", seconds)

    def _work(self) -> None:
        if self.threads:
            import torch

            torch.set_num_threads(self.threads)
        while True:
            with self.ready:
                self.ready.wait_for(lambda: self.waiting or self.closed)
                if not self.waiting:
                    return
                batch = self._pick()
            began = time.perf_counter()
            answers = _answers(batch)
            self._note(batch, began, time.perf_counter())
            with suppress(RuntimeError):  # the loop has ended, and with it all who waited
                batch[0].answer.get_loop().call_soon_threadsafe(_deliver, batch, answers)

    def _pick(self) -> list[Job]:
        """The oldest job and its company, taken out of the queue."""
        oldest, *others = self.waiting
        room = min(BATCH_TOKENS, self.limits.batch_tokens) - oldest.tokens
        batch = [oldest]
        for job in sorted(others, key=lambda job: abs(job.tokens - oldest.tokens)):
            if job.lane == oldest.lane and job.tokens <= room:
                batch.append(job)
                room -= job.tokens
        taken = set(batch)
        self.waiting = [job for job in self.waiting if job not in taken]
        return batch

    def _note(self, batch: Sequence[Job], began: float, ended: float) -> None:
        tokens = sum(job.tokens for job in batch)
        self.tokens_a_second += 0.1 * (len(self.workers) * tokens / max(ended - began, 1e-6) - self.tokens_a_second)
        self.meters.batch_jobs.observe(len(batch))
        self.meters.batch_tokens.observe(tokens)
        self.meters.batch_seconds.observe(ended - began)
        for job in batch:
            self.meters.wait_seconds.observe(began - job.since)


def _answers(batch: Sequence[Job]) -> Sequence[Any]:
    """The lane's answers; where it fails on many, each is asked alone, so that none suffers from its company."""
    try:
        return batch[0].lane.compute([job.payload for job in batch])
    except Exception as error:
        return [error] if len(batch) == 1 else [answer for job in batch for answer in _answers([job])]


def _deliver(batch: Sequence[Job], answers: Sequence[Any]) -> None:
    for job, answer in zip(batch, answers, strict=True):
        if job.answer.done():
            continue
        if isinstance(answer, Exception):
            job.answer.set_exception(answer)
        else:
            job.answer.set_result(answer)
