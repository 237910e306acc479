"""BERT and the recipes that followed it, which restore masked or replaced tokens. Part of the lineage."""

from dataclasses import replace
from typing import Any

from firth.data.settings import BatchConfig
from firth.encoders.albert import Albert
from firth.encoders.bert import Bert
from firth.encoders.modernbert import ModernBert
from firth.lineage import LARGE_RATE, RATES, SIZES, Recipe, initial_std
from firth.objectives.entity_replacement import EntityReplacement
from firth.objectives.infoword import InfoWord
from firth.objectives.mask_units import Unit
from firth.objectives.masked_lm import MaskedLM
from firth.objectives.next_sentence import NextSentence
from firth.objectives.replaced_token import Generator, ReplacedToken
from firth.objectives.sentence_order import SentenceOrder
from firth.objectives.span_boundary import SpanBoundary
from firth.train.settings import OptimConfig, TrainConfig

PAIR_RATE = 0.9
"""Share of sequences with two segments in recipes without an objective over pairs (as in ELECTRA's program)."""

MODERNBERT_SIZES = {"base": (22, 1152), "large": (28, 2624)}
"""Layers and feed-forward width, as published."""


def bert(size: str) -> Recipe:
    """BERT (Devlin et al. 2018): masked LM and next sentence over pairs that fill the sequence.

    The paper: batches of 256 x 512 tokens (we: 16k tokens of length 128), rate 1e-4 with 1 % warm-up and linear decay,
    weight decay 0.01, dropout 0.1 (here without attention dropout). Smaller models allow higher rates. With the initial
    weights some heads look at neighbours (`nn/neighbours.py`), and in narrow models they are larger; the paper's are
    `encoder.bert.init=normal` and `encoder.bert.init_std=0.02`.
    """
    num_layers, width, num_heads = SIZES[size]
    rate = RATES.get(size, LARGE_RATE)
    shape = Bert.Config(
        width=width,
        num_layers=num_layers,
        num_heads=num_heads,
        ffn_width=4 * width,
        init="neighbours",
        init_std=initial_std(width),
    )
    return Recipe(
        "bert",
        size,
        {"bert": shape},
        {"next_sentence": NextSentence.Config(), "masked_lm": MaskedLM.Config()},
        BatchConfig(max_length=128, tokens=8192),
        TrainConfig(optim=OptimConfig(rate=rate, warmup_rate=0.05)),
    )


def ernie(size: str) -> Recipe:
    """ERNIE (Sun et al. 2019): BERT that masks whole phrases and names.

    They come from a list, `objectives.masked_lm.entities=FILE`, or from a tagger's `firth predict --json`; all other
    text is masked by words. The paper masks tokens, then phrases, then entities in three stages; here all are units.
    """
    return _masking(bert(size), "ernie", unit="entity")


def bert_wwm(size: str) -> Recipe:
    """BERT with whole-word masking (the released models of 2019; Cui et al. 2019 for Chinese): all of a word or none.

    The paper: Chinese words by a segmenter, 12 x 768, rate 1e-4, batches of 2,560 x 128 and then 384 x 512 tokens.
    """
    return _masking(bert(size), "bert-wwm", unit="word")


def infoword(size: str) -> Recipe:
    """InfoWord (Kong et al. 2020): RoBERTa whose texts also find the n-gram that was taken out of them.

    The paper: BERT's sizes, masked LM with 15 % and the contrast of texts and n-grams, added with a weight up to 1.
    """
    before = roberta(size)
    goals = {"infoword": InfoWord.Config(), "masked_lm": MaskedLM.Config()}
    return replace(before, recipe="infoword", objectives=goals)


def wklm(size: str) -> Recipe:
    """WKLM (Xiong et al. 2020): RoBERTa that distinguishes names of the text from others put in their place.

    The paper: names of Wikipedia with types of Wikidata, masked LM at 5 %, outside of names. Here names come from a
    list or a tagger, `objectives.entity_replacement.entities=FILE`, and otherwise are frequent phrases of the text.
    """
    before = roberta(size)
    goals = {"entity_replacement": EntityReplacement.Config(), "masked_lm": MaskedLM.Config(rate=0.05)}
    return replace(before, recipe="wklm", objectives=goals)


