"""Bottleneck adapters (Houlsby et al. 2019): two small layers in each block's slots learn, the encoder stays fixed.

x + W_up act(W_down x), which starts near the identity because W_up starts near zero. Adapters fill the slots that
`nn.blocks.Block` provides, so no forward pass changes.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from firth.errors import Unsupported
from firth.nn.blocks import Block

INITIAL_STD = 1e-3
"""Standard deviation of the initial weights, which are cut off at twice this."""


class Adapter(nn.Module):
    def __init__(self, width: int, bottleneck: int) -> None:
        super().__init__()
        self.down = nn.Linear(width, bottleneck)
        self.up = nn.Linear(bottleneck, width)
        for layer in (self.down, self.up):
            nn.init.trunc_normal_(layer.weight, std=INITIAL_STD, a=-2 * INITIAL_STD, b=2 * INITIAL_STD)
            nn.init.zeros_(layer.bias)

    def forward(self, x_ND: Tensor) -> Tensor:
        hidden_NF = F.gelu(self.down(x_ND))
        return x_ND + torch.as_tensor(self.up(hidden_NF))


def insert_adapters(encoder: nn.Module, bottleneck: int) -> None:
    """Puts a new adapter into every slot of every block."""
    blocks = [part for part in encoder.modules() if isinstance(part, Block)]
    if not blocks:
        raise Unsupported(
            f"{type(encoder).__name__} has no blocks to put adapters in; use transfer.mode=full or features."
        )
    for block in blocks:
        width = block.attention.out.out_features
        for slot in block.slots:
            setattr(block, slot, Adapter(width, bottleneck))


def adapter_parameters(encoder: nn.Module) -> dict[str, Tensor]:
    """The parameters of all adapters, by name."""
    return {name: parameter for name, parameter in encoder.named_parameters() if "_slot." in name}
