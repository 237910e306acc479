"""BERTs of several languages with one vocabulary. Part of the lineage.

Their text is prepared with languages (`firth prepare en=FILE de=FILE`); without them they are trained as one language.
"""

from dataclasses import replace

from firth.lineage import Recipe
from firth.lineage.masked import bert, roberta
from firth.objectives.translation_lm import TranslationLM

ALPHA = 0.7
"""The exponent of smoothing between languages, of multilingual BERT and of XLM."""


def mbert(size: str) -> Recipe:
    """Multilingual BERT (the released model of 2018): BERT over several languages with one vocabulary.

    The release: 104 Wikipedias, languages drawn in proportion to their size to the power of 0.7, a vocabulary of
    110,000, no language embeddings. The two segments of a pair are always in one language here.
    """
    before = bert(size)
    return replace(before, recipe="mbert", batches=replace(before.batches, language_alpha=ALPHA))


def xlm(size: str) -> Recipe:
    """XLM (Conneau & Lample 2019): masked LM over several languages, and over texts with their translations.

    The paper: 12 x 1,024, BPE of 95,000 learned with alpha 0.5, languages drawn with alpha 0.7, streams of 256 tokens,
    masked and translation LM in turn, rate 1e-4. Language embeddings are the segment embeddings, so that the folder is
    a BERT's. Here pairs are drawn as a language of their own; prepare them with `en+de=FILE.en,FILE.de`.
    """
    before = roberta(size)
    batches = replace(before.batches, language_alpha=ALPHA, segments="languages")
    goals = {"translation_lm": TranslationLM.Config()}
    return replace(before, recipe="xlm", objectives=goals, batches=batches, layout="")


def xlm_roberta(size: str) -> Recipe:
    """XLM-RoBERTa (Conneau et al. 2020): RoBERTa over several languages, without language embeddings.

    The paper: 100 languages of CommonCrawl drawn with alpha 0.3, SentencePiece of 250,000 (`firth prepare --tokenizer
    unigram`), batches of 8,192 x 512 tokens.
    """
    before = roberta(size)
    batches = replace(before.batches, language_alpha=0.3)
    return replace(before, recipe="xlm-roberta", batches=batches, layout="xlm-roberta")
