"""The recipes of word vectors without context, which are solved without gradients. Part of the lineage.

Here a size is a width: 100, 200 or 300.
"""

from firth.encoders.tables import BagConfig, StaticConfig
from firth.lineage import Recipe
from firth.objectives.cbow import CBOW
from firth.objectives.glove import Glove
from firth.objectives.skip_gram import SkipGram
from firth.objectives.subwords import SubwordSkipGram
from firth.tokenizers import subwords
from firth.tokenizers.word_list import Words

WIDTHS = {"tiny": 100, "mini": 200}
_WIDEST = 300


def word2vec_sg_ns(size: str) -> Recipe:
    """Skip-gram with negative sampling (Mikolov et al. 2013b)."""
    return _vectors("word2vec-sg-ns", size, {"skip_gram": SkipGram.Config()})


def word2vec_sg_hs(size: str) -> Recipe:
    """Skip-gram over a Huffman tree (Mikolov et al. 2013a)."""
    return _vectors("word2vec-sg-hs", size, {"skip_gram": SkipGram.Config(num_negatives=0)})


def word2vec_cbow_ns(size: str) -> Recipe:
    """CBOW with negative sampling: the mean of the neighbours predicts the word (Mikolov et al. 2013b)."""
    return _vectors("word2vec-cbow-ns", size, {"cbow": CBOW.Config()})


def word2vec_cbow_hs(size: str) -> Recipe:
    """CBOW over a Huffman tree; here the released program's rate learns more than twice that rate."""
    return _vectors("word2vec-cbow-hs", size, {"cbow": CBOW.Config(num_negatives=0, rate=0.05)})


def fasttext(size: str) -> Recipe:
    """Skip-gram whose words are the mean of their character n-grams (Bojanowski et al. 2017)."""
    shape = BagConfig(width=WIDTHS.get(size, _WIDEST))
    tokenizer = {"subwords": subwords.Subwords.Config()}
    return Recipe(
        "fasttext", size, {"bag": shape}, {"subwords": SubwordSkipGram.Config()}, epochs=5, tokenizer=tokenizer
    )


def glove(size: str) -> Recipe:
    """Vectors from co-occurrence counts (Pennington et al. 2014): 50 passes, 100 from a width of 300 on."""
    return _vectors("glove", size, {"glove": Glove.Config()}, epochs=0)


def usual_epochs(width: int) -> int:
    """Passes of a recipe whose epochs are 0, by its width, which an override may have changed."""
    return 50 if width < 300 else 100


def words() -> dict[str, Words.Config]:
    """The tokenizer of recipes over whole words."""
    return {"words": Words.Config()}


def _vectors(name: str, size: str, objectives: dict[str, object], *, epochs: int = 5) -> Recipe:
    """A recipe that fills a static encoder."""
    shape = StaticConfig(width=WIDTHS.get(size, _WIDEST))
    return Recipe(name, size, {"static": shape}, objectives, epochs=epochs, tokenizer=words())
