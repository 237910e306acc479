"""Huffman's tree and the head over it."""

import heapq

import numpy as np
import pytest
import torch

from firth import rng
from firth.nn.tree import TreeHead, huffman


def shortest(counts: list[int]) -> int:
    """The least possible sum of counts times lengths: what joining the two rarest costs, again and again."""
    heap, total = [*counts], 0
    heapq.heapify(heap)
    while len(heap) > 1:
        joined = heapq.heappop(heap) + heapq.heappop(heap)
        total += joined
        heapq.heappush(heap, joined)
    return total


@pytest.mark.parametrize("size", [2, 3, 7, 100, 1000])
def test_the_tree_is_the_shortest_and_a_tree(size: int) -> None:
    counts = 1 + rng.below(rng.key("huffman", size), 1000, np.arange(size)) ** 2
    paths = huffman(counts)
    lengths = np.diff(paths.bounds_V1)
    assert (counts * lengths).sum() == shortest(counts.tolist())
    assert (0.5**lengths).sum() == pytest.approx(1)
    ways = {
        tuple(zip(paths.nodes_P[a:b].tolist(), paths.turns_P[a:b].tolist(), strict=True))
        for a, b in zip(paths.bounds_V1, paths.bounds_V1[1:], strict=False)
    }
    assert len(ways) == size
    assert {way[0][0] for way in ways} == {size - 2}
    assert set(paths.nodes_P.tolist()) == set(range(size - 1))


def test_what_never_occurs_is_not_in_the_tree() -> None:
    paths = huffman(np.array([0, 5, 0, 3, 1]))
    assert np.diff(paths.bounds_V1).tolist() == [0, 1, 0, 2, 2]


@pytest.mark.parametrize("size", [2, 5, 40])
def test_probabilities_sum_to_one(size: int) -> None:
    torch.manual_seed(size)
    head = TreeHead(8, size)
    torch.nn.init.normal_(head.weight)
    head.plant(np.arange(size) + 1)
    shares = head(torch.randn(6, 8)).exp()
    assert torch.allclose(shares.sum(1), torch.ones(6), atol=1e-5)
    assert shares.std() > 0.01


@pytest.mark.parametrize("size", [1, 2, 3, 40])
def test_scores_are_the_sums_along_the_paths(size: int) -> None:
    head = TreeHead(8, size)
    torch.nn.init.normal_(head.weight, generator=torch.Generator().manual_seed(size))
    paths = head.plant(2 ** (np.arange(size) % 30))  # as deep as a tree can be
    x_BD = torch.randn(5, 8, generator=torch.Generator().manual_seed(1))
    signs = 2.0 * torch.from_numpy(paths.turns_P).float() - 1
    steps = torch.nn.functional.logsigmoid(x_BD @ head.weight[paths.nodes_P.astype(int)].T * signs)
    wanted = torch.stack(
        [steps[:, a:b].sum(1) for a, b in zip(paths.bounds_V1, paths.bounds_V1[1:], strict=False)], dim=1
    )
    assert torch.allclose(head(x_BD), wanted, atol=1e-5)


def test_a_tree_takes_room_as_it_has_names() -> None:
    small, large = (sum(t.nbytes for t in TreeHead(4, size).state_dict().values()) for size in (300, 3000))
    assert large < 11 * small < 1_000_000
