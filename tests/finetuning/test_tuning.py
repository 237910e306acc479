"""The search for settings: its space, its tournament, whole searches, and their page."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import firth
from firth import samples
from firth.config import override
from firth.errors import BadConfig
from firth.files import read_json
from firth.finetuning.settings import FinetuneConfig
from firth.finetuning.tuning.halving import RUNGS, UNDEFINED, TuningTrial, bracket_size, search, share_of
from firth.finetuning.tuning.running import TrialRow, TuningSummary, headlines
from firth.finetuning.tuning.space import TrialSettings, UsualSettings, draw
from firth.report.parallel_coordinates import parallel_coordinates
from firth.report.tuning import SHOWN, render

USUAL = UsualSettings(rate=1e-4, epochs=4.0, batch_size=32, layer_decay=1.0, warmup_rate=0.1, num_layers=12)
CLASSIFY = samples.labelled("classify", "en")


class Tournament:
    """Settings whose figure is their number, with trials that take a second an epoch."""

    def __init__(self, seconds: float = 1.0) -> None:
        self.seconds = seconds
        self.made: list[tuple[int, int]] = []

    def attempt(self, number: int, rung: int) -> TuningTrial:
        self.made.append((number, rung))
        return TuningTrial(number, rung, {}, 4 * share_of(rung), float(number), self.seconds * share_of(rung))


def test_the_first_trial_has_the_usual_settings_and_others_are_drawn_around_them() -> None:
    first = draw(0, USUAL, seed=1, fixed={})
    assert (first.rate, first.epochs, first.method) == (1e-4, 4.0, "full")
    others = [draw(number, USUAL, seed=1, fixed={}) for number in range(1, 60)]
    assert others == [draw(number, USUAL, seed=1, fixed={}) for number in range(1, 60)]
    assert others != [draw(number, USUAL, seed=2, fixed={}) for number in range(1, 60)]
    rates = [settings.rate for settings in others if settings.method == "full"]
    assert 0.24e-4 < min(rates) < 0.5e-4
    assert 2e-4 < max(rates) < 4.1e-4
    assert {settings.method for settings in others} == {"full", "adapters"}
    assert all(settings.reinit_layers == 0 for settings in others if settings.method == "adapters")
    for settings in others:
        override(FinetuneConfig(), settings.changes())  # all are known keys with values in bounds


def test_a_method_that_the_user_sets_is_not_searched() -> None:
    drawn = [draw(number, USUAL, seed=1, fixed={"transfer.mode": "full"}) for number in range(20)]
    assert {settings.method for settings in drawn} == {"full"}


def test_what_the_user_sets_is_the_same_in_all_trials() -> None:
    """Also in what a search shows of its trials: the usual settings hold the user's own."""
    usual = replace(USUAL, rate=3e-4, epochs=5.0, batch_size=4, reinit_layers=2)
    fixed = {"train.optim.rate": "3e-4", "epochs": "5", "batch_size": "4", "transfer.reinit_layers": "2"}
    for number in range(20):
        settings = draw(number, usual, seed=1, fixed=fixed)
        assert (settings.rate, settings.epochs, settings.batch_size, settings.reinit_layers) == (3e-4, 5.0, 4, 2)
        override(FinetuneConfig(), settings.changes())  # reinit_layers goes with method=full alone


@pytest.mark.parametrize("key", ["transfer.frozen_layers", "transfer.unfreeze_every"])
def test_adapters_are_not_drawn_where_they_cannot_be(key: str) -> None:
    assert {draw(number, USUAL, seed=1, fixed={key: "1"}).method for number in range(40)} == {"full"}
    without = replace(USUAL, has_blocks=False)
    assert {draw(number, without, seed=1, fixed={}).method for number in range(40)} == {"full"}


def test_the_better_half_goes_on() -> None:
    tournament = Tournament()
    # A bracket of eight takes 8/4 + 4/2 + 2 seconds.
    search(tournament.attempt, seconds=6.01)
    assert tournament.made[:8] == [(number, 0) for number in range(8)]
    assert sorted(tournament.made[8:12]) == [(number, 1) for number in (4, 5, 6, 7)]
    assert sorted(tournament.made[12:]) == [(6, 2), (7, 2)]


def test_another_bracket_follows_while_there_is_time() -> None:
    tournament = Tournament()
    search(tournament.attempt, seconds=14.0)
    assert (8, 0) in tournament.made
    assert len(tournament.made) == len(set(tournament.made))


def test_a_short_time_has_a_small_bracket_and_always_a_first_trial() -> None:
    tournament = Tournament()
    trials = search(tournament.attempt, seconds=0.01)
    assert tournament.made == [(0, 0)]
    assert bracket_size(trials, 2.0) == 2
    assert bracket_size(trials, 100.0) == 8


def test_a_longer_trial_outranks_a_lucky_short_one() -> None:
    lucky = TuningTrial(1, 0, {}, 1.0, 0.9, 1.0)
    whole = TuningTrial(2, RUNGS - 1, {}, 4.0, 0.8, 4.0)
    assert max([lucky, whole], key=lambda trial: trial.rank) is whole


def test_a_trial_without_a_figure_outranks_nothing() -> None:
    failed = TuningTrial(1, RUNGS - 1, {}, 4.0, UNDEFINED, 4.0)
    short = TuningTrial(2, 0, {}, 1.0, 0.3, 1.0)
    assert max([failed, short], key=lambda trial: trial.rank) is short


