"""Several ranks: each batch once, sums of all, decisions and files of rank 0 only; and one rank as ever."""

import json
import multiprocessing
import os
import re
import shutil
import signal
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch

import firth
from firth.cpu import Cpu
from firth.data.loader import BatchAddress, Packs, places
from firth.errors import BadConfig, BadInput, Interrupted
from firth.pretraining import building, training
from firth.run_folder import LOCK, RunFolder
from firth.run_source import PretrainingSource
from firth.tensors import Batch
from firth.train import parallel
from firth.train.journal import read_rows
from firth.train.loop import Progress
from firth.train.parallel import World, current_world
from firth.train.run import TrainingRun
from firth.train.settings import TrainConfig


class Epochs:
    """Epochs of 5 and 3 packs in turn."""

    workers = 0

    def num_packs(self, epoch: int) -> int:
        return 5 if epoch % 2 == 0 else 3

    def __getitem__(self, place: BatchAddress) -> None:
        raise AssertionError("no batch is made here")


def test_one_process_is_the_whole_world() -> None:
    world = current_world()
    assert world == World(0, 1)
    assert world.is_main
    assert world.total({"a": 3}) == {"a": 3}


@pytest.mark.parametrize(
    ("units", "changes", "found"),
    [
        (["avx2"], {}, "fp32"),
        (["avx2", "avx512"], {}, "fp32"),
        (["avx2", "avx512", "bf16"], {}, "bf16"),
        (["avx2", "avx512", "bf16"], {"precision": "fp32"}, "fp32"),
        (["avx2", "avx512", "bf16"], {"recompute": True}, "fp32"),
        (["avx2"], {"precision": "bf16"}, "bf16"),
        (["arm", "bf16"], {}, "fp32"),
    ],
)
def test_training_is_in_bf16_where_the_cpu_has_units_for_it(
    monkeypatch: pytest.MonkeyPatch, units: list[str], changes: dict[str, Any], found: str
) -> None:
    monkeypatch.setattr(parallel, "this_cpu", lambda: Cpu(**dict.fromkeys(units, True)))
    assert parallel.chosen_precision(TrainConfig(**changes), torch.device("cpu")) == found
    assert parallel.chosen_precision(TrainConfig(), torch.device("cuda")) == "bf16"


def test_ranks_share_places_without_gap_or_repeat() -> None:
    whole = list(islice(places(Epochs(), BatchAddress()), 24))  # type: ignore[arg-type]
    shares = [list(islice(World(rank, 3).share(places(Epochs(), BatchAddress())), 8)) for rank in range(3)]  # type: ignore[arg-type]
    dealt = [place for together in zip(*shares, strict=True) for place in together]
    assert dealt == whole


def test_a_place_behind_an_epochs_end_is_in_the_next() -> None:
    assert next(places(Epochs(), BatchAddress(0, 7))) == BatchAddress(1, 2)  # type: ignore[arg-type]
    assert next(places(Epochs(), BatchAddress(0, 5))) == BatchAddress(1, 0)  # type: ignore[arg-type]


def _on_two_ranks(work: Callable[..., Any], folder: Path, *arguments: object) -> dict[int, Any]:
    return _on_ranks(2, work, folder, *arguments)


def _on_ranks(size: int, work: Callable[..., Any], folder: Path, *arguments: object) -> dict[int, Any]:
    """What `work(rank, *arguments)` returns in each of so many processes, by rank; a rank that hangs fails the test."""
    context = multiprocessing.get_context("spawn")
    answers: Any = context.Queue()
    ranks = []
    for rank in range(size):
        ranks.append(context.Process(target=_rank, args=(rank, size, folder, answers, work, arguments)))
    for process in ranks:
        process.start()
    try:
        found = dict(answers.get(timeout=240) for _ in ranks)
    finally:
        for process in ranks:
            process.join(timeout=30)
            process.kill()
    return found


def _rank(
    rank: int, size: int, folder: Path, answers: Any, work: Callable[..., Any], arguments: tuple[object, ...]
) -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    rendezvous = folder / "rendezvous"
    torch.distributed.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=size)
    answer = work(rank, *arguments)
    torch.distributed.destroy_process_group()
    answers.put((rank, answer))


