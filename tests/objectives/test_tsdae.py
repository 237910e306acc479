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
from firth.encoders.bert import Bert
from firth.encoders.transformer import Transformer
from firth.errors import BadConfig
from firth.nn.likelihood import IGNORE
from firth.nn.pooling import mean_rows
from firth.objectives.tsdae import Tsdae
from firth.tensors import Batch
from firth.tokenizers.wordpiece import WordPiece

LENGTH = 64


@pytest.fixture
def network(tokenizer: WordPiece, shrink: Callable[[Any], Any]) -> Transformer:
    torch.manual_seed(3)
    return Transformer(replace(shrink(Transformer.Config()), vocab_size=len(tokenizer.vocab))).eval()


def batch_of(goal: Tsdae, shards: Shards, tokenizer: WordPiece) -> Batch:
    stream = CorpusView(shards, np.arange(shards.num_documents))
    config = BatchConfig(max_length=LENGTH, tokens=1024)
    return Packs(stream, [goal], config, specials=tokenizer.vocab, seed=2)[BatchAddress()]


def make(network: Transformer, tokenizer: WordPiece, **changes: float) -> Tsdae:
    goal = make_objective("tsdae", Tsdae.Config(**changes), network, tokenizer, max_length=LENGTH, seed=2)  # type: ignore[arg-type]
    assert isinstance(goal, Tsdae)
    return goal


def test_some_words_are_read_in_order_and_all_are_written(
    network: Transformer, tokenizer: WordPiece, shards: Shards
) -> None:
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


def test_the_decoder_sees_the_mean_alone(network: Transformer, tokenizer: WordPiece, shards: Shards) -> None:
    goal = make(network, tokenizer)
    batch, _ = goal.rewrite(batch_of(goal, shards, tokenizer))
    assert batch.source is not None
    states = network(batch)
    assert states.source is not None
    read = network(batch.source).last_ND
    torch.testing.assert_close(states.source.states_SD, mean_rows(read, batch.source.bounds_B1))
    assert states.source.layout.bounds_B1.tolist() == list(range(len(batch.bounds_B1)))
    # The order in which the states of a sequence lie makes no difference to what is written.
    encode_source = network.encode_source

    def reversed_states(source: Batch) -> Any:
        encoded = encode_source(source)
        parts = encoded.states_SD.split(source.bounds_B1.long().diff().tolist())
        return replace(encoded, states_SD=torch.cat([part.flip(0) for part in parts]))

    network.encode_source = reversed_states  # type: ignore[method-assign]
    torch.testing.assert_close(network(batch).last_ND, states.last_ND, atol=1e-5, rtol=1e-4)
    plain = replace(batch, reads_mean=False)
    assert not torch.allclose(network(plain).last_ND, states.last_ND, atol=1e-3)


def test_it_needs_an_encoder_decoder_and_a_share(tokenizer: WordPiece, shrink: Callable[[Any], Any]) -> None:
    encoder = Bert(replace(shrink(Bert.Config()), vocab_size=len(tokenizer.vocab)))
    with pytest.raises(BadConfig, match="tsdae needs an encoder-decoder"):
        make_objective("tsdae", Tsdae.Config(), encoder, tokenizer, max_length=LENGTH, seed=2)
    with pytest.raises(BadConfig, match="delete"):
        Tsdae.Config(delete=1.0)
