"""The demo at a small size: what it leaves, what it says, and that it goes on where it stopped."""

import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import firth
from docs import generate
from firth import models, pipeline, samples, starts, tour
from firth.errors import Interrupted
from firth.files import read_json

Messages = Callable[[], str]
SPREAD = r"([\d.]+ ± [\d.]+)"
ROW = re.compile(rf"^   (\w+, \w\w) +(\d+)  (\w+) +{SPREAD} +([\d.]+) +(needs numba|[\d.]+ ± [\d.]+) +([\d.]+)$", re.M)
FINE_TUNED = ["classify-en", "classify-zh", "tag-en", "tag-zh"]
TOPICS = ("体育", "美食", "健康", "旅游", "财经", "科技")
ROWS = [
    ("classify, en", "160", "accuracy"),
    ("classify, zh", "160", "accuracy"),
    ("tag, en", "140", "f1"),
    ("tag, zh", "140", "f1"),
]


@pytest.fixture
def stand_ins(run: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """In this test, en-small and zh-small are tiny models, also where the real ones are installed."""
    home = tmp_path_factory.mktemp("stand-ins")
    for name in ("en-small", "zh-small"):
        firth.export(run, out=home / name, kind="quantised")
    monkeypatch.setenv(models.VARIABLE, str(home))


def small_demo(folder: Path) -> Path:
    return firth.demo(out=folder, minutes=0.03, seeds=2, tuning=["epochs=1"])


@pytest.mark.long
def test_the_demo_shows_the_default_models_and_leaves_models_that_are_served(
    tmp_path: Path, messages: Messages, stand_ins: None
) -> None:
    demo = tmp_path / "demo"
    page = small_demo(demo)
    said = messages()
    for language in samples.LANGUAGES:
        for text in tour.FILLS[language]:
            assert re.search(rf"^   {re.escape(text)}\n      \S+ \d+%, \S+ \d+%, \S+ \d+%$", said, re.MULTILINE)
        half = len(tour.SENTENCES[language]) // 2
        for text in tour.SENTENCES[language][:half]:
            assert f"   {text}\n      nearest: " in said
    found = ROW.findall(said)
    assert [row[:3] for row in found] == ROWS
    assert f"   tag, zh, random: {found[3][4]}\n" in said
    assert "report.html shows the run" not in said.partition("Preparing")[0]
    assert "If the argument is omitted" in page.read_text("utf-8")

    default_models = tour.served_models(demo)[:2]
    assert default_models == ["en-small", "zh-small"]
    served = dict(model.split("=") for model in tour.served_models(demo)[2:])
    assert list(served) == ["demo", *FINE_TUNED]
    assert f"firth serve {' '.join(tour.served_models(demo))} " in said
    assert firth.load(served["classify-zh"]).predict(["今天很好。"])[0].label in TOPICS
    assert firth.load(served["tag-en"]).predict(["James Watt lived in Glasgow."])
    for name in FINE_TUNED:
        pretrained = read_json(demo / name / "results.json")
        assert pretrained["model"] == f"{name[-2:]}-small"
        assert not pretrained["random"]
        assert read_json(demo / "random" / name / "results.json")["random"]
    assert read_json(demo / "classic/classify-en/results.json")["model"] == "en"  # the folder demo/tf-idf/en

    table = (demo / tour.TABLE).read_text("utf-8")
    assert found[0][3] in table
    before = (demo / "run/model.safetensors").stat().st_mtime_ns
    assert small_demo(demo) == page
    assert (demo / "run/model.safetensors").stat().st_mtime_ns == before
    assert ROW.findall(messages()) == found
    assert (demo / tour.TABLE).read_text("utf-8") == table  # the minutes of the run that did the work


@pytest.mark.long
def test_without_default_models_the_demo_fine_tunes_its_own(
    tmp_path: Path, messages: Messages, without_models: None
) -> None:
    demo = tmp_path / "demo"
    page = small_demo(demo)
    said = messages()
    assert said.count("This installation has no default models") == 1
    assert page.exists()
    assert [row[:3] for row in ROW.findall(said)] == ROWS
    for name in FINE_TUNED:
        assert read_json(demo / name / "results.json")["model"] == "run"


def test_a_stopped_demo_says_to_run_it_again_and_goes_on(
    tmp_path: Path, stand_ins: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = tmp_path / "demo/classify-en/model.safetensors"
    asked = []
    finetune = pipeline.finetune

    def stopped_at_the_second(*arguments: Any, **options: Any) -> Any:
        asked.append(options["out"].name)
        if len(asked) == 2:
            raise Interrupted("Stopped.", number=signal.SIGINT, remedy="Continue with `resume=True`.")
        return finetune(*arguments, **options)

    monkeypatch.setattr(pipeline, "finetune", stopped_at_the_second)
    written = []
    for _ in range(2):
        asked.clear()
        with pytest.raises(Interrupted, match=r"^Stopped\. Run it again to continue\.$"):
            small_demo(tmp_path / "demo")
        written.append(weights.stat().st_mtime_ns)
    assert asked == ["classify-en", "classify-en"]
    assert written[0] == written[1]  # the first one is not trained again


def test_only_the_languages_that_have_a_model_are_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("zh-small", "zh-tiny", "fr-small"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "config.json").write_text("{}")
    monkeypatch.setenv(models.VARIABLE, str(tmp_path))
    assert tour._default_models() == {"zh": "zh-small"}


def test_without_numba_the_table_has_no_crf(monkeypatch: pytest.MonkeyPatch, run: Path, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "numba", None)
    for module in ("firth.nn.chain_kernels", "firth.nn.loglinear"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setattr(starts, "TASKS", {"tag": "entities"})
    settings = {"tag": (*starts.FEW_ROWS, "epochs=1")}
    (first, row) = starts.compare(tmp_path / "demo", {"en": run}, settings, seeds=2)
    assert first == starts.header()
    assert row.count(" ± ") == 1  # random weights have one seed, and no classic method ran
    assert row[first.index("classic") :].startswith("needs numba ")


@pytest.mark.parametrize("name", ["README.md", "README.zh.md"])
def test_the_readmes_show_a_table_as_the_demo_writes_it(name: str) -> None:
    text = (generate.ROOT / name).read_text("utf-8")
    shown = text.split("<!-- demo -->\n```text\n")[1].split("```\n<!-- end -->")[0].splitlines()
    assert shown[0] == starts.header()
    assert [(line[:12].strip(), line[15:24].strip()) for line in shown[1:5]] == [row[:2] for row in ROWS]
    renewed = generate.with_demo_table(text, "another table\n")
    assert "<!-- demo -->\n```text\nanother table\n```\n<!-- end -->" in renewed
    assert shown[1] not in renewed
