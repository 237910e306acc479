"""Models with Transformer blocks whose structure changes: which layers, heads, rows and ranks they have.

In: a checkpoint. Out: one with another encoder and the same heads. A model whose blocks differ in size is saved in
firth's own layout, any other in the layout of the original.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from torch import Tensor

from firth.checkpoint import Checkpoint
from firth.errors import Unsupported
from firth.nn.blocks import Block, FeedForward
from firth.nn.transformer import BlockSizes, TransformerConfig
from firth.tensors import Encoder

BLOCKS = "blocks."


def block_encoder(checkpoint: Checkpoint) -> Encoder:
    """The encoder, if it is made of Transformer blocks with nothing added; raises otherwise."""
    encoder = checkpoint.encoder
    if not isinstance(encoder.config, TransformerConfig) or not encoder.num_layers:
        raise Unsupported(f"{type(encoder).__name__} has no Transformer blocks, which this method changes.")
    refuse_additions(checkpoint)
    return encoder


def refuse_additions(checkpoint: Checkpoint) -> None:
    """Raises for a model whose encoder has more parts than its config says."""
    if checkpoint.adapter_width or checkpoint.prefix_length or checkpoint.feature_encoder is not None:
        raise Unsupported("The model has adapters or frozen features, which this method does not know.")


def blocks_of(encoder: Encoder) -> list[Block]:
    """The blocks with weights of their own; ALBERT has one."""
    return [module for module in encoder.modules() if isinstance(module, Block)]


def feed_forward_of(block: Block) -> FeedForward:
    """The feed-forward layer; raises if it is of another kind."""
    if not isinstance(block.ffn, FeedForward):
        raise Unsupported(
            f"A {type(block.ffn).__name__} is a kind of feed-forward layer that this method does not know."
        )
    return block.ffn


def block_sizes(encoder: Encoder) -> list[BlockSizes]:
    """The sizes of each block."""
    return [encoder.config.sizes_of_block(number) for number in range(len(blocks_of(encoder)))]


def output_rows(state: Mapping[str, Tensor], layer: str) -> list[str]:
    """The names of the tensors of a linear layer, of full or low rank, that have a row for each output."""
    last = f"{layer}.second" if f"{layer}.second.weight" in state else layer
    return [f"{last}.weight", f"{last}.bias"]


def input_columns(state: Mapping[str, Tensor], layer: str) -> str:
    """The name of its tensor that has a column for each input."""
    first = f"{layer}.first" if f"{layer}.first.weight" in state else layer
    return f"{first}.weight"


def input_layer(encoder: Encoder, number: int, layer: str) -> str:
    """The name of the `nn.Linear` that reads a layer's input: the layer itself, or its first part."""
    weight = input_columns(encoder.state_dict(), f"{BLOCKS}{number}.{layer}")
    return weight.removesuffix(".weight")


def with_layers(checkpoint: Checkpoint, layers: Sequence[int]) -> Checkpoint:
    """The model with only these layers, in this order, counted from 0."""
    encoder = block_encoder(checkpoint)
    config = replace(encoder.config, num_layers=len(layers), block_sizes=())
    if encoder.config.shares_block:
        config = replace(config, block_sizes=encoder.config.block_sizes)
        return with_encoder(checkpoint, config, encoder.state_dict())
    if encoder.config.block_sizes:
        config = replace(config, block_sizes=tuple(encoder.config.block_sizes[layer] for layer in layers))
    state = {name: tensor for name, tensor in encoder.state_dict().items() if not name.startswith(BLOCKS)}
    for new, old in enumerate(layers):
        for name, tensor in encoder.blocks[old].state_dict().items():  # type: ignore[index,union-attr]
            state[f"{BLOCKS}{new}.{name}"] = tensor
    return with_encoder(checkpoint, config, state)


def with_sizes(checkpoint: Checkpoint, sizes: Sequence[BlockSizes], state: Mapping[str, Tensor]) -> Checkpoint:
    """The model with blocks of these sizes. If all are alike and of full rank, its layout can say so."""
    encoder = block_encoder(checkpoint)
    first = sizes[0]
    config = replace(encoder.config, block_sizes=tuple(sizes))
    plain = BlockSizes(encoder.config.num_heads, first.ffn_width)
    if all(size == plain for size in sizes):
        config = replace(encoder.config, block_sizes=(), ffn_width=first.ffn_width)
    return with_encoder(checkpoint, config, state)


def with_encoder(checkpoint: Checkpoint, config: TransformerConfig, state: Mapping[str, Tensor]) -> Checkpoint:
    """The model with an encoder of the same class, with this config and these weights. Its heads are the same."""
    encoder: Encoder = type(checkpoint.encoder)(config)  # type: ignore[call-arg]
    encoder.load_state_dict(state)
    return replace(checkpoint, encoder=encoder.eval())
