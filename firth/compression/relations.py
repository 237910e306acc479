"""Losses between what the tokens of a sequence are to each other, in a student and in its teacher.

`AttentionScores` is TinyBERT's (Jiao et al. 2019, equation 7): the mean squared error of q k' / sqrt(K), before the
softmax. `AttentionMaps` is MobileBERT's (Sun et al. 2020, equation 2): KL of the attention distributions of every head
of all layers. `LastRelations` is MiniLM's (Wang et al. 2020, equations 5 to 8): KL of the attention distributions and
of the value relations softmax(v v' / sqrt(K)) of one layer. Its vectors are cut into the same number of relation heads
in both models (Wang et al. 2021), so any width and any number of heads will do.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from firth.compression.hidden_states import num_tokens
from firth.compression.lesson import Compared, Term
from firth.compression.structure import blocks_of
from firth.compression.student import layers_of
from firth.errors import BadConfig, Unsupported
from firth.nn.blocks import Block
from firth.nn.groups import Group
from firth.nn.layout import layout
from firth.tensors import Batch, Encoder, States

Vectors = tuple[Tensor, Tensor, Tensor]
"""Queries, keys and values: N x width each, all heads side by side."""
Pair = tuple[Tensor, Tensor]
"""Vectors whose products are compared: queries and keys, or values and values."""


def check_relations(encoder: Encoder, model: str | Path) -> None:
    """Raises for a model whose attention cannot be compared."""
    layers_of(encoder, model)
    if encoder.causal:
        raise Unsupported(f"{model} reads text from left to right; relations of tokens are known for both directions.")


def check_heads(student: Encoder, teacher: Encoder, name: str) -> None:
    """Raises if attention cannot be compared head by head; pruned layers may have fewer heads than others."""
    all_blocks = [*blocks_of(student), *blocks_of(teacher)]
    counts = {block.attention.num_heads for block in all_blocks}
    if len(counts) > 1:
        found = " and ".join(map(str, sorted(counts)))
        raise BadConfig(
            f"`by='{name}'` compares attention head by head, so all layers of both models need the same number of "
            f"heads; here they have {found}."
        )


def vectors_of(block: nn.Module, x_ND: Tensor) -> Vectors:
    """What a block's attention makes of its input."""
    assert isinstance(block, Block)
    # A teacher's states may be of half precision while its weights are not.
    x_ND = x_ND.to(next(block.parameters()).dtype)
    projected = block.attention.qkv(block.attention_input(x_ND))
    q_ND, k_ND, v_ND = projected.chunk(3, -1)
    return q_ND, k_ND, v_ND


def products(a_ND: Tensor, b_ND: Tensor, group: Group, *, num_heads: int) -> Tensor:
    """a b' / sqrt(K) of the tokens of each sequence: G x H x L x L; padded cells have any value."""
    a_GLHK = group.queries.cells(a_ND.reshape(len(a_ND), num_heads, -1))
    b_GLHK = group.keys.cells(b_ND.reshape(len(b_ND), num_heads, -1))
    a_GHLK = a_GLHK.transpose(1, 2)
    b_GHKL = b_GLHK.permute(0, 2, 3, 1)
    scale: float = a_GHLK.shape[-1] ** -0.5
    return a_GHLK @ b_GHKL * scale


def groups_of(batch: Batch) -> Iterator[tuple[Group, Tensor]]:
    """The groups of a batch's sequences, each with the mask G x L of its cells that are not padded."""
    plan = layout(batch, dtype=torch.float32)
    for group in plan.pairing(plan).groups:
        real_GL = group.keys.real_GL
        if real_GL is None:
            real_GL = torch.ones_like(group.keys.steps_GL, dtype=torch.bool)
        yield group, real_GL