def spanbert(size: str) -> Recipe:
    """SpanBERT (Joshi et al. 2019): BERT without pairs that masks spans and predicts them from their borders as well.

    The paper: spans of whole words, geometric with p = 0.2 and at most 10 long (3.8 on average), 15 % of the tokens;
    rate 1e-4, batches of 256 x 512 tokens, 2.4 million steps, places in a span 200 wide. The paper trains on single
    segments; here most sequences have two, because pair tasks would find an untrained segment otherwise.
    """
    before = bert(size)
    masking = MaskedLM.Config(unit="span", pair_rate=PAIR_RATE)
    goals = {"masked_lm": masking, "span_boundary": SpanBoundary.Config()}
    return replace(before, recipe="spanbert", encoder=_changed(before, pooler=False), objectives=goals)


def roberta(size: str) -> Recipe:
    """RoBERTa (Liu et al. 2019): BERT without sentence pairs, fresh masks, nothing but masked LM.

    The paper: batches of 8,192 x 512 tokens, rate 6e-4 (large 4e-4), 6 % warm-up, beta2 0.98, byte-level BPE of 50k
    (`firth prepare --tokenizer bpe`). Sequences end with their document, which the paper found no worse.
    """
    before = bert(size)
    return replace(
        before,
        recipe="roberta",
        encoder=_changed(before, pooler=False, num_segments=1),
        objectives={"masked_lm": MaskedLM.Config()},
        train=replace(before.train, optim=replace(before.train.optim, beta2=0.98)),
        layout="roberta",
    )


def albert(size: str) -> Recipe:
    """ALBERT (Lan et al. 2019): BERT with one block for all layers, a narrow embedding, and the order of sentences.

    The paper: embedding 128 wide, base 12M and large 18M parameters over 30,000 tokens, n-grams of 1 to 3 words masked
    with probability in proportion to 1/n, no dropout in the second version, LAMB at rate 1.76e-3 with batches of 4,096
    (here AdamW and BERT's rates).
    """
    before = bert(size)
    num_layers, width, num_heads = SIZES[size]
    shape = Albert.Config(width=width, num_layers=num_layers, num_heads=num_heads, ffn_width=4 * width)
    goals = {"sentence_order": SentenceOrder.Config(), "masked_lm": MaskedLM.Config(unit="ngram")}
    return replace(before, recipe="albert", encoder={"albert": shape}, objectives=goals, layout="albert")


