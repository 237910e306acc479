"""Attention over short packed sequences on a GPU: one program for each sequence and head, everything in registers.

In: queries, keys and values of all tokens (N x 3 x H x K) and bounds. Out: N x H x K. A sequence of at most 128 tokens
fits into a single tile, so the softmax needs no running sums, the backward pass works from the inputs alone, and the
gradient is written once, in the layout of the projection's gradient.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import FunctionCtx

MAX_LENGTH = 128
"""The longest sequence that fits into a tile."""
HEAD_WIDTHS = (16, 32, 64, 128)
"""The widths of a head that the kernels support."""


@torch.library.custom_op("firth::short_attention", mutates_args=())
def short_attention(qkv_N3HK: Tensor, bounds_B1: Tensor, causal: bool) -> Tensor:
    """The attention output of every token; sequences have at most 128 tokens."""
    num_tokens, _, num_heads, width = qkv_N3HK.shape
    qkv_N3HK = qkv_N3HK.contiguous()
    out_NHK = torch.empty((num_tokens, num_heads, width), dtype=qkv_N3HK.dtype, device=qkv_N3HK.device)
    grid = (len(bounds_B1) - 1, num_heads)
    scale = width**-0.5
    _forward[grid](qkv_N3HK, bounds_B1, out_NHK, scale, num_heads, width, causal, num_warps=4)
    return out_NHK


@short_attention.register_fake
def _(qkv_N3HK: Tensor, bounds_B1: Tensor, causal: bool) -> Tensor:
    num_tokens, _, num_heads, width = qkv_N3HK.shape
    return qkv_N3HK.new_empty((num_tokens, num_heads, width))


@torch.library.custom_op("firth::short_attention_gradient", mutates_args=())
def short_attention_gradient(grad_NHK: Tensor, qkv_N3HK: Tensor, bounds_B1: Tensor, causal: bool) -> Tensor:
    """The gradient of queries, keys and values from that of the output."""
    num_heads, width = qkv_N3HK.shape[2:]
    grad_NHK = grad_NHK.contiguous()
    qkv_N3HK = qkv_N3HK.contiguous()
    out_N3HK = torch.empty_like(qkv_N3HK)
    grid = (len(bounds_B1) - 1, num_heads)
    scale = width**-0.5
    _backward[grid](grad_NHK, qkv_N3HK, bounds_B1, out_N3HK, scale, num_heads, width, causal, num_warps=4)
    return out_N3HK


@short_attention_gradient.register_fake
def _(grad_NHK: Tensor, qkv_N3HK: Tensor, bounds_B1: Tensor, causal: bool) -> Tensor:
    return qkv_N3HK.new_empty(qkv_N3HK.shape)


class _ShortContext(FunctionCtx):
    """What the backward pass needs of the forward one."""

    saved_tensors: tuple[Tensor, Tensor]
    causal: bool


def _save_inputs(ctx: _ShortContext, inputs: tuple[Tensor, Tensor, bool], output: Tensor) -> None:
    qkv_N3HK, bounds_B1, causal = inputs
    ctx.causal = causal
    ctx.save_for_backward(qkv_N3HK, bounds_B1)


def _gradient(ctx: _ShortContext, grad_NHK: Tensor) -> tuple[Tensor, None, None]:
    qkv_N3HK, bounds_B1 = ctx.saved_tensors
    return short_attention_gradient(grad_NHK, qkv_N3HK, bounds_B1, ctx.causal), None, None


short_attention.register_autograd(_gradient, setup_context=_save_inputs)


@triton.jit
def program_sequence(bounds):  # type: ignore[no-untyped-def]
    """The first token of the sequence that this program is for, and the number of its tokens."""
    start = tl.load(bounds + tl.program_id(0)).to(tl.int64)
    end = tl.load(bounds + tl.program_id(0) + 1)
    return start, (end - start).to(tl.int32)


@triton.jit
def _load_vectors(places, real, TOKEN: tl.constexpr):  # type: ignore[no-untyped-def]
    """A tile's queries, keys and values, SIZE x WIDTH each; zeros beyond the sequence.

    `places` are those of the queries. A token has TOKEN numbers (all heads) of them, then as many of keys and values.
    """
    q = tl.load(places, real, 0.0)
    k = tl.load(places + TOKEN, real, 0.0)
    v = tl.load(places + 2 * TOKEN, real, 0.0)
    return q, k, v


@triton.jit
def _weights(q, k, length, scale, causal: tl.constexpr, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    """softmax(QK' / sqrt(K)) of a tile, SIZE x SIZE; columns beyond the sequence are 0."""
    columns = tl.arange(0, SIZE)[None, :]
    visible = columns < length
    if causal:
        visible = visible & (columns <= tl.arange(0, SIZE)[:, None])
    products = tl.dot(q, tl.trans(k)) * scale
    scores = tl.where(visible, products, float("-inf"))
    # Less the largest score of each row, so that no power overflows.
    powers = tl.exp(scores - tl.max(scores, 1)[:, None])
    return powers / tl.sum(powers, 1)[:, None]


@triton.jit
def _forward_tile(  # type: ignore[no-untyped-def]
    qkv, out, length, scale, HEADS: tl.constexpr, WIDTH: tl.constexpr, causal: tl.constexpr, SIZE: tl.constexpr
):
    """The outputs of one sequence and head. Tiles: q, k, v and the output SIZE x WIDTH, weights SIZE x SIZE."""
    TOKEN: tl.constexpr = HEADS * WIDTH
    rows = tl.arange(0, SIZE)[:, None]
    columns = tl.arange(0, WIDTH)[None, :]
    real = rows < length
    q, k, v = _load_vectors(qkv + rows * (3 * TOKEN) + columns, real, TOKEN)
    weights = _weights(q, k, length, scale, causal, SIZE)
    mixed = tl.dot(weights.to(v.dtype), v)
    tl.store(out + rows * TOKEN + columns, mixed.to(v.dtype), real)


@triton.jit
def _forward(qkv, bounds, out, scale, HEADS: tl.constexpr, WIDTH: tl.constexpr, causal: tl.constexpr):  # type: ignore[no-untyped-def]
    start, length = program_sequence(bounds)
    head = tl.program_id(1)
    # From here on both begin with the sequence's first token, at this head.
    TOKEN: tl.constexpr = HEADS * WIDTH
    qkv += start * (3 * TOKEN) + head * WIDTH
    out += start * TOKEN + head * WIDTH
    # The smallest tile that holds the sequence.
    if length > 64:
        _forward_tile(qkv, out, length, scale, HEADS, WIDTH, causal, 128)
    elif length > 32:
        _forward_tile(qkv, out, length, scale, HEADS, WIDTH, causal, 64)
    elif length > 0:
        _forward_tile(qkv, out, length, scale, HEADS, WIDTH, causal, 32)


@triton.jit
def _backward_tile(  # type: ignore[no-untyped-def]
    grad, qkv, out, length, scale, HEADS: tl.constexpr, WIDTH: tl.constexpr, causal: tl.constexpr, SIZE: tl.constexpr
):
    """The gradients of q, k and v of one sequence and head, from g, the gradient of the output (SIZE x WIDTH)."""
    TOKEN: tl.constexpr = HEADS * WIDTH
    rows = tl.arange(0, SIZE)[:, None]
    columns = tl.arange(0, WIDTH)[None, :]
    real = rows < length
    # The gradients lie as the vectors do.
    offsets = rows * (3 * TOKEN) + columns
    q, k, v = _load_vectors(qkv + offsets, real, TOKEN)
    g = tl.load(grad + rows * TOKEN + columns, real, 0.0)
    weights = _weights(q, k, length, scale, causal, SIZE)
    grad_v = tl.dot(tl.trans(weights.to(g.dtype)), g)
    tl.store(out + offsets + 2 * TOKEN, grad_v.to(q.dtype), real)
    grad_weights = tl.dot(g, tl.trans(v))
    # The gradient of softmax: P * (dP - rowsum(P * dP)). Rows beyond the sequence have g = 0 and add nothing.
    inner = tl.sum(weights * grad_weights, 1)[:, None]
    grad_scores = (weights * (grad_weights - inner) * scale).to(q.dtype)
    grad_q = tl.dot(grad_scores, k)
    grad_k = tl.dot(tl.trans(grad_scores), q)
    tl.store(out + offsets, grad_q.to(q.dtype), real)
    tl.store(out + offsets + TOKEN, grad_k.to(q.dtype), real)


@triton.jit
def _backward(  # type: ignore[no-untyped-def]
    grad, qkv, bounds, out, scale, HEADS: tl.constexpr, WIDTH: tl.constexpr, causal: tl.constexpr
):
    start, length = program_sequence(bounds)
    head = tl.program_id(1)
    # From here on all begin with the sequence's first token, at this head.
    TOKEN: tl.constexpr = HEADS * WIDTH
    grad += start * TOKEN + head * WIDTH
    qkv += start * (3 * TOKEN) + head * WIDTH
    out += start * (3 * TOKEN) + head * WIDTH
    # The smallest tile that holds the sequence.
    if length > 64:
        _backward_tile(grad, qkv, out, length, scale, HEADS, WIDTH, causal, 128)
    elif length > 32:
        _backward_tile(grad, qkv, out, length, scale, HEADS, WIDTH, causal, 64)
    elif length > 0:
        _backward_tile(grad, qkv, out, length, scale, HEADS, WIDTH, causal, 32)
