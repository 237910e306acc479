"""Recurrent layers over sequences that are walked together (`nn/walk.py`). In and out: states in the walk's order.

`ClippedLSTM` is ELMo's (Peters et al. 2018): projected (Sak et al. 2014), clipped, one in each direction.
`DroppedLSTM` is AWD-LSTM's (Merity et al. 2017): some of its recurrent weights are missing in each training step.
`both_ways` runs torch's own LSTM over sequences that lie end to end.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import PackedSequence

from firth.nn.walk import Walk

Memory = tuple[Tensor, Tensor]
"""What a layer remembers of each sequence, in walking order: its last output and its cell."""


class ClippedLSTM(nn.Module):
    """The layer's two directions are one batched product; cell and output stay within +-clip.

    nn.LSTM cannot clip. Gates lie in torch's order: input, forget, candidate, output.
    """

    def __init__(self, in_width: int, out_width: int, *, cell_width: int, clip: float) -> None:
        super().__init__()
        self.clip = clip
        self.input_2DF = nn.Parameter(torch.empty(2, in_width, 4 * cell_width))
        self.recurrent_2DF = nn.Parameter(torch.empty(2, out_width, 4 * cell_width))
        self.project_2FD = nn.Parameter(torch.empty(2, cell_width, out_width))
        self.bias = nn.Parameter(torch.zeros(8 * cell_width))  # flat, because what is flat does not decay
        # Scaled by the number of terms, for nothing here has a norm; a half-open gate halves what is projected.
        for weights, gain in ((self.input_2DF, 1), (self.recurrent_2DF, 1), (self.project_2FD, 2)):
            nn.init.normal_(weights, std=gain * weights.shape[1] ** -0.5)
        self.bias.data.view(2, 4, -1)[:, 1] = 1.0  # at first nothing is forgotten

    def forward(self, x_2ND: Tensor, walk: Walk, memory: Memory | None = None) -> tuple[Tensor, Memory]:
        """Every token's output, and what is remembered of each sequence at its end."""
        gates_2NF = torch.baddbmm(self.bias.view(2, 1, -1), x_2ND, self.input_2DF)
        width = self.project_2FD.shape[1]
        out = memory[0] if memory else x_2ND.new_zeros(2, walk.sizes[0], self.project_2FD.shape[2])
        cell = memory[1] if memory else x_2ND.new_zeros(2, walk.sizes[0], width)
        outs, ends = [], []
        for gates, alive in zip(gates_2NF.split_with_sizes(walk.sizes, 1), walk.sizes, strict=True):
            ends.append((out[:, alive:], cell[:, alive:]))
            gates = torch.baddbmm(gates, out[:, :alive], self.recurrent_2DF)
            opened = gates.sigmoid()
            candidate = gates[..., 2 * width : 3 * width].tanh()
            cell = opened[..., width : 2 * width] * cell[:, :alive] + opened[..., :width] * candidate
            cell = cell.clamp(-self.clip, self.clip)
            out = torch.bmm(opened[..., 3 * width :] * cell.tanh(), self.project_2FD).clamp(-self.clip, self.clip)
            outs.append(out)
        ends.append((out, cell))
        last_out, last_cell = (torch.cat(parts, 1) for parts in zip(*reversed(ends), strict=True))
        return torch.cat(outs, 1), (last_out, last_cell)


class DroppedLSTM(nn.Module):
    """An LSTM layer in one direction; `rate` of the recurrent weights is set to zero in training (Wan et al. 2013)."""

    def __init__(self, in_width: int, out_width: int, *, rate: float) -> None:
        super().__init__()
        self.rate = rate
        self.input_weight = nn.Parameter(torch.empty(4 * out_width, in_width))
        self.recurrent_weight = nn.Parameter(torch.empty(4 * out_width, out_width))
        self.input_bias = nn.Parameter(torch.empty(4 * out_width))
        self.recurrent_bias = nn.Parameter(torch.empty(4 * out_width))
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -(out_width**-0.5), out_width**-0.5)

    def forward(self, x_ND: Tensor, walk: Walk) -> Tensor:
        recurrent = F.dropout(self.recurrent_weight, self.rate, self.training)
        weights = [self.input_weight, recurrent, self.input_bias, self.recurrent_bias]
        start = x_ND.new_zeros(1, walk.sizes[0], recurrent.shape[1])
        sizes = torch.tensor(walk.sizes)
        out_ND, _, _ = torch.lstm(x_ND, sizes, (start, start), weights, True, 1, 0.0, self.training, False)
        return out_ND


def same_mask(x_ND: Tensor, rate: float, walk: Walk, *, training: bool) -> Tensor:
    """Dropout with one mask for all tokens of a sequence (Gal & Ghahramani 2016); rows in the walk's order."""
    if not training or not rate:
        return x_ND
    mask_BD = F.dropout(x_ND.new_ones(len(walk.lengths_B), x_ND.shape[1]), rate)
    return x_ND * mask_BD[walk.sequence_N[walk.rows_N]]


def both_ways(lstm: nn.LSTM, x_ND: Tensor, bounds_B1: Tensor) -> Tensor:
    """What a bidirectional LSTM of one layer says of every token; in and out are in the tokens' own order.

    On a CPU the steps are taken here: the slopes of torch's own are summed up anew at every step, which took 15 times
    as long on 10,000 tokens of sentences.
    """
    if not len(x_ND):
        return x_ND.new_zeros(0, 2 * lstm.hidden_size)
    walk = Walk(bounds_B1, x_ND.device)
    if x_ND.is_cuda:
        out_ND: Tensor = lstm(PackedSequence(x_ND[walk.rows_N], torch.tensor(walk.sizes)))[0].data
        return out_ND[walk.place_N]
    weights = [getattr(lstm, f"{name}_l0{way}") for way in ("", "_reverse") for name in ("weight_ih", "weight_hh")]
    bias_2F = torch.stack([getattr(lstm, f"bias_ih_l0{w}") + getattr(lstm, f"bias_hh_l0{w}") for w in ("", "_reverse")])
    x_2ND = torch.stack([x_ND, x_ND[walk.mirror_N]])[:, walk.rows_N]
    gates_2NF = torch.baddbmm(bias_2F[:, None], x_2ND, torch.stack(weights[::2]).mT)
    out_2ND = _steps(gates_2NF, torch.stack(weights[1::2]).mT.contiguous(), walk.sizes)[:, walk.place_N]
    return torch.cat([out_2ND[0], out_2ND[1, walk.mirror_N]], 1)


def _steps(gates_2NF: Tensor, recurrent_2DF: Tensor, sizes: list[int]) -> Tensor:
    """The outputs of all steps, from what the inputs say to the gates."""
    out = cell = gates_2NF.new_zeros(2, sizes[0], recurrent_2DF.shape[1])
    outs = []
    for gates, alive in zip(gates_2NF.split_with_sizes(sizes, 1), sizes, strict=True):
        into, forget, candidate, outward = torch.baddbmm(gates, out[:, :alive], recurrent_2DF).chunk(4, 2)
        cell = forget.sigmoid() * cell[:, :alive] + into.sigmoid() * candidate.tanh()
        out = outward.sigmoid() * cell.tanh()
        outs.append(out)
    return torch.cat(outs, 1)
