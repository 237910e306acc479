"""Packs with a source: what is read and what is written, in fixed shapes."""

from dataclasses import replace

import numpy as np
import pytest

from firth import rng
from firth.data.loader import BatchAddress, Packs
from firth.data.packing import Pack, PairLengths, Plan, finish, lay_out, runs
from firth.data.settings import BatchConfig
from firth.data.shards import Shards
from firth.data.sources import PackedIds, Tokens, lay_end_to_end, pack_sizes, room_taken, set_pair
from firth.data.stream import CorpusView
from firth.errors import BadConfig
from firth.tokenizers.wordpiece import WordPiece

LENGTH = 64
START = 2


class Halves:
    """Reads the text and writes its first half."""

    def __init__(self, tokenizer: WordPiece, *, spread: float = 0.0) -> None:
        self.frame = tokenizer.vocab.frame
        self.spread = spread

    def set_text(self, stream: CorpusView) -> None:
        pass

    def sequences(self, stream: CorpusView, epoch: int) -> Plan:
        plan = runs(stream, LENGTH, frame=self.frame)
        lengths = PairLengths(plan.lengths_S, plan.lengths_S // 2, LENGTH // 2, target_spread=self.spread)
        return replace(plan, pair_lengths=lengths)

    def corrupt(self, pack: Pack, epoch: int) -> None:
        in_first_half = pack.positions_N < (np.diff(pack.bounds_B1) // 2)[pack.sequence_N]
        written = Tokens(pack.sequence_N[in_first_half], pack.positions_N[in_first_half], pack.ids_N[in_first_half])
        source = PackedIds(pack.ids_N, pack.bounds_B1)
        labels = set_pair(pack, source=source, written=lay_end_to_end([written], len(pack.rows_B)), start=START)
        pack.targets["labels"] = labels


@pytest.fixture
def stream(shards: Shards) -> CorpusView:
    return CorpusView(shards, np.arange(shards.num_documents))


def test_tokens_are_sorted_by_sequence_and_place_and_parts_keep_their_order() -> None:
    marks = Tokens(np.array([1, 0]), np.array([2, 0]), np.array([90, 91]))
    text = Tokens(np.array([0, 0, 1, 1]), np.array([1, 0, 5, 2]), np.array([10, 11, 12, 13]))
    laid = lay_end_to_end([marks, text], 3)
    assert laid.ids_N.tolist() == [91, 11, 10, 90, 13, 12]
    assert laid.bounds_B1.tolist() == [0, 3, 6, 6]


def test_a_decoder_reads_the_start_and_then_what_it_wrote(stream: CorpusView, tokenizer: WordPiece) -> None:
    goal = Halves(tokenizer)
    plan = goal.sequences(stream, 0)
    rows = np.array([4, 1, 9])
    sizes = {"num_tokens": 256, "source_tokens": 512, "max_length": LENGTH}
    before = lay_out(stream.shards, plan, rows, specials=tokenizer.vocab, **sizes)
    pack = lay_out(stream.shards, plan, rows, specials=tokenizer.vocab, **sizes)
    goal.corrupt(pack, 0)
    batch = finish(pack, specials=tokenizer.vocab)
    assert batch.source is not None
    assert (batch.num_tokens, batch.source.num_tokens) == (256, 512)
    assert (batch.max_length, batch.source.max_length) == (LENGTH // 2, LENGTH)
    assert len(batch.bounds_B1) == len(batch.source.bounds_B1)
    assert batch.source.ids_N[: len(before.ids_N)].tolist() == before.ids_N.tolist()
    for number in range(len(rows)):
        text = before.ids_N[before.sequence_N == number].tolist()
        first, last = batch.bounds_B1[number : number + 2].tolist()
        assert batch.ids_N[first:last].tolist() == [START, *text[: len(text) // 2 - 1]]
        assert batch.targets["labels"][first:last].tolist() == text[: len(text) // 2]
        assert batch.positions_N[first:last].tolist() == list(range(last - first))


def test_positions_may_begin_anywhere(stream: CorpusView, tokenizer: WordPiece) -> None:
    plan = Halves(tokenizer).sequences(stream, 0)
    sizes = {"num_tokens": 256, "source_tokens": 512, "max_length": LENGTH}
    pack = lay_out(stream.shards, plan, np.array([4, 1]), specials=tokenizer.vocab, **sizes)
    written = PackedIds(np.array([7, 8, 9]), np.array([0, 2, 3]))
    set_pair(
        pack,
        source=PackedIds(pack.ids_N, pack.bounds_B1),
        written=written,
        start=START,
        first_positions_B=np.array([5, 20]),
    )
    assert pack.positions_N.tolist() == [5, 6, 20]
    assert pack.ids_N.tolist() == [START, 7, START]


@pytest.mark.parametrize("spread", [0.0, 0.05])
@pytest.mark.parametrize("tokens", [150, 512, 2048])
def test_shapes_are_fixed_and_nothing_is_lost(
    stream: CorpusView, tokenizer: WordPiece, tokens: int, spread: float
) -> None:
    packs = Packs(
        stream,
        [Halves(tokenizer, spread=spread)],
        BatchConfig(max_length=LENGTH, tokens=tokens),
        specials=tokenizer.vocab,
        seed=1,
    )
    shapes = set()
    num_read = 0
    for index in range(packs.num_packs(0)):
        batch = packs[BatchAddress(0, index)]
        assert batch.source is not None
        assert batch.num_tokens + batch.source.num_tokens == tokens
        shapes.add((batch.ids_N.shape, batch.source.ids_N.shape, batch.bounds_B1.shape, batch.source.bounds_B1.shape))
        assert batch.bounds_B1.diff().max() <= batch.max_length
        assert batch.source.bounds_B1.diff().max() <= LENGTH
        num_read += int((batch.source.ids_N == tokenizer.vocab.cls).sum())
    assert len(shapes) == 1
    assert num_read == len(packs.objectives[0].sequences(stream, 0))


def test_most_of_a_large_pack_is_text(stream: CorpusView, tokenizer: WordPiece) -> None:
    plan = Halves(tokenizer, spread=0.05).sequences(stream, 0)
    sizes = pack_sizes(plan, 4096)
    assert sizes.source + sizes.target == 4096
    used = plan.lengths_S + plan.lengths_S // 2
    assert room_taken(plan, sizes).sum() < 1.1 * used.sum()


def test_what_does_not_fit_is_left_out_whole(stream: CorpusView, tokenizer: WordPiece) -> None:
    goal = Halves(tokenizer)
    plan = goal.sequences(stream, 0)
    longest = np.argsort(plan.lengths_S)[-5:]
    sizes = {"num_tokens": 2 * (LENGTH // 2), "source_tokens": 512, "max_length": LENGTH}
    pack = lay_out(stream.shards, plan, longest, specials=tokenizer.vocab, max_sequences=8, **sizes)
    goal.corrupt(pack, 0)
    assert pack.source is not None
    assert pack.rows_B.tolist() == longest[:2].tolist() == pack.source.rows_B.tolist()
    batch = finish(pack, specials=tokenizer.vocab)
    assert len(batch.bounds_B1) == 8 + 512 // LENGTH + 2


def test_a_pack_that_holds_no_pair_is_refused(stream: CorpusView, tokenizer: WordPiece) -> None:
    plan = Halves(tokenizer).sequences(stream, 0)
    with pytest.raises(BadConfig, match="use at least 96, or a smaller"):
        pack_sizes(plan, 80)
    assert pack_sizes(plan, 96).source == LENGTH


def test_sources_are_the_same_in_any_pack(stream: CorpusView, tokenizer: WordPiece) -> None:
    goal = Halves(tokenizer)
    plan = goal.sequences(stream, 0)
    found = []
    for rows in (rng.permutation(rng.key("a"), 6), rng.permutation(rng.key("b"), 6)):
        sizes = {"num_tokens": 256, "source_tokens": 512, "max_length": LENGTH}
        pack = lay_out(stream.shards, plan, rows, specials=tokenizer.vocab, **sizes)
        goal.corrupt(pack, 0)
        assert pack.source is not None
        place = rows.tolist().index(3)
        found.append((pack.ids_N[pack.sequence_N == place].tolist(), pack.source.rows_B[place]))
    assert found[0] == found[1]
