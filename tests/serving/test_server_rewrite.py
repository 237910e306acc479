"""POST /rewrite: what the server writes is what Python writes, alone and in batches; attention; bad requests."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from firth.inference.model import Model

TEXTS = ["The door is open.", "rain", "A river begins in many places at once, and so does this one.", "门"]


@pytest.mark.parametrize("settings", [{}, {"beams": 1, "max_tokens": 5}, {"temperature": 1.0, "seed": 3, "top_k": 20}])
def test_texts_are_those_of_python(served: Any, models: dict[str, Model], settings: dict[str, Any]) -> None:
    wanted = models["rewrite"].rewrite(TEXTS, **settings)
    body = {"model": "rewrite", **settings}
    found = served.post("/rewrite", {**body, "texts": TEXTS}).json()
    assert found["model"] == "rewrite"
    assert found["attention"] is None
    assert [row["text"] for row in found["texts"]] == [one.text for one in wanted]
    assert [row["tokens"] for row in found["texts"]] == [one.num_tokens for one in wanted]
    assert [row["ended"] for row in found["texts"]] == [one.ended for one in wanted]
    assert [row["probability"] for row in found["texts"]] == pytest.approx(
        [one.probability for one in wanted], rel=1e-4
    )
    with ThreadPoolExecutor(8) as pool:
        alone = list(pool.map(lambda text: served.post("/rewrite", {**body, "texts": text}).json(), TEXTS * 4))
    assert [one["texts"][0]["text"] for one in alone] == [one.text for one in wanted] * 4


def test_attention_of_one_text(served: Any, models: dict[str, Model]) -> None:
    found = served.post("/rewrite", {"model": "rewrite", "texts": ["The door"], "attention": True}).json()
    wanted = models["rewrite"].rewrite_with_attention("The door")
    assert found["texts"][0]["text"] == wanted.rewritten.text
    shown = found["attention"]
    assert (shown["source"], shown["target"]) == (wanted.source, wanted.target)
    assert (shown["layers"], shown["heads"]) == ([0, 1], 2)
    np.testing.assert_allclose(shown["weights"], wanted.weights, atol=1e-4)


def test_bad_requests_are_told(served: Any) -> None:
    def refused(status: int, **body: Any) -> str:
        answer = served.post("/rewrite", {"model": "rewrite", "texts": "a", **body})
        assert answer.status_code == status, answer.text
        message: str = answer.json()["error"]["message"]
        return message

    assert "beams" in refused(422, beams=0)
    assert "beams" in refused(422, beams=17)
    assert "max_tokens" in refused(422, max_tokens=0)
    assert "temperature" in refused(422, temperature=-1)
    assert "draws nothing" in refused(422, beams=2, temperature=1.0)
    assert "one text" in refused(422, texts=["a", "b"], attention=True)
    assert "attention is shown of up to 96" in refused(413, texts="word " * 400, attention=True, model="rewrite")
    assert "no task 'x' that rewrites" in refused(422, task="x")
    assert "reads but cannot write" in refused(422, model="plain")
    assert "inputs are more than" in refused(413, texts=["a"] * 2049)
    can = {name: row["can"] for name, row in served.client.get(served.url + "/info").json()["models"].items()}
    assert "rewrite" in can["rewrite"]
    assert "rewrite" not in can["plain"]
