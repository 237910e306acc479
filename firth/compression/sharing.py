"""All layers share one block, the mean of the trained ones: a BERT becomes an ALBERT (Lan et al. 2019).

In: a BERT. Out: an ALBERT whose embedding, pooler and heads are the BERT's. Means of trained layers are a poor model,
but a start: train it further.
"""

from dataclasses import dataclass, fields, replace

import torch

from firth.checkpoint import Checkpoint
from firth.compression.method import CompressionJob, Method, MethodConfig
from firth.compression.structure import block_encoder
from firth.encoders.albert import Albert
from firth.encoders.bert import Bert
from firth.errors import BadConfig, Unsupported


class ShareLayers(Method):
    """All layers of a BERT share one block, the mean of the trained ones (ALBERT); train it further."""

    name = "share"

    @dataclass(frozen=True)
    class Config(MethodConfig):
        num_layers: int = 0
        """How often the shared block is applied; 0 is as often as there were layers."""

        def __post_init__(self) -> None:
            if self.num_layers < 0:
                raise BadConfig(f"num_layers must be at least 0; it is {self.num_layers}.")

    config: Config

    @property
    def described(self) -> str:
        if not self.config.num_layers:
            return "one block for all layers"
        return f"one block, applied {self.config.num_layers} times"

    def compress(self, job: CompressionJob) -> Checkpoint:
        return shared(job.original, num_layers=self.config.num_layers)


def shared(checkpoint: Checkpoint, *, num_layers: int = 0) -> Checkpoint:
    """The model as an ALBERT; its one block is the mean of the blocks."""
    bert = block_encoder(checkpoint)
    if not isinstance(bert, Bert):
        raise Unsupported(f"Only the layers of a BERT can be shared; this model is of the kind {type(bert).__name__}.")
    if len(set(bert.config.block_sizes)) > 1:
        raise Unsupported("The blocks of this model have different sizes, so they have no mean.")
    albert = Albert(_albert_config(bert, num_layers))
    state = {}
    for name, tensor in bert.state_dict().items():
        if not name.startswith("blocks."):
            state[name.replace("embeddings.project.", "widen.")] = tensor
    if "widen.weight" not in state:
        # The embedding is as wide as the states.
        state["widen.weight"] = torch.eye(bert.width)
        state["widen.bias"] = torch.zeros(bert.width)
    for name in bert.blocks[0].state_dict():
        layers = [block.state_dict()[name] for block in bert.blocks]
        state[f"blocks.0.{name}"] = torch.stack(layers).mean(0)
    albert.load_state_dict(state)
    return replace(checkpoint, encoder=albert.eval(), layout="")


def _albert_config(bert: Bert, num_layers: int) -> Albert.Config:
    """The BERT's sizes; a `num_layers` of 0 keeps its number of layers."""
    albert_fields = {field.name for field in fields(Albert.Config)}
    bert_fields = {field.name for field in fields(bert.config)}
    common = albert_fields & bert_fields
    values = {name: getattr(bert.config, name) for name in common}
    values["embedding_width"] = bert.table_width
    values["num_layers"] = num_layers or bert.num_layers
    values["block_sizes"] = bert.config.block_sizes[:1]
    return Albert.Config(**values)
