"""The recipes of recurrent language models, which brought context. Part of the lineage.

Both read sequences token after token, so nothing is compiled. Both train in single precision, because a cell sums small
numbers over a whole sequence.
"""

from collections.abc import Mapping
from typing import TypeVar

from firth.data.settings import BatchConfig
from firth.encoders.awd_lstm import AwdLstm
from firth.encoders.elmo import Elmo
from firth.errors import BadConfig
from firth.lineage import Recipe
from firth.objectives.causal_lm import CausalLM
from firth.tokenizers.characters import Characters
from firth.train.settings import OptimConfig, TrainConfig

# Characters seen, and number of filters.
FEW_FILTERS = ((1, 32), (2, 32), (3, 64), (4, 128), (5, 256))
SHAPES = {
    "tiny": Elmo.Config(width=128, cell_width=256, num_highways=1, filters=FEW_FILTERS),
    "mini": Elmo.Config(width=256, cell_width=512, num_highways=1, filters=FEW_FILTERS),
    "small": Elmo.Config(width=256, cell_width=1024, num_highways=1),
    "medium": Elmo.Config(width=512, cell_width=2048, num_highways=1),
    "base": Elmo.Config(),
    "large": Elmo.Config(width=2048, cell_width=8192),
}
"""Configs of ELMo: small, medium and base are the published ones of 13.6, 28.0 and 93.6 million parameters."""
AWD_SHAPES = {
    "tiny": (2, 128, 256),
    "mini": (3, 200, 512),
    "small": (3, 256, 768),
    "medium": (3, 320, 960),
    "base": (3, 400, 1150),
    "large": (4, 400, 1550),
}
"""Layers, width and cell width of AWD-LSTM: base is the papers', large is MultiFiT's (Eisenschlos et al. 2019)."""

Shape = TypeVar("Shape")


def _shape(shapes: Mapping[str, Shape], recipe: str, size: str) -> Shape:
    """The shape of this size; refuses sizes that the recipe does not have."""
    if size not in shapes:
        raise BadConfig(f"{recipe} has no size '{size}' (known: {', '.join(shapes)}).")
    return shapes[size]


def elmo(size: str) -> Recipe:
    """ELMo (Peters et al. 2018): LSTM language models in both directions over words that are read by their characters.

    The paper: 10 passes over the 1 Billion Word Benchmark, 2 layers of 4096 cells projected to 512, 2048 filters, a
    sampled softmax over 793,471 words, Adagrad at 0.2, dropout 0.1, perplexity 39.7 (mean of both ways). Here: AdamW
    and a full softmax over the 30,000 most frequent words; rarer words are predicted as unknown.
    """
    rate = {"tiny": 4e-3, "mini": 3e-3, "small": 2e-3, "medium": 1e-3}.get(size, 5e-4)
    goal = CausalLM.Config(directions="both", tied=False, bias=True, num_words=30_000)
    return Recipe(
        "elmo",
        size,
        {"elmo": _shape(SHAPES, "elmo", size)},
        {"causal_lm": goal},
        BatchConfig(max_length=64, tokens=4096),
        TrainConfig(precision="fp32", compile="no", optim=OptimConfig(rate=rate, warmup_rate=0.05)),
        tokenizer={"characters": Characters.Config()},
    )


def ulmfit(size: str) -> Recipe:
    """ULMFiT's language model (Howard & Ruder 2018): an AWD-LSTM with dropout everywhere and a tied softmax.

    Its two other stages are `firth finetune MODEL --recipe ulmfit`.

    The paper: WikiText-103, 3 layers of 1150 (400 at both ends), batches of 64 x 70 tokens with states carried on, Adam
    with beta1 0.7 and beta2 0.99. Its dropouts are for fine-tuning; 103M words need a quarter of them, so does this.
    """
    num_layers, width, cell_width = _shape(AWD_SHAPES, "ulmfit", size)
    rate = {"tiny": 1e-2, "mini": 6e-3, "small": 4e-3}.get(size, 2e-3)
    shape = AwdLstm.Config(
        width=width,
        cell_width=cell_width,
        num_layers=num_layers,
        dropout=0.1,
        input_dropout=0.1,
        hidden_dropout=0.075,
        embedding_dropout=0.0125,
        weight_dropout=0.125,
    )
    optim = OptimConfig(rate=rate, warmup_rate=0.05, beta2=0.99)
    return Recipe(
        "ulmfit",
        size,
        {"awd_lstm": shape},
        {"causal_lm": CausalLM.Config(bias=True)},
        BatchConfig(max_length=70, tokens=4480),
        TrainConfig(precision="fp32", compile="no", optim=optim),
    )
