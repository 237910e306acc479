"""Laws of every encoder in the table. Those that read a source obey them twice: as a reader and as a writer."""

from collections.abc import Callable
from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from firth import checkpoint as checkpoints
from firth import encoders, rng
from firth.checkpoint import Checkpoint
from firth.config import from_dict, to_dict
from firth.data.packing import pack_tokens
from firth.nn import attention, encoder_decoder
from firth.nn.attention import Fused, Projected
from firth.nn.blocks import recompute_blocks
from firth.nn.encoder_decoder import output_loss
from firth.nn.kv_cache import KeyValueCache
from firth.nn.layout import Layout
from firth.tensors import Batch, Encoder, States
from firth.tokenizers.wordpiece import WordPiece

LENGTHS = (5, 33, 1, 64, 17, 17, 2, 40)
WRITERS = [name for name in encoders.TABLE if encoders.resolve(name).reads_source]


def with_sources(batch: Batch) -> Batch:
    """The batch with a source for each sequence, which depends on the sequence's first token only."""
    sources = []
    for first in batch.bounds_B1[:-1].tolist():
        token = int(batch.ids_N[first])
        length = 1 + 5 * (token % 7)  # the tests add 7 to tokens, so that lengths stay
        sources.append(rng.below(rng.key("source"), 1200, np.arange(length), token))
    return replace(batch, source=pack_tokens(sources))


class Writer(Encoder):
    """An encoder-decoder as it writes: every batch has a source."""

    causal = True
    supports_cache = True
    shows_attention = True

    def __init__(self, network: Encoder) -> None:
        super().__init__()
        self.network = network
        self.config = network.config
        self.num_layers = network.num_decoder_layers

    def forward(
        self, batch: Batch, *, layers: bool = False, attention: bool = False, cache: KeyValueCache | None = None
    ) -> States:
        if cache is None or cache.source_layout is None:
            batch = with_sources(batch)
        states: States = self.network(batch, layers=layers, attention=attention, cache=cache)
        return states


@pytest.fixture(params=[*encoders.TABLE, *(f"writer:{name}" for name in WRITERS)])
def encoder(request: pytest.FixtureRequest, shrink: Callable[[Any], Any]) -> Encoder:
    is_writer, _, name = request.param.rpartition(":")
    made = make(name, shrink)
    return Writer(made).eval() if is_writer else made


def make(name: str, shrink: Callable[[Any], Any]) -> Encoder:
    cls = encoders.resolve(name)
    torch.manual_seed(3)
    config = shrink(cls.Config())
    if cls.reads_source:
        config = replace(config, start_token=1)  # a folder always has one
    made: Encoder = cls(replace(config, init_std=0.2) if hasattr(config, "init_std") else config).eval()
    return made


@pytest.fixture
def sequences() -> list[np.ndarray]:
    key = rng.key("law")
    return [rng.below(key, 1200, np.arange(length), row) for row, length in enumerate(LENGTHS)]


def test_packed_equals_one_by_one(encoder: Encoder, sequences: list[np.ndarray]) -> None:
    with torch.inference_mode():
        together = encoder(pack_tokens(sequences))
        alone = [encoder(pack_tokens([ids])) for ids in sequences]
    assert (together.last_ND - torch.cat([states.last_ND for states in alone])).abs().max() < 1e-5
    if together.pooled_BD is not None:
        assert (together.pooled_BD - torch.cat([states.pooled_BD for states in alone])).abs().max() < 1e-5
    assert together.last_ND.abs().max() > 0.1


@pytest.mark.parametrize("changed", range(len(LENGTHS)))
def test_a_sequence_never_sees_its_neighbours(encoder: Encoder, sequences: list[np.ndarray], changed: int) -> None:
    others = [*sequences]
    others[changed] = (others[changed] + 7) % 1200
    with torch.inference_mode():
        before, after = encoder(pack_tokens(sequences)), encoder(pack_tokens(others))
    rows = torch.arange(sum(LENGTHS))
    inside = (rows >= sum(LENGTHS[:changed])) & (rows < sum(LENGTHS[: changed + 1]))
    difference = (before.last_ND - after.last_ND).abs().amax(1)
    assert difference[~inside].max() == 0
    assert difference[inside].min() > 0


