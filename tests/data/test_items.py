"""The order of labelled examples: a pure function of seed, epoch and place; several tasks in proportion."""

from collections import Counter
from itertools import chain
from typing import Any

import numpy as np
import pytest

from firth.data.items import ItemBatches, shorten
from firth.data.loader import BatchAddress
from firth.tensors import Batch


class Noting:
    """Stands for a task: its batch only says which items it got."""

    def batch(self, items: list[int]) -> Batch:
        empty: Any = np.array(items)
        return Batch(empty, empty, empty, empty, 1)


def batches(sizes: dict[str, int], **options: Any) -> ItemBatches:
    tasks: Any = {name: Noting() for name in sizes}
    items: Any = {name: list(range(size)) for name, size in sizes.items()}
    return ItemBatches(tasks, items, **{"size": 4, "seed": 1, **options})


def epoch(made: ItemBatches, number: int) -> list[list[int]]:
    return [made[BatchAddress(number, i)].ids_N.tolist() for i in range(made.num_packs(number))]


def test_every_example_once_an_epoch_in_an_order_of_its_own() -> None:
    made = batches({"a": 10})
    first, second = epoch(made, 0), epoch(made, 1)
    assert sorted(chain(*first)) == sorted(chain(*second)) == list(range(10))
    assert [len(rows) for rows in first] == [4, 4, 2]
    assert first != second
    again = batches({"a": 10})
    assert again[BatchAddress(1, 2)].ids_N.tolist() == second[2]
    assert epoch(batches({"a": 10}, seed=2), 0) != first


def test_tasks_are_drawn_by_size_to_a_power() -> None:
    made = batches({"small": 400, "large": 3600}, alpha=0.5)
    counts = Counter(made[BatchAddress(e, i)].goal for e in range(4) for i in range(made.num_packs(e)))
    assert counts["large"] / counts.total() == pytest.approx(0.75, abs=0.03)
    even = batches({"small": 400, "large": 3600}, alpha=0.0)
    counts = Counter(even[BatchAddress(0, i)].goal for i in range(even.num_packs(0)))
    assert counts["small"] / counts.total() == pytest.approx(0.5, abs=0.05)


def test_a_task_drawn_often_begins_anew_and_uses_all_its_examples() -> None:
    made = batches({"small": 8, "large": 72}, alpha=0.0)
    drawn = [made[BatchAddress(0, i)] for i in range(made.num_packs(0))]
    small = list(chain(*(b.ids_N.tolist() for b in drawn if b.goal == "small")))
    rounds = len(small) // 8
    assert rounds > 2
    counts = Counter(small[: rounds * 8])
    assert set(counts.values()) == {rounds}


def test_a_pair_gives_way_longer_first() -> None:
    assert shorten(3, 4, 10) == (3, 4)
    assert shorten(30, 4, 10) == (6, 4)
    assert shorten(4, 30, 10) == (4, 6)
    assert shorten(30, 30, 11) == (6, 5)
