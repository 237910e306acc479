"""Why a text got its label: a classifier and examples in, a weight for each word out.

Two methods. Occlusion leaves out one word at a time and asks again: a word's weight is how much the label's probability
falls without it. Integrated gradients (Sundararajan et al. 2017, equation 1) goes from a text of mask tokens to the
text in small steps and adds up the gradients of the probability: all weights together are what the words add to it.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from firth.data.items import Item, Window, pack_windows, shorten
from firth.encoders.bag import Bag
from firth.errors import BadConfig, Unsupported
from firth.inference.word_spans import WordSpan, word_spans
from firth.tasks.classify import ClassifyHead
from firth.tasks.predicting import predict
from firth.tasks.prompt import PromptHead
from firth.tasks.task import Head
from firth.tensors import Encoder
from firth.tokenizers import Tokenizer
from firth.types import Encoding, Example, Prediction

Method = Literal["auto", "gradients", "occlusion"]
METHODS = ("auto", "gradients", "occlusion")
STEPS = 32
"""Points on the way from the mask tokens to the text."""
BATCH_TOKENS = 2048
"""Tokens whose gradients are computed at once: they need much memory."""


@dataclass(frozen=True)
class WordWeight:
    """What a word adds to the probability of the label; a negative weight is evidence against it."""

    word: str
    weight: float
    start: int
    """The first character of the word in its text ..."""
    end: int
    """... and the one after its last."""
    text: int = 0
    """Which text of the input: 1 is the second text of a pair."""


@dataclass(frozen=True)
class Explanation:
    """Why an input got its label."""

    label: str
    probability: float
    """Of the label; of a task of numbers, the number."""
    method: str
    words: tuple[WordWeight, ...]
    """All words, in the order of the text."""

    def top(self, count: int) -> list[WordWeight]:
        """The words with the largest weights, for or against the label."""
        return sorted(self.words, key=lambda word: -abs(word.weight))[:count]


@dataclass(frozen=True)
class _TextPlace:
    """A stretch of a text in a window."""

    number: int
    """Of the text: 1 is the second text of a pair."""
    position: int
    """In the window."""
    first_token: int
    """Of the text, at this position."""
    count: int


@dataclass(frozen=True)
class Explainer:
    """What is needed to explain a classifier's predictions."""

    encoder: Encoder
    head: Head
    tokenizer: Tokenizer
    max_length: int

    def explain(self, examples: Sequence[Example], *, by: Method = "auto") -> list[Explanation]:
        """An explanation of each example, in order. `auto` is gradients if the model has them, else occlusion."""
        if by not in METHODS:
            raise BadConfig(f"There is no method '{by}' to explain by (known: {', '.join(METHODS)}).")
        head = self.head
        if not isinstance(head, ClassifyHead) or len(head.labels) > 1:
            raise Unsupported("Only classifiers with one label column are explained.")
        items = self._encode(examples)
        predictions = predict(self.encoder, head, items)
        can_differentiate = _token_table(self.encoder) is not None
        if by == "gradients" and not can_differentiate:
            raise Unsupported("This model has no token embeddings to differentiate; explain by occlusion.")
        explanations = []
        for item, prediction in zip(items, predictions, strict=True):
            if by == "occlusion" or not can_differentiate:
                explanations.append(self._by_occlusion(item.example, prediction))
            else:
                explanations.append(self._by_gradients(item, prediction, head))
        return explanations

    def _encode(self, examples: Sequence[Example]) -> Sequence[Item]:
        return self.head.encode(examples, self.tokenizer, max_length=self.max_length, training=False)

    def _by_occlusion(self, example: Example, prediction: Prediction) -> Explanation:
        label, probability = explained_label(prediction)
        spans = [word_spans(self.tokenizer.encode(text), text) for text in example.texts]
        changed: list[Example] = []
        for number, words in enumerate(spans):
            for word in words:
                changed.append(_without_word(example, number, word))
        without: list[Prediction] = []
        if changed:
            without = predict(self.encoder, self.head, self._encode(changed))
        falls = [probability - _probability(answer, label) for answer in without]
        # The words of the first text come first.
        weights = []
        for words in spans:
            weights.append(falls[: len(words)])
            falls = falls[len(words) :]
        return _explanation(example, label, probability, "occlusion", spans, weights)

    def _by_gradients(self, item: Item, prediction: Prediction, head: ClassifyHead) -> Explanation:
        label, probability = explained_label(prediction)
        example = item.example
        encodings = [self.tokenizer.encode(text) for text in example.texts]
        token_weights = self._token_gradients(item, encodings, head, label)
        spans = []
        weights = []
        for encoding, text, own in zip(encodings, example.texts, token_weights, strict=True):
            words = word_spans(encoding, text)
            spans.append(words)
            weights.append([float(own[word.first_token : word.end_token].sum()) for word in words])
        return _explanation(example, label, probability, "gradients", spans, weights)

    def _token_gradients(
        self, item: Item, encodings: Sequence[Encoding], head: ClassifyHead, label: str
    ) -> list[np.ndarray]:
        """The integrated gradient of each token of each text."""
        token_weights = [np.zeros(len(encoding)) for encoding in encodings]
        windows = item.windows
        if len(encodings) > 1:
            # Other windows of a pair have its texts the other way round.
            windows = windows[:1]
        for window in windows:
            places = list(self._places(window, encodings))
            weights_L = self._window_gradients(window, places, head, label)
            for place in places:
                stretch = weights_L[place.position : place.position + place.count]
                tokens = slice(place.first_token, place.first_token + place.count)
                token_weights[place.number][tokens] += stretch
        if len(encodings) == 1:
            # The scores of a long text are the means over its windows.
            token_weights[0] /= len(item.windows)
        return token_weights

    def _places(self, window: Window, encodings: Sequence[Encoding]) -> Iterator[_TextPlace]:
        """Where the texts are in a window."""
        frame = self.tokenizer.vocab.frame
        opening = len(frame.opening)
        if isinstance(self.head, PromptHead):
            lengths = [len(encoding) for encoding in encodings]
            places = self.head.text_places(lengths, self.tokenizer, max_length=self.max_length)
            for number, (position, count) in enumerate(places):
                yield _TextPlace(number, position, 0, count)
        elif len(encodings) == 1:
            yield _TextPlace(0, opening, window.start, len(window.ids) - frame.size())
        else:
            room = self.max_length - frame.size(2)
            first, second = shorten(len(encodings[0]), len(encodings[1]), room)
            yield _TextPlace(0, opening, 0, first)
            yield _TextPlace(1, opening + first + len(frame.between), 0, second)

    def _window_gradients(
        self,
        window: Window,
        places: Sequence[_TextPlace],
        head: ClassifyHead,
        label: str,
    ) -> np.ndarray:
        """The integrated gradient of each position of a window; 0 for what does not belong to a text."""
        is_text_L = torch.zeros(len(window.ids), dtype=torch.bool)
        for place in places:
            is_text_L[place.position : place.position + place.count] = True
        at_once = max(1, BATCH_TOKENS // max(1, len(window.ids)))
        total_L = torch.zeros(len(window.ids))
        for first_step in range(0, STEPS, at_once):
            steps_S = torch.arange(first_step, min(first_step + at_once, STEPS))
            # The middle of each step.
            shares_S = (steps_S + 0.5) / STEPS
            total_L += self._gradients_at(window, shares_S, is_text_L, head, label) / STEPS
        return total_L.numpy()

    def _gradients_at(
        self,
        window: Window,
        shares_S: Tensor,
        is_text_L: Tensor,
        head: ClassifyHead,
        label: str,
    ) -> Tensor:
        """The sum over some steps of gradient times difference, for each position."""
        table = _token_table(self.encoder)
        assert table is not None
        num_steps = len(shares_S)
        batch = pack_windows([window] * num_steps)
        mask_E = table.weight[self.tokenizer.vocab.mask].detach()
        saved: list[tuple[Tensor, Tensor]] = []

        def mix(module: nn.Module, inputs: object, output: Tensor) -> Tensor:
            # Only the texts' tokens start as masks; special tokens and a prompt's words stay as they are.
            x_SLE = output.detach().view(num_steps, -1, output.shape[-1])
            start_SLE = torch.where(is_text_L[None, :, None], mask_E, x_SLE)
            difference_SLE = x_SLE - start_SLE
            mixed_SLE = (start_SLE + shares_S[:, None, None] * difference_SLE).requires_grad_()
            saved.append((mixed_SLE, difference_SLE))
            return mixed_SLE.view_as(output)

        with _differentiable(self.encoder, head), torch.inference_mode(False), torch.enable_grad():
            hook = table.register_forward_hook(mix)
            try:
                scores_ST = head.scores(self.encoder(batch), batch)
            finally:
                hook.remove()
            if not saved:
                raise Unsupported("This model does not read its token embeddings one by one; explain by occlusion.")
            values_S = _label_values(scores_ST, head, label)
            mixed_SLE, difference_SLE = saved[0]
            [gradient_SLE] = torch.autograd.grad(values_S.sum(), [mixed_SLE])
        weights_L: Tensor = (gradient_SLE * difference_SLE).sum((0, 2))
        return weights_L


def explained_label(prediction: Prediction) -> tuple[str, float]:
    """The label to explain and its probability: the most likely one, or of a regression the number."""
    if not prediction.probabilities:
        return "", float(prediction.label)
    label = max(prediction.probabilities, key=lambda name: prediction.probabilities[name])
    return label, prediction.probabilities[label]


def _probability(prediction: Prediction, label: str) -> float:
    """The probability of a label, or the number that is predicted."""
    if not prediction.probabilities:
        return float(prediction.label)
    return prediction.probabilities[label]


def _label_values(scores_ST: Tensor, head: ClassifyHead, label: str) -> Tensor:
    """What is explained, for each sequence: the label's probability, or the number."""
    if head.config.kind == "number":
        return scores_ST[:, 0] * head.config.scale + head.config.centre
    (names,) = head.labels.values()
    place = names.index(label)
    if head.config.kind == "many":
        return torch.sigmoid(scores_ST[:, place])
    return torch.softmax(scores_ST, 1)[:, place]


def _token_table(encoder: Encoder) -> nn.Embedding | None:
    """The embedding of tokens; None for an encoder whose tokens have parts."""
    if isinstance(encoder, Bag):
        return None
    for module in encoder.modules():
        if type(module) is nn.Embedding and module.num_embeddings == encoder.vocab_size:
            return module
    return None


@contextmanager
def _differentiable(encoder: Encoder, head: Head) -> Iterator[None]:
    """Evaluation mode, so that nothing is dropped; the modes are restored at the end."""
    modes = [(module, module.training) for module in (encoder, head)]
    encoder.eval()
    head.eval()
    try:
        yield
    finally:
        for module, was_training in modes:
            module.train(was_training)


def _without_word(example: Example, number: int, word: WordSpan) -> Example:
    """The example without one word of one of its texts."""
    texts = list(example.texts)
    text = texts[number]
    texts[number] = text[: word.start] + text[word.end :]
    return replace(example, texts=tuple(texts))


def _explanation(
    example: Example,
    label: str,
    probability: float,
    method: str,
    spans: Sequence[Sequence[WordSpan]],
    weights: Sequence[Sequence[float]],
) -> Explanation:
    found = []
    for number, (words, own) in enumerate(zip(spans, weights, strict=True)):
        for word, weight in zip(words, own, strict=True):
            written = example.texts[number][word.start : word.end]
            found.append(WordWeight(written, weight, word.start, word.end, number))
    return Explanation(label, probability, method, tuple(found))
