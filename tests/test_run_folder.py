"""A run's folder: when a run may begin or be resumed there, two processes on one folder, and signals."""

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import firth
from firth.errors import BadInput, Damaged, Interrupted
from firth.files import MANIFEST
from firth.finetuning.picking import RESULT
from firth.interrupts import Interrupts
from firth.lock import Lock
from firth.run_folder import CONFIG, LOCK, RunFolder
from firth.run_source import (
    REPORT,
    RESULTS,
    SOURCE,
    FinetuningSource,
    PretrainingSource,
    SolvingSource,
    SourceFile,
    read_source,
)
from firth.serving.runs import Runs
from firth.train.journal import METRICS


@dataclass(frozen=True)
class Numbers:
    steps: int = 3


MADE_FROM = PretrainingSource(data="/data", sha256="00")


def opened(path: Path, *, resume: bool = False) -> RunFolder:
    return RunFolder(path, command="pretrain", resume=resume)


# Beginning and resuming


def test_a_run_begins_once_and_is_resumed_afterwards(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with opened(out) as folder:
        assert not out.exists()  # nothing is written before the run begins
        assert not folder.begun
        folder.begin(MADE_FROM, Numbers())
        assert (folder.begun, folder.finished) == (True, False)
    assert sorted(path.name for path in out.iterdir()) == [CONFIG, SOURCE]
    with pytest.raises(BadInput, match="already exists; continue it with `resume=True`"), opened(out):
        pass
    with opened(out, resume=True) as folder:
        assert folder.read_source(PretrainingSource) == MADE_FROM


@pytest.mark.parametrize("make", [lambda out: None, lambda out: out.mkdir()], ids=["missing", "empty"])
def test_there_must_be_a_run_to_resume_and_the_remedy_works(make: Callable[[Path], None], tmp_path: Path) -> None:
    out = tmp_path / "run"
    make(out)
    with pytest.raises(BadInput, match="no run to resume; give all options without"), opened(out, resume=True):
        pass
    with opened(out) as folder:
        folder.begin(MADE_FROM, Numbers())
    assert (out / CONFIG).exists()


def test_what_a_refused_run_left_is_its_own_and_only_that(tmp_path: Path) -> None:
    out = tmp_path / "run"

    def refused(*, prepared: bool) -> None:
        with opened(out) as folder:
            folder.claim()
            if prepared:
                (out / "data").mkdir()
            raise Damaged("as if the text could not be read")

    with pytest.raises(Damaged):
        refused(prepared=False)
    assert not out.exists()
    with pytest.raises(Damaged):
        refused(prepared=True)
    with pytest.raises(BadInput, match="holds no run to resume"), opened(out, resume=True):
        pass
    assert (out / LOCK).exists()  # says that the prepared text is ours
    with opened(out) as folder:
        folder.begin(MADE_FROM, Numbers())
    assert sorted(path.name for path in out.iterdir()) == [CONFIG, SOURCE]  # this run is not made from that text


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize("name", ["notes.txt", "data", "lm"])
def test_a_folder_of_other_things_is_refused_and_left_alone(name: str, resume: bool, tmp_path: Path) -> None:
    (tmp_path / name).touch()
    for _ in range(2):  # the first refusal must not make the folder look like ours
        with pytest.raises(BadInput, match="exists and holds no run"), opened(tmp_path, resume=resume):
            pass
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ({"data": "/d", "sha256": "1", "start_from": "/m"}, PretrainingSource("/d", "1", "/m")),
        ({"data": "/d", "sha256": "1"}, PretrainingSource("/d", "1")),
        (
            {"data": "/d", "sha256": "1", "min_count": None, "threads": 2, "text": "/t"},
            SolvingSource("/d", "1", None, 2, "/t"),
        ),
        (
            {"model": "/m", "random": False, "seeds": 3, "skip_bad": True,
             "files": {"tag": {"train": {"path": "/f", "sha256": "2"}}}},
            FinetuningSource("/m", False, 3, True, {"tag": {"train": SourceFile("/f", "2")}}),
        ),
    ],
    ids=["pretraining", "pretraining-oldest", "solving", "finetuning"],
)  # fmt: skip
def test_records_of_earlier_versions_are_read(record: dict[str, Any], expected: object, tmp_path: Path) -> None:
    (tmp_path / SOURCE).write_text(json.dumps(record))
    assert read_source(tmp_path) == expected


@pytest.mark.parametrize("text", ["[]", '{"kind": "baking"}', '{"data": [], "sha256": "1"}', '{"files": {"tag": 3}}'])
def test_a_damaged_record_gets_one_sentence(text: str, tmp_path: Path) -> None:
    (tmp_path / SOURCE).write_text(text)
    with pytest.raises(Damaged, match=SOURCE):
        read_source(tmp_path)