def _sum_and_decide(rank: int) -> dict[str, Any]:
    world = current_world()
    counts = {"tokens": 10 + rank, f"rows of {rank}": 1}
    # Both ranks have a gradient for the first weight, one for the second, none for the third.
    weights = [torch.nn.Parameter(torch.zeros(2)) for _ in range(3)]
    weights[0].grad = torch.tensor([1.0, rank])
    if rank == 1:
        weights[1].grad = torch.ones(2)
    world.add_gradients(weights)
    raised = []
    for error in (BadInput("the disk is full"), ValueError("a bug")):
        try:
            world.on_main(partial(_raise, error))
        except Exception as found:
            raised.append(f"{type(found).__name__}: {found}")
    return {
        "total": world.total(counts),
        "gradients": [None if weight.grad is None else weight.grad.tolist() for weight in weights],
        "decided": world.from_main(f"rank {rank}"),
        "raised": raised,
    }


def _raise(error: Exception) -> None:
    raise error


def test_ranks_sum_and_agree(tmp_path: Path) -> None:
    found = _on_two_ranks(_sum_and_decide, tmp_path)
    for answer in found.values():
        assert answer["total"] == {"tokens": 21, "rows of 0": 1, "rows of 1": 1}
        assert answer["gradients"] == [[2.0, 1.0], [1.0, 1.0], None]
        assert answer["decided"] == "rank 0"
    assert found[0]["raised"] == ["BadInput: the disk is full", "ValueError: a bug"]
    assert found[1]["raised"] == ["BadInput: the disk is full", "FirthError: Rank 0 failed: a bug"]


class _StopsRank0(TrainingRun):
    """A run whose rank 0 alone gets SIGTERM after step 3."""

    def on_step(self, progress: Progress, norm: torch.Tensor) -> None:
        if progress.step == 3 and self.world.is_main:
            signal.raise_signal(signal.SIGTERM)
        super().on_step(progress, norm)


def _train_stop_and_resume(rank: int, folder: Path, data: Path, changes: tuple[str, ...]) -> str:
    firth.pretrain(data, out=folder / "whole", steps=6, changes=changes, device="cpu")
    training.TrainingRun = _StopsRank0  # type: ignore[misc]
    stopped = ""
    try:
        firth.pretrain(data, out=folder / "stopped", steps=6, changes=changes, device="cpu")
    except Interrupted as error:
        stopped = str(error)
    training.TrainingRun = TrainingRun  # type: ignore[misc]
    firth.pretrain(data, out=folder / "stopped", resume=True, device="cpu")
    return stopped


def test_two_ranks_learn_as_one_that_reads_their_batches(data: Path, tiny: tuple[str, ...], tmp_path: Path) -> None:
    # A rank draws its own dropout, so there is none. A log row covers two steps, and the run is stopped between them.
    changes = (*tiny, "encoder.bert.dropout=0.0", "train.log_every=2", "train.evaluate_every=3")
    changes += ("train.checkpoint_every=100",)
    stopped = _on_two_ranks(_train_stop_and_resume, tmp_path, tmp_path, data, changes)
    firth.pretrain(data, out=tmp_path / "one", steps=6, changes=(*changes, "train.accumulate=2"), device="cpu")
    _assert_same_figures(tmp_path / "whole", tmp_path / "one")
    assert stopped[0] == stopped[1] == "Stopped at step 3; its state is saved. Continue with `resume=True`."
    assert (tmp_path / "stopped/metrics.jsonl").read_bytes() == (tmp_path / "whole/metrics.jsonl").read_bytes()


def _train_for_seconds(rank: int, folder: Path, data: Path, changes: tuple[str, ...]) -> int:
    firth.pretrain(data, out=folder / "timed", minutes=0.04, changes=changes, device="cpu")
    return len(read_rows(folder / "timed/metrics.jsonl"))


def test_ranks_follow_one_plan_of_a_time_limit(data: Path, tiny: tuple[str, ...], tmp_path: Path) -> None:
    _on_two_ranks(_train_for_seconds, tmp_path, tmp_path, data, tiny)
    planned = json.loads((tmp_path / "timed/plan.json").read_text())["steps"]
    assert read_rows(tmp_path / "timed/metrics.jsonl")[-1]["step"] == planned


