"""Runs are kept by what they depend on: done once, shared, continued, and their failures shown."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from firth.errors import BadInput, Interrupted
from firth.study import steps
from firth.study.design import Cell, Claim, Experiment, Study
from firth.study.running import Clock, Score, read_rows, run_study, write_rows
from firth.study.sets import Sources
from firth.study.store import Store
from firth.study.verdicts import doubts, judge, verdict


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The steps of these tests: `write` leaves a file, `read` counts its letters, `fail` fails."""
    done: list[str] = []

    def write(out: Path, *, text: str) -> Mapping[str, float]:
        done.append(f"write {text}")
        out.mkdir()
        (out / "text").write_text(text)
        return {"written": 1.0}

    def read(out: Path, *, source: Path, seed: int = 0) -> Mapping[str, float]:
        done.append(f"read {seed}")
        return {"letters": float(len((source / "text").read_text()) + seed)}

    def fail(out: Path) -> Mapping[str, float]:
        raise BadInput("There is nothing to read.")

    def stop(out: Path) -> Mapping[str, float]:
        raise Interrupted("Stopped.", number=2)

    def constant(out: Path) -> Mapping[str, float]:
        return {"spearman": float("nan"), "pairs": 3.0}

    made = (("write", write), ("read", read), ("fail", fail), ("stop", stop), ("constant", constant))
    for name, function in made:
        monkeypatch.setitem(steps.TABLE, name, function)
    return done


def _written(text: str) -> Experiment:
    return Experiment("write", {"text": text}, seconds=1)


def test_a_key_depends_on_settings_contents_and_needs(tmp_path: Path) -> None:
    first = tmp_path / "a.txt"
    copy = tmp_path / "b.txt"
    first.write_text("same")
    copy.write_text("same")
    run = Experiment("write", {"text": "a", "seed": 1}, files={"file": (first,)})
    assert run.key == Experiment("write", {"seed": 1, "text": "a"}, files={"file": (copy,)}, seconds=99).key
    copy.write_text("other")
    others = [
        Experiment("write", {"text": "b", "seed": 1}, files={"file": (first,)}),
        Experiment("write", {"text": "a", "seed": 1}, files={"file": (copy,)}),
        Experiment("read", {"text": "a", "seed": 1}, files={"file": (first,)}),
        Experiment("write", {"text": "a", "seed": 1}, files={"file": (first,)}, needs={"x": _written("x")}),
        Experiment("write", {"text": "a", "seed": 1}, files={"file": (first,)}, needs={"x": _written("y")}),
    ]
    assert len({other.key for other in others} | {run.key}) == 6


def test_what_was_done_is_not_done_again(tmp_path: Path, calls: list[str]) -> None:
    start = _written("abc")
    runs = [Experiment("read", {"seed": seed}, needs={"source": start}) for seed in (1, 2)]
    assert [Store(tmp_path).do(run).figures["letters"] for run in runs] == [4, 5]
    assert calls == ["write abc", "read 1", "read 2"]
    assert [Store(tmp_path).do(run).figures["letters"] for run in runs] == [4, 5]
    assert len(calls) == 3


def test_a_failure_is_kept_and_reaches_what_needs_it(tmp_path: Path, calls: list[str]) -> None:
    run = Experiment("read", needs={"source": Experiment("fail")})
    result = Store(tmp_path).do(run)
    assert (result.failed, dict(result.figures)) == ("There is nothing to read.", {})
    assert calls == []


