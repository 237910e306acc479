"""The queue: who shares a batch, who is turned away, and what becomes of work nobody waits for any more."""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from firth.inference.embedding import BATCH_TOKENS
from firth.inference.model import Model
from firth.serving import routes
from firth.serving.asgi import App
from firth.serving.batching import Batcher
from firth.serving.limits import Limits
from firth.serving.prometheus import ServerMetrics
from firth.serving.responses import HttpError
from firth.serving.server_state import ServerState


@dataclass(eq=False)
class Slow:
    """A lane that notes its batches and goes on only when it may."""

    batches: list[list[Any]] = field(default_factory=list)
    may: threading.Event = field(default_factory=threading.Event)
    begun: threading.Event = field(default_factory=threading.Event)

    def compute(self, payloads: Sequence[Any]) -> list[Any]:
        self.batches.append(list(payloads))
        self.begun.set()
        assert self.may.wait(20)
        if "bad" in payloads:
            raise ValueError("a mistake")
        return [f"answer to {payload}" for payload in payloads]


Make = Callable[..., Batcher]


@pytest.fixture
def make() -> Iterator[Make]:
    made: list[Batcher] = []

    def build(**limits: Any) -> Batcher:
        made.append(Batcher(Limits(**limits), ServerMetrics()))
        return made[-1]

    yield build
    for batcher in made:
        batcher.close()


async def begin(batcher: Batcher, lane: Slow) -> "asyncio.Task[Any]":
    """Occupies the worker, so that what comes now has to wait."""
    task = asyncio.create_task(batcher.submit(lane, "first", tokens=1))
    await asyncio.to_thread(lane.begun.wait, 20)
    return task


def test_what_waits_together_is_computed_together(make: Make) -> None:
    batcher, lane = make(), Slow()

    async def main() -> list[Any]:
        first = await begin(batcher, lane)
        rest = [asyncio.create_task(batcher.submit(lane, i, tokens=10)) for i in range(50)]
        await asyncio.sleep(0.05)
        lane.may.set()
        return await asyncio.gather(first, *rest)

    assert asyncio.run(main()) == ["answer to first", *(f"answer to {i}" for i in range(50))]
    assert [len(batch) for batch in lane.batches] == [1, 50]


def test_a_batch_keeps_its_budget_the_oldest_first_and_the_like_beside_it(make: Make) -> None:
    batcher, lane = make(), Slow()
    half = BATCH_TOKENS // 2

    async def main() -> None:
        first = await begin(batcher, lane)
        jobs = [("a", half), ("b", 5), ("c", half), ("d", half + 1), ("e", 3 * BATCH_TOKENS)]
        rest = [asyncio.create_task(batcher.submit(lane, name, tokens=tokens)) for name, tokens in jobs]
        await asyncio.sleep(0.05)
        lane.may.set()
        await asyncio.gather(first, *rest)

    asyncio.run(main())
    assert lane.batches == [["first"], ["a", "c"], ["b", "d"], ["e"]]


def test_lanes_do_not_mix(make: Make) -> None:
    batcher, one, other = make(), Slow(), Slow()
    other.may.set()

    async def main() -> None:
        first = await begin(batcher, one)
        rest = [asyncio.create_task(batcher.submit(one if i % 2 else other, i, tokens=1)) for i in range(6)]
        await asyncio.sleep(0.05)
        one.may.set()
        await asyncio.gather(first, *rest)

    asyncio.run(main())
    assert (one.batches, other.batches) == ([["first"], [1, 3, 5]], [[0, 2, 4]])


def test_one_bad_job_does_not_spoil_its_batch(make: Make) -> None:
    batcher, lane = make(), Slow()

    async def main() -> list[Any]:
        first = await begin(batcher, lane)
        rest = [asyncio.create_task(batcher.submit(lane, name, tokens=1)) for name in ("good", "bad", "fine")]
        await asyncio.sleep(0.05)
        lane.may.set()
        return await asyncio.gather(first, *rest, return_exceptions=True)

    _, good, bad, fine = asyncio.run(main())
    assert (good, fine) == ("answer to good", "answer to fine")
    assert isinstance(bad, ValueError)


def test_work_nobody_awaits_is_dropped(make: Make) -> None:
    batcher, lane = make(), Slow()

    async def main() -> None:
        first = await begin(batcher, lane)
        rest = [asyncio.create_task(batcher.submit(lane, i, tokens=1)) for i in range(4)]
        await asyncio.sleep(0.05)
        rest[1].cancel()
        rest[2].cancel()
        await asyncio.sleep(0.05)
        assert len(batcher.queue) == 2
        # Counted where the queue changes: of several processes only one answers a request for the metrics.
        assert b"firth_queued 2.0" in batcher.metrics.text()
        lane.may.set()
        await asyncio.gather(first, rest[0], rest[3])

    asyncio.run(main())
    assert lane.batches == [["first"], [0, 3]]
    assert b"firth_dropped_total 2.0" in batcher.metrics.text()
    assert b"firth_queued 0.0" in batcher.metrics.text()


