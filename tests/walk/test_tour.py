"""The demo at a small size: what it leaves, what it says, and that it goes on where it stopped."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

import firth
from firth import tour
from firth.files import read_json


@pytest.mark.long
def test_the_demo_leaves_models_that_are_served(tmp_path: Path, messages: Callable[[], str]) -> None:
    small = {"out": tmp_path / "demo", "minutes": 0.03, "seeds": 2, "tuning": ["epochs=1"]}
    page = firth.demo(**small)  # type: ignore[arg-type]
    said = messages()
    assert "If the argument is omitted" in page.read_text("utf-8")
    found = re.findall(
        r"^   (\w+, \w\w) +(\d+)  (\w+) +([\d.]+) ± [\d.]+ +([\d.]+) ± [\d.]+ +([\d.]+)$", said, re.MULTILINE
    )
    assert [row[:3] for row in found] == [
        ("classify, en", "160", "accuracy"),
        ("classify, zh", "160", "accuracy"),
        ("tag, en", "140", "f1"),
        ("tag, zh", "140", "f1"),
    ]
    names = ["demo", "classify-en", "classify-zh", "tag-en", "tag-zh"]
    served = dict(model.split("=") for model in tour._models(tmp_path / "demo"))
    assert list(served) == names
    assert f"firth serve {' '.join(f'{name}={path}' for name, path in served.items())}" in said
    assert firth.load(served["classify-zh"]).predict(["今天很好。"])[0].label in ("正面", "负面")
    assert firth.load(served["tag-en"]).predict(["James Watt lived in Glasgow."])
    for name in names[1:]:
        assert not read_json(tmp_path / "demo" / name / "results.json")["random"]
        assert read_json(tmp_path / "demo/random" / name / "results.json")["random"]

    before = (tmp_path / "demo/run/model.safetensors").stat().st_mtime_ns
    assert firth.demo(**small) == page  # type: ignore[arg-type]
    assert (tmp_path / "demo/run/model.safetensors").stat().st_mtime_ns == before
    assert found[0][3] in messages()
