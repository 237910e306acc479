"""Lower learning rates for lower layers (Howard & Ruder 2018): a parameter's name in, its share of the rate out."""

import re


def rate_share(name: str, *, num_layers: int, decay: float) -> float:
    """The share of the learning rate that a parameter of a learner gets; the parameters of heads get all of it."""
    if not name.startswith("encoder."):
        return 1.0
    depth = depth_below_head(name.removeprefix("encoder."), num_layers)
    return float(decay**depth)


def depth_below_head(name: str, num_layers: int) -> int:
    """How many layers below the head an encoder's parameter is: 0 above the blocks, most for the embeddings.

    The halves of an encoder-decoder are side by side: each counts its own blocks.
    """
    name = re.sub(r"^(encoder|decoder)\.", "", name)
    # GPT-2 has a norm after its last block. An encoder-decoder may have an output layer, and one before it that narrows
    # states to the width of the embedding.
    is_above_blocks = name.startswith(("pooler.", "norm.", "narrow.", "output"))
    if is_above_blocks:
        return 0
    block = re.match(r"blocks\.(\d+)\.", name)
    if block is None:
        return num_layers + 1
    return num_layers - int(block[1])