def test_a_failure_is_tried_again_the_next_time(
    tmp_path: Path, calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[int] = []

    def flaky(out: Path) -> Mapping[str, float]:
        tried.append(len(tried))
        # What a failed run left is gone.
        out.mkdir()
        (out / "run.toml").touch()
        if len(tried) < 3:
            raise BadInput("There is nothing to read.")
        return {"read": 1.0}

    monkeypatch.setitem(steps.TABLE, "flaky", flaky)
    needed = Experiment("flaky")
    runs = [Experiment("flaky", needs={"source": needed}, files={}), needed]
    for _ in range(2):
        store = Store(tmp_path)
        # In one go a run that failed is not tried for every run that needs it.
        assert [store.do(run).failed for run in runs] == ["There is nothing to read."] * 2
        assert list(store.missing(needed)) == []
    assert len(tried) == 2
    assert list(Store(tmp_path).missing(needed)) == [needed]
    assert Store(tmp_path).do(needed).failed == ""
    assert Store(tmp_path).do(needed).figures == {"read": 1.0}
    assert len(tried) == 3


def test_an_interruption_leaves_no_result(tmp_path: Path, calls: list[str]) -> None:
    store = Store(tmp_path)
    with pytest.raises(Interrupted):
        store.do(Experiment("stop"))
    assert store.find(Experiment("stop")) is None


def _study(seconds: float = 1.0) -> Study:
    def cells(sources: Sources) -> list[Cell]:
        found = []
        for seed in (1, 2, 3):
            for system in ("long text", "short"):
                run = Experiment("read", {"seed": seed}, needs={"source": _written(system)}, seconds=seconds)
                found.append(Cell(system, "letters", seed, run))
        return found

    claim = Claim("long text", "short", {"en": "Long is longer", "zh": "长的更长"})
    other = Claim("long text", "absent", {"en": "Longer than nothing", "zh": "比没有长"})
    texts = {"en": "?", "zh": "？"}
    return Study("test", texts, texts, cells, (claim, other))


def test_rows_and_verdicts(tmp_path: Path, calls: list[str]) -> None:
    study = _study()
    rows = run_study(study, Sources(tmp_path), Store(tmp_path / "runs"), minutes=None)
    assert [(row.system, row.seed, row.score) for row in rows][:3] == [
        ("long text", 1, 10),
        ("short", 1, 6),
        ("long text", 2, 11),
    ]
    tests = judge(study, rows)
    # Three equal differences are too few for a verdict.
    assert [(test.outcome, test.difference.mean) for test in tests] == [("undecided", 4)]
    assert verdict(study.claims[0], tests) == "Long is longer: is not decided (letters +400.0 ± 0.0)."
    assert verdict(study.claims[0], tests, "zh") == "长的更长：未定（letters +400.0 ± 0.0）。"
    # With differences of 4, 4.1 and 3.9 they are enough.
    unequal = [replace(row, score=row.score + 0.1 * (row.seed - 2)) if row.system == "short" else row for row in rows]
    assert [test.outcome for test in judge(study, unequal)] == ["holds"]
    assert verdict(study.claims[1], tests) == "Longer than nothing: not measured."
    assert doubts(study, judge(study, unequal)) == ["1 of 1 tests are decided."]


def test_why_a_claim_is_not_decided() -> None:
    texts = {"en": "?", "zh": "？"}
    claims = []
    rows = []
    # Better minus worse, for each seed.
    differences = {"once": [0.3], "equal": [0.2, 0.2, 0.2], "wide": [0.3, -0.2, 0.1], "late": [0.30, 0.32, 0.37]}
    for name, own in differences.items():
        claims.append(Claim(name, "worse", {"en": name, "zh": name}))
        for seed, difference in enumerate(own, start=1):
            rows.append(Score(name, "set", seed, "f1", 0.5 + difference, "", 1.0))
    rows += [Score("worse", "set", seed, "f1", 0.5, "", 1.0) for seed in (1, 2, 3)]
    # Equal but for the rounding of floats.
    for seed, base in enumerate((0.5, 0.7, 0.1), start=1):
        rows.append(Score("equal", "other set", seed, "f1", base + 0.2, "", 1.0))
        rows.append(Score("worse", "other set", seed, "f1", base, "", 1.0))
    # Of many tests, one that would be decided alone is not.
    claims += [Claim("wide", "worse", {"en": f"wide {number}", "zh": ""}) for number in range(20)]
    study = Study("test", texts, texts, lambda sources: [], tuple(claims))
    decided, *reasons = doubts(study, judge(study, rows))
    assert decided == "0 of 25 tests are decided."
    assert reasons[0] == "One seed has no interval: once (set)."
    assert reasons[1] == "All seeds differ by the same, which so few may do by chance: equal (other set, set)."
    assert reasons[2].endswith("but among so many tests that may be chance: late (set).")
    assert "wide (set); wide 0 (set)" in reasons[3]
    assert doubts(study, judge(study, rows), "zh")[:2] == [
        "25 个检验中有 0 个已判定。",
        "只有一个种子，没有区间：once（set）。",
    ]


def test_a_verdict_is_in_one_language() -> None:
    texts = {"en": "?", "zh": "？"}
    claim = Claim("long", "short", {"en": "Long is longer", "zh": "长的更长"})
    study = Study("test", texts, texts, lambda sources: [], (claim,))
    rows = [Score(system, "set", 1, "f1", score, "", 1.0) for system, score in (("long", 0.75), ("short", 0.5))]
    tests = judge(study, rows)
    assert verdict(claim, tests) == "Long is longer: is not decided (set +25.0, one seed)."
    assert verdict(claim, tests, "zh") == "长的更长：未定（set +25.0，一个种子）。"


def test_rows_are_read_as_they_were_written(tmp_path: Path) -> None:
    # U+2028 and U+0085 separate lines for Python, but not the lines of JSON.
    rows = [Score("a", "set", 1, "", None, "", 1.0, failed="one\u2028two\x85three")]
    write_rows(rows, tmp_path / "rows.jsonl")
    assert read_rows(tmp_path / "rows.jsonl") == rows


def test_a_run_that_fails_early_does_not_speed_up_the_others(tmp_path: Path, calls: list[str]) -> None:
    def cells(sources: Sources) -> list[Cell]:
        return [
            Cell("fails", "letters", 1, Experiment("fail", seconds=50)),
            Cell("takes long", "letters", 2, Experiment("write", {"text": "abc"}, seconds=100)),
        ]

    texts = {"en": "?", "zh": "？"}
    study = Study("test", texts, texts, cells)
    rows = run_study(study, Sources(tmp_path), Store(tmp_path / "runs"), minutes=1)
    assert [row.system for row in rows] == ["fails"]
    assert calls == []


def test_expected_seconds_come_from_sums() -> None:
    clock = Clock(limit=100.0)
    long_run = Experiment("write", {"text": "long"}, seconds=60)
    assert clock.expected([long_run]) == 60
    # Many short runs that are quicker than expected say little about a long one.
    for _ in range(10):
        clock.learn([_written("short")], 0.1)
    clock.learn([long_run], 90)
    assert clock.expected([long_run]) == pytest.approx(60 * 91 / 70)
    assert clock.fits([long_run])
    assert not clock.fits([long_run, long_run])


def test_rows_of_earlier_times_are_kept_when_no_time_is_left(tmp_path: Path, calls: list[str]) -> None:
    study = _study()
    store = Store(tmp_path / "runs")
    rows = run_study(study, Sources(tmp_path), store, minutes=None)
    assert run_study(study, Sources(tmp_path), store, minutes=-1.0) == rows


def test_an_undefined_figure_is_no_score(tmp_path: Path, calls: list[str]) -> None:
    def cells(sources: Sources) -> list[Cell]:
        return [Cell("vectors", "pairs", 1, Experiment("constant"))]

    texts = {"en": "?", "zh": "？"}
    study = Study("test", texts, texts, cells)
    # The second time, the figures come from the file.
    for _ in range(2):
        [row] = run_study(study, Sources(tmp_path), Store(tmp_path / "runs"), minutes=None)
        assert (row.figure, row.score, row.figures) == ("spearman", None, {"pairs": 3.0})


def test_what_decides_a_claim_comes_first() -> None:
    def cells(sources: Sources) -> list[Cell]:
        found = []
        for system in ("idle", "worse", "better"):
            for seed in (1, 2):
                for x in (1.0, 2.0):
                    found.append(Cell(system, "set", seed, _written(f"{system} {seed} {x}"), x=x))
        return found

    texts = {"en": "?", "zh": "？"}
    study = Study("test", texts, texts, cells, (Claim("better", "worse", texts, x=2.0, worse_x=1.0),))
    queue = [(cell.system, cell.seed, cell.x) for cell in study.queue(Sources(Path()))]
    assert queue[:4] == [("worse", 1, 1.0), ("better", 1, 2.0), ("worse", 2, 1.0), ("better", 2, 2.0)]
    # Then the others, one seed after the other.
    assert [seed for _, seed, _ in queue[4:]] == [1, 1, 1, 1, 2, 2, 2, 2]


def test_a_lower_turn_comes_first() -> None:
    cells = [Cell(f"turn {turn}", "set", seed, _written("a"), turn=turn) for turn in (1, 0) for seed in (2, 1)]
    texts = {"en": "?", "zh": "？"}
    study = Study("test", texts, texts, lambda sources: cells, (Claim("turn 1", "turn 0", texts),))
    queue = [(cell.turn, cell.seed) for cell in study.queue(Sources(Path()))]
    assert queue == [(0, 1), (0, 2), (1, 1), (1, 2)]


def test_leftovers_of_a_step_do_not_stop_it(tmp_path: Path, calls: list[str]) -> None:
    run = _written("abc")
    store = Store(tmp_path)
    store.out(run).mkdir(parents=True)
    assert store.do(run).failed == ""


def test_only_what_fits_is_done(tmp_path: Path, calls: list[str]) -> None:
    # A cell needs a second for its text and a thousand for itself.
    rows = run_study(_study(1000), Sources(tmp_path), Store(tmp_path / "runs"), minutes=1)
    assert rows == []
    assert calls == []
    # What is done costs nothing.
    store = Store(tmp_path / "runs")
    run_study(_study(1000), Sources(tmp_path), store, minutes=None)
    assert len(run_study(_study(1000), Sources(tmp_path), store, minutes=1)) == 6
