"""The attention contract against plain padded attention: cross-attention, masks, biases, the key-value cache."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from firth.data.packing import pack_tokens
from firth.errors import BadInput, Unsupported
from firth.nn.attention import Fused, Mask, Projected, Source, attend, attention_weights, prefix_mask
from firth.nn.attention_layers import CrossAttention, SelfAttention
from firth.nn.blocks import DecoderBlock, FeedForward, GatedFeedForward, NormOrder
from firth.nn.groups import Group
from firth.nn.kv_cache import KeyValueCache
from firth.nn.layout import Layout
from firth.tensors import Batch

WIDTH, HEADS, HEAD_WIDTH = 64, 4, 16
TARGETS = (5, 33, 1, 20, 17, 17, 2, 40)
SOURCES = (30, 4, 12, 1, 9, 44, 8, 8)
LENGTHS = {
    "mixed": (TARGETS, SOURCES),
    "sorted": (tuple(sorted(TARGETS)), SOURCES),
    "equal": ((7,) * 4, (7,) * 4),
    "with empty ones": ((5, 9, 0, 3, 0, 0), (0, 6, 2, 4, 0, 0)),
}
HALF = torch.bfloat16
MACHINES = [
    pytest.param(("cpu", torch.float32), id="cpu"),
    pytest.param(("cpu", HALF), id="cpu-half"),
    pytest.param(
        ("cuda", torch.float32), id="cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
    ),
    pytest.param(
        ("cuda", HALF), id="cuda-half", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
    ),
]
Machine = tuple[str, torch.dtype]


def make_layout(lengths: tuple[int, ...], machine: Machine = ("cpu", torch.float32)) -> Layout:
    device, dtype = machine
    bounds_B1 = torch.tensor([0, *lengths], device=device).cumsum(0).int()
    return Layout(bounds_B1, max(lengths), sum(lengths), device == "cuda" and dtype == HALF)


def random_rows(num_tokens: int, machine: Machine, seed: int) -> Tensor:
    rows = torch.randn(num_tokens, WIDTH, generator=torch.Generator().manual_seed(seed))
    return rows.to(*machine).requires_grad_()


def assert_close(found: Tensor, wanted: Tensor, *, half: float = 2e-2) -> None:
    """Every number within 1e-5 of the largest; in half precision the whole within this share of its norm."""
    difference = found.detach().float() - wanted.detach()
    if found.dtype == HALF:
        assert difference.norm() <= half * wanted.detach().norm()
    else:
        assert difference.abs().max() <= 1e-5 * max(1.0, float(wanted.detach().abs().max()))


# --- the reference: padded batches and torch's primitives only ---


def padded(x_ND: Tensor, lengths: tuple[int, ...]) -> Tensor:
    return nn.utils.rnn.pad_sequence(list(x_ND.split(lengths)), batch_first=True)


def packed(x_BLD: Tensor, lengths: tuple[int, ...]) -> Tensor:
    return torch.cat([row[:length] for row, length in zip(x_BLD, lengths, strict=True)])


def real(lengths: tuple[int, ...]) -> Tensor:
    """B x L: False for padding."""
    return torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]


def heads(x_BLD: Tensor) -> Tensor:
    return x_BLD.unflatten(-1, (HEADS, HEAD_WIDTH)).transpose(1, 2)


def plain_attention(q_BLD: Tensor, k_BSD: Tensor, v_BSD: Tensor, seen: Tensor, bias: Tensor | float = 0.0) -> Tensor:
    """`seen` and `bias` broadcast to B x H x L x S; a query that sees nothing takes zeros."""
    scores_BHLS = heads(q_BLD) @ heads(k_BSD).transpose(2, 3) * HEAD_WIDTH**-0.5 + bias
    scores_BHLS = scores_BHLS.masked_fill(~seen, -1e30)
    weights_BHLS = scores_BHLS.softmax(-1).masked_fill(~seen, 0.0)
    return (weights_BHLS @ heads(v_BSD)).transpose(1, 2).flatten(2)


def plain_decoder(
    blocks: nn.ModuleList, x_BLD: Tensor, source_BSD: Tensor, seen: Tensor, source_seen: Tensor, order: NormOrder
) -> Tensor:
    def sublayer(x: Tensor, norm: Any, run: Callable[[Tensor], Tensor]) -> Tensor:
        def normalise(y: Tensor) -> Tensor:
            return functional.layer_norm(y, (WIDTH,), norm.weight, norm.bias, norm.eps)

        return x + run(normalise(x)) if order == "pre" else normalise(x + run(x))

    def self_attend(block: Any, x: Tensor) -> Tensor:
        q, k, v = functional.linear(x, block.attention.qkv.weight, block.attention.qkv.bias).chunk(3, -1)
        mixed = plain_attention(q, k, v, seen)
        return functional.linear(mixed, block.attention.out.weight, block.attention.out.bias)

    def cross_attend(block: Any, x: Tensor) -> Tensor:
        q = functional.linear(x, block.cross.q.weight, block.cross.q.bias)
        k, v = functional.linear(source_BSD, block.cross.kv.weight, block.cross.kv.bias).chunk(2, -1)
        mixed = plain_attention(q, k, v, source_seen)
        return functional.linear(mixed, block.cross.out.weight, block.cross.out.bias)

    def feed(block: Any, x: Tensor) -> Tensor:
        hidden = functional.relu(functional.linear(x, block.ffn.up.weight, block.ffn.up.bias))
        return functional.linear(hidden, block.ffn.down.weight, block.ffn.down.bias)

    for block in blocks:
        x_BLD = sublayer(x_BLD, block.attention_norm, lambda x, block=block: self_attend(block, x))
        x_BLD = sublayer(x_BLD, block.cross_norm, lambda x, block=block: cross_attend(block, x))
        x_BLD = sublayer(x_BLD, block.ffn_norm, lambda x, block=block: feed(block, x))
    return x_BLD


def make_decoder(order: NormOrder) -> nn.ModuleList:
    torch.manual_seed(5)
    blocks = nn.ModuleList()
    for _ in range(2):
        blocks.append(
            DecoderBlock(
                SelfAttention(WIDTH, HEADS, causal=True),
                CrossAttention(WIDTH, HEADS),
                FeedForward(WIDTH, 64, activation_name="relu"),
                attention_norm=nn.LayerNorm(WIDTH),
                cross_norm=nn.LayerNorm(WIDTH),
                ffn_norm=nn.LayerNorm(WIDTH),
                norm_order=order,
            )
        )
    return blocks.eval()


# --- a decoder ---


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("order", ["pre", "post"])
@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
def test_a_packed_decoder_equals_a_padded_one(
    lengths: tuple[tuple[int, ...], tuple[int, ...]], order: NormOrder, machine: Machine
) -> None:
    targets, sources = lengths
    plain = make_decoder(order).to(machine[1]).float()
    blocks = make_decoder(order).to(*machine)
    x_ND, source_SD = random_rows(sum(targets), machine, 1), random_rows(sum(sources), machine, 2)
    layout, source = make_layout(targets, machine), Source(source_SD, make_layout(sources, machine))
    out_ND = x_ND
    for block in blocks:
        out_ND = block(out_ND, layout, source)

    inputs = [x.detach().cpu().float().requires_grad_() for x in (x_ND, source_SD)]
    causal = torch.ones(max(targets), max(targets), dtype=torch.bool).tril()
    wanted_BLD = plain_decoder(
        plain,
        padded(inputs[0], targets),
        padded(inputs[1], sources),
        causal & real(targets)[:, None, None],
        real(sources)[:, None, None],
        order,
    )
    wanted_ND = packed(wanted_BLD, targets)
    assert_close(out_ND.cpu(), wanted_ND)

    weights_ND = torch.randn(wanted_ND.shape, generator=torch.Generator().manual_seed(3))
    found = torch.autograd.grad(out_ND, [x_ND, source_SD, *blocks.parameters()], weights_ND.to(out_ND))
    wanted = torch.autograd.grad(wanted_ND, [*inputs, *plain.parameters()], weights_ND)
    for one, other in zip(found, wanted, strict=True):
        assert_close(one.cpu(), other, half=0.15)  # sums over all tokens lose digits


def test_the_cache_changes_nothing_in_a_decoder() -> None:
    """Self-attention's keys grow, cross-attention's stay; sequences end, change places and are repeated."""
    blocks = make_decoder("pre")
    targets, sources = (9, 4, 12, 6), (5, 20, 1, 8)
    x_ND, source_SD = (random_rows(sum(n), ("cpu", torch.float32), 1).detach() for n in (targets, sources))
    source = Source(source_SD, make_layout(sources))
    layout = make_layout(targets)
    wanted_ND = x_ND
    for block in blocks:
        wanted_ND = block(wanted_ND, layout, source)
    wanted = wanted_ND.split(targets)
    rows = list(x_ND.split(targets))
    projections: list[int] = []
    for block in blocks:
        block.cross.kv.register_forward_hook(lambda *_: projections.append(1))

    cache = KeyValueCache(len(blocks), len(rows), 12)
    done = [0] * len(rows)
    alive = [0, 1, 2, 3]
    for news, keep in [((3, 1, 2, 2), [3, 0, 0, 2]), ((2, 1, 1, 4), [0, 2, 3]), ((1, 1, 1), None)]:
        new_layout = make_layout(news)
        done_now = [done[i] for i in alive]
        new_ND = torch.cat([rows[i][k : k + n] for i, k, n in zip(alive, done_now, news, strict=True)])
        layout_q, caches = cache.read(new_layout)
        for block, layer_cache in zip(blocks, caches, strict=True):
            new_ND = block(new_ND, layout_q, source, cache=layer_cache)
        for out, i, k, n in zip(new_ND.split(news), alive, done_now, news, strict=True):
            assert_close(out, wanted[i][k : k + n])
        lengths = [k + n for k, n in zip(done_now, news, strict=True)]
        assert cache.lengths_B.tolist() == lengths
        if keep:
            cache.keep(torch.tensor(keep))
            # Each row is from now on a sequence of its own, which has been read so far.
            rows, wanted = [rows[alive[i]] for i in keep], tuple(wanted[alive[i]] for i in keep)
            done, alive = [lengths[i] for i in keep], list(range(len(keep)))
    assert len(projections) == len(blocks)


def test_the_cache_changes_nothing_with_a_prefix_and_a_bias() -> None:
    """Positions go on where the cache ends."""
    torch.manual_seed(2)
    attention = SelfAttention(WIDTH, HEADS).eval()
    lengths, prefixes = (9, 4, 12), torch.tensor([3, 4, 0])
    rules: dict[str, Any] = {"mask": prefix_mask(prefixes), "bias": relative_bias(torch.randn(HEADS, 13))}
    x_ND = torch.randn(sum(lengths), WIDTH)
    wanted = attention(x_ND, make_layout(lengths), **rules).split(lengths)
    rows = x_ND.split(lengths)
    cache = KeyValueCache(1, 3, 12)
    for starts, ends in [((0, 0, 0), (5, 4, 1)), ((5, 4, 1), (6, 4, 12)), ((6, 4, 12), (9, 4, 12))]:
        news = tuple(end - start for start, end in zip(starts, ends, strict=True))
        new_ND = torch.cat([row[start:end] for row, start, end in zip(rows, starts, ends, strict=True)])
        layout, (layer_cache,) = cache.read(make_layout(news))
        found = attention(new_ND, layout, cache=layer_cache, **rules).split(news)
        for out, all_of_it, start, end in zip(found, wanted, starts, ends, strict=True):
            if end > start:
                assert_close(out, all_of_it[start:end])


def test_a_full_cache_says_so() -> None:
    cache = KeyValueCache(1, 2, 4)
    cache.read(make_layout((3, 4)))
    with pytest.raises(BadInput, match="5 tokens"):
        cache.read(make_layout((2, 0)))


# --- masks and biases ---


def relative_bias(table_HD: Tensor) -> Callable[[Group], Tensor]:
    """A number for each head and distance, as T5's buckets are."""

    def bias(group: Group) -> Tensor:
        distance_GLS = group.keys.steps_GL[:, None, :] - group.queries.steps_GL[:, :, None]
        return table_HD[:, distance_GLS.clamp(-6, 6) + 6].transpose(0, 1)

    return bias


