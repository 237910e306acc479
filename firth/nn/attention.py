"""Attention over sequences that lie end to end: tokens in, tokens out, and none of a neighbour's.

Scaled dot-product attention softmax(QK'/sqrt(K))V (Vaswani et al. 2017, eq. 1). On CUDA in half precision one
variable-length kernel does the whole pack (without attention dropout): our own for short sequences, torch's for
longer ones. Elsewhere sequences of one length that lie side by side are computed where they are, when a batch is
sorted by length; in other batches sequences of similar length are gathered into groups, and only inside a group, and
only here, does padding exist. Runs and groups are found once a batch.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import groupby, pairwise

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from firth.errors import Unsupported

OWN_KERNEL = torch.cuda.is_available() and find_spec("triton") is not None
"""Whether our kernel can run; it needs Triton, which CUDA builds of torch bring along."""
if OWN_KERNEL:
    from firth.nn.kernels import short_attention

GROUP_SLACK = 1.25
"""A group's longest sequence is at most this many times its shortest: more groups cost calls, fewer cost padding."""


@dataclass(frozen=True)
class Group:
    """Sequences of similar length as rows of a padded matrix."""

    rows_GL: Tensor
    """Which token stands in each cell; a padded cell repeats its sequence's first token."""
    bias_GL: Tensor | None
    """0 for real cells, -inf for padded ones; None when nothing is padded."""


@dataclass(frozen=True)
class Layout:
    """How a pack's tokens fall into sequences."""

    bounds_B1: Tensor
    max_length: int
    groups: tuple[Group, ...] = ()
    restore_N: Tensor | None = None
    """For each token, its cell in the groups' cells end to end."""
    runs: tuple[tuple[int, int], ...] = ()
    """Instead of groups: how many sequences of which length follow each other."""
    recall: Callable[[Tensor], Tensor] | None = None
    """Instead of all these: attends to what is remembered of a sequence as well (`nn.memory`)."""


def layout(bounds_B1: Tensor, max_length: int, *, dtype: torch.dtype) -> Layout:
    """The layout attention in this precision needs; without groups where the variable-length kernel runs."""
    if bounds_B1.is_cuda and dtype in (torch.float16, torch.bfloat16):
        return Layout(bounds_B1, max_length)
    bounds = bounds_B1.long().cpu()
    lengths = bounds.diff()
    if bool((lengths.diff()[:-1] >= 0).all()):  # the last one may be filler, of any length
        return Layout(bounds_B1, max_length, runs=_runs(lengths.tolist()))
    groups, cells = [], torch.empty(int(bounds[-1]), dtype=torch.long)
    num_cells = 0
    for members in _similar(lengths):
        size = int(lengths[members].max())
        steps = torch.arange(size)
        real = steps < lengths[members, None]
        rows = bounds[members, None] + steps * real
        cells[rows[real]] = num_cells + real.flatten().nonzero().flatten()
        num_cells += rows.numel()
        bias = None if bool(real.all()) else torch.zeros(rows.shape).masked_fill(~real, float("-inf"))
        groups.append(Group(*(None if t is None else t.to(bounds_B1.device) for t in (rows, bias))))  # type: ignore[arg-type]
    return Layout(bounds_B1, max_length, tuple(groups), cells.to(bounds_B1.device))


def attend(qkv_N3HK: Tensor, layout: Layout, *, causal: bool = False, dropout: float = 0.0) -> Tensor:
    """What every token takes from the tokens of its own sequence: N x H x K."""
    if layout.recall:
        return layout.recall(qkv_N3HK)
    if layout.runs:
        return _attend_runs(qkv_N3HK, layout.runs, causal, dropout)
    if layout.restore_N is None:
        if dropout:
            raise Unsupported("Attention dropout is not available on the GPU in half precision; set it to 0.")
        return _attend_packed(qkv_N3HK, layout, causal)
    outputs = []
    for group in layout.groups:
        q, k, v = _gather(qkv_N3HK, group)
        bias = None if group.bias_GL is None else _bias(group.bias_GL, causal).to(q.dtype)
        out_GHLK = scaled_dot_product_attention(q, k, v, bias, dropout, is_causal=causal and bias is None)
        outputs.append(out_GHLK.transpose(1, 2).flatten(0, 1))
    return torch.cat(outputs).index_select(0, layout.restore_N)


