"""What all routes share: the models by name, the limits, the batcher, and the checks that every text goes through."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar

import numpy as np

from firth.inference.lexicon import Lexicon
from firth.inference.model import Model
from firth.inference.tokenized_texts import TokenizedTexts
from firth.models import language_of, languages_of_model
from firth.search.index import SearchIndex
from firth.serving.batching import Batcher, BatchOperation, PayloadT, ResultT, UnsharedOperation
from firth.serving.limits import Limits, raised_by
from firth.serving.prometheus import ServerMetrics
from firth.serving.responses import HttpError, too_large, unsupported
from firth.serving.runs import Runs
from firth.tasks.classify import ClassifyHead
from firth.tokenizers.unknown import hardly_reads, unknown_sentence, unknown_share

log = logging.getLogger(__name__)
T = TypeVar("T")
MAX_LOOP_CHARACTERS = 4_000
"""Characters that are tokenized in the event loop; more go to a thread, so that no other client waits for them."""


@dataclass(frozen=True)
class ServerState:
    """What a running server knows."""

    models: Mapping[str, Model]
    limits: Limits
    metrics: ServerMetrics
    batcher: Batcher
    runs: Runs | None = None
    lexicons: Mapping[str, Lexicon] = field(default_factory=dict)
    """The words of those models that have a table of words."""
    warned: set[str] = field(default_factory=set)
    """The models about whose unknown tokens the log has a warning."""
    search: tuple[str, SearchIndex] | None = None
    """The index that is searched, and the name of its model."""

    @cached_property
    def languages(self) -> Mapping[str, list[str]]:
        """The languages that each model can read, which decide the examples of the page."""
        found = {}
        for name, model in self.models.items():
            tokenizer = model.tokenizer
            tokens = (tokenizer.spelled(token) for token in range(len(tokenizer.vocab)))
            found[name] = languages_of_model(model.checkpoint.info, tokens)
        return found

    @cached_property
    def default_model(self) -> str:
        """The name of the first model, which answers requests that name none."""
        return next(iter(self.models))

    def find_model(self, name: str | None) -> tuple[str, Model]:
        """The model with this name, and its name; the first one if the request names none."""
        if name is None:
            name = self.default_model
        if name not in self.models:
            known = ", ".join(self.models)
            raise HttpError(404, "model_not_found", f"There is no such model here; there is {known}.")
        return name, self.models[name]

    def find_able_model(self, name: str | None, route: str, *, text: str = "") -> tuple[str, Model]:
        """The model that answers a route; raises if none was named, the first one cannot answer, and others can.

        With a text, if none was named and the first one is for another language, a model for the text's language.
        """
        found, model = self.find_model(name)
        if name is not None:
            return found, model
        able = [other for other in self.models if route in self.abilities(other)]
        if able and found not in able:
            raise unsupported(
                f"No 'model' is named, and the first one ({found}) cannot {route}; "
                f"name one that can: {', '.join(able)}."
            )
        if text and len(able) > 1:
            language = language_of(text)
            # Of several that read the language, the first.
            found = min(able, key=lambda other: language not in self.languages[other])
        return found, self.models[found]

    def abilities(self, name: str) -> list[str]:
        """The routes that this model can answer."""
        model = self.models[name]
        has_layers = model.encoder.num_layers > 0
        can = {
            "embed": True,
            "similarity": True,
            "rerank": True,
            "tokenize": True,
            "fill": model.mask_filler is not None,
            "predict": bool(model.checkpoint.tasks),
            "explain": self.can_explain(name),
            "rewrite": model.can_rewrite,
            "attention": model.encoder.shows_attention and has_layers,
            "meaning": has_layers,
            "neighbours": name in self.lexicons,
            "search": self.search is not None and self.search[0] == name,
        }
        return [route for route, is_able in can.items() if is_able]

    def can_explain(self, name: str) -> bool:
        """Whether the model has a classifier, whose answers can be explained."""
        heads = self.models[name].checkpoint.tasks.values()
        return any(isinstance(head, ClassifyHead) and len(head.labels) <= 1 for head in heads)

    def check_texts(self, texts: Sequence[str], *, inputs: int | None = None) -> None:
        """Refuses more inputs and longer texts than the limits allow; an input may have several texts."""
        num_inputs = inputs
        if num_inputs is None:
            num_inputs = len(texts)
        if num_inputs > self.limits.inputs:
            raise too_large(
                f"{num_inputs} inputs are more than the {self.limits.inputs} of one request; send several."
                + raised_by("inputs", num_inputs)
            )
        longest = max(map(len, texts), default=0)
        if longest > self.limits.characters:
            raise too_large(
                f"A text has {longest} characters, more than {self.limits.characters}; shorten it."
                + raised_by("characters", longest)
            )

    def check_tokens(self, tokens: int) -> None:
        """Refuses more tokens than a batch may have."""
        limit = self.limits.batch_tokens
        if tokens > limit:
            raise too_large(
                f"The request has {tokens} tokens, more than {limit}; send fewer or shorter texts."
                + raised_by("batch_tokens", tokens)
            )

    def check_cosines(self, cosines: int) -> None:
        """Refuses a matrix of more cosines than the limit: it grows with the square of the texts."""
        limit = self.limits.cosines
        if cosines > limit:
            raise too_large(
                f"{cosines} cosines are more than {limit}; send fewer texts." + raised_by("cosines", cosines)
            )

    def check_fills(self, characters: int, candidates: int) -> None:
        """Refuses too many candidates: each contains the whole text, so a small request could ask for gigabytes."""
        limit = self.limits.candidates
        if candidates > limit:
            raise too_large(
                f"The masks have {candidates} candidates in all, more than {limit}; ask for a smaller 'top'."
                + raised_by("candidates", candidates)
            )
        limit = self.limits.filled_characters
        if candidates * characters > limit:
            raise too_large(
                f"The filled texts would be longer than {limit} characters; shorten the text or 'top'."
                + raised_by("filled_characters", candidates * characters)
            )

    def unknown_share(self, name: str, sequences: Iterable[np.ndarray]) -> float:
        """The share of a request's tokens that the model does not know; a high one is logged once for each model."""
        tokenizer = self.models[name].tokenizer
        share = unknown_share(tokenizer, sequences)
        if name not in self.warned and hardly_reads(tokenizer, share):
            self.warned.add(name)
            log.warning(f"A request to {name}: {unknown_sentence(share)}")
        return share

    async def prepare(self, texts: Sequence[str], function: Callable[[], T]) -> T:
        """The result of `function`, which tokenizes these texts; for long texts it runs in a thread."""
        # For short texts a thread would take longer than the work.
        if sum(map(len, texts)) <= MAX_LOOP_CHARACTERS:
            return function()
        return await asyncio.get_running_loop().run_in_executor(None, function)

    async def tokenize(self, model: Model, texts: Sequence[str]) -> TokenizedTexts:
        """Checked texts, ready to be embedded."""
        self.check_texts(texts)
        return await self.prepare(texts, lambda: model.embedder.tokenize(texts))

    async def compute(self, operation: BatchOperation[PayloadT, ResultT], payload: PayloadT, *, tokens: int) -> ResultT:
        """The operation's result, computed in a batch with other requests."""
        self.check_tokens(tokens)
        return await self.batcher.submit(operation, payload, tokens=tokens)

    async def compute_alone(self, function: Callable[[], T], *, tokens: int) -> T:
        """The result of `function`, computed in a worker thread without other requests."""
        return await self.compute(UnsharedOperation(function), None, tokens=tokens)
