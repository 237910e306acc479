"""Recipes that train a model further, so that its states become good vectors of texts. Part of the lineage."""

from firth.data.settings import BatchConfig
from firth.lineage import Recipe
from firth.lineage.masked import bert
from firth.objectives.tsdae import Tsdae
from firth.train.settings import OptimConfig, TrainConfig

ENCODER_RATE = 3e-5
"""The paper's rate."""


def tsdae(size: str) -> Recipe:
    """TSDAE (Wang et al. 2021): the mean of the states of a few words is enough to write their sentence.

    The paper: 100,000 steps of 8 sentences, rate 3e-5 for everything, a decoder as deep as the encoder that has its
    weights. Here the decoder is one new block. It learns first, at a high rate; an encoder that learned beside it
    would give all texts one vector within 20 steps. The rate of the encoder is the paper's.
    """
    rate = 2e-3
    return Recipe(
        "tsdae",
        size,
        bert(size).encoder,
        {"tsdae": Tsdae.Config()},
        BatchConfig(max_length=128, tokens=2048),
        TrainConfig(
            steps=400,
            optim=OptimConfig(
                rate=rate,
                encoder_share=ENCODER_RATE / rate,
                heads_first=0.7,
                schedule="trapezoid",
                warmup_rate=0.05,
                decay_rate=0.3,
            ),
        ),
        continues=True,
    )
