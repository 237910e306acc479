"""Exact resume: a run that was killed, stopped or damaged ends with the same bytes as one that was not."""

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import firth
from firth import rng
from firth.convert import huggingface
from firth.data.shards import Shards
from firth.errors import BadConfig, BadInput, FirthError
from firth.files import write_manifest
from firth.train import state
from firth.train.parallel import World

Command = Callable[..., Any]
STEPS = 240
OFTEN = ("train.checkpoint_every=6", "train.evaluate_every=50", "train.log_every=4")
VARYING = {"timing.jsonl", "report.html", "run.toml"}
"""Rates differ from run to run, and the report shows them; run.toml holds the number of workers."""


def files(run: Path) -> dict[str, bytes]:
    """The finished folder, saved states aside: they hold the length of timing.jsonl."""
    found = (path for path in run.rglob("*") if path.is_file() and path.name not in VARYING)
    return {str(path.relative_to(run)): path.read_bytes() for path in found if "checkpoints" not in path.parts}


def steps_saved(run: Path) -> list[int]:
    return sorted(int(path.name[5:]) for path in run.glob("checkpoints/step-*"))


class Life:
    """One process that works on a run until it is stopped."""

    def __init__(self, data: Path, out: Path, *changes: str) -> None:
        self.out, self.before = out, set(steps_saved(out))
        firth_command = Path(sys.executable).with_name("firth")
        resume = ["--resume"] if (out / "run.toml").exists() else []
        self.log = out.with_suffix(".log")  # not a pipe: a killed process's workers would hold it open
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [firth_command, "pretrain", data, "--out", out, *resume, "--steps", str(STEPS), *changes],
                stdout=subprocess.DEVNULL,
                stderr=log,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                start_new_session=True,
            )

    def wait_for(self, seen: Callable[[], bool]) -> bool:
        """True when it was seen, False when the process ended first."""
        while self.process.poll() is None:
            if seen():
                return True
            time.sleep(0.0005)
        return False

    def saved_anew(self) -> bool:
        return not set(steps_saved(self.out)) <= self.before

    def writing(self) -> bool:
        return self.saved_anew() and any(self.out.glob("checkpoints/.step-*/weights.safetensors"))

    def rows_logged(self) -> int:
        return (self.out / "metrics.jsonl").read_bytes().count(b"\n")

    def writing_model(self) -> bool:
        return any(self.out.glob(".model.safetensors.*")) or (self.out / "model.safetensors").exists()

    def stop(self, how: str) -> None:
        if how == "ctrl-c":
            os.killpg(self.process.pid, signal.SIGINT)  # a terminal tells the workers, too
        else:
            self.process.send_signal(signal.SIGTERM if how == "term" else signal.SIGKILL)
        self.end()

    def end(self) -> str:
        """What it said, once it has ended."""
        self.process.wait(timeout=60)
        return self.log.read_text()


def interrupt(life: Life, how: str, *, delay: float) -> None:
    """Lets a life make some progress and ends it in one of several ways."""
    seen = {"write": life.writing, "model": life.writing_model}.get(how, life.saved_anew)
    if how == "early":
        time.sleep(1.5 * delay)
    else:
        assert life.wait_for(seen), life.end()
    if how in ("kill", "term", "ctrl-c"):
        rows = life.rows_logged() + int(6 * delay)
        assert life.wait_for(lambda: life.rows_logged() >= rows), life.end()
        time.sleep(0.02 * (6 * delay % 1))
    life.stop(how)
    if how in ("term", "ctrl-c"):
        last = steps_saved(life.out)[-1]
        assert life.process.returncode == {"term": 143, "ctrl-c": 130}[how], life.end()
        assert life.end() == (
            "Stopping after this step; press Ctrl-C again to stop at once.\n"
            f"firth: Stopped at step {last}; its state is saved. Continue with --resume.\n"
        )


