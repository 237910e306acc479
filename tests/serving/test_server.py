"""The server's answers: every route gives what the model gives offline, whatever it was batched with."""

import json
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest

from firth import samples
from firth.inference.model import Model
from firth.lock import Lock
from firth.run_folder import LOCK
from firth.search.index import SearchIndex
from firth.serving.responses import in_fields
from firth.serving.routes import TABLE

TEXTS = ["The door is open.", "这是一个很好的下午。", "", "word " * 150, "Two doors 🚪 and 一扇门."]


@pytest.fixture
def client(served: Any) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0)


def test_the_official_client(client: openai.OpenAI, models: dict[str, Model]) -> None:
    offline = models["plain"].embed(TEXTS)
    for given in ({}, {"encoding_format": "float"}, {"encoding_format": "base64"}):
        found = client.embeddings.create(model="plain", input=TEXTS, **given)
        rows = [row.embedding for row in found.data]
        if given.get("encoding_format") == "base64":
            import base64

            rows = [np.frombuffer(base64.b64decode(row), "<f4") for row in rows]  # type: ignore[arg-type]
        assert np.abs(np.array(rows) - offline).max() < 1e-5
        assert [row.index for row in found.data] == list(range(len(TEXTS)))
    tokens = models["plain"].embedder.tokenize(TEXTS).num_tokens
    assert (found.usage.prompt_tokens, found.usage.total_tokens) == (tokens, tokens)
    assert next(iter(client.models.list())).id == "plain"
    with pytest.raises(openai.NotFoundError, match="no such model"):
        client.embeddings.create(model="strange", input="a")


def test_shortened_vectors_have_length_one_where_whole_ones_have(start: Callable[..., Any]) -> None:
    # The vector head of this model gives vectors of length 1, though its folder does not ask for them.
    with start("small=en-small") as server:
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
        given: dict[str, Any] = {"model": "small", "input": TEXTS[0], "encoding_format": "float"}
        [whole] = client.embeddings.create(**given).data
        [short] = client.embeddings.create(**given, dimensions=16).data
    assert np.linalg.norm(whole.embedding) == pytest.approx(1, abs=1e-5)
    assert np.linalg.norm(short.embedding) == pytest.approx(1, abs=1e-5)


def test_one_text_token_ids_and_dimensions(client: openai.OpenAI, models: dict[str, Model]) -> None:
    model = models["plain"]
    [offline] = model.embed(TEXTS[:1])
    ids = model.tokenizer.ids_batch(TEXTS[:1])
    for given in (TEXTS[0], ids[0], ids):
        [row] = client.embeddings.create(model="plain", input=given, encoding_format="float").data
        assert np.abs(np.array(row.embedding) - offline).max() < 1e-5
    [short] = client.embeddings.create(model="plain", input=TEXTS[0], dimensions=7, encoding_format="float").data
    assert np.abs(np.array(short.embedding) - offline[:7]).max() < 1e-5
    with pytest.raises(openai.UnprocessableEntityError, match="at most 32"):
        client.embeddings.create(model="plain", input="a", dimensions=33)
    with pytest.raises(
        openai.BadRequestError, match="'input' must not be an empty list; give at least one text"
    ) as caught:
        client.embeddings.create(model="plain", input=[])
    assert caught.value.body == {"type": "invalid_request", "message": caught.value.response.json()["error"]["message"]}


def test_embed_similarity_rerank(served: Any, models: dict[str, Model]) -> None:
    model = models["plain"]
    for options in ({}, {"pooling": "cls"}, {"normalise": True}):
        found = served.post("/embed", {"texts": TEXTS, **options}).json()
        assert np.abs(np.array(found["vectors"]) - model.embed(TEXTS, **options)).max() < 1e-5
    unit = model.embed(TEXTS, normalise=True)
    found = served.post("/similarity", {"texts": TEXTS}).json()["similarities"]
    assert np.abs(np.array(found) - unit @ unit.T).max() < 1e-5
    found = served.post("/similarity", {"texts": TEXTS[:2], "others": TEXTS[2:]}).json()["similarities"]
    assert np.abs(np.array(found) - unit[:2] @ unit[2:].T).max() < 1e-5
    rows = served.post("/rerank", {"query": TEXTS[0], "documents": TEXTS, "top": 3}).json()["results"]
    assert rows[0]["document"] == TEXTS[0]
    assert rows[0]["score"] == pytest.approx(1, abs=1e-5)
    assert [row["score"] for row in rows] == sorted((row["score"] for row in rows), reverse=True)
    assert len(rows) == 3


