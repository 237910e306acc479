"""The data of a run do not depend on workers or on where it starts."""

from collections.abc import Callable
from itertools import islice

import numpy as np
import pytest
import torch

from firth.checkpoint import make_objective
from firth.data.loader import BatchAddress, Packs, load, places
from firth.data.settings import BatchConfig
from firth.data.shards import Shards
from firth.data.stream import CorpusView
from firth.encoders.bert import Bert
from firth.errors import BadInput
from firth.objectives.masked_lm import MaskedLM
from firth.objectives.next_sentence import NextSentence
from firth.tensors import Batch
from firth.tokenizers.wordpiece import WordPiece
from firth.train.loop import Learner

Maker = Callable[..., Packs]
START = BatchAddress()


@pytest.fixture
def make(small_bert: Callable[..., Bert], shards: Shards, tokenizer: WordPiece) -> Maker:
    def build(*, seed: int = 1, documents: int = 0) -> Packs:
        encoder = small_bert()
        configs = {"next_sentence": NextSentence.Config(), "masked_lm": MaskedLM.Config()}
        goals = [make_objective(n, c, encoder, tokenizer, max_length=64, seed=seed) for n, c in configs.items()]
        stream = CorpusView(shards, np.arange(documents or shards.num_documents))
        return Packs(stream, goals, BatchConfig(max_length=64, tokens=2048), specials=tokenizer.vocab, seed=seed)

    return build


def fingerprint(batch: Batch) -> list[bytes]:
    tensors = [batch.ids_N, batch.positions_N, batch.segments_N, batch.bounds_B1, *batch.targets.values()]
    return [tensor.numpy().tobytes() for tensor in tensors]


def stream(
    packs: Packs, *, start: BatchAddress = START, workers: int = 0, count: int = 30
) -> list[tuple[BatchAddress, list[bytes]]]:
    rows = islice(load(packs, places(packs, start), workers=workers), count)
    return [(place, fingerprint(batch)) for place, batch in rows]


@pytest.mark.filterwarnings("ignore:This DataLoader will create 4 worker processes")  # more than there are cores
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_the_same_data_with_any_number_of_workers(make: Maker, workers: int) -> None:
    alone = stream(make())
    assert {place.epoch for place, _ in alone} >= {0, 1}  # over the border of an epoch
    assert stream(make(), workers=workers) == alone


@pytest.mark.parametrize("workers", [0, 2])
def test_starting_anywhere_gives_the_tail_of_the_stream(make: Maker, workers: int) -> None:
    whole = stream(make())
    for number in (1, 9, 17, 25):
        start = whole[number][0]
        assert stream(make(), start=start, workers=workers, count=30 - number) == whole[number:]


def test_a_place_behind_the_last_pack_is_the_next_epoch(make: Maker) -> None:
    packs = make()
    assert next(places(packs, BatchAddress(0, packs.num_packs(0)))) == BatchAddress(1, 0)


def test_seeds_give_other_data(make: Maker) -> None:
    assert stream(make(seed=1), count=3) != stream(make(seed=2), count=3)


def test_every_sequence_of_an_epoch_comes_exactly_once(make: Maker, tokenizer: WordPiece) -> None:
    packs = make()
    plan = packs.objectives[0].sequences(packs.stream, 0)
    found = []
    for index in range(packs.num_packs(0)):
        batch = packs[BatchAddress(0, index)]
        starts = batch.bounds_B1[:-1][batch.bounds_B1.diff() > 0].long()
        real = starts[batch.ids_N[starts] == tokenizer.vocab.cls]
        lengths = torch.tensor([batch.bounds_B1[batch.bounds_B1 > start][0] - start for start in real])
        labels = batch.targets["next_sentence_labels"][: len(real)]
        assert (labels >= 0).all()
        found += list(zip(lengths.tolist(), labels.tolist(), strict=True))
    wanted = zip(plan.lengths_S.tolist(), plan.labels["next_sentence"].tolist(), strict=True)
    assert sorted(found) == sorted(wanted)
    assert len(found) > 100


def test_shapes_are_the_same_from_batch_to_batch(make: Maker) -> None:
    packs = make()
    shapes = {
        tuple(tensor.shape for tensor in (batch.ids_N, batch.bounds_B1, *batch.targets.values()))
        for _, batch in islice(load(packs, places(packs, BatchAddress()), workers=0), 30)
    }
    assert len(shapes) == 1


def test_filler_is_never_a_target_and_never_felt(
    make: Maker, small_bert: Callable[..., Bert], tokenizer: WordPiece
) -> None:
    packs = make()
    fillers = 0
    for index in range(packs.num_packs(0)):
        batch = packs[BatchAddress(0, index)]
        filler = torch.isin(batch.ids_N, torch.tensor([tokenizer.vocab.pad]))
        fillers += int(filler.sum())
        labels = batch.targets["masked_lm_labels"]
        assert not filler[batch.targets["masked_lm_positions"][labels >= 0]].any()
        starts = batch.bounds_B1[:-1].long().clamp(max=batch.num_tokens - 1)
        assert not filler[starts[batch.targets["next_sentence_labels"] >= 0]].any()
    assert fillers > 0

    learner = Learner(small_bert(), {f"goal{i}": goal for i, goal in enumerate(packs.objectives)})  # type: ignore[misc]
    last = packs[BatchAddress(0, packs.num_packs(0) - 1)]
    filler = last.ids_N == tokenizer.vocab.pad
    changed = last.ids_N.masked_fill(filler, tokenizer.vocab.unk)
    losses = [learner(batch).sums for batch in (last, Batch(changed, *_rest(last)))]
    assert filler.any()
    assert all(torch.equal(losses[0][name], losses[1][name]) for name in losses[0])


def _rest(batch: Batch) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, int, dict[str, torch.Tensor]]:
    return batch.positions_N, batch.segments_N, batch.bounds_B1, batch.max_length, dict(batch.targets)


def test_a_corpus_without_a_sequence_is_named(make: Maker) -> None:
    packs = make(documents=2)
    packs.objectives[0].sequences = lambda stream, epoch: []  # type: ignore[assignment]
    with pytest.raises(BadInput, match="too small"):
        packs.num_packs(0)


class Faulty:
    """Batches that cannot be made."""

    workers = 1

    def __init__(self, fault: Callable[[], None]) -> None:
        self.fault = fault

    def num_packs(self, epoch: int) -> int:
        return 1

    def __getitem__(self, place: BatchAddress) -> Batch:
        self.fault()
        raise AssertionError


def network_is_down() -> None:
    raise BadInput("The network is down.")


@pytest.mark.parametrize("workers", [0, 1])
def test_an_error_of_a_worker_is_its_sentence(workers: int) -> None:
    with pytest.raises(BadInput, match=r"^The network is down\.$"):
        next(load(Faulty(network_is_down), [START], workers=workers))