@pytest.mark.parametrize("best_figure", [0.75, UNDEFINED])
def test_what_is_undefined_is_not_written_as_a_number(best_figure: float) -> None:
    settings = dict.fromkeys(SHOWN, 1.0)
    failed = TrialRow(number=0, rung=0, settings=settings, epochs=1.0, figure=UNDEFINED, seconds=1.0)
    best = TrialRow(number=1, rung=0, settings=settings, epochs=1.0, figure=best_figure, seconds=1.0)
    summary = TuningSummary(
        task="compare",
        metric="spearman",
        picked_on="dev",
        trials=[failed, best],
        best=best,
        changes=["batch_size=8"],
        seconds=2.0,
    )
    page = render(summary)
    assert "The usual settings reached undefined." in page
    assert ">\u22121" not in page
    assert ">-1" not in page
    assert "the usual settings: undefined" in " ".join(headlines(summary))


def test_parallel_coordinates_show_every_row_and_the_best_on_top() -> None:
    rows = [{"method": "full", "rate": 1e-4}, {"method": "adapters", "rate": 2e-4}, {"method": "full", "rate": 4e-4}]
    svg = parallel_coordinates(rows, best=0)
    assert svg.count("<polyline") == 3
    assert "s1" in svg[svg.rindex("<polyline") :]  # drawn last, in another colour
    assert "the best: method full, rate 1e" in svg
    one = parallel_coordinates([{"rate": 1.0}], best=0)
    assert one.count("<polyline") == 1


# Whole searches


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "rows.tsv"
    path.write_text("\n".join(CLASSIFY.read_text("utf-8").splitlines()[:41]) + "\n", "utf-8")
    return path


def test_a_search_leaves_its_best_model_and_a_page(run: Path, rows: Path, tmp_path: Path) -> None:
    out = tmp_path / "tuned"
    settings: dict[str, Any] = {"task": "classify", "train": rows, "out": out, "minutes": 0.02, "device": "cpu"}
    summary = firth.tune(run, changes=["epochs=1"], **settings)
    assert summary["metric"] == "accuracy"
    assert summary["best"] in summary["trials"]
    assert {"number": 0, "rung": 0}.items() <= summary["trials"][0].items()
    best = max(summary["trials"], key=lambda trial: (trial["rung"], trial["figure"]))
    assert summary["best"]["figure"] == best["figure"]
    assert summary == read_json(out / "results.json")
    [prediction] = firth.load(out).predict(["a text"])
    assert prediction.label in ("positive", "negative")
    page = (out / "report.html").read_text("utf-8")
    assert "<polyline" in page
    # A finished search is given again, and no other one takes its folder.
    assert firth.tune(run, changes=["epochs=1"], resume=True, **settings) == summary
    with pytest.raises(BadConfig, match="resume=True"):
        firth.tune(run, changes=["epochs=2"], resume=True, **settings)


def test_a_search_that_was_stopped_goes_on(run: Path, rows: Path, tmp_path: Path) -> None:
    out = tmp_path / "tuned"
    settings: dict[str, Any] = {"task": "classify", "train": rows, "out": out, "minutes": 0.02, "device": "cpu"}
    summary = firth.tune(run, changes=["epochs=1"], **settings)
    (out / "results.json").unlink()
    (out / "manifest.json").unlink()
    again = firth.tune(run, changes=["epochs=1"], resume=True, **settings)
    assert again == summary  # all its trials are there


def test_a_search_survives_trials_that_diverge(
    run: Path, rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, messages: Callable[[], str]
) -> None:
    def draw_wild(number: int, usual: UsualSettings, *, seed: int, fixed: dict[str, str]) -> TrialSettings:
        settings = draw(0, usual, seed=seed, fixed=fixed)
        return replace(settings, rate=1e30) if number else settings

    monkeypatch.setattr("firth.finetuning.tuning.running.draw", draw_wild)
    out = tmp_path / "tuned"
    summary = firth.tune(run, task="classify", train=rows, out=out, minutes=0.05, device="cpu", changes=["epochs=1"])
    wild = [trial for trial in summary["trials"] if trial["number"]]
    assert wild
    assert {trial["figure"] for trial in wild} == {UNDEFINED}
    assert summary["best"]["number"] == 0
    assert "The loss diverged" in messages()
    [prediction] = firth.load(out).predict(["a text"])
    assert prediction.label in ("positive", "negative")


def test_a_search_shows_the_epochs_that_its_trials_had(run: Path, rows: Path, tmp_path: Path) -> None:
    changes = ["epochs=1", "batch_size=8"]
    summary = firth.tune(
        run, task="classify", train=rows, out=tmp_path / "x", minutes=0.02, device="cpu", changes=changes
    )
    assert {trial["epochs"] for trial in summary["trials"]} == {1.0}
    assert {trial["settings"]["batch_size"] for trial in summary["trials"]} == {8}
    assert sum(change.startswith("epochs=") for change in summary["changes"]) == 1


def test_a_test_file_is_no_option(run: Path, rows: Path, tmp_path: Path, command: Callable[..., Any]) -> None:
    answer = command("tune", run, "--task", "classify", "--train", rows, "--test", rows, "--out", tmp_path / "x")
    assert "No such option" in str(answer)
    with pytest.raises(BadConfig, match="minutes"):
        firth.tune(run, task="classify", train=rows, out=tmp_path / "y", minutes=0)