def test_fill_tokenize_attention(served: Any, models: dict[str, Model]) -> None:
    text = "The [MASK] is [MASK]. 这[MASK]门"
    masks = served.post("/fill", {"text": text, "top": 4}).json()["masks"]
    offline = models["plain"].fill(text, top=4)
    online = [row for mask in masks for row in mask["candidates"]]
    assert [row["token"] for row in online] == [row.token for row in offline]
    assert [row["text"] for row in online] == [row.text for row in offline]
    assert np.allclose([row["probability"] for row in online], [row.probability for row in offline], atol=1e-5)
    assert [text[mask["start"] : mask["end"]] for mask in masks] == ["[MASK]"] * 3
    [row] = served.post("/tokenize", {"texts": "Open 世界!"}).json()["texts"]
    encoding = models["plain"].tokenizer.encode("Open 世界!")
    assert row["ids"] == encoding.ids.tolist()
    assert row["tokens"] == list(encoding.tokens)
    assert row["offsets"] == encoding.offsets.tolist()
    assert row["word_starts"] == encoding.word_starts.tolist()
    found = served.post("/attention", {"text": "The door"}).json()
    tokens, weights = models["plain"].attention("The door")
    assert (found["tokens"], found["layers"], found["heads"]) == (tokens, [0, 1], 2)
    assert np.abs(np.array(found["weights"]) - weights).max() < 1e-4
    assert np.array(served.post("/attention", {"text": "The door", "layer": 1}).json()["weights"]).shape[0] == 1
    assert served.post("/attention", {"text": "The door", "layer": 2}).status_code == 422


def test_neighbours_and_meaning(served: Any, models: dict[str, Model]) -> None:
    rows = served.post("/neighbours", {"word": "the", "top": 5}).json()["neighbours"]
    assert len(rows) == 5
    assert "the" not in [row["token"] for row in rows]
    assert [row["similarity"] for row in rows] == sorted((row["similarity"] for row in rows), reverse=True)
    answer = served.post("/neighbours", {"word": "zzyzx"})
    assert (answer.status_code, answer.json()["error"]["type"]) == (422, "invalid_request")
    texts = ["the door of the state", "The end", "a tree", "by the sea"]
    found = served.post("/meaning", {"word": "the", "texts": texts}).json()
    assert [(one["text"], texts[one["text"]][one["start"] : one["end"]]) for one in found["occurrences"]] == [
        (0, "the"), (0, "the"), (1, "The"), (3, "the"),
    ]  # fmt: skip
    similar = np.array(found["similarities"])
    assert np.allclose(np.diag(similar), 1, atol=1e-5)
    assert np.allclose(similar, similar.T, atol=1e-6)
    assert max(max(abs(one["x"]), abs(one["y"])) for one in found["occurrences"]) == pytest.approx(1)
    assert served.post("/meaning", {"word": "moon", "texts": texts}).status_code == 422


def test_search_gives_what_the_index_gives(served: Any, models: dict[str, Model], search_index: Path) -> None:
    index = SearchIndex.open(search_index)
    answer = served.post("/search", {"query": "When will it rain?", "top": 4}).json()
    expected = index.ask(models["plain"], "When will it rain?", top=4)
    assert [hit["text"] for hit in answer["hits"]] == [hit.passage.text for hit in expected]
    assert [hit["score"] for hit in answer["hits"]] == pytest.approx([hit.score for hit in expected], abs=1e-4)
    assert (answer["model"], answer["passages"]) == ("plain", len(index))
    assert answer["hits"][0]["line"] == expected[0].passage.line
    assert served.post("/search", {"query": "rain", "model": "classify"}).status_code == 422
    assert served.post("/search", {"query": "rain", "top": 0}).status_code == 422
    assert served.post("/search", {"query": "ποιότητα"}).json()["unknown"] > 0.5
    assert "'query' is empty" in served.post("/search", {"query": " "}).json()["error"]["message"]


INPUTS: dict[str, list[Any]] = {
    "classify": ["A fine day.", "多好的一天。", "word " * 100],
    "tag": ["Ada Lovelace lived in London.", ["Ada", "lived"]],
    "answer": [{"question": "Who?", "context": "Ada wrote the first program."}],
    "compare": [["a door", "a gate"], ["rain", "多好的一天"]],
    "choose": [["It rains.", "Take a coat.", "Swim."], {"context": "Now", "options": ["a", "b", "c"]}],
}


