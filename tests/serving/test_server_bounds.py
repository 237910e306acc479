"""What one client may cost the others: bytes, characters and scores are bounded, slow work leaves the loop free."""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

import firth
from firth.config import describe
from firth.inference import filling
from firth.inference.embedding import BATCH_TOKENS
from firth.inference.lexicon import Lexicon
from firth.inference.model import Model
from firth.inference.word_senses import find_occurrences
from firth.objectives.masked_lm import MaskedLM
from firth.serving import schemas, status_routes, token_routes
from firth.serving import word_routes as words
from firth.serving.asgi import App
from firth.serving.batching import Batcher
from firth.serving.limits import Limits
from firth.serving.prometheus import ServerMetrics
from firth.serving.responses import HttpError
from firth.serving.runs import Runs
from firth.serving.server_state import ServerState

Make = Callable[..., ServerState]


@pytest.fixture
def make(models: dict[str, Model]) -> Iterator[Make]:
    made: list[Batcher] = []

    def build(*, runs: Runs | None = None, lexicon: Lexicon | None = None, **limits: Any) -> ServerState:
        made.append(Batcher(Limits(**limits), ServerMetrics()))
        lexicons = {"m": lexicon} if lexicon else {}
        return ServerState({"m": models["plain"]}, made[-1].limits, made[-1].metrics, made[-1], runs, lexicons)

    yield build
    for batcher in made:
        batcher.close()


def refused(state: ServerState, body: dict[str, Any]) -> HttpError:
    with pytest.raises(HttpError) as found:
        asyncio.run(token_routes.fill(state, schemas.FillRequest.model_validate(body)))
    return found.value


def test_a_fill_has_so_many_candidates_and_characters(make: Make) -> None:
    text = "The [MASK] is [MASK]."
    state = make(candidates=6, filled_characters=6 * len(text))
    answer = asyncio.run(token_routes.fill(state, schemas.FillRequest.model_validate({"text": text, "top": 3})))
    assert isinstance(answer, dict)
    assert [len(mask["candidates"]) for mask in answer["masks"]] == [3, 3]
    many = refused(state, {"text": text, "top": 4})
    assert (many.status, many.message) == (
        413,
        "The masks have 8 candidates in all, more than 6; ask for a smaller 'top'. Whoever runs the server can raise "
        "the limit: firth serve --limit candidates=8.",
    )
    long = refused(state, {"text": text + " ", "top": 3})
    assert (long.status, long.kind) == (413, "too_large")
    assert f"longer than {6 * len(text)} characters" in long.message


def test_a_small_request_has_no_huge_answer(served: Any) -> None:
    """The most that the usual limits let through, within a few times the limit on its characters."""
    text = "[MASK] " * 10 + "a" * 3_900
    answer = served.post("/fill", {"text": text, "top": 100})
    assert answer.status_code == 200
    assert len(answer.content) < 5_000_000


def test_masks_are_scored_some_at_a_time(models: dict[str, Model], monkeypatch: pytest.MonkeyPatch) -> None:
    text, sizes, scores = "The [MASK] is [MASK]. [MASK] [MASK] 这[MASK]门", list[int](), MaskedLM.scores
    whole = models["plain"].fill(text, top=4)
    monkeypatch.setattr(filling, "MASKS_AT_ONCE", 2)

    def noted(head: MaskedLM, states: Any, rows: Any) -> Any:
        sizes.append(len(rows))
        return scores(head, states, rows)

    monkeypatch.setattr(MaskedLM, "scores", noted)
    parts = models["plain"].fill(text, top=4)
    assert sizes == [2, 2, 1]
    assert [row.text for row in parts] == [row.text for row in whole]
    assert np.allclose([row.probability for row in parts], [row.probability for row in whole], atol=1e-6)