def run(x_N3D: Tensor, layout: Layout, *, fused: bool = True, **rules: Any) -> Tensor:
    qkv_N3HK = x_N3D.unflatten(-1, (HEADS, HEAD_WIDTH))
    projected = Fused(qkv_N3HK) if fused else Projected(*qkv_N3HK.unbind(1))
    return attend(projected, layout, layout, **rules).flatten(1)


def layouts_of(lengths: tuple[int, ...], machine: Machine) -> list[Layout]:
    """By length, and as one group of static shape, as on a GPU in half precision."""
    by_length = make_layout(lengths, machine)
    return [by_length, replace(by_length, has_kernels=True, pairings=[])]


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("lengths", [targets for targets, _ in LENGTHS.values()], ids=LENGTHS)
def test_a_prefix_and_a_bias_equal_padded_attention(lengths: tuple[int, ...], machine: Machine) -> None:
    prefixes = [length * 2 // 3 if row % 3 else 0 for row, length in enumerate(lengths)]
    x_N3D = torch.randn(sum(lengths), 3, WIDTH, generator=torch.Generator().manual_seed(1))
    table_HD = torch.randn(HEADS, 13, generator=torch.Generator().manual_seed(2))
    weights_ND = torch.randn(sum(lengths), WIDTH, generator=torch.Generator().manual_seed(3))

    plain = x_N3D.to(machine[1]).float().requires_grad_(), table_HD.clone().requires_grad_()
    q, k, v = (padded(x, lengths) for x in plain[0].unbind(1))
    steps = torch.arange(max(lengths))
    in_prefix_B1S = steps < torch.tensor(prefixes)[:, None, None]
    causal_LS = steps <= steps[:, None]
    seen = ((in_prefix_B1S | causal_LS) & real(lengths)[:, None])[:, None]
    bias_HLS = plain[1][:, (steps - steps[:, None]).clamp(-6, 6) + 6]
    wanted_ND = packed(plain_attention(q, k, v, seen, bias_HLS), lengths)
    wanted = torch.autograd.grad(wanted_ND, plain, weights_ND)

    for layout in layouts_of(lengths, machine):
        for fused in (True, False):
            x, table = x_N3D.to(*machine).requires_grad_(), table_HD.to(machine[0]).clone().requires_grad_()
            mask = prefix_mask(torch.tensor(prefixes, device=machine[0]))
            out_ND = run(x, layout, fused=fused, mask=mask, bias=relative_bias(table))
            assert_close(out_ND.cpu(), wanted_ND)
            found = torch.autograd.grad(out_ND, (x, table), weights_ND.to(out_ND))
            for one, other in zip(found, wanted, strict=True):
                assert_close(one.to("cpu", machine[1]), other, half=0.15)


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("lengths", [targets for targets, _ in LENGTHS.values()], ids=LENGTHS)
def test_plain_attention_equals_padded_attention(
    lengths: tuple[int, ...], machine: Machine, causal: bool, fused: bool
) -> None:
    x_N3D = torch.randn(sum(lengths), 3, WIDTH, generator=torch.Generator().manual_seed(1)).to(machine[1])
    q, k, v = (padded(x, lengths) for x in x_N3D.float().unbind(1))
    steps = torch.arange(max(lengths))
    seen = (steps <= steps[:, None] if causal else torch.tensor(True)) & real(lengths)[:, None, None]
    wanted_ND = packed(plain_attention(q, k, v, seen), lengths)
    found_ND = run(x_N3D.to(machine[0]), make_layout(lengths, machine), fused=fused, causal=causal)
    assert_close(found_ND.cpu(), wanted_ND)


def permutation_mask(rank_N: Tensor) -> Mask:
    """XLNet's query stream: a token sees those that come before it in the permutation, and not itself."""

    def may_see(group: Group) -> Tensor:
        return (rank_N[group.keys.rows_GL][:, None, :] < rank_N[group.queries.rows_GL][:, :, None])[:, None]

    return may_see


@pytest.mark.parametrize("static", [False, True])
def test_no_query_sees_what_its_mask_hides(static: bool) -> None:
    """The gradient into hidden tokens is exactly 0; the first of a permutation sees nothing and takes zeros."""
    lengths = (6, 1, 9, 3)
    layout = layouts_of(lengths, ("cpu", torch.float32))[static]
    rank_N = torch.cat([torch.randperm(n, generator=torch.Generator().manual_seed(n)) for n in lengths])
    sequence_N = torch.repeat_interleave(torch.arange(4), torch.tensor(lengths))
    x_N3D = torch.randn(sum(lengths), 3, WIDTH, generator=torch.Generator().manual_seed(1)).requires_grad_()
    out_ND = run(x_N3D, layout, mask=permutation_mask(rank_N))
    for token in range(sum(lengths)):
        (grad_N3D,) = torch.autograd.grad(out_ND[token].sum(), x_N3D, retain_graph=True)
        touched_N = grad_N3D[:, 2].abs().amax(1) > 0
        assert torch.equal(touched_N, (sequence_N == sequence_N[token]) & (rank_N < rank_N[token]))
    assert torch.equal(out_ND[rank_N == 0], torch.zeros(4, WIDTH))


def test_static_layouts_compile_as_one_graph() -> None:
    """Masks and biases of a GPU in half precision: nothing there may depend on the lengths."""
    torch.manual_seed(1)
    attention = SelfAttention(WIDTH, HEADS, causal=True)
    table_HD = torch.randn(HEADS, 13)

    def forward(x_ND: Tensor, bounds_B1: Tensor, prefix_B: Tensor) -> Tensor:
        layout = Layout(bounds_B1, 9, x_ND.shape[0], True)
        bias = relative_bias(table_HD)
        first_ND = attention(x_ND, layout, mask=prefix_mask(prefix_B), bias=bias)
        out_ND: Tensor = attention(first_ND, layout, bias=bias)
        return out_ND

    compiled = torch.compile(forward, backend="aot_eager", fullgraph=True, dynamic=False)
    for lengths in ((9, 4, 7, 0), (1, 9, 9, 1)):
        layout = make_layout(lengths)
        x_ND = torch.randn(20, WIDTH)
        prefix_B = torch.tensor([2, 1, 0, 0])
        with torch.no_grad():
            assert_close(compiled(x_ND, layout.bounds_B1, prefix_B), forward(x_ND, layout.bounds_B1, prefix_B))


def test_weights_are_what_attention_uses() -> None:
    lengths = (5, 3, 8)
    layout = make_layout(lengths)
    x_N3D = torch.randn(sum(lengths), 3, WIDTH, generator=torch.Generator().manual_seed(1))
    table_HD = torch.randn(HEADS, 13, generator=torch.Generator().manual_seed(2))
    rules: dict[str, Any] = {"mask": prefix_mask(torch.tensor([2, 0, 8])), "bias": relative_bias(table_HD)}
    projected = Fused(x_N3D.unflatten(-1, (HEADS, HEAD_WIDTH)))
    weights = attention_weights(projected, layout, layout, **rules)
    values = projected.apart().v_SHK.split(lengths)
    mixed_NHK = torch.cat([torch.einsum("hls,shk->lhk", w, v) for w, v in zip(weights, values, strict=True)])
    assert_close(mixed_NHK.flatten(1), run(x_N3D, layout, **rules))


def test_attention_dropout_is_refused_where_kernels_have_none() -> None:
    layout = layouts_of((3, 4), ("cpu", torch.float32))[1]
    with pytest.raises(Unsupported, match="dropout"):
        run(torch.randn(7, 3, WIDTH), layout, dropout=0.1)


# --- parts ---


def test_variants_need_no_biases_and_may_be_gated() -> None:
    block = DecoderBlock(
        SelfAttention(WIDTH, HEADS, head_width=24, scale=1.0, use_bias=False, causal=True),
        CrossAttention(WIDTH, HEADS, source_width=24, head_width=24, scale=1.0, use_bias=False),
        GatedFeedForward(WIDTH, 64, activation_name="gelu_new", use_bias=False),
        attention_norm=nn.RMSNorm(WIDTH),
        cross_norm=nn.RMSNorm(WIDTH),
        ffn_norm=nn.RMSNorm(WIDTH),
        norm_order="pre",
    )
    source = Source(torch.randn(9, 24), make_layout((4, 5)))
    out_ND = block(torch.randn(6, WIDTH), make_layout((2, 4)), source)
    assert out_ND.shape == (6, WIDTH)
    assert not any("bias" in name for name, _ in block.named_parameters())
    out_ND.sum().backward()
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in block.parameters())


