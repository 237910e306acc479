"""A loaded model and all it can answer. This is the only predict path: the command line, Python and servers use it."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

from firth import checkpoint as checkpoints
from firth.checkpoint import Checkpoint, only_task
from firth.config import to_dict
from firth.console import bar
from firth.data.packing import pack_tokens
from firth.errors import BadConfig, BadInput, Unsupported
from firth.nn.blocks import first_rows
from firth.objectives.masked_lm import MaskedLM
from firth.recipes.labelled import tell_of_cuts
from firth.serve.choosing import Run, known_precision, quicken, sample
from firth.tasks.predicting import predict
from firth.tensors import Batch, parameter_count
from firth.tokenizers.vocab import windows
from firth.types import Example, Fill, Prediction

POOLINGS = ("mean", "cls", "max")
BATCH_TOKENS = 2048
"""Tokens computed at once: enough to fill the matrix units, little enough to stay in the cache."""
BLOCK_TEXTS = 2048
"""Texts tokenised and sorted by length at once: what bounds the memory, and what is computed while the next is cut."""


class Model:
    """What `firth.load` gives."""

    def __init__(self, checkpoint: Checkpoint, *, precision: str = "fp32") -> None:
        self.checkpoint, self.precision = checkpoint, known_precision(precision)
        self.encoder, self.tokenizer = checkpoint.encoder, checkpoint.tokenizer

    @property
    def width(self) -> int:
        return self.encoder.width

    @property
    def num_parameters(self) -> int:
        return parameter_count([self.encoder, *self.checkpoint.goals.values()])

    def info(self) -> dict[str, Any]:
        """What the model is made of and where it comes from."""
        return {
            "encoder": to_dict(self.encoder.config),
            "parameters": self.num_parameters,
            "encoder_parameters": parameter_count([self.encoder]),
            "vocabulary": len(self.tokenizer.vocab),
            "heads": list(self.checkpoint.goals),
            "tasks": {
                name: {"labels": to_dict(task.labels), "config": to_dict(task.config)}
                for name, task in self.checkpoint.tasks.items()
            },
            "embedding": to_dict(self.checkpoint.embedding),
            "training": dict(self.checkpoint.info),
        }

    def save(self, folder: str | Path) -> None:
        """Writes the model as a folder that firth and transformers open."""
        checkpoints.save(Path(folder), self.checkpoint)

    def tokens(self, text: str, *, specials: bool = False) -> list[str]:
        """The pieces the tokenizer cuts a text into."""
        return list(self.tokenizer.encode(text, specials=specials).tokens)

    @torch.inference_mode()
    def fill(self, text: str, *, top: int = 5, specials: bool = False) -> list[Fill]:
        """The likeliest tokens for each `[MASK]`: `top` rows for every mask, in order."""
        head = self._masked_lm()
        encoding = self.tokenizer.encode(text, specials=specials, masks=not specials)
        ids = self._with_specials(encoding.ids)
        masks = np.flatnonzero(ids == self.tokenizer.vocab.mask)
        mask_token = self.tokenizer.vocab.tokens[self.tokenizer.vocab.mask]
        if not len(masks):
            raise BadInput(f"The text has no {mask_token} to fill; write {mask_token} where a word is missing.")
        if len(ids) > self.encoder.config.max_positions:
            raise BadInput(
                f"The text has {len(ids)} tokens, more than the model's {self.encoder.config.max_positions}."
            )
        batch = pack_tokens([ids])
        scores_PV = head.scores(self.encoder(batch), torch.from_numpy(masks))[:, : len(self.tokenizer.vocab)]
        scores_PV[:, sorted(self.tokenizer.vocab.specials)] = -torch.inf
        best = scores_PV.softmax(-1).topk(min(top, len(self.tokenizer.vocab)))
        spans = encoding.offsets[masks - 1]
        return [
            self._filled(text, span, int(token), float(probability))
            for span, probabilities, tokens in zip(spans, best.values, best.indices, strict=True)
            for probability, token in zip(probabilities, tokens, strict=True)
        ]

    def embed(
        self,
        texts: Sequence[str],
        *,
        pooling: str | None = None,
        normalise: bool | None = None,
        max_length: int | None = None,
        specials: bool = False,
    ) -> np.ndarray:
        """One vector a text, in order. Settings not given are the folder's own, else the plain mean of all tokens.

        A text longer than the model reads is read in windows, unless `max_length` (or the folder) asks to cut it.
        """
        if isinstance(texts, str):
            raise BadInput("embed takes a list of texts; put the one text into a list.")
        settings = self.checkpoint.embedding
        pooling = settings.pooling if pooling is None else pooling
        if pooling not in POOLINGS:
            raise BadConfig(f"There is no pooling named '{pooling}' (known: {', '.join(POOLINGS)}).")
        limit = max_length or settings.max_length
        vectors = np.empty((len(texts), self.width), np.float32)
        bounds = [*range(0, len(texts), BLOCK_TEXTS), len(texts)]
        with bar("embedding", len(texts), unit="texts") as advance, ThreadPoolExecutor(1) as other_thread:

            def cut(start: int) -> Any:
                """Begins to tokenise a block while the one before it is computed."""
                block = list(texts[start : start + BLOCK_TEXTS])
                return other_thread.submit(self._cut, block, limit, specials) if block else None

            ready = cut(0)
            for start, end in pairwise(bounds):
                sequences, owners = ready.result()
                ready = cut(end)
                weights = np.array([len(ids) for ids in sequences], np.float64)
                pooled = self._pooled(self._quick, sequences, pooling)
                vectors[start:end] = _merge(pooled, weights, owners, end - start)
                advance(end, "")
        return _unit(vectors) if (settings.normalise if normalise is None else normalise) else vectors

    def predict(self, inputs: Sequence[Any], *, task: str = "") -> list[Prediction]:
        """What a fine-tuned model says of each input, in order.

        An input is a text, a pair, or a row with the columns of the training files; several tasks need `task`.
        """
        if isinstance(inputs, str):
            raise BadInput("predict takes a list of texts; put the one text into a list.")
        name, goal = only_task(self.checkpoint, "This model", task)
        examples = [type(goal).example(value, goal.config) for value in inputs]
        return self.predict_examples(examples, task=name)

    def predict_examples(self, examples: Sequence[Example], *, task: str = "") -> list[Prediction]:
        """The same for rows that a task has read."""
        _, goal = only_task(self.checkpoint, "This model", task)
        length = int(self.checkpoint.info.get("max_length", self.encoder.config.max_positions))
        items = goal.encode(examples, self.tokenizer, max_length=length, training=False)
        tell_of_cuts("The inputs", items)
        with bar("predicting", sum(len(item.windows) for item in items), unit="sequences") as advance:
            return predict(self.checkpoint.reader or self.encoder, goal, items, advance=advance)

    @torch.inference_mode()
    def attention(self, text: str) -> tuple[list[str], np.ndarray]:
        """The tokens of a text with its special ones, and every layer's and head's weights: layers x H x L x L."""
        ids = self._with_specials(self.tokenizer.encode(text).ids)[: self.encoder.config.max_positions]
        states = self.encoder(pack_tokens([ids]), attention=True)
        weights = np.stack([layer[0].numpy() for layer in states.attention])
        return [self.tokenizer.vocab.tokens[i] for i in ids], weights

    def _masked_lm(self) -> MaskedLM:
        goal = self.checkpoint.goals.get("masked_lm")
        if not isinstance(goal, MaskedLM):
            raise Unsupported("This model has no masked-LM head, so it cannot fill; `firth info` lists what it has.")
        return goal

    def _with_specials(self, ids: np.ndarray) -> np.ndarray:
        vocab = self.tokenizer.vocab
        return np.concatenate([[vocab.cls], ids, [vocab.sep]])

    def _filled(self, text: str, span: np.ndarray, token: int, probability: float) -> Fill:
        piece = self.tokenizer.vocab.tokens[token]
        before, after = text[: span[0]], text[span[1] :]
        if self.tokenizer.continues[token]:
            piece, before = piece.removeprefix("##"), before.rstrip()
        return Fill(self.tokenizer.vocab.tokens[token], probability, before + piece + after)

    def _cut(self, texts: Sequence[str], limit: int | None, specials: bool) -> tuple[list[np.ndarray], np.ndarray]:
        """Sequences of ids with their special tokens, and for each the text it belongs to."""
        size = min(limit or self.encoder.config.max_positions, self.encoder.config.max_positions) - 2
        sequences, owners = [], []
        for owner, ids in enumerate(self._ids(texts, specials)):
            spans = [(0, size)] if limit else windows(len(ids), size, size)
            sequences += [self._with_specials(ids[start:end]) for start, end in spans]
            owners += [owner] * len(spans)
        return sequences, np.array(owners, np.int64)

    def _ids(self, texts: Sequence[str], specials: bool) -> list[np.ndarray]:
        if specials:
            return [encoding.ids for encoding in self.tokenizer.encode_batch(list(texts), specials=True)]
        return [np.array(ids, np.int64) for ids in self.tokenizer.ids_batch(list(texts))]

    @cached_property
    def _quick(self) -> Run:
        """The encoder as `embed` uses it: a copy in the precision asked for, made when first needed."""
        texts = sample(self.tokenizer, self.encoder.config.max_positions)
        pooling = self.checkpoint.embedding.pooling
        with torch.inference_mode():
            return quicken(self.encoder, self.precision, lambda encoder: _unit(self._pooled(encoder, texts, pooling)))

    @torch.inference_mode()
    def _pooled(self, encoder: Run, sequences: list[np.ndarray], pooling: str) -> np.ndarray:
        vectors = np.empty((len(sequences), self.width), np.float32)
        for rows in _batches([len(ids) for ids in sequences]):
            batch = pack_tokens([sequences[row] for row in rows])
            vectors[rows] = pool(encoder(batch).last_ND, batch, pooling).numpy()
        return vectors


def load(folder: str | Path, *, precision: str = "fp32") -> Model:
    """Opens a model folder: one made by firth, or any Hugging Face BERT folder as it is.

    `precision` is that of `embed`: fp32, bf16, int8, or auto, the fastest that keeps the cosine to fp32 above 0.999."""
    return Model(checkpoints.load(Path(folder)), precision=precision)


def pool(states_ND: torch.Tensor, batch: Batch, pooling: str) -> torch.Tensor:
    """One vector for each sequence of a pack."""
    if pooling == "cls":
        return first_rows(states_ND, batch.bounds_B1)
    lengths = batch.bounds_B1.long().diff()
    owners_N1 = torch.repeat_interleave(torch.arange(len(lengths)), lengths)[:, None].expand_as(states_ND)
    kind = {"mean": "mean", "max": "amax"}[pooling]
    empty_BD = states_ND.new_zeros(len(lengths), states_ND.shape[1])
    return empty_BD.scatter_reduce(0, owners_N1, states_ND, kind, include_self=False)


def _batches(lengths: list[int]) -> Iterator[list[int]]:
    """Rows in order of length, so that a batch's sequences are alike; each batch within the token budget."""
    rows: list[int] = []
    tokens = 0
    for row in sorted(range(len(lengths)), key=lengths.__getitem__):
        if rows and tokens + lengths[row] > BATCH_TOKENS:
            yield rows
            rows, tokens = [], 0
        rows.append(row)
        tokens += lengths[row]
    if rows:
        yield rows


def _unit(vectors: np.ndarray) -> np.ndarray:
    return np.asarray(vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12))


def _merge(vectors: np.ndarray, weights: np.ndarray, owners: np.ndarray, num_texts: int) -> np.ndarray:
    """Windows of one text become their mean, weighted by length."""
    if len(owners) == num_texts:
        return vectors
    totals = np.zeros((num_texts, vectors.shape[1]))
    np.add.at(totals, owners, vectors * weights[:, None])
    return (totals / np.bincount(owners, weights, num_texts)[:, None]).astype(np.float32)
