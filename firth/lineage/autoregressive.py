"""The recipes that read from left to right and predict what comes next. Part of the lineage."""

from dataclasses import replace

from firth.data.settings import BatchConfig
from firth.encoders.gpt import GPT
from firth.lineage import SIZES, Recipe
from firth.objectives.causal_lm import CausalLM
from firth.train.settings import OptimConfig, TrainConfig


def gpt(size: str) -> Recipe:
    """GPT (Radford et al. 2018): a causal Transformer that predicts every next token.

    The paper: 12 x 768, 117M parameters, BPE of 40k, batches of 64 x 512 tokens, rate 2.5e-4 with 2,000 steps of
    warm-up and a cosine, weight decay 0.01, dropout 0.1 (here without attention dropout). Smaller models allow higher
    rates.
    """
    num_layers, width, num_heads = SIZES[size]
    rate = {"tiny": 2e-3, "mini": 1e-3, "small": 7e-4, "medium": 5e-4}.get(size, 2.5e-4)
    shape = GPT.Config(
        width=width,
        num_layers=num_layers,
        num_heads=num_heads,
        ffn_width=4 * width,
        max_positions=512,
        norm="post",
    )
    return Recipe(
        "gpt",
        size,
        {"gpt": shape},
        {"causal_lm": CausalLM.Config()},
        BatchConfig(max_length=128, tokens=8192),
        TrainConfig(optim=OptimConfig(rate=rate, schedule="cosine", warmup_rate=0.05)),
    )


def gpt_2(size: str) -> Recipe:
    """GPT-2 (Radford et al. 2019): GPT with norms before the sublayers, one more at the end, and longer sequences.

    The paper: byte-level BPE of 50,257 (`firth prepare --tokenizer bpe`), 1,024 tokens, batches of 512; base is its
    124M model, large its 355M one.
    """
    before = gpt(size)
    shape = replace(before.encoder["gpt"], norm="pre", max_positions=1024)
    return replace(before, recipe="gpt-2", encoder={"gpt": shape})
