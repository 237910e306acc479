"""A linear layer of low rank: W is the product of two narrow matrices, as a truncated SVD gives them.

W x + b = second (first x) + b with first R x D and second E x R: R (D + E) weights instead of D E.
"""

from torch import Tensor, nn


class LowRankLinear(nn.Module):
    def __init__(self, in_features: int, out_features: int, rank: int, *, use_bias: bool = True) -> None:
        super().__init__()
        self.in_features = in_features
        self.out_features = out_features
        self.rank = rank
        self.first = nn.Linear(in_features, rank, bias=False)
        self.second = nn.Linear(rank, out_features, bias=use_bias)

    def forward(self, x_ND: Tensor) -> Tensor:
        out_NE: Tensor = self.second(self.first(x_ND))
        return out_NE


def reduce_rank(parent: nn.Module, name: str, rank: int) -> None:
    """Puts a new layer of this rank in the place of a linear one; a rank of 0 leaves it as it is."""
    if rank == 0:
        return
    linear = getattr(parent, name)
    reduced = LowRankLinear(linear.in_features, linear.out_features, rank, use_bias=linear.bias is not None)
    setattr(parent, name, reduced)