def attention_weights(qkv_N3HK: Tensor, layout: Layout, *, causal: bool = False) -> tuple[Tensor, ...]:
    """The weights themselves, H x L x L for each sequence in order (for looking at, not for speed)."""
    bounds = layout.bounds_B1.tolist()
    weights = []
    for start, end in pairwise(bounds):
        q_HLK, k_HLK, _ = qkv_N3HK[start:end].float().permute(1, 2, 0, 3)
        scores_HLL = q_HLK @ k_HLK.transpose(1, 2) / q_HLK.shape[-1] ** 0.5
        if causal:
            scores_HLL = scores_HLL + torch.full_like(scores_HLL, float("-inf")).triu(1)
        weights.append(scores_HLL.softmax(-1))
    return tuple(weights)


def _runs(lengths: list[int]) -> tuple[tuple[int, int], ...]:
    return tuple((len(list(same)), length) for length, same in groupby(lengths) if length)


def _attend_runs(qkv_N3HK: Tensor, runs: tuple[tuple[int, int], ...], causal: bool, dropout: float) -> Tensor:
    outputs = []
    start = 0
    for count, length in runs:
        end = start + count * length
        q, k, v = qkv_N3HK[start:end].view(count, length, *qkv_N3HK.shape[1:]).permute(2, 0, 3, 1, 4)
        start = end
        out_GHLK = scaled_dot_product_attention(q, k, v, None, dropout, is_causal=causal)
        outputs.append(out_GHLK.transpose(1, 2).flatten(0, 1))
    return torch.cat(outputs) if len(outputs) > 1 else outputs[0]


def _similar(lengths: Tensor) -> Iterator[Tensor]:
    order = lengths.argsort(stable=True)
    values = lengths[order].tolist()
    first = next((i for i, value in enumerate(values) if value), len(values))
    while first < len(values):
        limit = max(values[first] * GROUP_SLACK, values[first] + 8)
        last = next((i for i in range(first, len(values)) if values[i] > limit), len(values))
        yield order[first:last]
        first = last


def _gather(qkv_N3HK: Tensor, group: Group) -> tuple[Tensor, Tensor, Tensor]:
    rows = qkv_N3HK.index_select(0, group.rows_GL.flatten()).view(*group.rows_GL.shape, *qkv_N3HK.shape[1:])
    q, k, v = rows.permute(2, 0, 3, 1, 4)
    return q, k, v


def _bias(bias_GL: Tensor, causal: bool) -> Tensor:
    bias_G11L = bias_GL[:, None, None, :]
    if not causal:
        return bias_G11L
    length = bias_GL.shape[1]
    # A padded query row would see only -inf after both masks were it not for its first key, which is real.
    return bias_G11L + torch.full((length, length), float("-inf"), device=bias_GL.device).triu(1)


def _attend_packed(qkv_N3HK: Tensor, layout: Layout, causal: bool) -> Tensor:
    bounds, size = layout.bounds_B1, layout.max_length
    if OWN_KERNEL and size <= 128 and qkv_N3HK.shape[-1] in (16, 32, 64, 128):
        mixed_NHK: Tensor = short_attention(qkv_N3HK, bounds, causal)
        return mixed_NHK
    from torch.nn.attention.varlen import varlen_attn

    q, k, v = qkv_N3HK.unbind(1)
    options = {"window_size": (-1, 0)} if causal else {}
    width = q.shape[-1]
    if width % 8:  # the kernel wants head widths that are multiples of 8
        q, k, v = (pad(x, (0, -width % 8)) for x in (q, k, v))
        options["scale"] = width**-0.5
    out_NHK: Tensor = varlen_attn(q, k, v, bounds, bounds, size, size, **options)  # type: ignore[assignment,arg-type]
    return out_NHK[..., :width]