@pytest.fixture(scope="module")
def whole(data: Path, tiny: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that nothing happened to."""
    out = tmp_path_factory.mktemp("whole") / "run"
    life = Life(data, out, *tiny, *OFTEN)
    said = life.end()
    assert life.process.returncode == 0, said
    return out


SOME = ("kill", "write", "term", "kill", "write", "early", "model")
OTHERS = ("write", "kill", "ctrl-c", "write", "kill", "model")


@pytest.mark.parametrize(("workers", "ways"), [(0, SOME), (2, OTHERS)], ids=["no-workers", "two-workers"])
def test_killed_anywhere_it_ends_with_the_same_bytes(
    workers: int, ways: tuple[str, ...], data: Path, tiny: tuple[str, ...], whole: Path, tmp_path: Path
) -> None:
    out, changes = tmp_path / "run", (*tiny, *OFTEN, f"batches.workers={workers}")
    delays = rng.uniform(rng.key("when to kill", workers), range(len(ways)))
    half_written = 0
    for how, delay in zip(ways, delays, strict=True):
        interrupt(Life(data, out, *changes), how, delay=float(delay))
        if how == "write" and not any(out.glob("checkpoints/.step-*")):  # it was over before the signal came
            interrupt(Life(data, out, *changes), how, delay=float(delay))
        half_written += any(out.glob("checkpoints/.step-*"))
    assert half_written
    life = Life(data, out, *changes)
    said = life.end()
    assert life.process.returncode == 0, said
    assert files(out).keys() == files(whole).keys()
    assert {name for name, content in files(out).items() if content != files(whole)[name]} == set()
    assert "model.safetensors" in files(out)
    assert steps_saved(out) == steps_saved(whole)
    assert not list(out.glob("checkpoints/.*"))


@pytest.fixture
def unfinished(run: Path, tmp_path: Path) -> Path:
    """The finished run of 40 steps put back to before its model was written; it has the states of steps 30 and 40."""
    out = tmp_path / "unfinished"
    shutil.copytree(run, out)
    for name in files(run).keys() - {"metrics.jsonl", "source.json"}:
        (out / name).unlink()
    return out


def test_a_run_resumed_at_its_end_writes_the_same_model(run: Path, unfinished: Path, data: Path) -> None:
    figures = firth.pretrain(data, out=unfinished, resume=True)
    assert figures["masked_lm"] > 0
    assert files(unfinished) == files(run)
    assert firth.pretrain(data, out=unfinished, resume=True) == figures
    assert files(unfinished) == files(run)


@pytest.mark.parametrize("name", ["weights.safetensors", "optimizer.safetensors", "progress.json", "manifest.json"])
def test_a_damaged_state_is_reported_and_the_one_before_used(
    name: str, run: Path, unfinished: Path, data: Path, messages: Callable[[], str]
) -> None:
    path = unfinished / "checkpoints" / "step-40" / name
    if name == "manifest.json":
        path.unlink()
    else:
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    firth.pretrain(data, out=unfinished, resume=True)
    said = messages()
    assert str(path if name != "manifest.json" else path.parent) in said
    assert "Using the state before it" in said
    assert files(unfinished) == files(run)


def test_a_copy_of_a_state_under_another_name_is_left_alone(tmp_path: Path) -> None:
    for name in ("step-30", "step-40", "step-40-good"):
        (tmp_path / name).mkdir()
    assert state.newest_step(tmp_path) == 40


def test_a_rank_without_the_state_of_rank_0_does_not_start_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its machine does not share the run's folder: it would train other weights."""

    class Second(World):
        def on_main(self, work: Callable[[], object]) -> None:
            """Rank 0 does it."""

        def from_main(self, value: Any) -> Any:
            return 40

    monkeypatch.setattr(state, "current_world", lambda: Second(1, 2))
    learner = nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(learner.parameters())
    with pytest.raises(BadInput, match="must share its folder"):
        state.restore(tmp_path, learner, optimizer=optimizer, report=print)


def test_resume_without_a_state_starts_at_0(
    run: Path, data: Path, tiny: tuple[str, ...], tmp_path: Path, unfinished: Path
) -> None:
    with pytest.raises(BadInput, match="holds no run to resume; give all options without `resume=True`"):
        firth.pretrain(data, out=tmp_path / "new", steps=40, changes=tiny, resume=True)
    firth.pretrain(data, out=tmp_path / "new", steps=40, changes=tiny)
    assert files(tmp_path / "new") == files(run)
    shutil.rmtree(unfinished / "checkpoints")
    firth.pretrain(data, out=unfinished, resume=True)
    assert files(unfinished) == files(run)


def test_an_existing_folder_is_refused_without_resume(command: Command, data: Path, run: Path) -> None:
    before = files(run)
    code, out, err = command("pretrain", data, "--out", run)
    assert (code, out) == (2, "")
    assert err == f"firth: {run} already exists; continue it with --resume or choose another --out.\n"
    assert files(run) == before


@pytest.mark.parametrize("resume", [[], ["--resume"]])
def test_a_file_in_the_place_of_a_run_is_told(resume: list[str], command: Command, data: Path, tmp_path: Path) -> None:
    (tmp_path / "run").write_text("mine")
    code, _, err = command("pretrain", data, "--out", tmp_path / "run", *resume)
    assert (code, err) == (2, f"firth: {tmp_path}/run is a file, and a run needs a folder; choose another --out.\n")
    assert (tmp_path / "run").read_text() == "mine"


def test_resume_keeps_the_runs_own_numbers(
    unfinished: Path, data: Path, long_shards: Shards, tiny: tuple[str, ...]
) -> None:
    with pytest.raises(BadConfig, match=r"run\.toml"):
        firth.pretrain(data, out=unfinished, resume=True, steps=41)
    with pytest.raises(BadConfig, match=r"run\.toml"):
        firth.pretrain(data, out=unfinished, resume=True, changes=["train.seed=9"])
    with pytest.raises(BadInput, match="other data"):
        firth.pretrain(long_shards.folder, out=unfinished, resume=True)
    assert firth.pretrain(data, out=unfinished, resume=True, steps=40, changes=tiny)


def test_a_run_that_started_from_a_model_resumes_without_naming_it(
    run: Path, data: Path, tiny: tuple[str, ...], tmp_path: Path
) -> None:
    changes = [change for change in tiny if not change.startswith("encoder")]
    firth.pretrain(data, out=tmp_path / "run", start_from=run, steps=20, changes=changes)
    first = files(tmp_path / "run")
    assert first["model.safetensors"] != files(run)["model.safetensors"]
    for kept in (10, 0):
        shutil.rmtree(tmp_path / "run" / "checkpoints" / "step-20")
        (tmp_path / "run" / "manifest.json").unlink()
        if not kept:
            shutil.rmtree(tmp_path / "run" / "checkpoints" / "step-10")
        firth.pretrain(data, out=tmp_path / "run", resume=True)
        assert files(tmp_path / "run") == first
    with pytest.raises(BadInput, match="did not start from"):
        firth.pretrain(data, out=tmp_path / "run", resume=True, start_from=tmp_path)


def test_starting_from_a_model_starts_from_its_weights(run: Path, data: Path, tmp_path: Path) -> None:
    changes = ["train.optim.rate=0.0", "train.optim.weight_decay=0.0", "batches.max_length=64", "batches.tokens=512"]
    firth.pretrain(data, out=tmp_path / "run", start_from=run, steps=1, changes=changes)
    before, after = huggingface.read_tensors(run), huggingface.read_tensors(tmp_path / "run")
    assert before.keys() == after.keys()
    assert all(before[name].equal(after[name]) for name in before)


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Lets no file grow beyond this, as a full disk would not."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_full_disk_leaves_the_last_good_state(run: Path, unfinished: Path, data: Path) -> None:
    shutil.rmtree(unfinished / "checkpoints" / "step-40")
    state = unfinished / "checkpoints" / "step-30"
    size = (state / "optimizer.safetensors").stat().st_size
    with largest_file(size // 2), pytest.raises(FirthError, match=r"Step 40 could not be saved.*step 30 is intact"):
        firth.pretrain(data, out=unfinished, resume=True)
    assert [path.name for path in (unfinished / "checkpoints").iterdir()] == ["step-30"]
    firth.pretrain(data, out=unfinished, resume=True)
    assert files(unfinished) == files(run)


def test_a_full_file_system(command: Command, run: Path, data: Path, tiny: tuple[str, ...], tmp_path: Path) -> None:
    disk, state = tmp_path / "disk", sum(path.stat().st_size for path in run.glob("checkpoints/step-40/*"))
    disk.mkdir()
    small = f"size={int(2.5 * state)}"  # room for two states but not for three
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", small, "tmpfs", disk], capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip("cannot mount a small file system here")
    try:
        arguments = ("pretrain", data, "--out", disk / "run", "--steps", 40, *tiny)
        code, _, err = command(*arguments)
        assert code == 2
        assert "Traceback" not in err
        assert "could not be saved" in err
        assert "No space left on device" in err
        assert steps_saved(disk / "run") == [10, 20]
        subprocess.run(["mount", "-o", "remount,size=20m", disk], check=True)
        assert command(*arguments, "--resume").code == 0
        assert files(disk / "run") == files(run)
    finally:
        subprocess.run(["umount", disk], check=True)


def test_another_environment_is_named(unfinished: Path, data: Path, messages: Callable[[], str]) -> None:
    path = unfinished / "checkpoints" / "step-40" / "progress.json"
    facts = json.loads(path.read_text())
    facts["environment"]["threads"] = 77
    facts["environment"]["cpu"] = "another"
    path.write_text(json.dumps(facts))
    write_manifest(path.parent)
    firth.pretrain(data, out=unfinished, resume=True)
    said = messages()
    assert "threads: 77 then" in said
    assert "cpu: another then" in said