def test_causal_encoders_and_only_they_are_blind_to_the_future(encoder: Encoder, sequences: list[np.ndarray]) -> None:
    cut = [len(ids) * 2 // 3 for ids in sequences]
    others = [np.concatenate([ids[:n], (ids[n:] + 7) % 1200]) for ids, n in zip(sequences, cut, strict=True)]
    with torch.inference_mode():
        before, after = (encoder(pack_tokens(batch)).last_ND.split(LENGTHS) for batch in (sequences, others))
    same = [torch.equal(one[:n], other[:n]) for one, other, n in zip(before, after, cut, strict=True)]
    assert all(same) >= encoder.causal  # to the last bit
    assert all(same) == encoder.causal or not encoder.num_layers  # without layers there may be no context at all


def left_to_right(sequences: list[np.ndarray]) -> Batch:
    """A batch that also encoders of both directions read from left to right: there are no prefixes."""
    return replace(pack_tokens(sequences), prefix_B=torch.zeros(len(sequences), dtype=torch.long))


def test_prefixes_are_read_both_ways_and_the_rest_from_left_to_right(
    encoder: Encoder, sequences: list[np.ndarray]
) -> None:
    if not encoder.reads_prefix:
        return
    prefix_B = torch.tensor([2, 9, 0, 64, 1, 17, 2, 25])
    whole = pack_tokens(sequences)
    batch = replace(whole, prefix_B=prefix_B)
    lengths_B = torch.tensor(LENGTHS)
    with torch.inference_mode():
        before = encoder(batch).last_ND.split(LENGTHS)
        for cut in range(0, 64, 5):
            # What comes at `cut` or later changes: in the prefix for all of it, after it only for what comes later.
            others = [np.where(np.arange(len(ids)) < cut, ids, (ids + 7) % 1200) for ids in sequences]
            after = encoder(replace(pack_tokens(others), prefix_B=prefix_B)).last_ND.split(LENGTHS)
            for one, other, prefix in zip(before, after, prefix_B.tolist(), strict=True):
                num_same = cut if cut >= prefix else 0
                assert torch.equal(one[:num_same], other[:num_same])
                assert ((one[num_same:] != other[num_same:]).any(1)).all()
        if encoder.causal:
            found_ND = encoder(left_to_right(sequences)).last_ND
        else:
            found_ND = encoder(replace(whole, prefix_B=lengths_B)).last_ND
        assert (found_ND - encoder(whole).last_ND).abs().max() < 1e-5


def test_a_cache_is_taken_by_encoders_that_say_so_and_changes_nothing(
    encoder: Encoder, sequences: list[np.ndarray]
) -> None:
    assert ("cache" in signature(encoder.forward).parameters) == encoder.supports_cache
    if not encoder.supports_cache or encoder.reads_source:
        return
    cache = KeyValueCache(encoder.num_layers, len(sequences), max(LENGTHS))
    halves = [(len(ids) + 1) // 2 for ids in sequences]
    with torch.inference_mode():
        wanted = encoder(left_to_right(sequences)).last_ND.split(LENGTHS)
        encoder(left_to_right([ids[:half] for ids, half in zip(sequences, halves, strict=True)]), cache=cache)
        rest = left_to_right([ids[half:] for ids, half in zip(sequences, halves, strict=True)])
        positions_N = rest.positions_N + torch.repeat_interleave(cache.lengths_B, rest.bounds_B1.long().diff())
        found_ND = encoder(replace(rest, positions_N=positions_N), cache=cache).last_ND
    wanted_ND = torch.cat([states[half:] for states, half in zip(wanted, halves, strict=True)])
    assert (found_ND - wanted_ND).abs().max() < 1e-5


def test_with_a_cache_the_attention_of_new_tokens_is_shown_to_all_tokens_so_far(
    encoder: Encoder, sequences: list[np.ndarray]
) -> None:
    if not (encoder.supports_cache and encoder.shows_attention) or encoder.reads_source:
        return
    cache = KeyValueCache(encoder.num_layers, len(sequences), max(LENGTHS))
    halves = [(len(ids) + 1) // 2 for ids in sequences]
    first = left_to_right([ids[:half] for ids, half in zip(sequences, halves, strict=True)])
    rest = left_to_right([ids[half:] for ids, half in zip(sequences, halves, strict=True)])
    offsets_N = torch.repeat_interleave(torch.tensor(halves), rest.bounds_B1.long().diff())
    rest = replace(rest, positions_N=rest.positions_N + offsets_N)
    with torch.inference_mode():
        wanted = encoder(left_to_right(sequences), attention=True)
        before = encoder(first, attention=True, cache=cache)
        after = encoder(rest, attention=True, cache=cache)
    for layer in range(encoder.num_layers):
        for row, half in enumerate(halves):
            whole_HLL = wanted.attention[layer][row]
            assert torch.allclose(before.attention[layer][row], whole_HLL[:, :half, :half], atol=1e-5)
            assert torch.allclose(after.attention[layer][row], whole_HLL[:, half:], atol=1e-5)
    # To look at the weights changes nothing.
    wanted_states = wanted.last_ND.split(LENGTHS)
    wanted_ND = torch.cat([states[half:] for states, half in zip(wanted_states, halves, strict=True)])
    assert (after.last_ND - wanted_ND).abs().max() < 1e-5


def test_order_in_the_pack_does_not_matter(encoder: Encoder, sequences: list[np.ndarray]) -> None:
    with torch.inference_mode():
        forwards, backwards = encoder(pack_tokens(sequences)), encoder(pack_tokens(sequences[::-1]))
    pieces = backwards.last_ND.split([len(ids) for ids in sequences[::-1]])
    assert (forwards.last_ND - torch.cat(pieces[::-1])).abs().max() < 1e-5


def test_layers_and_attention_on_request(encoder: Encoder, sequences: list[np.ndarray]) -> None:
    with torch.inference_mode():
        plain = encoder(pack_tokens(sequences))
        shown = encoder(pack_tokens(sequences), layers=True, attention=True)
    assert plain.layers == plain.attention == ()
    assert torch.equal(plain.last_ND, shown.last_ND)
    assert torch.equal(shown.layers[-1], shown.last_ND)
    assert len(shown.attention) == (encoder.num_layers if encoder.shows_attention else 0)
    for layer in shown.attention:
        assert [tuple(weights.shape[1:]) for weights in layer] == [(n, n) for n in LENGTHS]
        for weights in layer:
            assert torch.allclose(weights.sum(-1), torch.ones(()), atol=1e-5)


def test_save_and_load_are_bit_equal(
    encoder: Encoder, sequences: list[np.ndarray], tokenizer: WordPiece, tmp_path: Path
) -> None:
    if isinstance(encoder, Writer):
        encoder = encoder.network
    checkpoints.save(tmp_path, Checkpoint(encoder, {}, tokenizer))  # type: ignore[arg-type]
    again = checkpoints.load(tmp_path).encoder
    assert again.config == encoder.config
    assert from_dict(type(encoder.config), to_dict(encoder.config)) == encoder.config
    with torch.inference_mode():
        assert torch.equal(encoder(pack_tokens(sequences)).last_ND, again(pack_tokens(sequences)).last_ND)
    if encoder.reads_source:
        batch = with_sources(pack_tokens(sequences))
        with torch.inference_mode():
            assert torch.equal(encoder(batch).last_ND, again(batch).last_ND)


@pytest.fixture(params=WRITERS)
def writer(request: pytest.FixtureRequest, shrink: Callable[[Any], Any]) -> Encoder:
    return make(request.param, shrink)


@pytest.mark.parametrize("changed", range(len(LENGTHS)))
def test_a_target_reads_its_own_source_and_no_other(writer: Encoder, sequences: list[np.ndarray], changed: int) -> None:
    batch = with_sources(pack_tokens(sequences))
    assert batch.source is not None
    begin, end = batch.source.bounds_B1[changed : changed + 2].tolist()
    ids_N = batch.source.ids_N.clone()
    ids_N[end - 1] = (ids_N[end - 1] + 7) % 1200  # the last token of one source
    assert begin < end
    with torch.inference_mode():
        before_ND = writer(batch).last_ND
        after_ND = writer(replace(batch, source=replace(batch.source, ids_N=ids_N))).last_ND
    rows = torch.arange(sum(LENGTHS))
    inside = (rows >= sum(LENGTHS[:changed])) & (rows < sum(LENGTHS[: changed + 1]))
    difference = (before_ND - after_ND).abs().amax(1)
    assert difference[~inside].max() == 0
    assert difference[inside].min() > 0


def test_a_source_that_was_encoded_before_gives_the_same_states(writer: Encoder, sequences: list[np.ndarray]) -> None:
    batch = with_sources(pack_tokens(sequences))
    assert batch.source is not None
    with torch.inference_mode():
        wanted = writer(batch)
        source = writer.encode_source(batch.source)
        found = writer(replace(batch, source=None), source=source)
        read_ND = writer(batch.source).last_ND  # by the encoder half, alone
    assert torch.equal(found.last_ND, wanted.last_ND)
    assert found.source is source
    assert torch.equal(source.states_SD, read_ND)


def test_cross_attention_is_shown_on_request_with_and_without_a_cache(
    writer: Encoder, sequences: list[np.ndarray]
) -> None:
    batch = with_sources(pack_tokens(sequences))
    assert batch.source is not None
    source_lengths = batch.source.bounds_B1.diff().tolist()
    with torch.inference_mode():
        shown = writer(batch, attention=True)
        cache = KeyValueCache(writer.num_decoder_layers, len(sequences), max(LENGTHS))
        cached = writer(batch, attention=True, cache=cache)
        assert writer(batch).cross_attention == ()
    assert len(shown.cross_attention) == writer.num_decoder_layers
    for layer, cached_layer in zip(shown.cross_attention, cached.cross_attention, strict=True):
        assert [tuple(weights.shape[1:]) for weights in layer] == list(zip(LENGTHS, source_lengths, strict=True))
        for weights, cached_weights in zip(layer, cached_layer, strict=True):
            assert torch.allclose(weights.sum(-1), torch.ones(()), atol=1e-5)
            assert torch.allclose(weights, cached_weights, atol=1e-5)


def test_both_halves_learn(writer: Encoder, sequences: list[np.ndarray]) -> None:
    states = writer.train()(with_sources(pack_tokens(sequences)))
    total, _ = output_loss(states, torch.cat([torch.from_numpy(ids) for ids in sequences]))
    total.backward()
    unused = [name for name, parameter in writer.named_parameters() if parameter.grad is None]
    assert not unused
    assert all(parameter.grad.isfinite().all() for parameter in writer.parameters() if parameter.grad is not None)


def test_recomputed_blocks_learn_the_same(writer: Encoder, sequences: list[np.ndarray]) -> None:
    batch = with_sources(pack_tokens(sequences))
    labels_N = torch.cat([torch.from_numpy(ids) for ids in sequences])

    def gradients() -> list[torch.Tensor]:
        total, _ = output_loss(writer.train()(batch), labels_N)
        return list(torch.autograd.grad(total, list(writer.parameters())))

    wanted = gradients()
    recompute_blocks(writer)
    once = [part.forward for part in writer.modules()]
    recompute_blocks(writer)
    assert [part.forward for part in writer.modules()] == once
    for found, gradient in zip(gradients(), wanted, strict=True):
        assert torch.allclose(found, gradient, atol=1e-4, rtol=1e-4)


def test_a_writer_in_half_precision_is_near(writer: Encoder, sequences: list[np.ndarray]) -> None:
    batch = with_sources(pack_tokens(sequences))
    with torch.inference_mode():
        wanted_ND = writer(batch).last_ND
        found_ND = writer.bfloat16()(batch).last_ND
    assert found_ND.dtype == torch.bfloat16
    assert (found_ND.float() - wanted_ND).abs().mean() < 0.05 * wanted_ND.std()


def test_a_writer_is_one_graph_where_shapes_are_static(
    writer: Encoder, sequences: list[np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU in half precision, where `torch.compile` refuses a break in the graph."""

    def static_layout(batch: Batch, *, dtype: torch.dtype) -> Layout:
        return Layout(batch.bounds_B1, batch.max_length, batch.num_tokens, has_kernels=True)

    batch = with_sources(pack_tokens(sequences))
    wanted_ND = writer(batch).last_ND
    monkeypatch.setattr(encoder_decoder, "layout", static_layout)
    # There is no variable-length kernel here: all attention goes through one padded group.
    monkeypatch.setattr(attention, "_attend_packed", attend_padded)
    monkeypatch.setattr(attention, "OWN_KERNEL", False)

    @torch.compile(fullgraph=True, dynamic=False, backend="aot_eager")
    def states(batch: Batch) -> torch.Tensor:
        last_ND: torch.Tensor = writer(batch).last_ND
        return last_ND

    found_ND = states(batch)
    assert (found_ND - wanted_ND).abs().max() < 1e-4


def attend_padded(
    projected: Projected | Fused,
    layout_q: Layout,
    layout_k: Layout,
    causal: bool,
    scale: float | None,
    window: int | None,
) -> torch.Tensor:
    assert window is None
    pairing = layout_q.pairing(layout_k)
    group = pairing.groups[0]
    score_mask = attention._make_score_mask(group, causal, None, None)
    ((q_GHLK, k_GHSK, v_GHSK),) = projected.cells(pairing, projected.dtype)
    out_GHLK = torch.nn.functional.scaled_dot_product_attention(
        q_GHLK, k_GHSK, v_GHSK, score_mask.bias, is_causal=score_mask.is_causal, scale=scale
    )
    return pairing.restore([out_GHLK.transpose(1, 2)])