def _begin_on_leftovers(rank: int, folder: Path) -> list[str]:
    """Begins a run in a folder where one was stopped before it began, and one in a folder of other things."""
    outcomes = []
    for name in ("ours", "others"):
        try:
            with RunFolder(folder / name, command="pretrain", resume=False) as run:
                run.begin(PretrainingSource(data="/data", sha256="00"), TrainConfig())
                outcomes.append(f"begun: {run.begun}")
        except BadInput as error:
            outcomes.append(str(error))
    return outcomes


def test_ranks_agree_on_what_an_earlier_run_left(tmp_path: Path) -> None:
    for name in ("ours", "others"):
        (tmp_path / name / "data").mkdir(parents=True)
    (tmp_path / "ours" / LOCK).touch()
    found = _on_two_ranks(_begin_on_leftovers, tmp_path, tmp_path)
    refused = f"{tmp_path / 'others'} exists and holds no run; choose another `out=`."
    assert found == {0: ["begun: True", refused], 1: ["begun: True", refused]}


WRITING = ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate", "shutil.rmtree", "tempfile.mkstemp")
"""Events of Python that change files; opening one for writing is another."""


def _record_writes(folder: Path, found: list[str]) -> None:
    """From now on, adds to `found` what this process writes in a folder."""

    def hear(event: str, arguments: tuple[Any, ...]) -> None:
        writes = event in WRITING or (event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR))
        if writes and str(arguments[0]).startswith(str(folder)):
            found.append(f"{event} {arguments[0]}")

    sys.addaudithook(hear)


def _train(rank: int, folder: Path, data: Path, changes: tuple[str, ...]) -> list[str]:
    written: list[str] = []
    _record_writes(folder / "run", written)
    firth.pretrain(data, out=folder / "run", steps=4, changes=changes, device="cpu")
    rows = folder / "rows.tsv"
    tuning = ["epochs=2", "batch_size=8"]
    firth.finetune(folder / "run", task="classify", train=rows, out=folder / "run/tuned", changes=tuning, device="cpu")
    return written


class _Recorded(Packs):
    """Packs that remember which of them were read."""

    read: list[tuple[int, int]] = []

    def __getitem__(self, place: BatchAddress) -> Batch:
        self.read.append((place.epoch, place.index))
        return super().__getitem__(place)


def _train_shared_and_resume(rank: int, folder: Path, data: Path, changes: tuple[str, ...]) -> list[tuple[int, int]]:
    """Two ranks that share the weights, stopped by a signal to the second one, and resumed."""
    building.Packs = _Recorded  # type: ignore[misc]
    firth.pretrain(data, out=folder / "whole", steps=6, changes=changes, device="cpu")
    read = list(_Recorded.read)
    training.TrainingRun = _StopsRank1  # type: ignore[misc]
    with suppress(Interrupted):
        firth.pretrain(data, out=folder / "stopped", steps=6, changes=changes, device="cpu")
    training.TrainingRun = TrainingRun  # type: ignore[misc]
    if rank == 0:
        shutil.copytree(folder / "stopped", folder / "alone")
    firth.pretrain(data, out=folder / "stopped", resume=True, device="cpu")
    return read


class _StopsRank1(TrainingRun):
    """A run whose rank 1 alone gets SIGTERM after step 3."""

    def on_step(self, progress: Progress, norm: torch.Tensor) -> None:
        if progress.step == 3 and not self.world.is_main:
            signal.raise_signal(signal.SIGTERM)
        super().on_step(progress, norm)


def _assert_same_figures(found: Path, expected: Path) -> None:
    rows = read_rows(found / "metrics.jsonl")
    expected_rows = read_rows(expected / "metrics.jsonl")
    assert [row.keys() for row in rows] == [row.keys() for row in expected_rows]
    for row, expected_row in zip(rows, expected_rows, strict=True):
        assert row.pop("split") == expected_row.pop("split")
        assert row == pytest.approx(expected_row, rel=1e-5, abs=1e-5)


