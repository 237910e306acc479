"""Objectives: goals that make their own labels. One file holds an objective's cut, its corruption and its loss."""

from functools import cache
from typing import TYPE_CHECKING, Any

from firth.config import resolve as _resolve

if TYPE_CHECKING:
    from firth.objectives.objective import Objective

TABLE = {
    "tf_idf": "firth.objectives.tf_idf:TfIdf",
    "lsa": "firth.objectives.lsa:Lsa",
    "lda": "firth.objectives.lda:Lda",
    "nnlm": "firth.objectives.nnlm:Nnlm",
    "skip_gram": "firth.objectives.skip_gram:SkipGram",
    "cbow": "firth.objectives.cbow:CBOW",
    "subwords": "firth.objectives.subwords:SubwordSkipGram",
    "glove": "firth.objectives.glove:Glove",
    "causal_lm": "firth.objectives.causal_lm:CausalLM",
    "masked_lm": "firth.objectives.masked_lm:MaskedLM",
    "next_sentence": "firth.objectives.next_sentence:NextSentence",
    "sentence_order": "firth.objectives.sentence_order:SentenceOrder",
    "span_boundary": "firth.objectives.span_boundary:SpanBoundary",
    "replaced_token": "firth.objectives.replaced_token:ReplacedToken",
    "permutation_lm": "firth.objectives.permutation_lm:PermutationLM",
    "unilm": "firth.objectives.unilm:UniLM",
    "translation_lm": "firth.objectives.translation_lm:TranslationLM",
    "mass": "firth.objectives.mass:Mass",
    "span_corruption": "firth.objectives.span_corruption:SpanCorruption",
    "denoising": "firth.objectives.denoising:Denoising",
    "tsdae": "firth.objectives.tsdae:Tsdae",
    "infoword": "firth.objectives.infoword:InfoWord",
    "entity_replacement": "firth.objectives.entity_replacement:EntityReplacement",
    "contrastive": "firth.objectives.contrastive:Contrastive",
}


def resolve(name: str) -> Any:
    """The class of an objective, imported only now."""
    return _resolve(TABLE, name, "objective")


@cache
def trained_objectives() -> tuple[type["Objective"], ...]:
    """The classes of all objectives of the training loop; the other entries of the table are solved."""
    from firth.objectives.objective import Objective

    classes = [resolve(name) for name in TABLE]
    return tuple(found for found in classes if issubclass(found, Objective))


@cache
def word_losses() -> dict[str, str]:
    """Every loss over the vocabulary, by name, with what it predicts (such as `next token`)."""
    losses: dict[str, str] = {}
    for name in TABLE:
        losses.update(resolve(name).word_losses)
    return losses
