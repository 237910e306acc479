"""Continuous bag of words (Mikolov et al. 2013): the mean of the words around it predicts a word.

Maximised for every word w with the mean m of its neighbours' vectors: log s(m . u_w) + sum over negatives n of
log s(-m . u_n), or the path to w as in `skip_gram`. As in the released program, every neighbour takes the whole step of
the mean: the gradient with respect to the sum of the neighbours, at the mean.
"""

from dataclasses import dataclass

from firth.objectives.skip_gram import SkipGram


class CBOW(SkipGram):
    kernel = "cbow"

    @dataclass(frozen=True)
    class Config(SkipGram.Config):
        rate: float = 0.1
        """Learning rate of the first word; the released program has 0.05, but one pass learns more with twice that."""