@pytest.mark.parametrize("task", INPUTS)
def test_predict(task: str, served: Any, models: dict[str, Model]) -> None:
    answer = served.post("/predict", {"model": task, "inputs": INPUTS[task]})
    assert answer.status_code == 200, answer.text
    found = answer.json()
    offline = models[task].predict(INPUTS[task])
    assert found["task"] == task
    for row, prediction in zip(found["predictions"], offline, strict=True):
        assert row["label"] == json.loads(json.dumps(prediction.label))
        assert row["probability"] == pytest.approx(prediction.probability, abs=1e-5)
        assert row["probabilities"] == pytest.approx(dict(prediction.probabilities), abs=1e-5)
        assert [(one["start"], one["end"]) for one in row["spans"]] == [(s.start, s.end) for s in prediction.spans]


def test_a_task_that_compares_ranks(served: Any, models: dict[str, Model]) -> None:
    documents = ["a gate", "多好的一天", "rain on a roof"]
    rows = served.post("/rerank", {"model": "compare", "query": "a door", "documents": documents}).json()["results"]
    offline = [row.label for row in models["compare"].predict([["a door", text] for text in documents])]
    assert [row["index"] for row in rows] == np.argsort(-np.array(offline)).tolist()
    assert [row["score"] for row in rows] == pytest.approx(sorted(offline, reverse=True), abs=1e-5)


def test_answers_do_not_depend_on_company(served: Any, models: dict[str, Model]) -> None:
    """Many at once, of all lengths and kinds, share batches; each gets its own answer."""
    lines = [*samples.prose("en").read_text("utf-8").split(), *samples.prose("zh").read_text("utf-8")]
    texts = [" ".join(lines[i * 7 : i * 7 + 1 + (i * 37) % 60]) for i in range(160)]
    offline = models["plain"].embed(texts)
    labels = models["classify"].predict(texts)
    fills = models["plain"].fill("The [MASK] is open.")
    before = served.metric("firth_batch_jobs_sum"), served.metric("firth_batch_jobs_count")

    with httpx.Client(timeout=60, limits=httpx.Limits(max_connections=32)) as client:

        def ask(i: int) -> tuple[Any, Any, Any]:
            return (
                client.post(f"{served.url}/embed", json={"texts": texts[i]}).json()["vectors"][0],
                client.post(f"{served.url}/predict", json={"model": "classify", "inputs": [texts[i]]}).json(),
                client.post(f"{served.url}/fill", json={"text": "The [MASK] is open."}).json()["masks"][0],
            )

        with ThreadPoolExecutor(32) as pool:
            answers = list(pool.map(ask, range(len(texts))))
    for i, (vector, prediction, mask) in enumerate(answers):
        assert np.abs(np.array(vector) - offline[i]).max() < 1e-5
        assert prediction["predictions"][0]["probability"] == pytest.approx(labels[i].probability, abs=1e-5)
        assert [row["token"] for row in mask["candidates"]] == [row.token for row in fills]
    jobs, batches = (
        served.metric("firth_batch_jobs_sum") - before[0],
        served.metric("firth_batch_jobs_count") - before[1],
    )
    assert jobs == 3 * len(texts)
    assert batches < 0.8 * jobs


def test_a_lone_request_does_not_wait(served: Any) -> None:
    """No request is held back in the hope of others; the quickest of several shows it on a busy machine too."""
    waits = []
    for _ in range(20):
        before = served.metric("firth_wait_seconds_sum")
        assert served.post("/embed", {"texts": "a lone text"}).status_code == 200
        waits.append(served.metric("firth_wait_seconds_sum") - before)
    assert min(waits) < 0.005


def test_info_says_what_each_model_can(served: Any, models: dict[str, Model]) -> None:
    found = httpx.get(f"{served.url}/info").json()
    assert found["default"] == "plain"
    assert set(found["models"]) == set(models)
    can = {name: set(row["can"]) for name, row in found["models"].items()}
    assert {"embed", "fill", "attention", "neighbours", "meaning"} <= can["plain"]
    assert "predict" not in can["plain"]
    assert "predict" in can["classify"]
    assert found["limits"]["queued"] == 512
    assert found["runs"] is True


def test_the_api_page_loads_nothing_foreign(served: Any) -> None:
    answer = httpx.get(f"{served.url}/docs")
    assert answer.headers["content-type"].startswith("text/html")
    for _, path in TABLE:
        assert path in answer.text
    assert set(re.findall(r"https?://([^/'\"< ]+)", answer.text)) <= {"127.0.0.1:8080"}
    assert "<script" not in answer.text
    for link in re.findall(r'(?:href|src)="(/[^"]*)"', answer.text):
        assert httpx.get(served.url + link).status_code == 200


@pytest.mark.parametrize("path", ["/docs", "/health", "/openapi.json", "/nothing", "/page/api.css"])
def test_every_reply_forbids_inline_scripts(path: str, served: Any) -> None:
    policy = httpx.get(served.url + path).headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self'" in policy
    assert "unsafe" not in policy