def distilbert(size: str) -> Recipe:
    """DistilBERT (Sanh et al. 2019) as an architecture: half of BERT's layers, no segments, no pooler.

    The paper: 6 x 768, 66M parameters, batches of 4k sequences, dynamic masks, no next sentence; trained there with a
    teacher, here on text alone.
    """
    before = bert(size)
    shape = _changed(before, num_layers=SIZES[size][0] // 2, num_segments=0, pooler=False)
    goals = {"masked_lm": MaskedLM.Config()}
    return replace(before, recipe="distilbert", encoder=shape, objectives=goals, layout="distilbert")


def electra(size: str) -> Recipe:
    """ELECTRA (Clark et al. 2020): BERT that detects replaced tokens instead of predicting masked ones.

    The paper: generators of 1/4 (small, large) or 1/3 (base) of the width and as deep, lambda 50, 15 % masked (large
    25 %), small: embedding 128 wide, rate 5e-4, batches of 128; base: rate 2e-4, batches of 256. Its authors' program
    leaves 15 % of the chosen tokens as they are and cuts nine of ten sequences into two segments; so does this. Up to
    12x384 the generator is as wide as the encoder and a third as deep: narrow ones stay near the unigram floor in
    short runs.
    """
    before = bert(size)
    num_layers, width, num_heads = SIZES[size]
    if width <= 512:
        generator = Generator(width=width, num_layers=max(1, num_layers // 3), num_heads=num_heads, ffn_width=4 * width)
    else:
        narrow = width // 3 if size == "base" else width // 4
        generator = Generator(width=narrow, num_layers=num_layers, num_heads=narrow // 64, ffn_width=4 * narrow)
    mask_rate = 0.25 if size == "large" else 0.15
    masking = MaskedLM.Config(mask_share=0.85, random_share=0.0, rate=mask_rate, pair_rate=PAIR_RATE)
    embedding_width = 128 if 128 < width < 768 else 0
    optim = replace(before.train.optim, rate=min(before.train.optim.rate, 1e-3), beta2=0.98)
    return replace(
        before,
        recipe="electra",
        encoder=_changed(before, pooler=False, embedding_width=embedding_width),
        objectives={"replaced_token": ReplacedToken.Config(generator=generator, masking=masking)},
        train=replace(before.train, optim=optim),
        layout="electra",
    )


def modernbert(size: str) -> Recipe:
    """ModernBERT (Warner et al. 2024): RoBERTa with rotary positions, gated feed-forward layers and local attention.

    The paper: 22 x 768 and 28 x 1,024, byte-level BPE of 50k (`firth prepare --tokenizer bpe`), 30 % of the tokens
    masked, no dropout, a rate that stays high (8e-4 for base, 5e-4 for large) and falls at the end, sequences of 1,024
    and later of 8,192 tokens, 2 trillion tokens in all. Here sequences have 128 tokens, in the last tenth of the steps
    1,024. Sizes below base have BERT's depth and feed-forward layers with as many weights as BERT's.
    """
    before = roberta(size)
    num_layers, width, num_heads = SIZES[size]
    ffn_width = round(8 / 3 * width / 32) * 32
    if size in MODERNBERT_SIZES:
        num_layers, ffn_width = MODERNBERT_SIZES[size]
    rate = {"base": 8e-4, "large": 5e-4}.get(size, before.train.optim.rate)
    shape = ModernBert.Config(width=width, num_layers=num_layers, num_heads=num_heads, ffn_width=ffn_width)
    optim = replace(
        before.train.optim, rate=rate, schedule="trapezoid", warmup_rate=0.02, decay_rate=0.3, weight_decay=1e-5
    )
    return replace(
        before,
        recipe="modernbert",
        encoder={"modernbert": shape},
        objectives={"masked_lm": MaskedLM.Config(rate=0.3)},
        batches=BatchConfig(max_length=128, tokens=8192, last_length=1024),
        train=replace(before.train, optim=optim),
        layout="modernbert",
    )


def small(size: str) -> Recipe:
    """The recipe of the default models: ELECTRA for short runs on one GPU.

    Against `electra`: the encoder also predicts the original tokens, and reads half of the masks as `[MASK]`, so that
    it fills masks without its generator. Muon on the block matrices, with enough weight decay to keep them small,
    65,536 tokens a step, and a rate that stays high and falls at the end. Sequences of 128 tokens, in the last fifth of
    the steps of 512. No dropout, in fine-tuning neither: weights trained without it do not tolerate it.
    docs/speedrun.md says where the numbers come from.
    """
    before = electra(size)
    detection = before.objectives["replaced_token"]
    masking = replace(detection.masking, rate=0.3)
    correction = replace(detection, masking=masking, corrective_weight=5.0, kept_masks=0.5)
    optim = replace(
        before.train.optim,
        optimizer="muon",
        rate=1e-3,
        weight_decay=0.1,
        schedule="trapezoid",
        warmup_rate=0.02,
        decay_rate=0.3,
    )
    return replace(
        before,
        recipe="small",
        encoder=_changed(before, dropout=0.0),
        objectives={"replaced_token": correction},
        batches=BatchConfig(max_length=128, tokens=65_536, held_out_rate=0.005, last_length=512, last_share=0.2),
        train=replace(before.train, optim=optim),
    )


def _masking(before: Recipe, name: str, *, unit: Unit) -> Recipe:
    """A recipe that masks by another unit, under a new name."""
    masking = replace(before.objectives["masked_lm"], unit=unit)
    return replace(before, recipe=name, objectives={**before.objectives, "masked_lm": masking})


def _changed(before: Recipe, **changes: float) -> dict[str, Any]:
    """The encoder's config of a recipe with some fields changed."""
    return {name: replace(shape, **changes) for name, shape in before.encoder.items()}