def test_a_full_queue_turns_away(make: Make) -> None:
    batcher, lane = make(queued=3), Slow()

    async def main() -> None:
        first = await begin(batcher, lane)
        rest = [asyncio.create_task(batcher.submit(lane, i, tokens=1)) for i in range(3)]
        await asyncio.sleep(0.05)
        with pytest.raises(HttpError) as refused:
            await batcher.submit(lane, "late", tokens=1)
        assert (refused.value.status, refused.value.headers["retry-after"]) == (429, "1")
        lane.may.set()
        await asyncio.gather(first, *rest)
        assert await batcher.submit(lane, "later", tokens=1) == "answer to later"

    asyncio.run(main())
    assert b"firth_turned_away_total 1.0" in batcher.metrics.text()


def test_what_cannot_be_answered_in_time_is_turned_away_at_once(make: Make) -> None:
    batcher, lane = make(answer_seconds=2.0), Slow()
    batcher.tokens_per_second = 100.0

    async def main() -> None:
        first = await begin(batcher, lane)
        second = asyncio.create_task(batcher.submit(lane, "second", tokens=190))
        await asyncio.sleep(0.05)
        with pytest.raises(HttpError) as refused:
            await batcher.submit(lane, "third", tokens=400)
        assert (refused.value.status, refused.value.headers["retry-after"]) == (429, "6")
        lane.may.set()
        await asyncio.gather(first, second)

    asyncio.run(main())


# The application, asked without a socket: what it does when a client leaves or time runs out.


@pytest.fixture
def slow_app(models: dict[str, Model], make: Make, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[App, Slow]]:
    def build(**limits: Any) -> tuple[App, Slow]:
        batcher, lane = make(**limits), Slow()
        state = ServerState({"m": models["plain"]}, batcher.limits, batcher.metrics, batcher)

        async def ask(state: ServerState, asked: Any) -> Any:
            return {"answer": await state.compute(lane, asked.texts, tokens=1)}

        monkeypatch.setitem(routes.TABLE, ("POST", "/embed"), replace(routes.TABLE["POST", "/embed"], handle=ask))
        return App(state, hosts=frozenset({"localhost"})), lane

    return build


async def post(app: App, text: str, *, leave: asyncio.Event | None = None, size: int = 1) -> tuple[int, Any, Any]:
    """Status, headers and answer; with `leave` the client goes when it is set."""
    sent: list[Any] = []
    head = [(b"host", b"localhost"), (b"content-type", b"application/json")]
    messages = [{"type": "http.request", "body": json.dumps({"texts": text * size}).encode(), "more_body": False}]

    async def receive() -> Any:
        if messages:
            return messages.pop()
        await (leave or asyncio.Event()).wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/embed", "query_string": b"", "headers": head}
    await app(scope, receive, send)
    if not sent:
        return 0, {}, None
    return sent[0]["status"], dict(sent[0]["headers"]), json.loads(sent[1]["body"])


def test_a_client_that_leaves_takes_its_work_along(slow_app: Callable[..., tuple[App, Slow]]) -> None:
    app, lane = slow_app()

    async def main() -> None:
        leave = asyncio.Event()
        first = asyncio.create_task(post(app, "first"))
        await asyncio.to_thread(lane.begun.wait, 20)
        left, stays = asyncio.create_task(post(app, "left", leave=leave)), asyncio.create_task(post(app, "stays"))
        await asyncio.sleep(0.05)
        leave.set()
        assert (await left)[0] == 0
        lane.may.set()
        assert (await first)[2] == {"answer": "answer to first"}
        assert (await stays)[2] == {"answer": "answer to stays"}

    asyncio.run(main())
    assert lane.batches == [["first"], ["stays"]]
    assert app.held_bytes == 0


def test_an_answer_that_takes_too_long_is_given_up(slow_app: Callable[..., tuple[App, Slow]]) -> None:
    app, lane = slow_app(answer_seconds=0.2)

    async def main() -> None:
        status, headers, answer = await post(app, "slow")
        assert (status, answer["error"]["type"]) == (429, "overloaded")
        assert int(headers[b"retry-after"]) >= 1
        lane.may.set()

    asyncio.run(main())


def test_bytes_of_all_requests_are_counted(slow_app: Callable[..., tuple[App, Slow]]) -> None:
    app, lane = slow_app(held_bytes=5000)

    async def main() -> None:
        first = asyncio.create_task(post(app, "a", size=3000))
        await asyncio.to_thread(lane.begun.wait, 20)
        status, _, answer = await post(app, "b", size=3000)
        assert (status, answer["error"]["type"]) == (429, "overloaded")
        lane.may.set()
        assert (await first)[0] == 200
        assert (await post(app, "c", size=3000))[0] == 200

    asyncio.run(main())
    assert app.held_bytes == 0
