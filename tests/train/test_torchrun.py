"""Whole runs that torchrun starts with gloo: worlds of 1, 2 and 4, killed ranks, and other worlds that resume."""

import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import firth
from firth import samples
from firth.train import watching
from firth.train.journal import read_rows

STEPS = 20
FIRTH = ("-m", "firth")
LAUNCH_SECONDS = 300
LOST = "firth: A process of the run was lost"


def _command(size: int, *arguments: object, options: tuple[str, ...] = ()) -> list[str]:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(size), *options]
    return [*torchrun, *FIRTH, *map(str, arguments)]


def _run(size: int, *arguments: object, options: tuple[str, ...] = ()) -> "subprocess.CompletedProcess[str]":
    """What a command does in several processes."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = _command(size, *arguments, options=options)
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LAUNCH_SECONDS)


def _changes(tiny: tuple[str, ...]) -> tuple[str, ...]:
    """Four micro-batches a step, with dropout; every step is logged."""
    return (*tiny, "train.accumulate=4", "train.log_every=1", "train.evaluate_every=10", "train.checkpoint_every=4")


@pytest.fixture(scope="module")
def plain(data: Path, tiny: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run in one process, without torchrun."""
    out = tmp_path_factory.mktemp("plain") / "run"
    firth.pretrain(data, out=out, steps=STEPS, changes=_changes(tiny), device="cpu")
    return out


def _assert_same_figures(found: Path, expected: Path) -> None:
    rows = read_rows(found / "metrics.jsonl")
    expected_rows = read_rows(expected / "metrics.jsonl")
    assert len(expected_rows) == STEPS + 2
    assert [row.keys() for row in rows] == [row.keys() for row in expected_rows]
    for row, expected_row in zip(rows, expected_rows, strict=True):
        assert row.pop("split") == expected_row.pop("split")
        assert row == pytest.approx(expected_row, rel=1e-5, abs=1e-5)


def test_one_rank_is_the_plain_run(data: Path, tiny: tuple[str, ...], tmp_path: Path, plain: Path) -> None:
    done = _run(1, "pretrain", data, "--out", tmp_path / "run", "--steps", STEPS, *_changes(tiny))
    assert done.returncode == 0, done.stderr
    for name in ("model.safetensors", "metrics.jsonl", "run.toml"):
        assert (tmp_path / "run" / name).read_bytes() == (plain / name).read_bytes()


@pytest.mark.long
@pytest.mark.parametrize(("size", "mode"), [(2, "ddp"), (4, "ddp"), (1, "fsdp"), (2, "fsdp"), (4, "fsdp")])
def test_all_worlds_learn_the_same(
    size: int, mode: str, data: Path, tiny: tuple[str, ...], tmp_path: Path, plain: Path
) -> None:
    changes = (*_changes(tiny), f"train.parallel={mode}")
    done = _run(size, "pretrain", data, "--out", tmp_path / "run", "--steps", STEPS, *changes)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("masked lm accuracy") == 1  # one rank speaks
    _assert_same_figures(tmp_path / "run", plain)
    assert firth.load(tmp_path / "run").fill("The [MASK] is open.")


def _workers(process: "subprocess.Popen[str]") -> list[int]:
    """The process ids of the ranks that torchrun started, in their order."""
    found: dict[int, int] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            variables = (folder / "environ").read_text().split("\0")
        except OSError:  # it has ended
            continue
        ranks = [variable for variable in variables if variable.startswith("RANK=")]
        if parent == process.pid and ranks:
            found[int(ranks[0].removeprefix("RANK="))] = int(folder.name)
    return [found[rank] for rank in sorted(found)]


