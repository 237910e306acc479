"""Recurrent layers over sequences that are walked together (`nn/walk.py`). In and out: states in the walk's order.

`ClippedLSTM` is ELMo's (Peters et al. 2018): projected (Sak et al. 2014), clipped, in both directions.
`DroppedLSTM` is AWD-LSTM's (Merity et al. 2017): dropout on the recurrent weights.
`bidirectional` runs torch's own LSTM over sequences that lie end to end, in both directions.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import PackedSequence

from firth.nn.walk import Walk

Memory = tuple[Tensor, Tensor]
"""The state of a layer for each sequence, in walking order: its last output and its cell."""


class ClippedLSTM(nn.Module):
    """An LSTM layer in both directions, computed as one batched product; cell and output stay within +-clip.

    nn.LSTM cannot clip. Gates are in torch's order: input, forget, candidate, output. The first dimension of all
    tensors is the direction.
    """

    def __init__(self, in_width: int, out_width: int, *, cell_width: int, clip: float) -> None:
        super().__init__()
        self.clip = clip
        self.input_2DF = nn.Parameter(torch.empty(2, in_width, 4 * cell_width))
        self.recurrent_2DF = nn.Parameter(torch.empty(2, out_width, 4 * cell_width))
        self.project_2FD = nn.Parameter(torch.empty(2, cell_width, out_width))
        # The bias is flat because weight decay spares flat parameters.
        self.bias = nn.Parameter(torch.zeros(8 * cell_width))
        # There is no norm here, so weights are scaled by the number of terms they sum. The projection's input is halved
        # by its half-open gate, which the gain of 2 makes up for.
        for weights, gain in ((self.input_2DF, 1), (self.recurrent_2DF, 1), (self.project_2FD, 2)):
            num_terms = weights.shape[1]
            nn.init.normal_(weights, std=gain * num_terms**-0.5)
        # The forget gates start open.
        bias_24F = self.bias.data.view(2, 4, -1)
        bias_24F[:, 1] = 1.0

    def forward(self, x_2ND: Tensor, walk: Walk, memory: Memory | None = None) -> tuple[Tensor, Memory]:
        """Every token's output, and the memory of each sequence at its end."""
        gates_2NF = torch.baddbmm(self.bias.view(2, 1, -1), x_2ND, self.input_2DF)
        if memory:
            out, cell = memory
        else:
            _, cell_width, out_width = self.project_2FD.shape
            out = x_2ND.new_zeros(2, walk.sizes[0], out_width)
            cell = x_2ND.new_zeros(2, walk.sizes[0], cell_width)
        outs = []
        last_outs = []
        last_cells = []
        for gates, alive in zip(gates_2NF.split_with_sizes(walk.sizes, 1), walk.sizes, strict=True):
            # Sequences are sorted by length: those behind the first `alive` have ended.
            last_outs.append(out[:, alive:])
            last_cells.append(cell[:, alive:])
            out, cell = self._step(gates, out[:, :alive], cell[:, :alive])
            outs.append(out)
        last_outs.append(out)
        last_cells.append(cell)
        # The longest sequences ended last and come first.
        last_out = torch.cat(last_outs[::-1], 1)
        last_cell = torch.cat(last_cells[::-1], 1)
        return torch.cat(outs, 1), (last_out, last_cell)

    def _step(self, gates: Tensor, out: Tensor, cell: Tensor) -> Memory:
        """The next output and cell, from the inputs' part of the gates and the previous output and cell."""
        gates = torch.baddbmm(gates, out, self.recurrent_2DF)
        # One sigmoid for all gates; that of the candidate, which needs tanh, is not used.
        input_gate, forget_gate, _, output_gate = gates.sigmoid().chunk(4, -1)
        candidate = gates.chunk(4, -1)[2].tanh()
        cell = forget_gate * cell + input_gate * candidate
        cell = cell.clamp(-self.clip, self.clip)
        hidden = output_gate * cell.tanh()
        out = torch.bmm(hidden, self.project_2FD)
        return out.clamp(-self.clip, self.clip), cell


