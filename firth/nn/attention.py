"""Attention over packed batches: tokens in, tokens out, and no token ever sees a neighbouring sequence.

Scaled dot-product attention softmax(QK' / sqrt(K) + bias) V (Vaswani et al. 2017, eq. 1). One function, `attend`, is
for self-attention, cross-attention over another packed batch, any mask, a bias per head and the key-value cache. The
b-th sequence of the queries attends to the b-th sequence of the keys. How it is computed depends on the machine:

- On CUDA in half precision one variable-length kernel takes the whole pack: our own for short self-attention and for
  a bias by distance, torch's for the rest. Attention dropout does not exist there.
- Elsewhere, and for masks and other biases everywhere, the groups of `nn.layout` are computed one after the other.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec

import torch
from torch import Tensor
from torch.nn.functional import embedding, pad, scaled_dot_product_attention

from firth.errors import Unsupported
from firth.nn.dropout import dropped_attention
from firth.nn.groups import Group, ScoreMask
from firth.nn.layout import Layout, Pairing

OWN_KERNEL = torch.cuda.is_available() and find_spec("triton") is not None
"""Whether our kernel can run; it needs Triton, which CUDA builds of torch bring along."""
if OWN_KERNEL:
    from firth.nn.bias_kernels import HEAD_WIDTHS as BIAS_HEAD_WIDTHS
    from firth.nn.bias_kernels import biased_attention
    from firth.nn.kernels import HEAD_WIDTHS, MAX_LENGTH, short_attention

Mask = Callable[[Group], Tensor]
"""A group -> booleans that broadcast to G x H x L x S: True where a query may see a key. A query that may see no key
takes zeros."""
Bias = Callable[[Group], Tensor]
"""A group -> numbers that broadcast to G x H x L x S, added to the scores after scaling. Gradients flow into them."""


@dataclass(frozen=True)
class Projected:
    """Queries of N tokens, and keys and values of S tokens (the same N in self-attention)."""

    q_NHK: Tensor
    k_SHK: Tensor
    v_SHK: Tensor

    @property
    def dtype(self) -> torch.dtype:
        return self.q_NHK.dtype

    @property
    def is_trained(self) -> bool:
        """Whether a gradient flows back through it."""
        return self.q_NHK.requires_grad

    def apart(self) -> "Projected":
        return self

    def cells(self, pairing: Pairing, dtype: torch.dtype) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """For each group G x H x L x K of queries, G x H x S x K of keys and of values, in this precision."""
        all_q = pairing.query_cells(self.q_NHK, dtype)
        all_k = pairing.key_cells(self.k_SHK, dtype)
        all_v = pairing.key_cells(self.v_SHK, dtype)
        for q_GLHK, k_GSHK, v_GSHK in zip(all_q, all_k, all_v, strict=True):
            yield q_GLHK.transpose(1, 2), k_GSHK.transpose(1, 2), v_GSHK.transpose(1, 2)


@dataclass(frozen=True)
class Fused:
    """Queries, keys and values of the same tokens in one tensor, as one product makes them: gathered at once."""

    qkv_N3HK: Tensor

    @property
    def dtype(self) -> torch.dtype:
        return self.qkv_N3HK.dtype

    @property
    def is_trained(self) -> bool:
        """Whether a gradient flows back through it."""
        return self.qkv_N3HK.requires_grad

    def apart(self) -> Projected:
        q_NHK, k_NHK, v_NHK = self.qkv_N3HK.unbind(1)
        return Projected(q_NHK, k_NHK, v_NHK)

    def cells(self, pairing: Pairing, dtype: torch.dtype) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """For each group G x H x L x K of queries, keys and values, in this precision."""
        if any(group.queries is not group.keys for group in pairing.groups):
            yield from self.apart().cells(pairing, dtype)
            return
        for qkv_GL3HK in pairing.query_cells(self.qkv_N3HK, dtype):
            q_GHLK, k_GHLK, v_GHLK = qkv_GL3HK.permute(2, 0, 3, 1, 4)
            yield q_GHLK, k_GHLK, v_GHLK


@dataclass(frozen=True, eq=False)
class DistanceBias:
    """A bias that depends on the head and on the distance from query to key. All layers of a pass share one."""

    by_distance_RH: Tensor
    """Row r is for keys r - (longest - 1) places after their query."""
    longest: int
    score_masks: list[tuple[Group, ScoreMask]] = field(default_factory=list)
    """What was computed for each group."""

    def __call__(self, group: Group) -> Tensor:
        # Only padded cells, which do not count, are farther apart than the longest sequence is.
        distances_GLS = group.distances().clamp(1 - self.longest, self.longest - 1)
        bias_GLSH = embedding(distances_GLS + self.longest - 1, self.by_distance_RH)
        return bias_GLSH.permute(0, 3, 1, 2)

    def prepare(self, layout_q: Layout, layout_k: Layout, *, causal: bool, head_width: int) -> None:
        """Computes what all layers share, before the first of them.

        Left to the first layer, it would be computed once more where blocks are recomputed in the backward pass.
        """
        if not _has_bias_kernel(layout_q, layout_k, head_width):
            for group in layout_q.pairing(layout_k).groups:
                self.score_mask(group, causal)

    def score_mask(self, group: Group, causal: bool) -> ScoreMask:
        for known, found in self.score_masks:
            if known is group:
                return found
        score_mask = _make_score_mask(group, causal, None, self)
        self.score_masks.append((group, score_mask))
        return score_mask


@dataclass(frozen=True)
class Source:
    """What a decoder reads: the states of another packed batch, one sequence for each of its own."""

    states_SD: Tensor
    layout: Layout


def attend(
    projected: Projected | Fused,
    layout_q: Layout,
    layout_k: Layout,
    *,
    causal: bool = False,
    mask: Mask | None = None,
    bias: Bias | None = None,
    scale: float | None = None,
    dropout: float = 0.0,
    window: int | None = None,
) -> Tensor:
    """What every query takes from the keys of its sequence that it may see: N x H x K.

    A causal query sees keys up to its own position. With a window, a query sees keys at most so many positions away;
    a window is for self-attention without a mask and a bias. `scale` is 1 / sqrt(K) unless given.
    """
    if window is not None and layout_k.max_length <= window + 1:
        window = None  # all keys are inside
    aligned = layout_q is layout_k or not causal  # kernels count causal positions from the end, we from the start
    if layout_q.has_kernels and layout_k.has_kernels and mask is None and bias is None and aligned:
        if dropout:
            raise Unsupported("Attention dropout is not available on the GPU in half precision; set it to 0.")
        return _attend_packed(projected, layout_q, layout_k, causal, scale, window)
    if isinstance(bias, DistanceBias) and isinstance(projected, Fused) and mask is None and not dropout:
        head_width = projected.qkv_N3HK.shape[-1]
        if _has_bias_kernel(layout_q, layout_k, head_width):
            bias_HR = bias.by_distance_RH.T
            scale = head_width**-0.5 if scale is None else scale
            out_NHK: Tensor
            out_NHK, _ = biased_attention(projected.qkv_N3HK, bias_HR, layout_q.bounds_B1, bias.longest, causal, scale)
            return out_NHK
    is_on_cpu = layout_q.bounds_B1.device.type == "cpu"
    # On a CPU, the gradient of attention takes five times as long in bf16.
    is_slow_in_half = is_on_cpu and projected.dtype == torch.bfloat16 and (projected.is_trained or dropout > 0)
    computed_in = torch.float32 if is_slow_in_half else projected.dtype
    pairing = layout_q.pairing(layout_k)
    all_cells = projected.cells(pairing, computed_in)
    outputs = []
    for group, (q_GHLK, k_GHSK, v_GHSK) in zip(pairing.groups, all_cells, strict=True):
        score_mask = _score_mask(group, causal, mask, bias, window)
        added = None if score_mask.bias is None else score_mask.bias.to(q_GHLK.dtype)
        if dropout and is_on_cpu:
            if score_mask.is_causal:
                added = _as_bias(group.not_after()[:, None])
            out_GHLK = dropped_attention(q_GHLK, k_GHSK, v_GHSK, added, dropout, scale=scale)
        else:
            out_GHLK = scaled_dot_product_attention(
                q_GHLK, k_GHSK, v_GHSK, added, dropout, is_causal=score_mask.is_causal, scale=scale
            )
        if score_mask.blind_GHL1 is not None:
            out_GHLK = out_GHLK.masked_fill(score_mask.blind_GHL1, 0.0)
        outputs.append(out_GHLK.transpose(1, 2).to(projected.dtype))
    return pairing.restore(outputs)


def attention_weights(
    projected: Projected | Fused,
    layout_q: Layout,
    layout_k: Layout,
    *,
    causal: bool = False,
    mask: Mask | None = None,
    bias: Bias | None = None,
    scale: float | None = None,
    window: int | None = None,
) -> tuple[Tensor, ...]:
    """The weights themselves, H x L x S for each sequence in order (for looking at, not for speed)."""
    parts = projected.apart()
    scale = parts.q_NHK.shape[-1] ** -0.5 if scale is None else scale
    weights = []
    for queries, keys in zip(layout_q.one_by_one(), layout_k.one_by_one(), strict=True):
        group = Group(queries, keys)
        q_1HLK = queries.cells(parts.q_NHK).transpose(1, 2).float()
        k_1HSK = keys.cells(parts.k_SHK).transpose(1, 2).float()
        scores_1HLS = q_1HLK @ k_1HSK.transpose(2, 3) * scale
        score_mask = _score_mask(group, causal, mask, bias, window)
        if score_mask.bias is not None:
            scores_1HLS = scores_1HLS + score_mask.bias
        weights_1HLS = scores_1HLS.softmax(-1)
        if score_mask.blind_GHL1 is not None:
            weights_1HLS = weights_1HLS.masked_fill(score_mask.blind_GHL1, 0.0)
        weights.append(weights_1HLS[0])
    return tuple(weights)


def prefix_mask(prefix_B: Tensor) -> Mask:
    """UniLM's mask (Dong et al. 2019): all tokens see the first `prefix_B` of their sequence, and others causally.

    A prefix as long as the sequence is attention in both directions; a prefix of 0 is causal attention.
    """

    def may_see(group: Group) -> Tensor:
        prefix_G = prefix_B[group.queries.sequences_G]
        in_prefix_G1S = group.keys.steps_GL[:, None, :] < prefix_G[:, None, None]
        return (in_prefix_G1S | group.not_after())[:, None]

    return may_see


def window_mask(window: int) -> Mask:
    """A query sees keys that are at most so many positions away, before it or after it."""

    def may_see(group: Group) -> Tensor:
        is_near_GLS = group.distances().abs() <= window
        return is_near_GLS[:, None]

    return may_see


def _score_mask(
    group: Group,
    causal: bool,
    mask: Mask | None,
    bias: Bias | None,
    window: int | None = None,
) -> ScoreMask:
    """Which scores of a group count; what is the same in all layers is computed once."""
    if window is not None:
        assert mask is None, "a window is for attention without a mask"
        assert bias is None, "a window is for attention without a bias"
        if (causal, window) not in group.windows:
            group.windows[causal, window] = _make_score_mask(group, causal, window_mask(window), None)
        return group.windows[causal, window]
    if isinstance(bias, DistanceBias) and mask is None:
        return bias.score_mask(group, causal)
    if mask is not None or bias is not None:
        return _make_score_mask(group, causal, mask, bias)
    if causal not in group.plain:
        group.plain[causal] = _make_score_mask(group, causal, None, None)
    return group.plain[causal]


def _make_score_mask(group: Group, causal: bool, mask: Mask | None, bias: Bias | None) -> ScoreMask:
    if causal and mask is None and bias is None and group.is_square:
        return ScoreMask(is_causal=True)
    seen_GHLS = _seen(group, causal, mask)
    blind_GHL1 = None
    if seen_GHLS is not None and (mask is not None or group.keys.has_empty):
        # softmax over no key at all is 0 / 0: such a query attends to all keys instead, and its output is dropped.
        blind_GHL1 = ~seen_GHLS.any(-1, keepdim=True)
        seen_GHLS = seen_GHLS | blind_GHL1
    if bias is not None:
        bias_GHLS = bias(group)
        if seen_GHLS is not None:
            bias_GHLS = bias_GHLS.masked_fill(~seen_GHLS, -torch.inf)
        return ScoreMask(bias_GHLS, blind_GHL1=blind_GHL1)
    if seen_GHLS is None:
        return ScoreMask()
    return ScoreMask(_as_bias(seen_GHLS), blind_GHL1=blind_GHL1)


def _seen(group: Group, causal: bool, mask: Mask | None) -> Tensor | None:
    """Booleans that broadcast to G x H x L x S; None where everything is seen."""
    rules = []
    if group.keys.real_GL is not None:
        rules.append(group.keys.real_GL[:, None, None, :])
    if causal:
        rules.append(group.not_after()[:, None])
    if mask is not None:
        rules.append(mask(group))
    if not rules:
        return None
    seen = rules[0]
    for rule in rules[1:]:
        seen = seen & rule
    return seen


def _as_bias(seen: Tensor) -> Tensor:
    return torch.zeros(seen.shape, device=seen.device).masked_fill(~seen, -torch.inf)


def _attend_packed(
    projected: Projected | Fused,
    layout_q: Layout,
    layout_k: Layout,
    causal: bool,
    scale: float | None,
    window: int | None = None,
) -> Tensor:
    """The whole pack in one kernel."""
    if (
        scale is None
        and window is None
        and layout_q is layout_k
        and isinstance(projected, Fused)
        and _fits_own_kernel(projected, layout_q)
    ):
        mixed_NHK: Tensor = short_attention(projected.qkv_N3HK, layout_q.bounds_B1, causal)
        return mixed_NHK
    from torch.nn.attention.varlen import varlen_attn

    parts = projected.apart()
    q, k, v = parts.q_NHK, parts.k_SHK, parts.v_SHK
    width = q.shape[-1]
    options: dict[str, float | tuple[int, int]] = {}
    if causal or window is not None:
        reach = -1 if window is None else window
        options["window_size"] = (reach, 0 if causal else reach)
    if scale is not None:
        options["scale"] = scale
    if width % 8:  # the kernel wants head widths that are multiples of 8
        missing = (0, -width % 8)
        q = pad(q, missing)
        k = pad(k, missing)
        v = pad(v, missing)
        options.setdefault("scale", width**-0.5)
    bounds = layout_q.bounds_B1, layout_k.bounds_B1
    sizes = layout_q.max_length, layout_k.max_length
    out_NHK: Tensor = varlen_attn(q, k, v, *bounds, *sizes, **options)  # type: ignore[assignment,arg-type]
    return out_NHK[..., :width]


def _has_bias_kernel(layout_q: Layout, layout_k: Layout, head_width: int) -> bool:
    """Whether our kernel for a bias by distance computes this attention."""
    return OWN_KERNEL and layout_q is layout_k and layout_q.has_kernels and head_width in BIAS_HEAD_WIDTHS


def _fits_own_kernel(fused: Fused, layout: Layout) -> bool:
    return OWN_KERNEL and layout.max_length <= MAX_LENGTH and fused.qkv_N3HK.shape[-1] in HEAD_WIDTHS