def _wait_for_step(run: Path, step: int) -> None:
    """Returns once a run has logged this step."""
    limit = time.monotonic() + LAUNCH_SECONDS
    while time.monotonic() < limit:
        rows = read_rows(run / "metrics.jsonl") if (run / "metrics.jsonl").exists() else []
        if rows and rows[-1]["step"] >= step:
            return
        time.sleep(0.02)
    raise AssertionError(f"{run} did not come to step {step}")


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc to find the ranks")
@pytest.mark.long
@pytest.mark.parametrize(
    ("mode", "size", "killed", "size_after"),
    [("ddp", 2, 1, 1), ("ddp", 2, 0, 4), ("fsdp", 2, 1, 4), ("fsdp", 4, 0, 2), ("fsdp", 2, 1, 1)],
)
def test_a_killed_rank_ends_the_run_and_another_world_resumes_it(
    mode: str, size: int, killed: int, size_after: int, data: Path, tiny: tuple[str, ...], tmp_path: Path, plain: Path
) -> None:
    run = tmp_path / "run"
    changes = (*_changes(tiny), f"train.parallel={mode}")
    command = _command(size, "pretrain", data, "--out", run, "--steps", STEPS, *changes)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    draw = random.Random(f"{mode} {size} {killed}")
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    # A random step, and a random moment in it.
    _wait_for_step(run, draw.randrange(5, 12))
    time.sleep(draw.random() * 0.1)
    os.kill(_workers(process)[killed], signal.SIGKILL)
    _, messages = process.communicate(timeout=LAUNCH_SECONDS)
    assert process.returncode != 0
    said = [line for line in messages.splitlines() if line.startswith("firth: ")]
    assert len(said) == 1, messages
    assert said[0].startswith(LOST)
    assert said[0].endswith("is saved. Continue with --resume.")
    done = _run(size_after, "pretrain", data, "--out", run, "--resume")
    assert done.returncode == 0, done.stderr
    _assert_same_figures(run, plain)


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc to find the ranks")
@pytest.mark.long
def test_torchrun_starts_a_run_again_by_itself(data: Path, tiny: tuple[str, ...], tmp_path: Path, plain: Path) -> None:
    run = tmp_path / "run"
    command = _command(
        2, "pretrain", data, "--out", run, "--steps", STEPS, *_changes(tiny), options=("--max-restarts", "1")
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    _wait_for_step(run, 6)
    os.kill(_workers(process)[1], signal.SIGKILL)
    _, messages = process.communicate(timeout=LAUNCH_SECONDS)
    assert process.returncode == 0, messages
    _assert_same_figures(run, plain)


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc to find the ranks")
@pytest.mark.long
@pytest.mark.parametrize("hangs", [False, True])
def test_torchrun_is_stopped(hangs: bool, data: Path, tiny: tuple[str, ...], tmp_path: Path) -> None:
    """A signal saves the state; if a rank hangs, the others say so instead."""
    run = tmp_path / "run"
    command = _command(2, "pretrain", data, "--out", run, "--steps", 5000, *_changes(tiny))
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    _wait_for_step(run, 6)
    if hangs:
        os.kill(_workers(process)[1], signal.SIGSTOP)
    process.terminate()
    _, messages = process.communicate(timeout=LAUNCH_SECONDS)
    said = [line for line in messages.splitlines() if line.startswith("firth: ")]
    if hangs:
        assert said == [watching.SENTENCE]
        return
    assert len(said) == 1, messages
    found = re.fullmatch(r"firth: Stopped at step (\d+); its state is saved. Continue with --resume.", said[0])
    assert found is not None, said
    assert (run / "checkpoints" / f"step-{found[1]}" / "progress.json").exists()


@pytest.mark.long
def test_ranks_compress_together(plain: Path, tmp_path: Path) -> None:
    rows = samples.labelled("classify", "en")
    firth.finetune(plain, task="classify", train=rows, out=tmp_path / "tuned", changes=["epochs=1"], device="cpu")
    options = ("--by", "distil", "--data", rows, "--train", rows, "--out", tmp_path / "small", "epochs=1")
    done = _run(2, "compress", tmp_path / "tuned", *options, "--json")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count('"method"') == 1
    assert firth.load(tmp_path / "small").predict(["a good day"])
    steps = [row["step"] for row in read_rows(tmp_path / "small/strength-0/run/seed-1/metrics.jsonl")]
    assert steps
    refused = _run(2, "compress", tmp_path / "tuned", "--by", "layers", "--data", rows, "--out", tmp_path / "other")
    assert refused.returncode != 0
    said = [line for line in refused.stderr.splitlines() if line.startswith("firth: ")]
    assert said == ["firth: layers has no training that several processes can share; run it without torchrun."]


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Seven rows, which neither 2 nor 4 ranks can share equally, and 30 to train on."""
    folder = tmp_path_factory.mktemp("rows")
    for name, count in (("train", 30), ("test", 7)):
        lines = [f"number {i} is {'good' if i % 3 else 'bad'}\t{'good' if i % 3 else 'bad'}" for i in range(count)]
        (folder / f"{name}.tsv").write_text("\n".join(["text\tlabel", *lines]), "utf-8")
    return folder


@pytest.mark.long
@pytest.mark.parametrize("mode", ["ddp", "fsdp"])
def test_rows_are_counted_once(mode: str, rows: Path, plain: Path, tmp_path: Path) -> None:
    options = ("--task", "classify", "--train", rows / "train.tsv", "--test", rows / "test.tsv")
    changes = ("epochs=2", "batch_size=4", "train.accumulate=4", "train.log_every=1")
    one = firth.finetune(
        plain,
        task="classify",
        train=rows / "train.tsv",
        test=rows / "test.tsv",
        out=tmp_path / "one",
        changes=changes,
        device="cpu",
    )
    done = _run(4, "finetune", plain, *options, "--out", tmp_path / "run", *changes, f"train.parallel={mode}")
    assert done.returncode == 0, done.stderr
    for expected, found in zip(
        read_rows(tmp_path / "one/seed-1/metrics.jsonl"),
        read_rows(tmp_path / "run/seed-1/metrics.jsonl"),
        strict=True,
    ):
        assert found.pop("split") == expected.pop("split")
        assert found == pytest.approx(expected, rel=1e-4, abs=1e-5)
    assert one["tasks"]["classify"]["figures"]
    plain_figures = firth.evaluate(tmp_path / "run", data=rows / "test.tsv")
    assert plain_figures["rows"] == 7
    measured = _run(2, "evaluate", tmp_path / "run", "--data", rows / "test.tsv", "--json")
    assert measured.returncode == 0, measured.stderr
    assert measured.stdout.count('"rows"') == 1
    assert '"rows": 7' in measured.stdout
    assert f'"accuracy": {plain_figures["accuracy"]}' in measured.stdout


@pytest.mark.long
def test_ranks_learn_from_few_labels_together(rows: Path, tmp_path: Path) -> None:
    texts = tmp_path / "texts.txt"
    texts.write_text("\n".join(f"another {number}" for number in range(8)), "utf-8")
    options = ("--task", "classify", "--train", rows / "train.tsv", "--few", "plain", "--unlabelled", texts)
    changes = ("epochs=1", "few.pseudo_share=1", "train.accumulate=2")
    done = _run(2, "finetune", "en-small", *options, "--out", tmp_path / "run", *changes)
    assert done.returncode == 0, done.stderr
    # The teacher is deleted once.
    assert not (tmp_path / "run" / "ways" / "teacher").exists()
    assert (tmp_path / "run" / "results.json").exists()


def test_commands_that_work_alone_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first rank starts late here, and still it is the one that speaks."""
    late = "import os, time\nif os.environ.get('RANK') == '0':\n    time.sleep(3)\n"
    (tmp_path / "sitecustomize.py").write_text(late, "utf-8")
    search_path = [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(search_path))
    done = _run(2, "info", tmp_path)
    said = [line for line in done.stderr.splitlines() if line.startswith("firth: ")]
    assert said == ["firth: torchrun can start pretrain, finetune, compress, evaluate; run `firth info` without it."]