def test_files_are_asked_for_once(served: Any) -> None:
    first = httpx.get(f"{served.url}/page/api.css")
    again = httpx.get(f"{served.url}/page/api.css", headers={"If-None-Match": first.headers["etag"]})
    assert (first.status_code, again.status_code, again.content) == (200, 304, b"")


def test_runs_are_listed_and_read_on(served: Any, runs_folder: Path, run: Path) -> None:
    rows = {row["name"]: row for row in httpx.get(f"{served.url}/runs").json()["runs"]}
    assert rows["finished"]["state"] == "finished"
    assert rows["finished"]["floor"] > 0
    get: Callable[[int], Any] = lambda after: httpx.get(  # noqa: E731
        f"{served.url}/runs/rows", params={"run": "finished", "after": after}
    ).json()
    whole = get(0)
    assert whole["rows"] == [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert whole["next"] == (run / "metrics.jsonl").stat().st_size
    assert get(whole["next"])["rows"] == []

    live = runs_folder / "live"
    live.mkdir()
    log = live / "metrics.jsonl"
    log.write_text('{"step": 1, "masked_lm": 9.0}\n{"step": 2, "mask')
    get = lambda after: httpx.get(f"{served.url}/runs/rows", params={"run": "live", "after": after}).json()  # noqa: E731
    lock = Lock(live / LOCK)
    lock.acquire()
    first = get(0)
    assert (first["rows"], first["state"]) == ([{"step": 1, "masked_lm": 9.0}], "running")
    lock.release(keep_file=True)
    assert get(0)["state"] == "stopped"  # a file that a killed process left is no lock
    with log.open("a") as file:
        file.write('ed_lm": NaN}\n')
    assert get(first["next"])["rows"] == [{"step": 2, "masked_lm": None}]
    log.write_text('{"step": 1}\n')
    again = get(first["next"])
    assert (again["restarted"], again["rows"]) == (True, [{"step": 1}])
    for strange in ("../live", "/etc", "live/..", ""):
        assert httpx.get(f"{served.url}/runs/rows", params={"run": strange}).status_code in (404, 422)


def test_user_texts_are_never_logged(served: Any) -> None:
    secret = "Xylophonquark"
    for path, body in (("/embed", {"texts": secret}), ("/fill", {"text": secret}), ("/" + secret, {})):
        served.post(path, body)
    httpx.get(f"{served.url}/health", params={"q": secret})
    log = served.log.read_text()
    assert secret not in log
    assert "Traceback" not in log
    assert "Internal error" not in log
    assert secret not in httpx.get(f"{served.url}/metrics").text


def test_no_inputs_to_predict_are_told_what_to_give(served: Any) -> None:
    answer = served.post("/predict", {"model": "classify", "inputs": []})
    assert answer.status_code == 422
    assert answer.json()["error"]["message"] == (
        "'inputs' must be a list of at least one input: a text, a list of texts, or an object with the task's columns."
    )


@pytest.mark.parametrize(
    ("model", "path", "body", "says"),
    [
        ("compare", "/predict", {"inputs": ["x"]}, "Give both texts, or rows with the columns first and second."),
        ("answer", "/predict", {"inputs": ["x"]}, "or rows with the fields question and context."),
        ("answer", "/predict", {"inputs": [{"question": "x"}]}, "it is {'question': 'x'}."),
        ("choose", "/predict", {"inputs": ["x"]}, "or rows with the fields context and options."),
        ("tag", "/predict", {"inputs": [{"foo": "x"}]}, "it is {'foo': 'x'}."),
        ("plain", "/rewrite", {"texts": ["a"]}, "fine-tuning with task rewrite makes"),
    ],
)
def test_errors_are_in_the_terms_of_a_request(model: str, path: str, body: Any, says: str, served: Any) -> None:
    answer = served.post(path, {"model": model, **body})
    assert answer.status_code == 422
    message = answer.json()["error"]["message"]
    assert says in message
    assert "`" not in message
    assert "None" not in message


def test_arguments_become_fields() -> None:
    assert in_fields("several tasks (a, b); name one with `task=`.") == "several tasks (a, b); name one with 'task'."
    assert in_fields("use `few='contrast'`, see `firth info`") == "use few contrast, see `firth info`"


def test_a_model_tells_the_languages_it_reads(served: Any) -> None:
    # Its vocabulary was trained on both.
    assert served.client.get(f"{served.url}/info").json()["models"]["plain"]["languages"] == ["en", "zh"]
