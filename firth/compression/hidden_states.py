"""Losses between the states of a student's and a teacher's layers.

`ClsStates` is PKD's (Sun et al. 2019, equation 7): the squared distance of the normalised states of first tokens.
`LayerStates` is TinyBERT's (Jiao et al. 2019, equations 8 and 9): the mean squared error of all tokens' states, with a
learned projection to the teacher's width. `CosineStates` is DistilBERT's (Sanh et al. 2019): 1 - the cosine of the last
states. Layer 0 is the embeddings.
"""

from collections.abc import Mapping

from torch import Tensor, nn
from torch.nn import functional as F

from firth.compression.lesson import Compared, Term
from firth.nn.blocks import first_rows, initialise
from firth.tensors import Batch, Encoder


def num_tokens(batch: Batch) -> int:
    """The tokens of all sequences, without the filler after them."""
    return int(batch.bounds_B1[-1])


class ClsStates(Term):
    name = "first_tokens"
    needs_states = True

    def __init__(self, layers: Mapping[int, int], *, weight: float) -> None:
        """`layers` are the teacher's layers by the student's."""
        super().__init__()
        self.layers = dict(layers)
        self.weight = weight

    def forward(self, compared: Compared) -> Tensor:
        assert compared.taught is not None
        bounds_B1 = compared.batch.bounds_B1
        total = compared.states.last_ND.new_zeros(())
        for own, taught in self.layers.items():
            own_BD = F.normalize(first_rows(compared.states.layers[own], bounds_B1), dim=-1)
            taught_BD = F.normalize(first_rows(compared.taught.layers[taught], bounds_B1), dim=-1)
            total = total + (own_BD - taught_BD).square().sum()
        return total

    def count(self, batch: Batch) -> int:
        return len(batch.bounds_B1) - 1


class LayerStates(Term):
    name = "states"
    needs_states = True

    def __init__(self, layers: Mapping[int, int], *, student: Encoder, teacher: Encoder, weight: float) -> None:
        """`layers` are the teacher's layers by the student's; each has a projection, unless the widths are the same."""
        super().__init__()
        self.layers = dict(layers)
        self.weight = weight
        self.projections = nn.ModuleDict()
        for own in self.layers:
            project: nn.Module = nn.Identity()
            if student.width != teacher.width:
                project = nn.Linear(student.width, teacher.width)
                initialise(project, std=student.width**-0.5)
            self.projections[str(own)] = project

    def forward(self, compared: Compared) -> Tensor:
        assert compared.taught is not None
        size = num_tokens(compared.batch)
        total = compared.states.last_ND.new_zeros(())
        for own, taught in self.layers.items():
            own_ND = self.projections[str(own)](compared.states.layers[own][:size])
            taught_ND = compared.taught.layers[taught][:size]
            total = total + (own_ND - taught_ND).square().mean(-1).sum()
        return total

    def count(self, batch: Batch) -> int:
        return num_tokens(batch)


class CosineStates(Term):
    name = "cosine"
    needs_states = True

    def __init__(self, *, weight: float) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, compared: Compared) -> Tensor:
        assert compared.taught is not None
        size = num_tokens(compared.batch)
        own_ND = compared.states.last_ND[:size]
        taught_ND = compared.taught.last_ND[:size]
        cosines_N = F.cosine_similarity(own_ND, taught_ND, dim=-1)
        return (1 - cosines_N).sum()

    def count(self, batch: Batch) -> int:
        return num_tokens(batch)
