"""UniLM: the three ways of reading, their shares, and that nothing else differs from a masked language model."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from firth.checkpoint import make_objective
from firth.data.loader import BatchAddress, Packs
from firth.data.packing import Pack, lay_out
from firth.data.settings import BatchConfig
from firth.data.shards import Shards
from firth.data.stream import CorpusView
from firth.encoders.albert import Albert
from firth.encoders.bert import Bert
from firth.errors import BadConfig
from firth.objectives.masked_lm import MaskedLM
from firth.objectives.unilm import UniLM
from firth.tokenizers.wordpiece import WordPiece
from firth.train.loop import Learner

LENGTH = 64
Maker = Callable[..., UniLM]


@pytest.fixture
def goal(small_bert: Callable[..., Bert], tokenizer: WordPiece) -> Maker:
    def make(**changes: Any) -> UniLM:
        made = make_objective("unilm", UniLM.Config(**changes), small_bert(), tokenizer, max_length=LENGTH, seed=2)
        assert isinstance(made, UniLM)
        return made

    return make


def corrupted(goal: MaskedLM, shards: Shards, epoch: int, *, per_pack: int = 60) -> Iterator[Pack]:
    plan = goal.sequences(CorpusView(shards, np.arange(shards.num_documents)), epoch)
    for rows in np.array_split(np.arange(len(plan)), max(1, len(plan) // per_pack)):
        sizes = {"num_tokens": int(plan.lengths_S[rows].sum()), "max_length": LENGTH}
        pack = lay_out(shards, plan, rows, specials=goal.vocab, **sizes)
        goal.corrupt(pack, epoch)
        yield pack


def prefixes(pack: Pack) -> np.ndarray:
    return pack.targets["unilm_prefix"][: len(pack.rows_B)]


def test_three_ways_of_reading_and_their_shares(goal: Maker, long_shards: Shards) -> None:
    bidirectional = left_to_right = source_to_target = without_target = 0
    for pack in corrupted(goal(), long_shards, 0):
        for row, prefix in enumerate(prefixes(pack).tolist()):
            segments = pack.segments_N[pack.bounds_B1[row] : pack.bounds_B1[row + 1]]
            num_first = int((segments == 0).sum())
            without_target += num_first == len(segments)
            bidirectional += prefix == len(segments)
            left_to_right += prefix == 0
            if 0 < prefix < len(segments):
                assert prefix == num_first  # the source is the whole first segment with its [SEP]
                source_to_target += 1
    total = bidirectional + left_to_right + source_to_target
    assert total > 2000
    assert abs(bidirectional / total - 1 / 3) < 0.03
    # A sequence in one segment has no target, so it is read from left to right.
    assert abs(source_to_target / total - (1 - without_target / total) / 3) < 0.03
    assert 0.02 < without_target / total < 0.3


def test_shares_can_be_chosen(goal: Maker, long_shards: Shards) -> None:
    for changes, wanted in (
        ({"bidirectional": 1.0, "left_to_right": 0.0}, "all"),
        ({"left_to_right": 1.0, "bidirectional": 0.0}, 0),
    ):
        for pack in corrupted(goal(**changes), long_shards, 0):
            lengths = np.diff(pack.bounds_B1)
            assert np.array_equal(prefixes(pack), lengths if wanted == "all" else np.zeros_like(lengths))


def test_masks_are_those_of_a_masked_lm(
    goal: Maker, small_bert: Callable[..., Bert], tokenizer: WordPiece, long_shards: Shards
) -> None:
    config = MaskedLM.Config(pair_rate=0.9)
    plain = make_objective("masked_lm", config, small_bert(), tokenizer, max_length=LENGTH, seed=2)
    assert isinstance(plain, MaskedLM)
    for one, other in zip(corrupted(goal(), long_shards, 1), corrupted(plain, long_shards, 1), strict=True):
        assert np.array_equal(one.ids_N, other.ids_N)
        assert np.array_equal(one.targets["masked_lm_labels"], other.targets["masked_lm_labels"])


def test_draws_do_not_depend_on_how_sequences_fall_into_packs(goal: Maker, long_shards: Shards) -> None:
    large = [prefixes(pack) for pack in corrupted(goal(), long_shards, 0, per_pack=60)]
    small = [prefixes(pack) for pack in corrupted(goal(), long_shards, 0, per_pack=13)]
    assert np.array_equal(np.concatenate(large), np.concatenate(small))
    other = [prefixes(pack) for pack in corrupted(goal(), long_shards, 1)]
    assert np.concatenate(large).tolist() != np.concatenate(other).tolist()


def test_the_encoder_reads_by_the_drawn_mask(
    goal: Maker, small_bert: Callable[..., Bert], shards: Shards, tokenizer: WordPiece
) -> None:
    made, encoder = goal(), small_bert(init_std=0.2).eval()
    stream = CorpusView(shards, np.arange(shards.num_documents))
    packs = Packs(stream, [made], BatchConfig(max_length=LENGTH, tokens=512), specials=tokenizer.vocab, seed=3)
    batch = packs[BatchAddress()]
    read, _ = made.rewrite(batch)
    assert read.prefix_B is not None
    assert len(read.prefix_B) == len(batch.bounds_B1) - 1
    seen: list[torch.Tensor] = []
    handle = encoder.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0].prefix_B))
    with torch.inference_mode():
        loss = Learner(encoder, {"unilm": made})(batch)
        by_hand = made.loss(encoder(read), batch)
        plain = made.loss(encoder(batch), batch)
    handle.remove()
    assert torch.equal(seen[0], read.prefix_B)
    assert loss.sums["unilm"] == by_hand.sums["unilm"]
    assert loss.sums["unilm"] != plain.sums["unilm"]


def test_what_does_not_go_is_refused(shrink: Callable[[Any], Any], tokenizer: WordPiece) -> None:
    with pytest.raises(BadConfig, match="can be read in several ways, such as bert"):
        make_objective("unilm", UniLM.Config(), Albert(shrink(Albert.Config())), tokenizer)
    for wrong in ({"bidirectional": -0.1}, {"bidirectional": 0.6, "left_to_right": 0.6}):
        with pytest.raises(BadConfig, match="shares of at most 1 together"):
            replace(UniLM.Config(), **wrong)
