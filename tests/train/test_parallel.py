"""Several ranks: each batch once, counts of all, files of rank 0 only; and one rank as ever."""

import json
import multiprocessing
import os
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import torch

import firth
from firth.data.loader import BatchAddress, places
from firth.train.journal import read_rows
from firth.train.parallel import World, current_world


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


def test_ranks_share_places_without_gap_or_repeat() -> None:
    whole = list(islice(places(Epochs(), BatchAddress()), 24))  # type: ignore[arg-type]
    shares = [list(islice(World(rank, 3).share(places(Epochs(), BatchAddress())), 8)) for rank in range(3)]  # type: ignore[arg-type]
    dealt = [place for together in zip(*shares, strict=True) for place in together]
    assert dealt == whole


def test_a_place_behind_an_epochs_end_is_in_the_next() -> None:
    assert next(places(Epochs(), BatchAddress(0, 7))) == BatchAddress(1, 2)  # type: ignore[arg-type]
    assert next(places(Epochs(), BatchAddress(0, 5))) == BatchAddress(1, 0)  # type: ignore[arg-type]


def _count(rank: int, file: str, answers: "multiprocessing.Queue[dict[str, int]]") -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.distributed.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2)
    answers.put(current_world().total({"tokens": 10 + rank, "rows": 1}))
    torch.distributed.destroy_process_group()


def test_counts_are_summed_over_ranks(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    ranks = [context.Process(target=_count, args=(rank, str(tmp_path / "meet"), answers)) for rank in range(2)]
    for process in ranks:
        process.start()
    found = [answers.get(timeout=120) for _ in ranks]
    for process in ranks:
        process.join(timeout=60)
    assert found == [{"tokens": 21, "rows": 2}] * 2


WRITING = ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate", "shutil.rmtree", "tempfile.mkstemp")
"""Events of Python that change files; opening one for writing is another."""


def _record_writes(folder: Path, found: list[str]) -> None:
    """From now on, adds to `found` what this process writes in a folder."""

    def hear(event: str, arguments: tuple[Any, ...]) -> None:
        writes = event in WRITING or (event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR))
        if writes and str(arguments[0]).startswith(str(folder)):
            found.append(f"{event} {arguments[0]}")

    sys.addaudithook(hear)


def _train(rank: int, folder: Path, data: Path, changes: tuple[str, ...], answers: Any) -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    meet = folder / "meet"
    torch.distributed.init_process_group("gloo", init_method=f"file://{meet}", rank=rank, world_size=2)
    written: list[str] = []
    _record_writes(folder / "run", written)
    firth.pretrain(data, out=folder / "run", steps=4, changes=changes, device="cpu")
    rows = folder / "rows.tsv"
    tuning = ["epochs=2", "batch_size=8"]
    firth.finetune(folder / "run", task="classify", train=rows, out=folder / "run/tuned", changes=tuning, device="cpu")
    torch.distributed.destroy_process_group()
    answers.put((rank, written))


def test_only_rank_0_writes_files(data: Path, tiny: tuple[str, ...], tmp_path: Path) -> None:
    rows = [f"number {i} is {name}\t{name}" for i in range(12) for name in ("good", "bad")]
    (tmp_path / "rows.tsv").write_text("\n".join(["text\tlabel", *rows]), "utf-8")
    context = multiprocessing.get_context("spawn")
    answers: Any = context.Queue()
    changes = (*tiny, "train.evaluate_every=2", "train.checkpoint_every=2")
    ranks = [context.Process(target=_train, args=(rank, tmp_path, data, changes, answers)) for rank in range(2)]
    for process in ranks:
        process.start()
    written = dict(answers.get(timeout=240) for _ in ranks)
    for process in ranks:
        process.join(timeout=60)
    assert written[0]
    assert written[1] == []
    for steps in (read_rows(tmp_path / "run/metrics.jsonl"), read_rows(tmp_path / "run/tuned/seed-1/metrics.jsonl")):
        kinds = [(row["step"], row["split"]) for row in steps]
        assert len(kinds) == len(set(kinds)) > 0
    state = json.loads((tmp_path / "run/checkpoints/step-4/progress.json").read_text())
    assert state["environment"]["world"] == 2
    assert firth.load(tmp_path / "run/tuned").predict(["number 3 is good"])