def test_held_bytes_are_counted_while_they_arrive(make: Make) -> None:
    """A body that would pass the limit is refused in its middle, not when all of it is there."""
    app = App(make(held_bytes=5000), hosts=frozenset({"localhost"}))
    taken, sent = list[int](), list[Any]()

    async def receive() -> Any:
        taken.append(app.held_bytes)
        return {"type": "http.request", "body": b"a" * 1000, "more_body": len(taken) < 100}

    async def send(message: Any) -> None:
        sent.append(message)

    head = [(b"host", b"localhost"), (b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": "/embed", "query_string": b"", "headers": head}
    asyncio.run(app(scope, receive, send))
    assert sent[0]["status"] == 429
    assert json.loads(sent[1]["body"])["error"]["type"] == "overloaded"
    assert (len(taken), max(taken), app.held_bytes) == (6, 5000, 0)


class Watched(Lexicon):
    """Notes who searches it, and for what."""

    def __init__(self) -> None:
        super().__init__({"door": 0, "gate": 1}, np.eye(2, dtype=np.float32))
        self.searches: list[tuple[str, bool]] = []

    def neighbours(self, word: str, *, top: int = 10) -> list[tuple[str, float]]:
        self.searches.append((word, threading.current_thread() is threading.main_thread()))
        return super().neighbours(word, top=top)

    def spelling_hint(self, word: str) -> str:
        raise AssertionError("nobody asked for near spellings")


def test_a_words_meaning_is_searched_beside_the_loop(make: Make) -> None:
    lexicon = Watched()
    state = make(lexicon=lexicon)

    async def ask(word: str) -> Any:
        return await words.meaning(
            state, schemas.MeaningRequest.model_validate({"word": word, "texts": ["a door or a gatehouse", "door"]})
        )

    assert [row["token"] for row in asyncio.run(ask("door"))["neighbours"]] == ["gate"]
    assert asyncio.run(ask("gatehouse"))["neighbours"] == []
    assert lexicon.searches == [("door", False)]


def test_words_without_special_tokens_are_counted_as_they_are_read(tmp_path: Path) -> None:
    (tmp_path / "vectors.txt").write_text("2 2\ndoor 1 0\ngate 0 1\n")
    firth.import_model(tmp_path / "vectors.txt", out=tmp_path / "model")
    model = firth.load(tmp_path / "model")
    texts = ["door gate door"]
    ids = model.tokenizer.ids_batch(texts)
    assert len(model.tokenizer.vocab.frame.join(np.array(ids[0]))) == 3
    # The text is read once for each of the two occurrences.
    assert words._num_tokens(model, find_occurrences("door", texts), ids) == 6


def test_only_the_first_places_of_a_word_are_made() -> None:
    found = find_occurrences("的", ["的" * 1000, "是的"], limit=5)
    assert [(one.line, one.start) for one in found] == [(1, i) for i in range(5)]
    assert len(find_occurrences("的", ["的" * 1000, "是的"])) == 1001


def test_tokens_of_tokenize_are_bounded(make: Make) -> None:
    state = make(batch_tokens=10)
    assert asyncio.run(
        token_routes.tokenize(state, schemas.TokenizeRequest.model_validate({"texts": ["a " * 5, "b " * 5]}))
    )
    with pytest.raises(HttpError, match="11 tokens, more than 10"):
        asyncio.run(
            token_routes.tokenize(state, schemas.TokenizeRequest.model_validate({"texts": ["a " * 5, "b " * 6]}))
        )


def test_a_run_that_vanishes_is_left_out(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "stays").mkdir()
    (tmp_path / "stays/metrics.jsonl").write_text('{"step": 1}\n')
    monkeypatch.setattr(
        Runs, "_metrics_files", lambda self: {name: tmp_path / name / "metrics.jsonl" for name in ("gone", "stays")}
    )
    state = make(runs=Runs(tmp_path))
    found = asyncio.run(status_routes.runs(state, None))
    assert isinstance(found, dict)
    assert [row["name"] for row in found["runs"]] == ["stays"]
    with pytest.raises(HttpError) as refusal:
        asyncio.run(status_routes.run_rows(state, schemas.RunRowsQuery("gone", 0)))
    assert refusal.value.status == 404


def test_runs_are_found_three_levels_deep(tmp_path: Path) -> None:
    for name in (".", "b", "a/1", "a/2", "a/1/deep"):
        (tmp_path / name).mkdir(parents=True, exist_ok=True)
        (tmp_path / name / "metrics.jsonl").write_text('{"step": 1}\n')
    assert {row["name"] for row in Runs(tmp_path).summaries()} == {tmp_path.name, "b", "a/1", "a/2"}


def test_runs_are_read_beside_the_loop(make: Make, tmp_path: Path) -> None:
    threads = list[bool]()

    class Noted(Runs):
        def _metrics_files(self) -> dict[str, Path]:
            threads.append(threading.current_thread() is threading.main_thread())
            return super()._metrics_files()

    state = make(runs=Noted(tmp_path))
    assert asyncio.run(status_routes.runs(state, None)) == {"runs": []}
    with pytest.raises(HttpError):
        asyncio.run(status_routes.run_rows(state, schemas.RunRowsQuery("none", 0)))
    assert threads == [False, False]


def test_the_limits_say_what_a_batch_is(served: Any) -> None:
    assert f"a batch of up to {BATCH_TOKENS:,}" in describe(Limits)["batch_tokens"]
    assert httpx.get(f"{served.url}/info").json()["limits"]["candidates"] == 1000
