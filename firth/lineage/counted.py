"""The recipes that count words in documents, and the first network that learned word vectors. Part of the lineage."""

from firth.data.settings import BatchConfig
from firth.encoders.tables import OneHotConfig, StaticConfig, TopicsConfig
from firth.lineage import Recipe
from firth.lineage.word_vectors import words
from firth.objectives.lda import Lda
from firth.objectives.lsa import Lsa
from firth.objectives.nnlm import Nnlm
from firth.objectives.tf_idf import TfIdf
from firth.train.settings import OptimConfig, TrainConfig

WIDTHS = {"tiny": 50, "mini": 100, "small": 200}
_WIDEST = 300


def tf_idf(size: str) -> Recipe:
    """Documents as weighted counts of their words (Spärck Jones 1972); with idf=none a plain bag of words."""
    return Recipe("tf-idf", size, {"one_hot": OneHotConfig()}, {"tf_idf": TfIdf.Config()}, tokenizer=words())


def lsa(size: str) -> Recipe:
    """tf-idf reduced to few dimensions by the SVD (Deerwester et al. 1990)."""
    shape = StaticConfig(width=WIDTHS.get(size, _WIDEST))
    return Recipe("lsa", size, {"static": shape}, {"lsa": Lsa.Config()}, tokenizer=words())


def lda(size: str) -> Recipe:
    """Documents as mixtures of topics, topics as mixtures of words (Blei et al. 2003; Hoffman et al. 2010)."""
    shape = TopicsConfig(width=WIDTHS.get(size, _WIDEST))
    return Recipe("lda", size, {"topics": shape}, {"lda": Lda.Config()}, epochs=10, tokenizer=words())


def nnlm(size: str) -> Recipe:
    """The next word from the vectors of the words before it (Bengio et al. 2003).

    The paper: its best models have n = 5 or 6, vectors of 60 or 100 and a hidden layer of 50 to 100, and are trained by
    plain gradient descent (here AdamW).
    """
    shape = StaticConfig(width=WIDTHS.get(size, _WIDEST), init_std=0.1)
    return Recipe(
        "nnlm",
        size,
        {"static": shape},
        {"nnlm": Nnlm.Config()},
        BatchConfig(max_length=128, tokens=2048),
        TrainConfig(optim=OptimConfig(rate=2e-3, warmup_rate=0.05)),
        tokenizer=words(),
    )