class AttentionScores(Term):
    name = "attention"
    needs_states = True
    student: Encoder
    teacher: Encoder

    def __init__(self, layers: Mapping[int, int], *, student: Encoder, teacher: Encoder, weight: float) -> None:
        """`layers` are the teacher's blocks by the student's, both counted from 1."""
        super().__init__()
        self.layers = dict(layers)
        self.weight = weight
        self.num_heads = blocks_of(student)[0].attention.num_heads
        # Not parts of the term: they are trained and saved elsewhere.
        object.__setattr__(self, "student", student)
        object.__setattr__(self, "teacher", teacher)

    def scores(self, compared: Compared) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """For each layer and group: the student's and the teacher's scores, and which cells are not padded."""
        assert compared.taught is not None
        for own, taught in self.layers.items():
            own_q_ND, own_k_ND, _ = block_vectors(self.student, compared.states, own)
            q_ND, k_ND, _ = block_vectors(self.teacher, compared.taught, taught)
            for group, real_GL in groups_of(compared.batch):
                own_GHLL = products(own_q_ND, own_k_ND, group, num_heads=self.num_heads)
                taught_GHLL = products(q_ND, k_ND, group, num_heads=self.num_heads)
                yield own_GHLL, taught_GHLL, real_GL

    def forward(self, compared: Compared) -> Tensor:
        total = compared.states.last_ND.new_zeros(())
        for own_GHLL, taught_GHLL, real_GL in self.scores(compared):
            real_GLL = real_GL[:, :, None] & real_GL[:, None, :]
            real_G1LL = real_GLL[:, None]
            errors_GHLL = (own_GHLL - taught_GHLL).square() * real_G1LL
            # A token's error is the mean over heads and over the tokens that it attends to.
            lengths_G = real_GL.sum(1).clamp(min=1)
            errors_G = errors_GHLL.sum((1, 2, 3)) / lengths_G
            total = total + errors_G.sum() / self.num_heads
        return total

    def count(self, batch: Batch) -> int:
        return num_tokens(batch)


class AttentionMaps(AttentionScores):
    name = "attention_maps"

    def forward(self, compared: Compared) -> Tensor:
        total = compared.states.last_ND.new_zeros(())
        for own_GHLL, taught_GHLL, real_GL in self.scores(compared):
            total = total + divergence(taught_GHLL, own_GHLL, real_GL) / self.num_heads
        return total


class LastRelations(Term):
    needs_states = True
    name = "relations"
    student: Encoder
    teacher: Encoder

    def __init__(self, *, student: Encoder, teacher: Encoder, layer: int, num_heads: int, weight: float) -> None:
        """`layer` is the teacher's, counted from 1; the student's is always its last."""
        super().__init__()
        self.layer = layer
        self.num_heads = num_heads
        self.weight = weight
        object.__setattr__(self, "student", student)
        object.__setattr__(self, "teacher", teacher)

    def forward(self, compared: Compared) -> Tensor:
        assert compared.taught is not None
        own_q_ND, own_k_ND, own_v_ND = block_vectors(self.student, compared.states, self.student.num_layers)
        q_ND, k_ND, v_ND = block_vectors(self.teacher, compared.taught, self.layer)
        total = compared.states.last_ND.new_zeros(())
        for group, real_GL in groups_of(compared.batch):
            total = total + self._divergence((q_ND, k_ND), (own_q_ND, own_k_ND), group, real_GL)
            total = total + self._divergence((v_ND, v_ND), (own_v_ND, own_v_ND), group, real_GL)
        return total

    def _divergence(self, taught: Pair, own: Pair, group: Group, real_GL: Tensor) -> Tensor:
        """How far the student's products of a pair are from the teacher's."""
        taught_GHLL = products(*taught, group, num_heads=self.num_heads)
        own_GHLL = products(*own, group, num_heads=self.num_heads)
        return divergence(taught_GHLL, own_GHLL, real_GL) / self.num_heads

    def count(self, batch: Batch) -> int:
        return num_tokens(batch)


def block_vectors(encoder: Encoder, states: States, layer: int) -> Vectors:
    """Queries, keys and values of a block, counted from 1: its input are the states of the layer before."""
    block = encoder.blocks[layer - 1]  # type: ignore[index]
    return vectors_of(block, states.layers[layer - 1])  # type: ignore[arg-type]


def divergence(wanted_GHLL: Tensor, found_GHLL: Tensor, real_GL: Tensor) -> Tensor:
    """The sum over heads and tokens of KL(softmax(wanted) || softmax(found)) over the tokens of each sequence."""
    is_padded_G11L = ~real_GL[:, None, None, :]
    # A finite number, because 0 * -inf is not a number.
    lowest = torch.finfo(torch.float32).min
    wanted_GHLL = wanted_GHLL.float().masked_fill(is_padded_G11L, lowest).log_softmax(-1)
    found_GHLL = found_GHLL.float().masked_fill(is_padded_G11L, lowest).log_softmax(-1)
    differences_GHLL = (wanted_GHLL - found_GHLL).masked_fill(is_padded_G11L, 0.0)
    each_GHL = (wanted_GHLL.exp() * differences_GHLL).sum(-1)
    return (each_GHL * real_GL[:, None, :]).sum()