def test_ranks_that_share_the_weights_learn_as_one(data: Path, tiny: tuple[str, ...], tmp_path: Path) -> None:
    # With dropout, which depends on the number of a micro-batch and not on its rank.
    changes = (*tiny, "train.parallel=fsdp", "train.log_every=2", "train.evaluate_every=3", "train.accumulate=4")
    read = _on_two_ranks(_train_shared_and_resume, tmp_path, tmp_path, data, changes)
    firth.pretrain(data, out=tmp_path / "one", steps=6, changes=changes, device="cpu")
    _assert_same_figures(tmp_path / "whole", tmp_path / "one")
    state = tmp_path / "alone/checkpoints/step-3"
    shares = sorted(path.relative_to(state).as_posix() for path in state.rglob("shard-*"))
    assert len(shares) == 4
    assert not (state / "weights.safetensors").exists()
    # The same ranks continue bit for bit; another number of ranks reads the same state.
    for name in ("model.safetensors", "metrics.jsonl"):
        assert (tmp_path / "stopped" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    firth.pretrain(data, out=tmp_path / "alone", resume=True, device="cpu")
    _assert_same_figures(tmp_path / "alone", tmp_path / "one")
    # 24 packs for training, and the held-out ones of two evaluations: each once, and together what one process reads.
    together = Counter([*read[0], *read[1]])
    assert together == Counter(_reads_of_one(data, changes, tmp_path / "again"))


def _reads_of_one(data: Path, changes: tuple[str, ...], out: Path) -> list[tuple[int, int]]:
    before = building.Packs
    building.Packs = _Recorded  # type: ignore[misc]
    _Recorded.read.clear()
    try:
        firth.pretrain(data, out=out, steps=6, changes=changes, device="cpu")
    finally:
        building.Packs = before  # type: ignore[misc]
    return _Recorded.read


def _read_packs(rank: int, folder: Path, data: Path, changes: tuple[str, ...]) -> list[tuple[int, int]]:
    building.Packs = _Recorded  # type: ignore[misc]
    firth.pretrain(data, out=folder / "run", steps=6, changes=changes, device="cpu")
    return _Recorded.read


@pytest.mark.long
@pytest.mark.parametrize("mode", ["ddp", "fsdp"])
def test_four_ranks_read_each_pack_once(mode: str, data: Path, tiny: tuple[str, ...], tmp_path: Path) -> None:
    changes = (*tiny, "train.accumulate=4", "train.evaluate_every=3", f"train.parallel={mode}")
    read = _on_ranks(4, _read_packs, tmp_path, tmp_path, data, changes)
    alone = _reads_of_one(data, changes, tmp_path / "one")
    together = Counter(place for rank in range(4) for place in read[rank])
    assert together == Counter(alone)
    num_held_out = (len(alone) - 6 * 4) // 2  # of each of the two evaluations
    assert num_held_out % 4, "ranks have equal shares of the held-out packs, so the test proves too little"
    _assert_same_figures(tmp_path / "run", tmp_path / "one")


@pytest.mark.parametrize(
    ("size", "accumulate", "sentence"),
    [
        (3, 4, "A step has 4 micro-batches (train.accumulate), which 3 ranks cannot share equally"),
        (4, 2, "A step has 2 micro-batches (train.accumulate), which 4 ranks cannot share equally"),
    ],
)
def test_ranks_that_cannot_share_a_step_are_refused(
    size: int, accumulate: int, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parallel, "current_world", lambda: World(0, size))
    with pytest.raises(BadConfig, match=re.escape(sentence)):
        parallel.micro_batches_of_rank(TrainConfig(accumulate=accumulate))
    assert parallel.with_micro_batches(TrainConfig()).accumulate == size


def test_only_rank_0_writes_files(data: Path, tiny: tuple[str, ...], tmp_path: Path) -> None:
    rows = [f"number {i} is {name}\t{name}" for i in range(12) for name in ("good", "bad")]
    (tmp_path / "rows.tsv").write_text("\n".join(["text\tlabel", *rows]), "utf-8")
    changes = (*tiny, "train.evaluate_every=2", "train.checkpoint_every=2")
    written = _on_two_ranks(_train, tmp_path, tmp_path, data, changes)
    assert written[0]
    assert written[1] == []
    for steps in (read_rows(tmp_path / "run/metrics.jsonl"), read_rows(tmp_path / "run/tuned/seed-1/metrics.jsonl")):
        kinds = [(row["step"], row["split"]) for row in steps]
        assert len(kinds) == len(set(kinds)) > 0
    state = json.loads((tmp_path / "run/checkpoints/step-4/progress.json").read_text())
    assert state["environment"]["world"] == 2
    assert firth.load(tmp_path / "run/tuned").predict(["number 3 is good"])