def test_a_source_travels_with_its_batch() -> None:
    source = pack_tokens([torch.arange(3).numpy()])
    batch = replace(pack_tokens([torch.arange(5).numpy()]), source=source)
    moved = batch.to("meta")
    assert isinstance(moved.source, Batch)
    assert moved.ids_N.is_meta
    assert moved.source.ids_N.is_meta
    assert moved.source.max_length == 3


@pytest.mark.parametrize("same", [True, False])
def test_gathered_groups_have_the_gradients_of_single_gathers(same: bool) -> None:
    """All groups are gathered at once, and so are their gradients; a sequence without queries has keys of its own."""
    torch.manual_seed(0)
    query_bounds = torch.tensor([0, 9, 11, 11, 40, 47, 50])
    key_bounds = query_bounds if same else torch.tensor([0, 3, 20, 24, 30, 60, 61])
    layout_q = Layout(query_bounds, 40, int(query_bounds[-1]))
    layout_k = layout_q if same else Layout(key_bounds, 40, int(key_bounds[-1]))
    pairing = layout_q.pairing(layout_k)
    assert len(pairing.groups) > 1
    q_NHK = torch.randn(layout_q.num_tokens, 2, 4, requires_grad=True)
    k_SHK = torch.randn(layout_k.num_tokens, 2, 4, requires_grad=True)
    v_SHK = torch.randn(layout_k.num_tokens, 2, 4, requires_grad=True)
    wanted_NHK = torch.randn(layout_q.num_tokens, 2, 4)

    mixed_NHK = attend(Projected(q_NHK, k_SHK, v_SHK), layout_q, layout_k)
    found = torch.autograd.grad((mixed_NHK * wanted_NHK).sum(), [q_NHK, k_SHK, v_SHK])

    alone = []
    for (q_start, q_end), (k_start, k_end) in zip(
        pairwise(query_bounds.tolist()), pairwise(key_bounds.tolist()), strict=True
    ):
        q_HLK = q_NHK[q_start:q_end].transpose(0, 1)
        k_HSK = k_SHK[k_start:k_end].transpose(0, 1)
        v_HSK = v_SHK[k_start:k_end].transpose(0, 1)
        scores_HLS = q_HLK @ k_HSK.transpose(1, 2) / 2
        alone.append((scores_HLS.softmax(-1) @ v_HSK).transpose(0, 1))
    alone_NHK = torch.cat(alone)
    reference = torch.autograd.grad((alone_NHK * wanted_NHK).sum(), [q_NHK, k_SHK, v_SHK])
    assert torch.allclose(mixed_NHK, alone_NHK, atol=1e-6)
    for gradient, expected in zip(found, reference, strict=True):
        assert torch.allclose(gradient, expected, atol=1e-6)
    if not same:
        assert not found[1][20:24].any(), "keys of a sequence without queries"
