"""An encoder whose last states something faster computes. In: a batch. Out: states, as the original encoder gives them.

Subclasses say how: in another precision, or by onnxruntime.
"""

from firth.tensors import Batch, Encoder, States


class FastEncoder(Encoder):
    """States of inner layers, and attention, stay the original's."""

    def __init__(self, original: Encoder) -> None:
        super().__init__()
        self.original = original
        self.config = original.config
        self.width = original.width
        self.vocab_size = original.vocab_size
        self.max_positions = original.max_positions
        self.num_layers = original.num_layers

    @property
    def table_width(self) -> int:
        return self.original.table_width

    def forward(self, batch: Batch, *, layers: bool = False, attention: bool = False) -> States:
        if layers or attention:
            exact: States = self.original(batch, layers=layers, attention=attention)
            return exact
        return self.fast_states(batch)

    def fast_states(self, batch: Batch) -> States:
        """The states of the last layer, and the pooled ones where there are some."""
        raise NotImplementedError
