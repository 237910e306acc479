"""Attention with a bias by distance (T5's relative positions) over packed sequences on a GPU.

In: queries, keys and values of all tokens (N x 3 x H x K), bounds, and the bias of each head and distance (H x R):
column r is for a key r - (longest - 1) places after its query, so R = 2 * longest - 1. Out: N x H x K. Scores exist one
tile at a time (Dao et al. 2022). The backward pass computes tiles again from the inputs and the logarithm of each
query's sum. The gradient of a bias is the sum of the scores' gradients over all tokens at that distance, which all
programs add into one small table by atomic additions. Their order is not fixed, and neither are the last bits of the
sum: on a GPU in half precision, two runs of T5 with the same seed end with slightly different weights. In single
precision (`train.precision=fp32`) this kernel is not used.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import FunctionCtx

from firth.nn.kernels import program_sequence

HEAD_WIDTHS = (16, 32, 64, 128)
"""The widths of a head that the kernels support."""
TILE = 64
"""Queries and keys of a tile."""


@torch.library.custom_op("firth::biased_attention", mutates_args=())
def biased_attention(
    qkv_N3HK: Tensor,
    bias_HR: Tensor,
    bounds_B1: Tensor,
    longest: int,
    causal: bool,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """The attention output of every token, and the logarithm of the sum of its exponentiated scores (N x H)."""
    num_tokens, _, num_heads, width = qkv_N3HK.shape
    qkv_N3HK = qkv_N3HK.contiguous()
    bias_HR = bias_HR.float().contiguous()
    out_NHK = torch.empty((num_tokens, num_heads, width), dtype=qkv_N3HK.dtype, device=qkv_N3HK.device)
    log_sums_NH = torch.empty((num_tokens, num_heads), dtype=torch.float32, device=qkv_N3HK.device)
    _forward[_grid(bounds_B1, num_heads, longest)](
        qkv_N3HK,
        bias_HR,
        bounds_B1,
        out_NHK,
        log_sums_NH,
        longest,
        scale,
        num_heads,
        width,
        causal,
        TILE,
        num_warps=4,
        num_stages=2,
    )
    return out_NHK, log_sums_NH


@biased_attention.register_fake
def _(
    qkv_N3HK: Tensor,
    bias_HR: Tensor,
    bounds_B1: Tensor,
    longest: int,
    causal: bool,
    scale: float,
) -> tuple[Tensor, Tensor]:
    num_tokens, _, num_heads, width = qkv_N3HK.shape
    out_NHK = qkv_N3HK.new_empty((num_tokens, num_heads, width))
    log_sums_NH = qkv_N3HK.new_empty((num_tokens, num_heads), dtype=torch.float32)
    return out_NHK, log_sums_NH


@torch.library.custom_op("firth::biased_attention_gradient", mutates_args=())
def biased_attention_gradient(
    grad_NHK: Tensor,
    inner_NH: Tensor,
    log_sums_NH: Tensor,
    qkv_N3HK: Tensor,
    bias_HR: Tensor,
    bounds_B1: Tensor,
    longest: int,
    causal: bool,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """The gradients of queries, keys and values, and of the biases; `inner_NH` is output times gradient, summed."""
    num_heads, width = qkv_N3HK.shape[2:]
    grad_NHK = grad_NHK.contiguous()
    qkv_N3HK = qkv_N3HK.contiguous()
    bias_HR = bias_HR.float().contiguous()
    out_N3HK = torch.empty_like(qkv_N3HK)
    bias_grad_HR = torch.zeros_like(bias_HR)
    grid = _grid(bounds_B1, num_heads, longest)
    inputs = grad_NHK, inner_NH, log_sums_NH, qkv_N3HK, bias_HR, bounds_B1
    sizes = longest, scale, num_heads, width, causal, TILE
    _backward_queries[grid](*inputs, out_N3HK, *sizes, num_warps=4, num_stages=2)
    _backward_keys[grid](*inputs, out_N3HK, bias_grad_HR, *sizes, num_warps=4, num_stages=2)
    return out_N3HK, bias_grad_HR


@biased_attention_gradient.register_fake
def _(
    grad_NHK: Tensor,
    inner_NH: Tensor,
    log_sums_NH: Tensor,
    qkv_N3HK: Tensor,
    bias_HR: Tensor,
    bounds_B1: Tensor,
    longest: int,
    causal: bool,
    scale: float,
) -> tuple[Tensor, Tensor]:
    return qkv_N3HK.new_empty(qkv_N3HK.shape), bias_HR.new_empty(bias_HR.shape, dtype=torch.float32)


def _grid(bounds_B1: Tensor, num_heads: int, longest: int) -> tuple[int, int, int]:
    """A program for each sequence, head and tile of queries (or of keys); those beyond a sequence's end do nothing."""
    return len(bounds_B1) - 1, num_heads, -(-longest // TILE)


class _BiasedContext(FunctionCtx):
    """What the backward pass needs of the forward one."""

    saved_tensors: tuple[Tensor, ...]
    numbers: tuple[int, bool, float]
    """The longest sequence, whether attention is causal, and the scale."""
    bias_dtype: torch.dtype


def _save_inputs(
    ctx: _BiasedContext,
    inputs: tuple[Tensor, Tensor, Tensor, int, bool, float],
    output: tuple[Tensor, Tensor],
) -> None:
    qkv_N3HK, bias_HR, bounds_B1, longest, causal, scale = inputs
    ctx.numbers = (longest, causal, scale)
    ctx.bias_dtype = bias_HR.dtype
    ctx.save_for_backward(*output, qkv_N3HK, bias_HR, bounds_B1)


def _gradient(ctx: _BiasedContext, grad_NHK: Tensor, unused: Tensor) -> tuple[Tensor | None, ...]:
    out_NHK, log_sums_NH, *inputs = ctx.saved_tensors
    # The gradient of softmax is P * (dP - rowsum(P * dP)); that sum is also the product of output and its gradient.
    inner_NH = (out_NHK.float() * grad_NHK.float()).sum(-1)
    grad_N3HK, bias_grad_HR = biased_attention_gradient(grad_NHK, inner_NH, log_sums_NH, *inputs, *ctx.numbers)
    return grad_N3HK, bias_grad_HR.to(ctx.bias_dtype), None, None, None, None


biased_attention.register_autograd(_gradient, setup_context=_save_inputs)


@triton.jit
def _scores(  # type: ignore[no-untyped-def]
    q, k, bias, first_row, first_column, length, longest, scale, causal: tl.constexpr, SIZE: tl.constexpr
):
    """The scores of a tile, SIZE x SIZE; -inf where a query may not see a key."""
    rows = first_row + tl.arange(0, SIZE)[:, None]
    columns = first_column + tl.arange(0, SIZE)[None, :]
    visible = (columns < length) & (rows < length)
    if causal:
        visible = visible & (columns <= rows)
    distances = columns - rows + longest - 1
    added = tl.load(bias + distances, visible, 0.0)
    return tl.where(visible, tl.dot(q, tl.trans(k)) * scale + added, float("-inf"))


@triton.jit
def _keys_and_values(places, first_key, length, HEADS: tl.constexpr, WIDTH: tl.constexpr, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    """The keys and values of a tile, SIZE x WIDTH each; 0 beyond the sequence."""
    is_real = first_key + tl.arange(0, SIZE)[:, None] < length
    tile = places + first_key * (3 * HEADS * WIDTH)
    k = tl.load(tile + HEADS * WIDTH, is_real, 0.0)
    v = tl.load(tile + 2 * HEADS * WIDTH, is_real, 0.0)
    return k, v


@triton.jit
def _forward(  # type: ignore[no-untyped-def]
    qkv,
    bias,
    bounds,
    out,
    log_sums,
    longest,
    scale,
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    causal: tl.constexpr,
    SIZE: tl.constexpr,
):
    start, length = program_sequence(bounds)
    head = tl.program_id(1)
    first_row = tl.program_id(2) * SIZE
    if first_row >= length:
        return
    qkv += start * (3 * HEADS * WIDTH) + head * WIDTH
    bias += head * (2 * longest - 1)
    steps = tl.arange(0, SIZE)[:, None]
    columns = tl.arange(0, WIDTH)[None, :]
    places = qkv + steps * (3 * HEADS * WIDTH) + columns
    rows = first_row + steps
    q = tl.load(places + first_row * (3 * HEADS * WIDTH), rows < length, 0.0)
    # Of each query so far: its highest score, the sum of its powers, and the values weighted by them.
    best = tl.full((SIZE,), float("-inf"), tl.float32)
    total = tl.zeros((SIZE,), tl.float32)
    mixed = tl.zeros((SIZE, WIDTH), tl.float32)
    end = length
    if causal:
        end = tl.minimum(length, first_row + SIZE)
    for first_key in range(0, end, SIZE):
        k, v = _keys_and_values(places, first_key, length, HEADS, WIDTH, SIZE)
        scores = _scores(q, k, bias, first_row, first_key, length, longest, scale, causal, SIZE)
        # Rows beyond the sequence see nothing: 0 keeps their numbers finite.
        new_best = tl.maximum(best, tl.max(scores, 1))
        safe_best = tl.where(new_best == float("-inf"), 0.0, new_best)
        powers = tl.exp(scores - safe_best[:, None])
        shrink = tl.exp(best - safe_best)
        total = total * shrink + tl.sum(powers, 1)
        mixed = mixed * shrink[:, None] + tl.dot(powers.to(v.dtype), v)
        best = new_best
    safe_total = tl.where(total > 0.0, total, 1.0)
    mixed = mixed / safe_total[:, None]
    out += start * (HEADS * WIDTH) + head * WIDTH
    tl.store(out + rows * (HEADS * WIDTH) + columns, mixed.to(q.dtype), rows < length)
    steps_1d = first_row + tl.arange(0, SIZE)
    tl.store(log_sums + (start + steps_1d) * HEADS + head, best + tl.log(safe_total), steps_1d < length)


@triton.jit
def _score_gradients(  # type: ignore[no-untyped-def]
    q,
    k,
    v,
    g,
    inner,
    log_sums,
    bias,
    first_row,
    first_column,
    length,
    longest,
    scale,
    causal: tl.constexpr,
    SIZE: tl.constexpr,
):
    """The weights of a tile and the gradients of its scores (before scaling)."""
    scores = _scores(q, k, bias, first_row, first_column, length, longest, scale, causal, SIZE)
    weights = tl.exp(scores - log_sums[:, None])
    grad_weights = tl.dot(g, tl.trans(v))
    return weights, weights * (grad_weights - inner[:, None])


@triton.jit
def _queries_and_gradients(  # type: ignore[no-untyped-def]
    places,
    grad,
    inner,
    log_sums,
    first_row,
    length,
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    SIZE: tl.constexpr,
):
    """Of a tile of queries: q and the gradient of its outputs (SIZE x WIDTH), `inner` and `log_sums` (SIZE)."""
    rows = first_row + tl.arange(0, SIZE)[:, None]
    columns = tl.arange(0, WIDTH)[None, :]
    q = tl.load(places + first_row * (3 * HEADS * WIDTH), rows < length, 0.0)
    g = tl.load(grad + rows * (HEADS * WIDTH) + columns, rows < length, 0.0)
    rows_1d = first_row + tl.arange(0, SIZE)
    row_inner = tl.load(inner + rows_1d * HEADS, rows_1d < length, 0.0)
    row_log_sums = tl.load(log_sums + rows_1d * HEADS, rows_1d < length, 0.0)
    return q, g, row_inner, row_log_sums


@triton.jit
def _backward_queries(  # type: ignore[no-untyped-def]
    grad,
    inner,
    log_sums,
    qkv,
    bias,
    bounds,
    out,
    longest,
    scale,
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    causal: tl.constexpr,
    SIZE: tl.constexpr,
):
    start, length = program_sequence(bounds)
    head = tl.program_id(1)
    first_row = tl.program_id(2) * SIZE
    if first_row >= length:
        return
    qkv += start * (3 * HEADS * WIDTH) + head * WIDTH
    out += start * (3 * HEADS * WIDTH) + head * WIDTH
    grad += start * (HEADS * WIDTH) + head * WIDTH
    inner += start * HEADS + head
    log_sums += start * HEADS + head
    bias += head * (2 * longest - 1)
    steps = tl.arange(0, SIZE)[:, None]
    columns = tl.arange(0, WIDTH)[None, :]
    places = qkv + steps * (3 * HEADS * WIDTH) + columns
    rows = first_row + steps
    q, g, row_inner, row_log_sums = _queries_and_gradients(
        places, grad, inner, log_sums, first_row, length, HEADS, WIDTH, SIZE
    )
    grad_q = tl.zeros((SIZE, WIDTH), tl.float32)
    end = length
    if causal:
        end = tl.minimum(length, first_row + SIZE)
    for first_key in range(0, end, SIZE):
        k, v = _keys_and_values(places, first_key, length, HEADS, WIDTH, SIZE)
        _, grad_scores = _score_gradients(
            q, k, v, g, row_inner, row_log_sums, bias, first_row, first_key, length, longest, scale, causal, SIZE
        )
        grad_q += tl.dot(grad_scores.to(k.dtype), k)
    tl.store(out + rows * (3 * HEADS * WIDTH) + columns, (grad_q * scale).to(q.dtype), rows < length)


@triton.jit
def _backward_keys(  # type: ignore[no-untyped-def]
    grad,
    inner,
    log_sums,
    qkv,
    bias,
    bounds,
    out,
    bias_grad,
    longest,
    scale,
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    causal: tl.constexpr,
    SIZE: tl.constexpr,
):
    start, length = program_sequence(bounds)
    head = tl.program_id(1)
    first_key = tl.program_id(2) * SIZE
    if first_key >= length:
        return
    qkv += start * (3 * HEADS * WIDTH) + head * WIDTH
    out += start * (3 * HEADS * WIDTH) + head * WIDTH
    grad += start * (HEADS * WIDTH) + head * WIDTH
    inner += start * HEADS + head
    log_sums += start * HEADS + head
    bias += head * (2 * longest - 1)
    bias_grad += head * (2 * longest - 1)
    steps = tl.arange(0, SIZE)[:, None]
    columns = tl.arange(0, WIDTH)[None, :]
    places = qkv + steps * (3 * HEADS * WIDTH) + columns
    keys = first_key + steps
    k, v = _keys_and_values(places, first_key, length, HEADS, WIDTH, SIZE)
    grad_k = tl.zeros((SIZE, WIDTH), tl.float32)
    grad_v = tl.zeros((SIZE, WIDTH), tl.float32)
    first = 0
    if causal:
        first = first_key  # earlier queries do not see these keys
    for first_row in range(first, length, SIZE):
        rows = first_row + steps
        q, g, row_inner, row_log_sums = _queries_and_gradients(
            places, grad, inner, log_sums, first_row, length, HEADS, WIDTH, SIZE
        )
        weights, grad_scores = _score_gradients(
            q, k, v, g, row_inner, row_log_sums, bias, first_row, first_key, length, longest, scale, causal, SIZE
        )
        key_columns = first_key + tl.arange(0, SIZE)[None, :]
        distances = key_columns - rows + longest - 1
        visible = (key_columns < length) & (rows < length)
        if causal:
            visible = visible & (key_columns <= rows)
        tl.atomic_add(bias_grad + distances, grad_scores, visible, sem="relaxed")
        grad_v += tl.dot(tl.trans(weights.to(g.dtype)), g)
        grad_k += tl.dot(tl.trans(grad_scores.to(q.dtype)), q)
    tl.store(out + keys * (3 * HEADS * WIDTH) + HEADS * WIDTH + columns, (grad_k * scale).to(k.dtype), keys < length)
    tl.store(out + keys * (3 * HEADS * WIDTH) + 2 * HEADS * WIDTH + columns, grad_v.to(k.dtype), keys < length)
