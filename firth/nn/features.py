"""A frozen encoder as a source of features (Devlin et al. 2018, table 7; Peters et al. 2018, equation 1).

In: a batch. Out: states combined from any layers of the encoder, which does not learn: their sum, their concatenation,
or gamma * sum_k softmax(w)_k h_k with learned w and gamma. Optionally vectors of names are fused with them
(`nn/knowledge.py`), and a bidirectional LSTM reads them.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from firth.errors import BadConfig
from firth.nn.knowledge import KnowledgeLayers, NameTable
from firth.nn.recurrent import bidirectional
from firth.tensors import Batch, Encoder, States


class Features(Encoder):
    @dataclass(frozen=True)
    class Config:
        layers: tuple[int, ...] = (-4, -3, -2, -1)
        """Which layers: 0 is the embeddings, 1 the first block, -1 the last."""
        combine: Literal["sum", "concat", "mix"] = "mix"
        """How several layers become one: summed, concatenated, or mixed with learned weights."""
        lstm_width: int = 0
        """Width of each direction of an LSTM over the features; 0 for none."""
        vectors: str = ""
        """A model of word vectors, such as word2vec makes, whose vectors are fused with the states; empty for none."""
        fusion_width: int = 64
        """Width of the layers that fuse states and word vectors."""
        names: tuple[int, int, int] = (0, 0, 0)
        """Words with vectors, width of these, tokens of the longest: found when the vectors are read."""

    def __init__(self, config: Config, encoder: Encoder) -> None:
        super().__init__()
        depth = encoder.num_layers
        wrong = [layer for layer in config.layers if not -depth - 1 <= layer <= depth]
        if wrong or not config.layers:
            raise BadConfig(f"transfer.features.layers must name layers from {-depth - 1} to {depth}.")
        self.features = config
        self.config = encoder.config
        self.encoder = encoder
        encoder.requires_grad_(False)

        width = encoder.width
        if config.combine == "concat":
            width = encoder.width * len(config.layers)
        self.weights_K: nn.Parameter | None = None
        self.gamma: nn.Parameter | None = None
        if config.combine == "mix":
            self.weights_K = nn.Parameter(torch.zeros(len(config.layers)))
            self.gamma = nn.Parameter(torch.ones(()))
        self.table: NameTable | None = None
        self.knowledge: KnowledgeLayers | None = None
        if config.names[0]:
            self._add_knowledge(config, encoder)
        self.lstm: nn.LSTM | None = None
        if config.lstm_width:
            self.lstm = nn.LSTM(width, config.lstm_width, bidirectional=True)

        self.width = 2 * config.lstm_width or width
        self.vocab_size = encoder.vocab_size
        self.max_positions = encoder.max_positions
        self.num_layers = encoder.num_layers
        # The LSTM reads in both directions.
        self.causal = encoder.causal and not config.lstm_width
        self.shows_attention = encoder.shows_attention
        self.cls_last = encoder.cls_last

    def _add_knowledge(self, config: Config, encoder: Encoder) -> None:
        if config.combine == "concat":
            raise BadConfig("transfer.features.vectors goes with combine=sum or combine=mix.")
        num_names, name_width, longest = config.names
        self.table = NameTable(num_names, name_width, longest=longest, vocab_size=encoder.vocab_size)
        self.knowledge = KnowledgeLayers(
            len(config.layers), encoder.width, name_width=name_width, fusion_width=config.fusion_width
        )

    def forward(self, batch: Batch, *, layers: bool = False, attention: bool = False) -> States:
        with torch.no_grad():
            states = self.encoder(batch, layers=True, attention=attention)
        chosen = [states.layers[layer] for layer in self.features.layers]
        x_ND = self._combine(chosen)
        if self.knowledge is not None and self.table is not None:
            x_ND = x_ND + self.knowledge(chosen, self.table(batch))
        if self.lstm is not None:
            x_ND = bidirectional(self.lstm, x_ND, batch.bounds_B1)
        return States(x_ND, states.table_VD, layers=states.layers, attention=states.attention)

    def train(self, mode: bool = True) -> "Features":
        """Sets the mode of the trained parts; the frozen encoder always stays without dropout."""
        super().train(mode)
        self.encoder.eval()
        return self

    def own_parameters(self) -> dict[str, Tensor]:
        """The parameters without those of the frozen encoder, by name."""
        return {name: parameter for name, parameter in self.named_parameters() if not name.startswith("encoder.")}

    def _combine(self, layers: list[Tensor]) -> Tensor:
        """One state for each token from its states in several layers."""
        if self.features.combine == "concat":
            return torch.cat(layers, 1)
        stacked_KND = torch.stack(layers)
        if self.weights_K is None or self.gamma is None:
            return stacked_KND.sum(0)
        shares_K = self.weights_K.softmax(0).to(stacked_KND.dtype)
        return self.gamma * torch.einsum("k,knd->nd", shares_K, stacked_KND)