def test_a_model_that_changed_meanwhile_is_refused(run: Path, data: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "manifest.json").write_text("{}")
    with opened(tmp_path / "run") as folder:
        folder.begin(MADE_FROM, Numbers())
        folder.refuse_changed_model(str(model), "")  # an older record has no sha256
        with pytest.raises(BadInput, match="is not as it was when"):
            folder.refuse_changed_model(str(model), "00")


# Two processes


def test_a_second_process_is_refused_and_the_first_unharmed(
    data: Path, run: Path, tiny: tuple[str, ...], tmp_path: Path, command: Callable[..., Any]
) -> None:
    out = tmp_path / "run"
    asked = ["pretrain", data, "--out", out, "--steps", 40, *tiny]
    first = subprocess.Popen(
        [sys.executable, "-c", _SLOW, *map(str, asked)], stderr=subprocess.PIPE, text=True, stdin=subprocess.PIPE
    )
    told = f"firth: Another process is working on {out}; wait for it to end or choose another --out.\n"
    try:
        while not list(out.glob("checkpoints/step-10")) and first.poll() is None:
            time.sleep(0.005)
        new, resumed = command(*asked), command("pretrain", data, "--out", out, "--resume")
        assert (new.code, new.err) == (2, told)
        assert (resumed.code, resumed.err) == (2, told)
        _, said = first.communicate("go on\n", timeout=120)
    finally:
        first.kill()
        first.communicate()
    assert first.returncode == 0, said
    for name in ("model.safetensors", "metrics.jsonl", "manifest.json"):
        assert (out / name).read_bytes() == (run / name).read_bytes(), name
    assert not (out / LOCK).exists()


_SLOW = """
import sys
from firth.cli import main
from firth.train.run import TrainingRun
save = TrainingRun.save
def saved(run):
    save(run)
    if run.progress.step == 10:
        sys.stdin.readline()
TrainingRun.save = saved
main()
"""
"""The command, which waits for a line once it has saved its first state."""


