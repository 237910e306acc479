"""Recurrent layers over sequences that are walked together (`nn/walk.py`). In and out: states in the walk's order.

`ClippedLSTM` is ELMo's (Peters et al. 2018): projected (Sak et al. 2014), clipped, in both directions.
`DroppedLSTM` is AWD-LSTM's (Merity et al. 2017): dropout on the recurrent weights.
`bidirectional` runs torch's own LSTM over sequences that lie end to end, in both directions.
"""

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from firth.nn.dropout import dropout
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
        # There is no norm here, so weights are scaled by the number of terms they sum.
        _scale_by_terms(self.input_2DF)
        _scale_by_terms(self.recurrent_2DF)
        # The projection's input is halved by its half-open gate, which the gain makes up for.
        _scale_by_terms(self.project_2FD, gain=2)
        # The forget gates start open.
        bias_24F = self.bias.data.view(2, 4, -1)
        bias_24F[:, 1] = 1.0

    def forward(self, x_2ND: Tensor, walk: Walk, memory: Memory | None = None) -> tuple[Tensor, Memory]:
        """Every token's output, and the memory of each sequence at its end."""
        bias_21F = self.bias.view(2, 1, -1)
        gates_2NF = torch.baddbmm(bias_21F, x_2ND, self.input_2DF)
        out_2BD, cell_2BF = memory or self._empty_memory(x_2ND, walk.sizes[0])
        outs = []
        last_outs = []
        last_cells = []
        steps = gates_2NF.split_with_sizes(walk.sizes, 1)
        for gates_2BF, alive in zip(steps, walk.sizes, strict=True):
            # Sequences are sorted by length: those behind the first `alive` have ended.
            last_outs.append(out_2BD[:, alive:])
            last_cells.append(cell_2BF[:, alive:])
            out_2BD = out_2BD[:, :alive]
            cell_2BF = cell_2BF[:, :alive]
            out_2BD, cell_2BF = self._step(gates_2BF, out_2BD, cell_2BF)
            outs.append(out_2BD)
        last_outs.append(out_2BD)
        last_cells.append(cell_2BF)
        # The longest sequences ended last and come first.
        last_out_2BD = torch.cat(last_outs[::-1], 1)
        last_cell_2BF = torch.cat(last_cells[::-1], 1)
        return torch.cat(outs, 1), (last_out_2BD, last_cell_2BF)

    def _empty_memory(self, x_2ND: Tensor, num_sequences: int) -> Memory:
        """The memory before the first token: zeros."""
        _, cell_width, out_width = self.project_2FD.shape
        out_2BD = x_2ND.new_zeros(2, num_sequences, out_width)
        cell_2BF = x_2ND.new_zeros(2, num_sequences, cell_width)
        return out_2BD, cell_2BF

    def _step(self, gates_2BF: Tensor, out_2BD: Tensor, cell_2BF: Tensor) -> Memory:
        """The next output and cell, from the inputs' part of the gates and the previous output and cell."""
        gates_2BF = torch.baddbmm(gates_2BF, out_2BD, self.recurrent_2DF)
        # One sigmoid for all gates; that of the candidate, which needs tanh, is not used.
        opened_2BF = gates_2BF.sigmoid()
        input_gate, forget_gate, _, output_gate = opened_2BF.chunk(4, -1)
        _, _, candidate, _ = gates_2BF.chunk(4, -1)
        candidate = candidate.tanh()
        cell = forget_gate * cell_2BF + input_gate * candidate
        cell = cell.clamp(-self.clip, self.clip)
        hidden = output_gate * cell.tanh()
        out = torch.bmm(hidden, self.project_2FD)
        return out.clamp(-self.clip, self.clip), cell


def _scale_by_terms(weights_2DF: Tensor, *, gain: float = 1.0) -> None:
    """Draws weights whose sums of D terms have a standard deviation of `gain`, for terms of 1."""
    num_terms = weights_2DF.shape[1]
    nn.init.normal_(weights_2DF, std=gain * num_terms**-0.5)


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
        recurrent = dropout(self.recurrent_weight, self.rate, training=self.training)
        weights = [self.input_weight, recurrent, self.input_bias, self.recurrent_bias]
        out_width = recurrent.shape[1]
        start = x_ND.new_zeros(1, walk.sizes[0], out_width)
        memory = (start, start)
        sizes = torch.tensor(walk.sizes)
        # With biases, 1 layer, no dropout between layers, in one direction.
        out_ND, _, _ = torch.lstm(x_ND, sizes, memory, weights, True, 1, 0.0, self.training, False)
        return out_ND


