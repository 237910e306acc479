"""UniLM and XLNet, which learn from both sides and to write one token after the other. Part of the lineage."""

from dataclasses import replace

from firth.data.settings import BatchConfig
from firth.encoders.xlnet import XLNet
from firth.lineage import LARGE_RATE, RATES, SIZES, Recipe
from firth.lineage.masked import bert
from firth.objectives.permutation_lm import PermutationLM
from firth.objectives.unilm import UniLM
from firth.train.settings import OptimConfig, TrainConfig


def unilm(size: str) -> Recipe:
    """UniLM (Dong et al. 2019): BERT whose sequences are read both ways, left to right, or from source to target.

    The paper: a third of the sequences both ways, a third from source to target, a sixth each from left to right and
    from right to left; 80 % single tokens masked, 20 % runs of two or three; BERT-large's weights, rate 3e-5, 770,000
    steps of 330 x 512 tokens. Here a third each, and no reading from right to left; random weights, BERT's rates. The
    folder is a BERT's, which `firth finetune --task rewrite` can make write.
    """
    before = bert(size)
    # No objective trains a pooler.
    shape = replace(before.encoder["bert"], pooler=False)
    return replace(before, recipe="unilm", encoder={"bert": shape}, objectives={"unilm": UniLM.Config()})


def xlnet(size: str) -> Recipe:
    """XLNet (Yang et al. 2019): tokens predicted in random order, with two streams, relative positions and memory.

    The paper: 24 x 1,024, 500,000 steps of 8,192 x 512 tokens, rate 4e-4 with linear decay, SentencePiece of 32,000,
    K = 6, spans of 1 to 5 words, mem_len 384. Here n-grams of 1 to 3 words; half of the sequences in two segments read
    the first as memory (`objectives.permutation_lm.memory_rate`), so that nothing is kept between steps.
    """
    num_layers, width, num_heads = SIZES[size]
    rate = RATES.get(size, LARGE_RATE)
    shape = XLNet.Config(width=width, num_layers=num_layers, num_heads=num_heads, ffn_width=4 * width)
    return Recipe(
        "xlnet",
        size,
        {"xlnet": shape},
        {"permutation_lm": PermutationLM.Config()},
        BatchConfig(max_length=128, tokens=8192),
        TrainConfig(optim=OptimConfig(rate=rate, warmup_rate=0.05)),
    )
