"""Models with a decoder that restores a corrupted text. Part of the lineage.

Both halves of an encoder-decoder have the number of layers that the size names; it is fine-tuned to write. TSDAE's
decoder is small and is thrown away.
"""

from dataclasses import replace

from firth.data.settings import BatchConfig
from firth.encoders.bart import Bart
from firth.encoders.t5 import T5
from firth.encoders.transformer import Transformer
from firth.lineage import SIZES, Recipe, initial_std
from firth.lineage.masked import bert
from firth.objectives.denoising import Denoising
from firth.objectives.mass import Mass
from firth.objectives.span_corruption import SpanCorruption
from firth.objectives.tsdae import Tsdae
from firth.train.settings import OptimConfig, TrainConfig

TSDAE_RATE = 3e-5
"""Of the encoder, as in TSDAE's paper."""


def transformer(size: str) -> Recipe:
    """The original Transformer (Vaswani et al. 2017), pre-trained as a denoiser of text.

    The paper: 6 layers in each half, 512 wide, 8 heads (big: 1,024 wide, 16 heads), sinusoidal positions, dropout 0.1,
    label smoothing 0.1, batches of 25,000 source and as many target tokens; trained on pairs of texts alone, without
    pre-training (`firth finetune --task rewrite`). The objective here is BART's.
    """
    num_layers, width, num_heads = SIZES[size]
    rates = {"tiny": 2e-3, "mini": 1e-3, "small": 7e-4, "medium": 5e-4, "8x384": 4e-4, "12x256": 5e-4, "12x384": 3e-4}
    shape = Transformer.Config(width=width, num_layers=num_layers, num_heads=num_heads, ffn_width=4 * width)
    return Recipe(
        "transformer",
        size,
        {"transformer": shape},
        {"denoising": Denoising.Config(smoothing=0.1)},
        BatchConfig(max_length=128, tokens=16_384),
        TrainConfig(optim=OptimConfig(rate=rates.get(size, 1e-4), warmup_rate=0.05, beta2=0.98)),
    )


def mass(size: str) -> Recipe:
    """MASS (Song et al. 2019): a Transformer whose decoder writes a fragment that the encoder does not see.

    The paper: 6 layers in each half, 1,024 wide, fragments of half of a sentence, rate 1e-4 with Adam.
    """
    return replace(transformer(size), recipe="mass", objectives={"mass": Mass.Config()})


def t5(size: str) -> Recipe:
    """T5 (Raffel et al. 2020), version 1.0: relative positions, no biases, spans behind sentinels.

    The paper: 15 % of the tokens in spans of 3 on average, batches of 128 x 512 tokens, 2^19 steps, Adafactor at rate
    0.01 that falls with the square root of the step (here AdamW, linear), dropout 0.1; base has 220M parameters. The
    vocabulary gets 100 sentinels behind its tokens.
    """
    num_layers, width, num_heads = SIZES[size]
    before = transformer(size)
    shape = T5.Config(width=width, num_layers=num_layers, num_heads=num_heads, ffn_width=4 * width)
    goals = {"span_corruption": SpanCorruption.Config()}
    optim = replace(before.train.optim, rate=max(before.train.optim.rate, 1e-3), weight_decay=0.0)
    return replace(
        before, recipe="t5", encoder={"t5": shape}, objectives=goals, train=replace(before.train, optim=optim)
    )


def t5_v1_1(size: str) -> Recipe:
    """T5 version 1.1 (Roberts et al. 2020): gated GELU layers, an output layer of its own, no dropout in pre-training.

    A gated layer has three matrices in place of two, so it is two thirds as wide.
    """
    before = t5(size)
    width = before.encoder["t5"].width
    ffn_width = round(8 * width / 3 / 64) * 64
    shape = replace(
        before.encoder["t5"],
        ffn_width=ffn_width,
        activation="gelu_new",
        gated=True,
        tied_output=False,
        scale_output=False,
        dropout=0.0,
    )
    return replace(before, recipe="t5-v1.1", encoder={"t5": shape}, finetune_dropout=0.1)


def bart(size: str) -> Recipe:
    """BART (Lewis et al. 2020): BERT's blocks in both halves; the decoder writes the whole text.

    The paper: base has 6 and large 12 layers in each half, batches of 8,000 sequences, 500,000 steps, byte-level BPE
    (`firth prepare --tokenizer bpe`); 30 % of each document in spans of Poisson lengths (3 on average), each replaced
    by one mask, and all sentences shuffled. With the initial weights heads look at neighbours and at the same token of
    the source (`nn/neighbours.py`); the paper's are `encoder.bart.init=normal` and `encoder.bart.init_std=0.02`.
    """
    num_layers, width, num_heads = SIZES[size]
    before = transformer(size)
    shape = Bart.Config(
        width=width,
        num_layers=num_layers,
        num_heads=num_heads,
        ffn_width=4 * width,
        init_std=initial_std(width),
        init="neighbours",
    )
    # Half of the Transformer's rate: with larger initial weights, 2e-3 learns less than 1e-3 at the size tiny.
    optim = replace(before.train.optim, rate=before.train.optim.rate / 2)
    return replace(
        before,
        recipe="bart",
        encoder={"bart": shape},
        objectives={"denoising": Denoising.Config()},
        train=replace(before.train, optim=optim),
    )


def tsdae(size: str) -> Recipe:
    """TSDAE (Wang et al. 2021): the mean of the states of a few words is enough to write their sentence.

    The paper: 100,000 steps of 8 sentences, rate 3e-5 for everything, a decoder as deep as the encoder that has its
    weights. Here the decoder is one block, which begins as the encoder's last one. It learns first, at a high rate: an
    encoder that learned beside it at 3e-4 gave all texts one vector after 20 steps. The encoder has the paper's rate.
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
                encoder_share=TSDAE_RATE / rate,
                heads_first=0.7,
                schedule="trapezoid",
                warmup_rate=0.05,
                decay_rate=0.3,
            ),
        ),
        continues=True,
    )
