"""BERT and its kin as the start of an encoder-decoder: the reading half is the model, cross-attention is new."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from firth import checkpoint as checkpoints
from firth import encoders, rng
from firth.checkpoint import Checkpoint
from firth.data.packing import pack_tokens
from firth.encoders.albert import Albert
from firth.encoders.bart import Bart
from firth.encoders.bert import Bert
from firth.encoders.gpt import GPT
from firth.errors import Unsupported
from firth.finetuning.start import Start
from firth.finetuning.writer_start import as_writer
from firth.tensors import Encoder
from firth.tokenizers.wordpiece import WordPiece

LENGTHS = (5, 33, 1, 17)
SHAPES: dict[str, tuple[Any, dict[str, Any]]] = {
    "bert": (Bert, {"num_layers": 3}),
    "roberta": (Bert, {"num_segments": 1, "pooler": False, "norm_eps": 1e-5}),
    "distilbert": (Bert, {"num_segments": 0}),
    "electra": (Bert, {"embedding_width": 12}),
    "electra as wide": (Bert, {"embedding_width": 32}),
    "albert": (Albert, {"embedding_width": 12, "num_layers": 3}),
}


def sequences() -> list[np.ndarray]:
    return [rng.below(rng.key("reader"), 1200, np.arange(length), row) for row, length in enumerate(LENGTHS)]


@pytest.fixture(params=SHAPES)
def reader(request: pytest.FixtureRequest, shrink: Callable[[Any], Any]) -> Encoder:
    cls, changes = SHAPES[request.param]
    torch.manual_seed(4)
    encoder: Encoder = cls(replace(shrink(cls.Config()), init_std=0.2, **changes))
    for parameter in encoder.parameters():  # biases and norms are 0 and 1 at first, which would hide a mix-up
        if parameter.ndim == 1:
            torch.nn.init.normal_(parameter, mean=0.5, std=0.3)
    return encoder.eval()


def start_of(encoder: Encoder, tokenizer: WordPiece) -> Start:
    return Start(encoders.name_of(encoder), encoder.config, tokenizer, trained=encoder, goals={}, layout="bert")


def test_the_encoder_half_is_the_model(reader: Encoder, tokenizer: WordPiece) -> None:
    writer = as_writer(start_of(reader, tokenizer)).encoder("fp32", "cpu").eval()
    with torch.inference_mode():
        wanted_ND = reader(pack_tokens(sequences())).last_ND
        found_ND = writer(pack_tokens(sequences())).last_ND
    assert (found_ND - wanted_ND).abs().max() < 1e-5
    assert wanted_ND.std() > 0.1


def test_without_cross_attention_the_decoder_computes_what_the_model_does(
    reader: Encoder, tokenizer: WordPiece
) -> None:
    """On sequences of one token, for which it makes no difference that a decoder does not see what follows."""
    writer = as_writer(start_of(reader, tokenizer)).encoder("fp32", "cpu").eval()
    assert isinstance(writer, Bart)
    for block in writer.decoder.blocks:
        torch.nn.init.zeros_(block.cross.out.weight)  # type: ignore[union-attr,arg-type]
        torch.nn.init.zeros_(block.cross.out.bias)  # type: ignore[union-attr,arg-type]
    single = pack_tokens([np.array([token]) for token in (7, 99, 1100)])
    with torch.inference_mode():
        wanted_BD = reader(single).last_ND
        found_BD = writer(replace(single, source=pack_tokens(sequences()[:3]))).last_ND
    assert (found_BD - wanted_BD).abs().max() < 1e-4


def test_a_writer_is_saved_and_loaded(reader: Encoder, tokenizer: WordPiece, tmp_path: Path) -> None:
    start = as_writer(start_of(reader, tokenizer))
    assert start.layout == ""
    writer = start.encoder("fp32", "cpu").eval()
    checkpoints.save(tmp_path, Checkpoint(writer, {}, tokenizer))
    again = checkpoints.load(tmp_path).encoder
    assert again.config == writer.config
    assert again.config.start_token == tokenizer.vocab.cls
    batch = replace(pack_tokens(sequences()), source=pack_tokens(sequences()[::-1]))
    with torch.inference_mode():
        assert torch.equal(writer(batch).last_ND, again(batch).last_ND)


def test_a_shallow_decoder_takes_blocks_at_even_distances(shrink: Callable[[Any], Any], tokenizer: WordPiece) -> None:
    reader = Bert(replace(shrink(Bert.Config()), num_layers=5))
    writer = as_writer(start_of(reader, tokenizer), decoder_layers=3).encoder("fp32", "cpu")
    assert isinstance(writer, Bart)
    assert (writer.num_layers, writer.num_decoder_layers) == (5, 3)
    for layer, block in zip((0, 2, 4), writer.decoder.blocks, strict=True):
        theirs = reader.blocks[layer]
        assert torch.equal(block.ffn.up.weight, theirs.ffn.up.weight)  # type: ignore[union-attr,arg-type]


def test_a_model_that_writes_stays_as_it_is_and_others_are_refused(
    shrink: Callable[[Any], Any], tokenizer: WordPiece
) -> None:
    start = start_of(Bart(shrink(Bart.Config())), tokenizer)
    assert as_writer(start) is start
    with pytest.raises(Unsupported, match="weights of a gpt; it can with those of: bert, albert"):
        as_writer(start_of(GPT(shrink(GPT.Config())), tokenizer))


def test_random_weights_stay_random(shrink: Callable[[Any], Any], tokenizer: WordPiece) -> None:
    start = replace(start_of(Bert(shrink(Bert.Config())), tokenizer), trained=None)
    writer = as_writer(start)
    assert writer.trained is None
    assert writer.shape.reads_source


def test_only_cross_attention_is_new_and_drawn_from_the_seed(reader: Encoder, tokenizer: WordPiece) -> None:
    start = as_writer(start_of(reader, tokenizer))
    states = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        states.append(start.encoder("fp32", "cpu").state_dict())
    first, same, other = states
    changed = {name for name, tensor in first.items() if not torch.equal(tensor, other[name])}
    assert all(torch.equal(tensor, same[name]) for name, tensor in first.items())
    assert {name for name in changed if ".cross." not in name} <= {"narrow.weight"}
    assert any(".cross.q.weight" in name for name in changed)
