"""Several ranks: each batch once, counts of all, and one rank as ever."""

import multiprocessing
import os
from itertools import islice
from pathlib import Path

import torch

from firth.data.loader import Place, places
from firth.train.parallel import World, current_world


class Epochs:
    """Epochs of 5 and 3 packs in turn."""

    workers = 0

    def num_packs(self, epoch: int) -> int:
        return 5 if epoch % 2 == 0 else 3

    def __getitem__(self, place: Place) -> None:
        raise AssertionError("no batch is made here")


def test_one_process_is_the_whole_world() -> None:
    world = current_world()
    assert world == World(0, 1)
    assert world.is_main
    assert world.total({"a": 3}) == {"a": 3}


def test_ranks_share_places_without_gap_or_repeat() -> None:
    whole = list(islice(places(Epochs(), Place()), 24))  # type: ignore[arg-type]
    shares = [list(islice(World(rank, 3).share(places(Epochs(), Place())), 8)) for rank in range(3)]  # type: ignore[arg-type]
    dealt = [place for together in zip(*shares, strict=True) for place in together]
    assert dealt == whole


def test_a_place_behind_an_epochs_end_is_in_the_next() -> None:
    assert next(places(Epochs(), Place(0, 7))) == Place(1, 2)  # type: ignore[arg-type]
    assert next(places(Epochs(), Place(0, 5))) == Place(1, 0)  # type: ignore[arg-type]


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