class DroppedLSTM(nn.Module):
    """An LSTM layer in one direction; `rate` of the recurrent weights is set to zero in training (Wan et al. 2013)."""

    def __init__(self, in_width: int, out_width: int, *, rate: float) -> None:
        super().__init__()
        self.rate = rate
        self.input_weight = nn.Parameter(torch.empty(4 * out_width, in_width))
        self.recurrent_weight = nn.Parameter(torch.empty(4 * out_width, out_width))
        self.input_bias = nn.Parameter(torch.empty(4 * out_width))
        self.recurrent_bias = nn.Parameter(torch.empty(4 * out_width))
        reach = out_width**-0.5
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -reach, reach)

    def forward(self, x_ND: Tensor, walk: Walk) -> Tensor:
        recurrent = F.dropout(self.recurrent_weight, self.rate, self.training)
        weights = [self.input_weight, recurrent, self.input_bias, self.recurrent_bias]
        start = x_ND.new_zeros(1, walk.sizes[0], recurrent.shape[1])
        sizes = torch.tensor(walk.sizes)
        # With biases, 1 layer, no dropout between layers, in one direction.
        out_ND, _, _ = torch.lstm(x_ND, sizes, (start, start), weights, True, 1, 0.0, self.training, False)
        return out_ND


def same_mask(x_ND: Tensor, rate: float, walk: Walk, *, training: bool) -> Tensor:
    """Dropout with one mask for all tokens of a sequence (Gal & Ghahramani 2016); rows in the walk's order."""
    if not training or not rate:
        return x_ND
    ones_BD = x_ND.new_ones(len(walk.lengths_B), x_ND.shape[1])
    mask_BD = F.dropout(ones_BD, rate)
    sequence_of_row_N = walk.sequence_N[walk.rows_N]
    return x_ND * mask_BD[sequence_of_row_N]


def bidirectional(lstm: nn.LSTM, x_ND: Tensor, bounds_B1: Tensor) -> Tensor:
    """The outputs of a bidirectional LSTM of one layer for every token; in and out are in the tokens' own order.

    On a CPU the steps are computed here: torch's own backward pass sums the gradients of the weights anew at every
    step, which took 15 times as long on 10,000 tokens of sentences.
    """
    if not len(x_ND):
        return x_ND.new_zeros(0, 2 * lstm.hidden_size)
    walk = Walk(bounds_B1, x_ND.device)
    if x_ND.is_cuda:
        packed = PackedSequence(x_ND[walk.rows_N], torch.tensor(walk.sizes))
        out_ND: Tensor = lstm(packed)[0].data
        return out_ND[walk.place_N]
    # The second direction reads the mirrored sequences.
    bias_2F = _both_directions(lstm, "bias_ih") + _both_directions(lstm, "bias_hh")
    input_2DF = _both_directions(lstm, "weight_ih").mT
    recurrent_2DF = _both_directions(lstm, "weight_hh").mT.contiguous()
    x_2ND = torch.stack([x_ND, x_ND[walk.mirror_N]])[:, walk.rows_N]
    gates_2NF = torch.baddbmm(bias_2F[:, None], x_2ND, input_2DF)
    walked_2ND = _steps(gates_2NF, recurrent_2DF, walk.sizes)
    # Back to the tokens' own order.
    forward_ND, mirrored_ND = walked_2ND[:, walk.place_N]
    return torch.cat([forward_ND, mirrored_ND[walk.mirror_N]], 1)


def _both_directions(lstm: nn.LSTM, name: str) -> Tensor:
    """A parameter of the first layer, of the forward and of the backward direction."""
    forward = getattr(lstm, f"{name}_l0")
    backward = getattr(lstm, f"{name}_l0_reverse")
    return torch.stack([forward, backward])


def _steps(gates_2NF: Tensor, recurrent_2DF: Tensor, sizes: list[int]) -> Tensor:
    """The outputs of all steps, from the inputs' part of the gates."""
    out = gates_2NF.new_zeros(2, sizes[0], recurrent_2DF.shape[1])
    cell = out
    outs = []
    for step_gates, alive in zip(gates_2NF.split_with_sizes(sizes, 1), sizes, strict=True):
        gates = torch.baddbmm(step_gates, out[:, :alive], recurrent_2DF)
        input_gate, forget_gate, candidate, output_gate = gates.chunk(4, 2)
        cell = forget_gate.sigmoid() * cell[:, :alive] + input_gate.sigmoid() * candidate.tanh()
        out = output_gate.sigmoid() * cell.tanh()
        outs.append(out)
    return torch.cat(outs, 1)
