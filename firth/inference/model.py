"""A loaded model and all it can answer. This is the only predict path: the command line, Python and servers use it."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from firth import checkpoint as checkpoints
from firth.checkpoint import Checkpoint, only_task
from firth.config import to_dict
from firth.console import bar
from firth.data.items import Item, Window, cut_window, pack_windows
from firth.data.packing import pack_tokens
from firth.encoders.bag import Bag
from firth.errors import BadConfig, BadInput, Unsupported
from firth.finetuning.labelled import report_cuts
from firth.inference.choosing import Run, digest, known_precision, quicken, sample
from firth.inference.generating import Options, generate
from firth.inference.inputs import Cut, Masked, filled, likeliest
from firth.inference.inputs_file import read_inputs
from firth.inference.lexicon import Lexicon, open_lexicon
from firth.inference.precision import linears
from firth.inference.threads import side_by_side
from firth.nn.blocks import first_rows
from firth.nn.pooling import last_rows, max_rows, mean_rows
from firth.nn.search import Choice
from firth.objectives.masked_lm import MaskedLM
from firth.objectives.replaced_token import filler
from firth.tasks import reader_of
from firth.tasks.k_best import k_best
from firth.tasks.predicting import outputs_of, predict, token_batches, within
from firth.tasks.segmenting import segment
from firth.tasks.tag import TagHead
from firth.tensors import Batch, Encoder, parameter_count
from firth.tokenizers.templates import Templates
from firth.tokenizers.vocab import windows
from firth.types import Encoding, Example, Fill, Generated, Prediction

if TYPE_CHECKING:
    from firth.inference.senses import Senses

POOLINGS = {"mean": mean_rows, "cls": first_rows, "last": last_rows, "max": max_rows}
BATCH_TOKENS = 2048
"""Tokens computed at once: enough to fill the matrix units, little enough to stay in the cache."""
ROUND_TOKENS, ROUNDED = 32, 512
"""Batches of so many tokens and more are filled up to a multiple of 32: oneDNN prepares itself for every new shape, and
remembers it."""
BLOCK_TEXTS = 2048
"""Texts tokenised and sorted by length at once: what bounds the memory, and what is computed while the next is cut."""


class Model:
    """What `firth.load` gives. A server asks in two steps: what makes inputs ready (`cut`, `masked`, `items`), and what
    computes many of them together (`vectors`, `fill_all`, `predict_items`)."""

    def __init__(self, checkpoint: Checkpoint, *, precision: str = "fp32", folder: Path | None = None) -> None:
        self.folder = folder
        """Where it was loaded from; None for a model that was never saved."""
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

    def fill(self, text: str, *, top: int = 5, specials: bool = False) -> list[Fill]:
        """The likeliest tokens for each `[MASK]`: `top` rows for every mask, in order."""
        return self.fill_all([self.masked(text, specials=specials)], top=top)[0]

    def masked(self, text: str, *, specials: bool = False) -> Masked:
        self._filler()
        vocab = self.tokenizer.vocab
        encoding = self.tokenizer.encode(text, specials=specials, masks=not specials)
        ids = vocab.frame.join(encoding.ids)
        masks = np.flatnonzero(ids == vocab.mask)
        mask_token = vocab.tokens[vocab.mask]
        if not len(masks):
            raise BadInput(f"The text has no {mask_token} to fill; write {mask_token} where a word is missing.")
        if len(ids) > self.encoder.max_positions:
            raise BadInput(f"The text has {len(ids)} tokens, more than the model's {self.encoder.max_positions}.")
        return Masked(text, ids, masks, encoding.offsets[masks - len(vocab.frame.opening)])

    @torch.inference_mode()
    def fill_all(self, texts: Sequence[Masked], *, top: int = 5) -> list[list[Fill]]:
        """The candidates of several texts, computed as one batch."""
        batch = pack_tokens([text.ids for text in texts])
        starts = batch.bounds_B1[:-1].tolist()
        rows_P = np.concatenate([text.masks + start for text, start in zip(texts, starts, strict=True)])
        encoder, head = self._filler()
        best = likeliest(head, encoder(batch), rows_P, vocab=self.tokenizer.vocab, top=top)
        return [
            [
                filled(self.tokenizer, text.text, span, token=token, probability=probability)
                for span in text.spans
                for probability, token in zip(*next(best), strict=True)
            ]
            for text in texts
        ]

    def generate(self, text: str, *, max_tokens: int = 50, seed: int = 1, **choice: Any) -> Generated:
        """The text and what a causal language model goes on with; `choice` has temperature (1; 0 takes the likeliest
        tokens), top_k, top_p and no_repeat."""
        return generate(self.checkpoint, [text], Options(max_tokens, Choice(**choice), seed))[0]

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
        vectors = np.empty((len(texts), self.width), np.float32)
        bounds = [*range(0, len(texts), BLOCK_TEXTS), len(texts)]
        with bar("embedding", len(texts), unit="texts") as advance, ThreadPoolExecutor(1) as other_thread:

            def cut(start: int) -> Any:
                """Begins to tokenise a block while the one before it is computed."""
                block = list(texts[start : start + BLOCK_TEXTS])
                return other_thread.submit(self.cut, block, max_length, specials) if block else None

            ready = cut(0)
            for start, end in pairwise(bounds):
                block = ready.result()
                ready = cut(end)
                vectors[start:end] = self.vectors([block], pooling=pooling, normalise=normalise)[0]
                advance(end, "")
        return vectors

    def cut(self, texts: Sequence[Any], max_length: int | None = None, specials: bool = False) -> Cut:
        """What `vectors` reads of these texts, which may also be ids without special tokens."""
        frame, limit = self.tokenizer.vocab.frame, max_length or self.checkpoint.embedding.max_length
        size = min(limit or self.encoder.max_positions, self.encoder.max_positions) - frame.size()
        if size < 1 or max_length == 0:
            raise BadConfig(f"max_length must be at least {frame.size() + 1}; this model adds {frame.size()} tokens.")
        sequences: list[Any] = []
        owners: list[int] = []
        for owner, ids in enumerate(self._ids(texts, specials)):
            spans = [(0, size)] if limit else windows(len(ids), size, size)
            if isinstance(ids, Encoding):
                sequences += [cut_window(self.tokenizer.vocab, (ids, start, end)) for start, end in spans]
            else:
                sequences += [frame.join(ids[start:end]) for start, end in spans]
            owners += [owner] * len(spans)
        return Cut(sequences, np.array(owners, np.int64), len(texts))

    def vectors(
        self, cuts: Sequence[Cut], *, pooling: str | None = None, normalise: bool | None = None
    ) -> list[np.ndarray]:
        """For each cut one vector a text, all computed together."""
        settings = self.checkpoint.embedding
        pooled = self._pooled(self._quick, [ids for cut in cuts for ids in cut.sequences], pooling or settings.pooling)
        ends = np.cumsum([len(cut.sequences) for cut in cuts])[:-1]
        merged = [cut.merge(rows) for rows, cut in zip(np.split(pooled, ends), cuts, strict=True)]
        return [_unit(rows) for rows in merged] if (settings.normalise if normalise is None else normalise) else merged

    def predict(self, inputs: Sequence[Any], *, task: str = "") -> list[Prediction]:
        """What a fine-tuned model says of each input, in order.

        An input is a text, a pair, or a row with the columns of the training files; several tasks need `task`.
        """
        if isinstance(inputs, str):
            raise BadInput("predict takes a list of texts; put the one text into a list.")
        return self.predict_examples(self.examples(inputs, task=task), task=task)

    def predict_file(self, path: str | Path, *, task: str = "") -> list[Prediction]:
        """The same for every row of a labelled file, or every line of a text file."""
        return self.predict_examples(self.read_examples(path, task=task), task=task)

    def read_examples(self, path: str | Path, *, task: str = "") -> list[Example]:
        """The rows of a labelled file, or the lines of a text file, in the task's own form; labels are not needed."""
        return read_inputs(self.checkpoint, Path(path), task)

    def examples(self, inputs: Sequence[Any], *, task: str = "") -> list[Example]:
        """Inputs as a person gives them, in the task's own form."""
        _, goal = only_task(self.checkpoint, "This model", task)
        reader = reader_of(goal)
        return [reader.example(value) for value in inputs]

    def predict_examples(self, examples: Sequence[Example], *, task: str = "") -> list[Prediction]:
        """The same for rows that a task has read."""
        items = self.items(examples, task=task)
        report_cuts("The inputs", items)
        with bar("predicting", sum(len(item.windows) for item in items), unit="sequences") as advance:
            return self.predict_items(items, task=task, advance=advance)

    def items(self, examples: Sequence[Example], *, task: str = "") -> Sequence[Item]:
        _, goal = only_task(self.checkpoint, "This model", task)
        length = int(self.checkpoint.info.get("max_length", self.encoder.max_positions))
        return goal.encode(examples, self.tokenizer, max_length=length, training=False)

    def predict_items(self, items: Sequence[Item], *, task: str = "", advance: Any = None) -> list[Prediction]:
        _, goal = only_task(self.checkpoint, "This model", task)
        return predict(self.checkpoint.reader or self.encoder, goal, items, advance=advance)

    def k_best(self, examples: Sequence[Example], k: int, *, task: str = "") -> list[list[Prediction]]:
        """The k likeliest tag sequences of each row, the best first; fewer where the rules allow fewer."""
        _, goal = only_task(self.checkpoint, "This model", task)
        items = self.items(examples, task=task)
        return k_best(goal, items, outputs_of(self.checkpoint.reader or self.encoder, goal, items), k=k)

    def segment(self, texts: Sequence[str], *, task: str = "") -> list[list[str]]:
        """The words of each text, by a model fine-tuned on segmented text."""
        _, goal = only_task(self.checkpoint, "This model", task)
        if not isinstance(goal, TagHead) or not goal.segments:
            raise Unsupported(
                "This model was not fine-tuned on segmented text (tags B, M, E, S), so it finds no words."
            )
        if isinstance(self.encoder, Bag) and isinstance(self.tokenizer, Templates) and goal.config.head == "none":
            return segment(texts, goal, self.encoder, templates=self.tokenizer)
        return [[span.text for span in prediction.spans] for prediction in self.predict(texts, task=task)]

    @cached_property
    def lexicon(self) -> Lexicon:
        """The model's table of words: word vectors, or the input embeddings of a BERT."""
        if self.folder is None:
            raise Unsupported("The words of a model are read from its folder; save this one and load it from there.")
        return open_lexicon(self.folder)

    def neighbours(self, word: str, *, top: int = 10) -> list[tuple[str, float]]:
        """The words nearest to a word, with the cosines of their vectors."""
        return self.lexicon.neighbours(word, top=top)

    def analogy(self, first: str, second: str, third: str, *, top: int = 10) -> list[tuple[str, float]]:
        """The words nearest to first - second + third: king, man, woman should give queen."""
        return self.lexicon.analogy(first, second, third, top=top)

    def senses(self, word: str, lines: Sequence[str], *, groups: int | None = None, layer: int = -1) -> "Senses":
        """The occurrences of a word in lines of text, grouped by what it means there."""
        from firth.inference import senses as word_senses  # which imports this module

        return word_senses.senses(self, word, lines, count=groups, layer=layer)

    @torch.inference_mode()
    def attention(self, text: str) -> tuple[list[str], np.ndarray]:
        """The tokens of a text with its special ones, and every layer's and head's weights: layers x H x L x L."""
        if not (self.encoder.shows_attention and self.encoder.num_layers):
            raise Unsupported("This model has no attention to show.")
        ids = self.tokenizer.vocab.frame.join(self.tokenizer.encode(text).ids)[: self.encoder.max_positions]
        states = self.encoder(pack_tokens([ids]), attention=True)
        weights = np.stack([layer[0].numpy() for layer in states.attention])
        return [self.tokenizer.vocab.tokens[i] for i in ids], weights

    def _filler(self) -> tuple[Encoder, MaskedLM]:
        if (found := filler(self.encoder, self.checkpoint.goals)) is None:
            raise Unsupported("This model has no masked-LM head, so it cannot fill; `firth info` lists what it has.")
        return found

    def _ids(self, texts: Sequence[Any], specials: bool) -> list[Any]:
        """The ids of each text; whole encodings where tokens have parts."""
        if len(texts) and isinstance(texts[0], np.ndarray):
            return list(texts)
        if hasattr(self.tokenizer, "word_parts"):
            return list(self.tokenizer.encode_batch(list(texts)))
        if specials:
            return [encoding.ids for encoding in self.tokenizer.encode_batch(list(texts), specials=True)]
        return [np.array(ids, np.int64) for ids in self.tokenizer.ids_batch(list(texts))]

    @cached_property
    def _quick(self) -> Run:
        """The encoder as `embed` uses it: a copy in the precision asked for, made when first needed."""
        texts, pooling = sample(self.tokenizer, self.encoder.max_positions), self.checkpoint.embedding.pooling

        def vectors(encoder: Run) -> np.ndarray:
            return _unit(self._pooled(encoder, texts, pooling, filled_up=False))

        with torch.inference_mode():
            return quicken(self.encoder, self.precision, vectors, judged_on=digest(texts, pooling))

    def _pooled(self, encoder: Run, sequences: list[Any], pooling: str, *, filled_up: bool = True) -> np.ndarray:
        vectors = np.empty((len(sequences), self.width), np.float32)

        @torch.inference_mode()
        def compute(rows: list[int]) -> None:
            chosen = [sequences[row] for row in rows]
            more = self._rounding(chosen) if filled_up else []
            batch = pack_windows(chosen) if isinstance(chosen[0], Window) else pack_tokens([*chosen, *more])
            vectors[rows] = pool(encoder(batch).last_ND, batch, pooling)[: len(rows)].numpy()

        side_by_side(compute, list(token_batches([len(ids) for ids in sequences], within(BATCH_TOKENS, self.width))))
        return vectors

    def _rounding(self, sequences: list[Any]) -> list[np.ndarray]:
        """One sequence more where tokens are many, no multiple of `ROUND_TOKENS`, and go through matrix products."""
        size = sum(map(len, sequences))
        missing = -size % ROUND_TOKENS
        rounds = size >= ROUNDED and linears(self.encoder) and self.encoder.max_positions >= ROUND_TOKENS
        return [np.zeros(missing, np.int64)] if rounds and missing else []


def load(folder: str | Path, *, precision: str = "fp32") -> Model:
    """Opens a model folder: one made by firth, or any Hugging Face BERT folder as it is.

    `precision` is that of `embed`: fp32, bf16, int8, or auto, the fastest that keeps the cosine to fp32 above 0.999."""
    return Model(checkpoints.load(Path(folder)), precision=precision, folder=Path(folder))


def pool(states_ND: torch.Tensor, batch: Batch, pooling: str) -> torch.Tensor:
    """One vector for each sequence of a pack."""
    return POOLINGS[pooling](states_ND, batch.bounds_B1)


def _unit(vectors: np.ndarray) -> np.ndarray:
    return np.asarray(vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12))
