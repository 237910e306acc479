"""TSDAE: few words are read, all are written, and one vector is all that passes between the two."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from firth.checkpoint import make_objective
from firth.data.loader import BatchAddress, Packs
from firth.data.settings import BatchConfig
from firth.data.shards import Shards
from firth.data.stream import CorpusView
from firth.encoders.bag import Bag
from firth.encoders.bert import Bert
from firth.encoders.gpt import GPT
from firth.encoders.modernbert import ModernBert
from firth.errors import BadConfig
from firth.nn.layout import token_sequences
from firth.nn.likelihood import IGNORE
from firth.nn.pooling import mean_rows
from firth.objectives.tsdae import Tsdae
from firth.tensors import Batch
from firth.tokenizers.wordpiece import WordPiece

LENGTH = 64


@pytest.fixture
def network(tokenizer: WordPiece, shrink: Callable[[Any], Any]) -> Bert:
    torch.manual_seed(3)
    return Bert(replace(shrink(Bert.Config()), vocab_size=len(tokenizer.vocab))).eval()


def batch_of(goal: Tsdae, shards: Shards, tokenizer: WordPiece) -> Batch:
    stream = CorpusView(shards, np.arange(shards.num_documents))
    config = BatchConfig(max_length=LENGTH, tokens=1024)
    return Packs(stream, [goal], config, specials=tokenizer.vocab, seed=2)[BatchAddress()]


def make(network: Bert, tokenizer: WordPiece, **changes: float) -> Tsdae:
    goal = make_objective("tsdae", Tsdae.Config(**changes), network, tokenizer, max_length=LENGTH, seed=2)  # type: ignore[arg-type]
    assert isinstance(goal, Tsdae)
    return goal


def test_some_words_are_read_in_order_and_all_are_written(network: Bert, tokenizer: WordPiece, shards: Shards) -> None:
    goal = make(network, tokenizer)
    batch = batch_of(goal, shards, tokenizer)
    assert batch.source is not None
    labels_N = batch.targets["tsdae_labels"]
    num_read = 0
    num_written = 0
    for number in range(len(batch.bounds_B1) - 1):
        start, end = batch.bounds_B1[number : number + 2].tolist()
        written = labels_N[start:end].tolist()
        if not written or written[0] == IGNORE:
            continue  # filler
        assert written[-1] == tokenizer.vocab.sep
        first, last = batch.source.bounds_B1[number : number + 2].tolist()
        read = batch.source.ids_N[first:last].tolist()[1:-1]
        remaining = iter(written)
        assert all(token in remaining for token in read)
        num_read += len(read)
        num_written += len(written) - 1
    assert num_read / num_written == pytest.approx(0.4, abs=0.06)


def test_the_decoder_sees_the_mean_alone(network: Bert, tokenizer: WordPiece, shards: Shards) -> None:
    goal = make(network, tokenizer)
    batch, _ = goal.rewrite(batch_of(goal, shards, tokenizer))
    states = network(batch)
    total = goal.loss(states, batch).sums["tsdae"]
    means_BD = mean_rows(states.last_ND, batch.bounds_B1)
    sequence_N = token_sequences(batch.bounds_B1, batch.num_tokens).clamp(max=len(means_BD) - 1)
    only_means = replace(states, last_ND=means_BD[sequence_N])
    torch.testing.assert_close(goal.loss(only_means, batch).sums["tsdae"], total)
    others = replace(states, last_ND=torch.randn_like(means_BD)[sequence_N])
    assert float(goal.loss(others, batch).sums["tsdae"].detach()) != pytest.approx(float(total.detach()), abs=0.1)


def test_a_token_is_written_without_a_look_at_it(network: Bert, tokenizer: WordPiece, shards: Shards) -> None:
    goal = make(network, tokenizer)
    batch, _ = goal.rewrite(batch_of(goal, shards, tokenizer))
    labels_N = batch.targets["tsdae_labels"]
    first_only_N = torch.full_like(labels_N, IGNORE)
    first_N = batch.targets["tsdae_bounds"][:-1].long()
    first_N = first_N[first_N < len(labels_N)]
    first_only_N[first_N] = labels_N[first_N]
    read_N = batch.targets["tsdae_ids"]
    other_N = torch.full_like(read_N, tokenizer.vocab.mask)
    other_N[first_N] = read_N[first_N]

    def loss(ids_N: torch.Tensor) -> torch.Tensor:
        targets = {**batch.targets, "tsdae_labels": first_only_N, "tsdae_ids": ids_N}
        return goal.loss(network(batch), replace(batch, targets=targets)).sums["tsdae"]

    torch.testing.assert_close(loss(other_N), loss(read_N))


def test_the_decoder_begins_as_the_last_block(network: Bert, tokenizer: WordPiece) -> None:
    goal = make(network, tokenizer)
    goal.begin(network)
    last = network.blocks[-1].state_dict()
    assert last.keys() == goal.decoder.block.state_dict().keys()
    assert all(torch.equal(last[name], tensor) for name, tensor in goal.decoder.block.state_dict().items())


def test_a_block_of_another_form_is_left_out(tokenizer: WordPiece, shrink: Callable[[Any], Any]) -> None:
    other = ModernBert(replace(shrink(ModernBert.Config()), vocab_size=len(tokenizer.vocab)))
    goal = make_objective("tsdae", Tsdae.Config(), other, tokenizer, max_length=LENGTH, seed=2)
    before = {name: tensor.clone() for name, tensor in goal.state_dict().items()}
    goal.begin(other)
    assert all(torch.equal(before[name], tensor) for name, tensor in goal.state_dict().items())


def test_a_block_that_normalises_before_its_layers_is_left_out(
    tokenizer: WordPiece, shrink: Callable[[Any], Any]
) -> None:
    """Its weights have the same names and shapes, but the decoder's block normalises after them."""
    other = GPT(replace(shrink(GPT.Config()), vocab_size=len(tokenizer.vocab)))
    goal = make_objective("tsdae", Tsdae.Config(), other, tokenizer, max_length=LENGTH, seed=2)
    assert isinstance(goal, Tsdae)
    assert goal.decoder.block.state_dict().keys() == other.blocks[-1].state_dict().keys()
    before = {name: tensor.clone() for name, tensor in goal.state_dict().items()}
    goal.begin(other)
    assert all(torch.equal(before[name], tensor) for name, tensor in goal.state_dict().items())


def test_it_needs_a_transformer_a_share_and_no_company(network: Bert, tokenizer: WordPiece, shards: Shards) -> None:
    bag = Bag(Bag.Config(vocab_size=len(tokenizer.vocab)))
    with pytest.raises(BadConfig, match="tsdae trains Transformers"):
        make_objective("tsdae", Tsdae.Config(), bag, tokenizer, max_length=LENGTH, seed=2)
    with pytest.raises(BadConfig, match="delete"):
        Tsdae.Config(delete=1.0)
    goal = make(network, tokenizer)
    batch = batch_of(goal, shards, tokenizer)
    both = {**batch.targets, "masked_lm_labels": batch.targets["tsdae_labels"]}
    with pytest.raises(BadConfig, match="learns alone"):
        goal.rewrite(replace(batch, targets=both))
