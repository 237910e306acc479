"""LoRA (Hu et al. 2021): a matrix W stays fixed, and a product of two low-rank ones beside it learns.

    W x + (alpha / rank) B A x

A is rank x inputs, B outputs x rank, and B starts at zero, so that nothing changes at first. Queries, keys and values
are one matrix here; each of the three has its own A and B. Merged, a model is an ordinary one again.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from firth.errors import BadConfig, Unsupported
from firth.nn.dropout import Dropout

QKV = ("query", "key", "value")
TARGETS = (*QKV, "out", "gate", "up", "down")
"""Matrices of a block that can learn: those of attention, then those of the feed-forward layer."""


@dataclass(frozen=True)
class LoraConfig:
    rank: int = 8
    """Rows of the low-rank matrices."""
    alpha: float = 16.0
    """What is learned is multiplied by this divided by the rank."""
    dropout: float = 0.0
    """Share of the low-rank matrices' inputs set to zero in training."""
    targets: tuple[str, ...] = TARGETS
    """Matrices of each block that learn: query, key, value, out, gate, up, down; those that it does not have are left
    out."""

    def __post_init__(self) -> None:
        if self.rank < 1 or self.alpha <= 0 or not 0 <= self.dropout < 1:
            raise BadConfig("LoRA needs a rank of at least 1, an alpha above 0 and 0 <= dropout < 1.")
        unknown = set(self.targets) - set(TARGETS)
        if unknown or not self.targets:
            raise BadConfig(f"LoRA's targets are some of {', '.join(TARGETS)}; it is {', '.join(self.targets)!r}.")

    @property
    def scale(self) -> float:
        return self.alpha / self.rank


class LoraLinear(nn.Module):
    """A fixed linear layer whose outputs are one or more parts, and the low-rank matrices of some of them."""

    def __init__(
        self,
        linear: nn.Linear,
        config: LoraConfig,
        *,
        parts: tuple[str, ...],
        targets: tuple[str, ...],
    ) -> None:
        super().__init__()
        self.linear = linear
        self.config = config
        self.parts = parts
        self.dropout = Dropout(config.dropout)
        size = linear.out_features // len(parts)
        self.a = nn.ParameterDict()
        self.b = nn.ParameterDict()
        for name in targets:
            self.a[name] = nn.Parameter(torch.empty(config.rank, linear.in_features))
            self.b[name] = nn.Parameter(torch.zeros(size, config.rank))
            nn.init.kaiming_uniform_(self.a[name], a=math.sqrt(5))

    @property
    def in_features(self) -> int:
        return self.linear.in_features

    @property
    def out_features(self) -> int:
        return self.linear.out_features

    def forward(self, x_ND: Tensor) -> Tensor:
        out_NE: Tensor = self.linear(x_ND)
        read_ND = self.dropout(x_ND)
        pieces = list(out_NE.chunk(len(self.parts), -1))
        for number, name in enumerate(self.parts):
            if name in self.a:
                # R is the rank.
                a_DR = self.a[name].T.to(read_ND.dtype)
                b_RE = self.b[name].T.to(read_ND.dtype)
                thin_NR = read_ND @ a_DR
                added_NE = thin_NR @ b_RE * self.config.scale
                pieces[number] = pieces[number] + added_NE.to(out_NE.dtype)
        if len(pieces) == 1:
            return pieces[0]
        return torch.cat(pieces, -1)

    def merged(self) -> nn.Linear:
        """An ordinary layer that computes the same."""
        layer = nn.Linear(self.in_features, self.out_features, bias=self.linear.bias is not None)
        layer.load_state_dict(self.linear.state_dict())
        with torch.no_grad():
            for number, piece in enumerate(layer.weight.chunk(len(self.parts))):
                name = self.parts[number]
                if name in self.a:
                    product = self.b[name].float() @ self.a[name].float()
                    piece.add_(product, alpha=self.config.scale)
        return layer


def insert_lora(encoder: nn.Module, config: LoraConfig) -> None:
    """Puts new low-rank matrices beside the targets in all blocks; they are the only parameters that are not frozen."""
    for parameter in encoder.parameters():
        parameter.requires_grad_(False)
    found = []
    for path, linear in _target_layers(encoder):
        name = path.rpartition(".")[2]
        parts = QKV if name == "qkv" else (name,)
        targets = tuple(part for part in parts if part in config.targets)
        if targets:
            found.append(path)
            layer = LoraLinear(linear, config, parts=parts, targets=targets)
            _replace(encoder, path, layer)
    if not found:
        raise Unsupported(
            f"{type(encoder).__name__} has no matrices that LoRA can learn beside; use transfer.mode=full or features."
        )


def merge_lora(encoder: nn.Module) -> None:
    """Replaces every layer with low-rank matrices by an ordinary one; all parameters may learn again."""
    for path, layer in list(encoder.named_modules()):
        if isinstance(layer, LoraLinear):
            _replace(encoder, path, layer.merged())
    for parameter in encoder.parameters():
        parameter.requires_grad_(True)


def lora_parameters(encoder: nn.Module) -> dict[str, Tensor]:
    """The low-rank matrices by name: `blocks.0.attention.qkv.a.query`, and `b` for the second one."""
    found: dict[str, Tensor] = {}
    for path, layer in encoder.named_modules():
        if isinstance(layer, LoraLinear):
            for kind, matrices in (("a", layer.a), ("b", layer.b)):
                for part, matrix in matrices.items():
                    found[f"{path}.{kind}.{part}"] = matrix
    return found


def _target_layers(encoder: nn.Module) -> list[tuple[str, nn.Linear]]:
    # The first of the targets are together in one matrix.
    names = {"qkv", *TARGETS[len(QKV) :]}
    found = []
    for path, layer in encoder.named_modules():
        _, _, name = path.rpartition(".")
        in_block = ".attention." in path or ".ffn." in path
        if isinstance(layer, nn.Linear) and in_block and name in names:
            found.append((path, layer))
    return found


def _replace(encoder: nn.Module, path: str, layer: nn.Module) -> None:
    parent, _, name = path.rpartition(".")
    setattr(encoder.get_submodule(parent), name, layer)
