"""The server's sentences for those who use it first: which model can answer, which limit to raise, what it reads."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import openai
import pytest

from firth import checkpoint
from firth.inference.model import Model
from firth.models import TEXT_LANGUAGE

GREEK = "ποιότητα ήταν εξαιρετική"


@pytest.mark.parametrize("route", ["predict", "fill"])
def test_without_a_name_the_models_that_can_are_named(
    route: str, folders: dict[str, Path], start: Callable[..., Any]
) -> None:
    bodies = {"predict": {"inputs": ["a day"]}, "fill": {"text": "a [MASK]"}}
    first = "plain" if route == "predict" else "rewrite"
    able = "classify"
    with start(f"{first}={folders[first]}", f"{able}={folders[able]}") as server:
        refused = server.post(f"/{route}", bodies[route])
        assert refused.status_code == 422
        message = refused.json()["error"]["message"]
        assert f"the first one ({first}) cannot {route}; name one that can: {able}." in message
        assert server.post(f"/{route}", {"model": able, **bodies[route]}).status_code == 200


def test_openai_clients_send_many_inputs(served: Any, models: dict[str, Model]) -> None:
    client = openai.OpenAI(base_url=f"{served.url}/v1", api_key="none")
    made = client.embeddings.create(model="plain", input=["a day"] * 512)
    assert len(made.data) == 512
    assert made.data[511].embedding == pytest.approx(models["plain"].embed(["a day"])[0].tolist(), abs=1e-5)


TOO_LARGE = {
    "inputs": ("/embed", {"texts": ["a"] * 9}),
    "characters": ("/embed", {"texts": "a day " * 10}),
    "batch_tokens": ("/embed", {"texts": ["a day in the sun"] * 6}),
    "cosines": ("/similarity", {"texts": ["a"] * 6}),
    "candidates": ("/fill", {"text": "[MASK] [MASK] [MASK]", "top": 4}),
    "attention_tokens": ("/attention", {"text": "a day in the sun"}),
}


def test_what_is_too_large_names_the_limit_that_raises_it(folders: dict[str, Path], start: Callable[..., Any]) -> None:
    small = {"inputs": 8, "characters": 50, "batch_tokens": 30, "cosines": 30, "candidates": 10, "attention_tokens": 4}
    options = [part for name, value in small.items() for part in ("--limit", f"{name}={value}")]
    needed = {}
    with start(f"plain={folders['plain']}", *options) as server:
        for name, (route, body) in TOO_LARGE.items():
            refused = server.post(route, body)
            assert refused.status_code == 413, name
            found = re.search(r"firth serve --limit (\w+)=(\d+)\.", refused.json()["error"]["message"])
            assert found is not None
            assert found[1] == name
            needed[name] = int(found[2])
    raised = [part for name, value in needed.items() for part in ("--limit", f"{name}={value}")]
    with start(f"plain={folders['plain']}", *raised) as server:
        for name, (route, body) in TOO_LARGE.items():
            assert server.post(route, body).status_code == 200, name


def test_answers_have_the_share_of_unknown_tokens_and_the_log_has_it_once(
    folders: dict[str, Path], start: Callable[..., Any]
) -> None:
    with start(f"plain={folders['plain']}", f"classify={folders['classify']}") as server:
        for route, body in (
            ("/embed", {"texts": [GREEK]}),
            ("/similarity", {"texts": [GREEK, GREEK]}),
            ("/rerank", {"query": GREEK, "documents": [GREEK]}),
            ("/predict", {"inputs": [GREEK], "model": "classify"}),
            ("/fill", {"text": f"{GREEK} [MASK]"}),
        ):
            assert server.post(route, body).json()["unknown"] > 0.5, route
        assert server.post("/embed", {"texts": ["a day"]}).json()["unknown"] == 0
        assert server.log.read_text().count("A request to plain") == 1
        assert GREEK not in server.log.read_text()


@pytest.mark.parametrize("by", ["gradients", "occlusion"])
def test_explanations_are_those_of_python(by: str, served: Any, models: dict[str, Model]) -> None:
    text = "What a lovely day"
    found = served.post("/explain", {"model": "classify", "input": text, "by": by}).json()
    [expected] = models["classify"].explain([text], by=by)  # type: ignore[arg-type]
    assert (found["label"], found["method"]) == (expected.label, by)
    assert [word["word"] for word in found["words"]] == text.split()
    assert [word["weight"] for word in found["words"]] == pytest.approx([w.weight for w in expected.words], abs=1e-5)
    refused = served.post("/explain", {"model": "tag", "input": text})
    assert (refused.status_code, "these can: classify" in refused.json()["error"]["message"]) == (422, True)


def test_without_a_name_a_text_is_filled_by_the_model_for_its_language(
    run: Path, tmp_path: Path, start: Callable[..., Any]
) -> None:
    plain = checkpoint.load(run)
    for language in ("en", "zh"):
        checkpoint.save(tmp_path / language, replace(plain, info={**plain.info, TEXT_LANGUAGE: language}))
    with start(f"en={tmp_path / 'en'}", f"zh={tmp_path / 'zh'}") as server:
        assert server.post("/fill", {"text": "今天的天气很[MASK]。"}).json()["model"] == "zh"
        assert server.post("/fill", {"text": "The day is [MASK]."}).json()["model"] == "en"
        assert server.post("/fill", {"text": "今天的天气很[MASK]。", "model": "en"}).json()["model"] == "en"