def test_a_lock_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))  # no further file can be opened
    try:
        with pytest.raises(OSError, match="Too many open files"):
            Lock(tmp_path / LOCK).acquire()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_the_state_of_a_run(tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert RunFolder.state(out) == "missing"
    with opened(out) as folder:
        folder.begin(MADE_FROM, Numbers())
        assert RunFolder.state(out) == "running"
    assert RunFolder.state(out) == "stopped"
    (out / LOCK).touch()  # as a killed process leaves it
    assert RunFolder.state(out) == "stopped"
    (out / MANIFEST).touch()
    assert RunFolder.state(out) == "finished"


def test_fine_tuning_is_finished_once_it_has_its_results(tmp_path: Path) -> None:
    with RunFolder(tmp_path / "run", command="finetune", resume=False) as folder:
        source = FinetuningSource(model="", random=True, seeds=1, skip_bad=False, files={})
        folder.begin(source, Numbers())
        (folder.path / MANIFEST).touch()
        assert not folder.finished
        (folder.path / RESULTS).touch()
        assert folder.finished


def test_the_page_knows_the_state_of_each_seed(tmp_path: Path) -> None:
    source = FinetuningSource(model="", random=True, seeds=2, skip_bad=False, files={})
    with RunFolder(tmp_path / "tuned", command="finetune", resume=False) as folder:
        folder.begin(source, Numbers())
        for name in ("seed-1", "seed-2"):
            (folder.path / name).mkdir()
            (folder.path / name / METRICS).touch()
        (folder.path / "seed-1" / RESULT).touch()
        # The manifest comes before the results, and the run is not finished in between.
        (folder.path / MANIFEST).touch()
        states = {row["name"]: row["state"] for row in Runs(tmp_path).summaries()}
        assert states == {"tuned/seed-1": "finished", "tuned/seed-2": "running"}


def test_a_lock_file_that_its_owner_deleted_is_not_a_lock(tmp_path: Path) -> None:
    path = tmp_path / LOCK
    first, second, third = Lock(path), Lock(path), Lock(path)
    first.acquire()
    with pytest.raises(BadInput, match="Another process"):
        second.acquire()
    first.release(keep_file=False)
    second.acquire()
    assert second.held
    with pytest.raises(BadInput, match="Another process"):
        third.acquire()
    second.release(keep_file=True)
    assert path.exists()
    third.acquire()
    third.release(keep_file=False)


def test_a_forked_worker_does_not_keep_the_lock_of_a_killed_run(tmp_path: Path) -> None:
    script = (
        "import os, sys, time\nfrom pathlib import Path\nfrom firth.lock import Lock\n"
        "Lock(Path(sys.argv[1])).acquire()\n"
        "if os.fork() == 0:\n    print('ready', flush=True)\n    sys.stdin.read()\nelse:\n    time.sleep(60)\n"
    )
    path = tmp_path / LOCK
    call = [sys.executable, "-c", script, str(path)]
    parent = subprocess.Popen(call, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert parent.stdout
    assert parent.stdout.readline() == "ready\n"
    with pytest.raises(BadInput, match="Another process"):
        Lock(path).acquire()
    parent.kill()
    parent.wait()
    mine = Lock(path)
    mine.acquire()  # though the worker is still alive
    assert mine.held
    mine.release(keep_file=False)
    parent.communicate()  # ends the worker


# Signals


@pytest.fixture
def hears_ctrl_c() -> Iterator[None]:
    """A process that was started in the background ignores Ctrl-C, and so would what is tested here."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("hears_ctrl_c")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_says_how_to_continue(number: signal.Signals, tmp_path: Path) -> None:
    out = tmp_path / "run"
    before = [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)]
    expected = KeyboardInterrupt if number == signal.SIGINT else Interrupted
    with pytest.raises(expected), opened(out):
        signal.raise_signal(number)

    def stopped_early() -> None:
        with opened(out) as folder:
            folder.claim()
            (out / "data").mkdir()
            signal.raise_signal(number)

    with pytest.raises(Interrupted, match=r"^Stopped\. Give the same command again to continue\.$"):
        stopped_early()
    with opened(out) as folder:
        folder.begin(MADE_FROM, Numbers())
    with (
        pytest.raises(Interrupted, match=r"^Stopped\. Continue with `resume=True`\.$") as found,
        opened(out, resume=True),
    ):
        signal.raise_signal(number)
    assert found.value.exit_code == 128 + number
    assert [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)] == before


def test_the_outer_folder_knows_how_to_continue(tmp_path: Path) -> None:
    """As ULMFiT's language model lies in the folder of a run that has not begun."""
    out = tmp_path / "run"

    def stopped_in_the_first_stage() -> None:
        with opened(out) as folder:
            folder.claim()
            with opened(out / "lm") as inner:
                inner.begin(MADE_FROM, Numbers())
                signal.raise_signal(signal.SIGTERM)

    with pytest.raises(Interrupted, match=r"^Stopped\. Give the same command again to continue\.$"):
        stopped_in_the_first_stage()


@pytest.mark.usefixtures("hears_ctrl_c")
def test_a_deferred_signal_is_seen_later_and_a_second_ctrl_c_raises() -> None:
    with Interrupts() as interrupts, interrupts.deferred():
        signal.raise_signal(signal.SIGTERM)
        assert interrupts.requested == signal.SIGTERM
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_a_signal_waits_for_the_end_of_an_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ["import signal, time", "signal.raise_signal(signal.SIGTERM)", "time.sleep(0.2)", "done = True"]
    (tmp_path / "interrupted_module.py").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(tmp_path)

    def imported() -> None:
        import interrupted_module  # type: ignore[import-not-found]

        assert interrupted_module.done
        time.sleep(10)

    with pytest.raises(KeyboardInterrupt), Interrupts():
        imported()


# The report


def test_a_report_is_written_once_or_where_it_is_missing(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with opened(out) as folder:
        folder.begin(MADE_FROM, Numbers())
        (out / MANIFEST).touch()
        folder.write_report(lambda: "first")
        folder.write_report(lambda: "of the same command")
    assert (out / REPORT).read_text() == "of the same command"
    with opened(out, resume=True) as folder:
        folder.write_report(lambda: "of a finished run")
    assert (out / REPORT).read_text() == "of the same command"
    (out / REPORT).unlink()
    with opened(out, resume=True) as folder:
        folder.write_report(lambda: "of a finished run")
    assert (out / REPORT).read_text() == "of a finished run"


def test_pre_training_writes_a_report_titled_by_what_ran(run: Path, data: Path, tmp_path: Path) -> None:
    page = (run / "report.html").read_text("utf-8")
    assert "<h1>Pre-trained: bert tiny</h1>" in page
    assert "unigram floor" in page
    assert "report.html" not in json.loads((run / "manifest.json").read_text())["files"]
    out = tmp_path / "words"
    text = tmp_path / "text.txt"
    text.write_text("the frog sat by the pond and the king sat on the hill\n" * 40)
    firth.pretrain(text, out=out, recipe="tf-idf", min_count=1)
    page = (out / "report.html").read_text("utf-8")
    assert "<h1>Pre-trained: tf-idf</h1>" in page
    assert "cannot say whether the model has learned" not in page
    os.remove(out / "report.html")
    firth.pretrain(text, out=out, resume=True)
    assert (out / "report.html").read_text("utf-8") == page
