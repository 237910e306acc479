"""What all routes share: the models by name, the limits, the queue, and the checks every text goes through."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

from firth.inference.inputs import Cut
from firth.inference.lexicon import Lexicon
from firth.inference.model import Model
from firth.serving.batching import Batcher, Lane
from firth.serving.lanes import OwnLane
from firth.serving.limits import Limits
from firth.serving.prometheus import Meters
from firth.serving.responses import Refusal, too_large
from firth.serving.runs import Runs

T = TypeVar("T")
SHORT = 4_000
"""Characters that are tokenised at once; longer inputs go to a thread, so that no other client waits for them."""


@dataclass(frozen=True)
class House:
    models: Mapping[str, Model]
    limits: Limits
    meters: Meters
    batcher: Batcher
    runs: Runs | None = None
    lexicons: Mapping[str, Lexicon] = field(default_factory=dict)
    """The words of those models that have a table of them."""

    @cached_property
    def default(self) -> str:
        return next(iter(self.models))

    def model(self, name: str | None) -> tuple[str, Model]:
        name = self.default if name is None else name
        if name not in self.models:
            known = ", ".join(self.models)
            raise Refusal(404, "model_not_found", f"There is no such model here; there is {known}.")
        return name, self.models[name]

    def check(self, texts: Sequence[str], *, inputs: int | None = None) -> None:
        """Refuses more inputs and longer texts than the limits allow."""
        count = len(texts) if inputs is None else inputs
        if count > self.limits.inputs:
            raise too_large(f"{count} inputs are more than the {self.limits.inputs} of one request; send several.")
        longest = max(map(len, texts), default=0)
        if longest > self.limits.characters:
            raise too_large(f"A text has {longest} characters, more than {self.limits.characters}; shorten it.")

    def check_tokens(self, tokens: int) -> None:
        if tokens > (most := self.limits.batch_tokens):
            raise too_large(f"The request has {tokens} tokens, more than {most}; send fewer or shorter texts.")

    def check_fills(self, characters: int, candidates: int) -> None:
        """Every candidate carries the whole text, so a small request could ask for gigabytes."""
        if candidates > (most := self.limits.candidates):
            raise too_large(
                f"The masks have {candidates} candidates in all, more than {most}; ask for a smaller 'top'."
            )
        if candidates * characters > (most := self.limits.filled_characters):
            raise too_large(f"The filled texts would be longer than {most} characters; shorten the text or 'top'.")

    async def make_ready(self, texts: Sequence[str], function: Callable[[], T]) -> T:
        """What `function` gives; long texts are tokenised in a thread."""
        if sum(map(len, texts)) <= SHORT:
            return function()
        return await asyncio.get_running_loop().run_in_executor(None, function)

    async def compute(self, lane: Lane, payload: Any, *, tokens: int) -> Any:
        self.check_tokens(tokens)
        return await self.batcher.ask(lane, payload, tokens=tokens)

    async def cut(self, model: Model, texts: Sequence[str]) -> Cut:
        self.check(texts)
        return await self.make_ready(texts, lambda: model.cut(texts))

    async def compute_alone(self, run: Callable[[], T], *, tokens: int) -> T:
        """A question that shares its batch with no other."""
        answer: T = await self.compute(OwnLane(lambda _: run()), None, tokens=tokens)
        return answer