def same_mask(x_ND: Tensor, rate: float, walk: Walk, *, training: bool) -> Tensor:
    """Dropout with one mask for all tokens of a sequence (Gal & Ghahramani 2016); rows in the walk's order."""
    if not training or not rate:
        return x_ND
    ones_BD = x_ND.new_ones(len(walk.lengths_B), x_ND.shape[1])
    mask_BD = dropout(ones_BD, rate)
    sequence_of_row_N = walk.sequence_N[walk.rows_N]
    return x_ND * mask_BD[sequence_of_row_N]


def bidirectional(lstm: nn.LSTM, x_ND: Tensor, bounds_B1: Tensor) -> Tensor:
    """The outputs of a bidirectional LSTM of one layer for every token; in and out are in the tokens' own order.

    On a CPU the steps are computed here: torch's own backward pass accumulates the gradients of the weights at every
    step, which took 15 times as long on 10,000 tokens of sentences.
    """
    if not len(x_ND):
        return x_ND.new_zeros(0, 2 * lstm.hidden_size)
    walk = Walk(bounds_B1, x_ND.device)
    if x_ND.is_cuda:
        packed = PackedSequence(x_ND[walk.rows_N], torch.tensor(walk.sizes))
        out_ND: Tensor = lstm(packed)[0].data
        return out_ND[walk.place_N]
    bias_2F = _both_directions(lstm, "bias_ih") + _both_directions(lstm, "bias_hh")
    input_2DF = _both_directions(lstm, "weight_ih").mT
    recurrent_2DF = _both_directions(lstm, "weight_hh").mT.contiguous()
    # The second direction reads the mirrored sequences.
    both_2ND = torch.stack([x_ND, x_ND[walk.mirror_N]])
    walked_in_2ND = both_2ND[:, walk.rows_N]
    gates_2NF = torch.baddbmm(bias_2F[:, None], walked_in_2ND, input_2DF)
    walked_out_2ND = _steps(gates_2NF, recurrent_2DF, walk.sizes)
    # Back to the tokens' own order.
    forward_ND, mirrored_ND = walked_out_2ND[:, walk.place_N]
    backward_ND = mirrored_ND[walk.mirror_N]
    return torch.cat([forward_ND, backward_ND], 1)


def _both_directions(lstm: nn.LSTM, name: str) -> Tensor:
    """A parameter of the first layer, of the forward and of the backward direction."""
    forward = getattr(lstm, f"{name}_l0")
    backward = getattr(lstm, f"{name}_l0_reverse")
    return torch.stack([forward, backward])


def _steps(gates_2NF: Tensor, recurrent_2DF: Tensor, sizes: list[int]) -> Tensor:
    """The outputs of all steps, from the inputs' part of the gates."""
    width = recurrent_2DF.shape[1]
    out_2BD = gates_2NF.new_zeros(2, sizes[0], width)
    cell_2BD = out_2BD
    outs = []
    steps = gates_2NF.split_with_sizes(sizes, 1)
    for step_gates_2BF, alive in zip(steps, sizes, strict=True):
        # Sequences are sorted by length: those behind the first `alive` have ended.
        out_2BD = out_2BD[:, :alive]
        cell_2BD = cell_2BD[:, :alive]
        gates_2BF = torch.baddbmm(step_gates_2BF, out_2BD, recurrent_2DF)
        input_gate, forget_gate, candidate, output_gate = gates_2BF.chunk(4, 2)
        kept = forget_gate.sigmoid() * cell_2BD
        added = input_gate.sigmoid() * candidate.tanh()
        cell_2BD = kept + added
        out_2BD = output_gate.sigmoid() * cell_2BD.tanh()
        outs.append(out_2BD)
    return torch.cat(outs, 1)
