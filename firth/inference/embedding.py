"""Texts in, one vector for each out: the states of a text's tokens, pooled.

A model with a vector head (`head_embedding.py`) takes that in place of a pooling, unless one is asked for. The pooling
`tokens` is the part of the head that adds up rows of tokens, which needs no encoder.

Embedding has two steps, so that a server can compute many requests together: `Embedder.tokenize` cuts texts into the
sequences that the model reads, `Embedder.embed_tokenized` computes their vectors. Blocks of texts bound the memory: one
block is tokenized while the one before it is computed.
"""

import logging
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property
from itertools import pairwise

import numpy as np
import torch

from firth.console import bar
from firth.convert.sentence_transformers import Embedding, VectorLayer
from firth.data.items import Window, cut_window, pack_windows
from firth.data.packing import pack_tokens
from firth.errors import BadConfig
from firth.inference.head_embedding import CONTEXT_POOLING, HeadEmbedder
from firth.inference.precision_choice import (
    EncoderCall,
    SavedChoices,
    check_precision,
    fast_encoder,
    measured_choice,
    sample_digest,
    sample_sequences,
)
from firth.inference.quantization import block_linears
from firth.inference.threads import compute_in_parallel
from firth.inference.tokenized_texts import TokenizedTexts, TokenSequence, all_sequences, deal
from firth.metrics.cosines import unit_vectors
from firth.nn.pooling import POOLINGS, pool
from firth.tasks.predicting import token_batches, within
from firth.tensors import Batch, Encoder
from firth.tokenizers import Tokenizer
from firth.tokenizers.vocab import windows
from firth.types import Encoding

log = logging.getLogger(__name__)

TOKENS = "tokens"
"""The pooling of a model with a vector head that takes the head's sums of rows alone, without the encoder."""
BATCH_TOKENS = 2048
"""Tokens computed at once: enough to fill the matrix units, few enough to stay in the cache."""
ROUND_TOKENS = 32
"""Large batches are padded to a multiple of this, because oneDNN prepares and caches a kernel for every new shape."""
MIN_ROUNDED_TOKENS = 512
"""Smaller batches are not padded."""
BLOCK_TEXTS = 2048
"""Texts that are tokenized and sorted by length at once."""


class Embedder:
    """The part of a model that embeds; `settings` are those of the model's folder."""

    def __init__(
        self,
        encoder: Encoder,
        tokenizer: Tokenizer,
        settings: Embedding,
        *,
        precision: str,
        choices: SavedChoices | None = None,
        head: HeadEmbedder | None = None,
        layers: tuple[VectorLayer, ...] = (),
    ) -> None:
        self.encoder = encoder
        self.tokenizer = tokenizer
        self.settings = settings
        self.head = head
        """The model's vector head; None if it has none."""
        self.layers = layers
        """Layers over the pooled vector; they belong to the folder's own pooling."""
        self.precision = check_precision(precision)
        self.choices = choices or {}
        """Choices of a precision that the model's folder holds."""

    def width(self, pooling: str | None = None) -> int:
        """The width of the vectors, with this pooling or without one."""
        head = self._head_for(pooling)
        if head is not None:
            return head.width
        width = self._pooled_width(pooling or self.settings.pooling)
        for layer in self._layers_for(pooling):
            width = layer.width(width)
        return width

    @property
    def token_rows_VD(self) -> np.ndarray | None:
        """The rows that the model's vector head adds up; None if it has no such head."""
        return None if self.head is None else self.head.rows_VD

    @property
    def fast_pooling(self) -> str | None:
        """The pooling that needs no pass through the encoder, where there is one; else the model's own."""
        return None if self.head is None else TOKENS

    def normalises(self, pooling: str | None = None) -> bool:
        """Whether vectors of this pooling have length 1, unless the caller says otherwise."""
        return self.settings.normalise or self._head_for(pooling) is not None

    def _head_for(self, pooling: str | None) -> HeadEmbedder | None:
        """The part of the vector head that makes the vectors; None for a pooling of states."""
        if self.head is None or pooling not in (None, TOKENS):
            return None
        if pooling == TOKENS:
            return replace(self.head, context=None)
        return self.head

    def _pooled_width(self, pooling: str) -> int:
        return self.encoder.width * len(pooling.split("+"))

    def _layers_for(self, pooling: str | None) -> tuple[VectorLayer, ...]:
        """The layers over vectors of this pooling: none if it is not the folder's own."""
        return self.layers if pooling in (None, self.settings.pooling) else ()

    def embed(
        self,
        texts: Sequence[str],
        *,
        pooling: str | None = None,
        normalise: bool | None = None,
        max_length: int | None = None,
        specials: bool = False,
        prompt: str | None = None,
    ) -> np.ndarray:
        """One vector for each text, in order; see `Model.embed`."""
        self.check_pooling(pooling)
        if len(texts) == 1:
            # There is no next block to tokenize in the meantime, so no thread is needed.
            block = self.tokenize(texts, max_length=max_length, specials=specials, prompt=prompt)
            return self.embed_tokenized([block], pooling=pooling, normalise=normalise)[0]
        vectors = np.empty((len(texts), self.width(pooling)), np.float32)
        bounds = [*range(0, len(texts), BLOCK_TEXTS), len(texts)]
        with bar("embedding", len(texts), unit="texts") as advance, ThreadPoolExecutor(1) as tokenizing_thread:

            def start_tokenizing(start: int) -> "Future[TokenizedTexts]":
                """Starts to tokenize the block that begins at text `start`."""
                block = list(texts[start : start + BLOCK_TEXTS])
                return tokenizing_thread.submit(
                    self.tokenize, block, max_length=max_length, specials=specials, prompt=prompt
                )

            if len(texts):
                tokenizing = start_tokenizing(0)
            for start, end in pairwise(bounds):
                block = tokenizing.result()
                # The next block is tokenized while this one is computed.
                if end < len(texts):
                    tokenizing = start_tokenizing(end)
                [block_vectors] = self.embed_tokenized([block], pooling=pooling, normalise=normalise)
                vectors[start:end] = block_vectors
                advance(end, "")
        return vectors

    def check_pooling(self, pooling: str | None) -> None:
        """Raises for a pooling that does not exist, or that this model has not."""
        if pooling is None or set(pooling.split("+")) <= POOLINGS.keys():
            return
        if pooling != TOKENS:
            raise BadConfig(f"There is no pooling named '{pooling}' (known: {', '.join([*POOLINGS, TOKENS])}).")
        if self.head is None:
            raise BadConfig(f"The pooling '{TOKENS}' needs a model with a vector head (`firth vectors`).")

    def tokenize(
        self,
        texts: Sequence[str],
        *,
        max_length: int | None = None,
        specials: bool = False,
        prompt: str | None = None,
    ) -> TokenizedTexts:
        """What `embed_tokenized` reads of these texts.

        A text longer than `max_length` (or the folder's limit) is cut. Without a limit it is read in windows. `prompt`
        names one of the folder's prompts, which is put before each text.
        """
        before = self.settings.prompt(prompt)
        if before:
            texts = [before + text for text in texts]
        size = self._window_size(max_length)
        is_limited = bool(max_length or self.settings.max_length)
        encoded = self._encode(list(texts), specials=specials)
        return self._split(encoded, size, first_window_only=is_limited)

    def tokenize_ids(self, texts: Sequence[np.ndarray]) -> TokenizedTexts:
        """The same for texts that are already ids, without special tokens."""
        size = self._window_size(None)
        return self._split(texts, size, first_window_only=bool(self.settings.max_length))

    def embed_tokenized(
        self,
        requests: Sequence[TokenizedTexts],
        *,
        pooling: str | None = None,
        normalise: bool | None = None,
    ) -> list[np.ndarray]:
        """For each request one vector a text, all computed together."""
        vectors = self._vectors(requests, pooling)
        if normalise is None:
            normalise = self.normalises(pooling)
        if normalise:
            vectors = [unit_vectors(request_vectors) for request_vectors in vectors]
        return vectors

    def _vectors(self, requests: Sequence[TokenizedTexts], pooling: str | None) -> list[np.ndarray]:
        """For each request its texts' vectors of any length: by the vector head, or from pooled states and layers."""
        head = self._head_for(pooling)
        if head is not None:
            return self._head_vectors(requests, head)
        pooled = self._pooled_vectors(self.fast_encoder, all_sequences(requests), pooling or self.settings.pooling)
        vectors = []
        for request, rows in zip(requests, deal(pooled, requests), strict=True):
            merged = request.merge_windows(rows)
            for layer in self._layers_for(pooling):
                merged = layer(merged)
            vectors.append(merged)
        return vectors

    def _head_vectors(self, requests: Sequence[TokenizedTexts], head: HeadEmbedder) -> list[np.ndarray]:
        """For each request the vectors of its texts by the model's vector head."""
        token_parts = [head.token_part(request) for request in requests]
        if head.context is None:
            return token_parts
        states = self._pooled_vectors(self.fast_encoder, all_sequences(requests), CONTEXT_POOLING)
        vectors = []
        for request, rows, token_part in zip(requests, deal(states, requests), token_parts, strict=True):
            vectors.append(head.with_context(token_part, request.merge_windows(rows)))
        return vectors

    def warn_about_truncation(self, texts: Sequence[str]) -> None:
        """Warns about texts that `embed` will cut.

        Texts are cut only if the model's folder limits their length; otherwise long ones are read in windows.
        """
        limit = self.settings.max_length
        if not limit:
            return
        size = limit - self.tokenizer.vocab.frame.size()
        num_cut = 0
        for start in range(0, len(texts), BLOCK_TEXTS):
            block = list(texts[start : start + BLOCK_TEXTS])
            lengths = map(len, self.tokenizer.ids_batch(block))
            num_cut += sum(length > size for length in lengths)
        if num_cut:
            log.warning(
                f"{num_cut:,} of {len(texts):,} texts are longer than the {limit:,} tokens this model reads and are "
                "cut."
            )

    def _window_size(self, max_length: int | None) -> int:
        """Tokens of a text that fit into one sequence."""
        frame_size = self.tokenizer.vocab.frame.size()
        max_positions = self.encoder.max_positions
        limit = max_length or self.settings.max_length or max_positions
        size = min(limit, max_positions) - frame_size
        if size < 1 or max_length == 0:
            raise BadConfig(f"max_length must be at least {frame_size + 1}; this model adds {frame_size} tokens.")
        return size

    def _encode(self, texts: list[str], *, specials: bool) -> Sequence[np.ndarray | Encoding]:
        """The ids of each text; whole encodings where tokens have parts."""
        # fastText's tokens have n-grams as parts, which ids alone do not give.
        if self.tokenizer.has_word_parts:
            return self.tokenizer.encode_batch(texts)
        if specials:
            encodings = self.tokenizer.encode_batch(texts, specials=True)
            return [encoding.ids for encoding in encodings]
        return [np.array(ids, np.int64) for ids in self.tokenizer.ids_batch(texts)]

    def _split(self, texts: Sequence[np.ndarray | Encoding], size: int, *, first_window_only: bool) -> TokenizedTexts:
        """The texts as sequences of at most `size` tokens and the special ones."""
        sequences: list[TokenSequence] = []
        text_of_sequence: list[int] = []
        for number, tokens in enumerate(texts):
            # Tokens after the first window are cut, or form further windows.
            spans = [(0, size)]
            if not first_window_only:
                spans = windows(len(tokens), size, size)
            for start, end in spans:
                sequences.append(self._sequence(tokens, start, end))
                text_of_sequence.append(number)
        return TokenizedTexts(sequences, np.array(text_of_sequence, np.int64), len(texts))

    def _sequence(self, tokens: np.ndarray | Encoding, start: int, end: int) -> TokenSequence:
        """Some tokens of a text with the special ones around them."""
        vocab = self.tokenizer.vocab
        if isinstance(tokens, Encoding):
            return cut_window(vocab, (tokens, start, end))
        return vocab.frame.join(tokens[start:end])

    @cached_property
    def fast_encoder(self) -> EncoderCall:
        """A copy of the encoder in the requested precision, made when first needed."""
        with torch.inference_mode():
            return fast_encoder(
                self.encoder,
                self.precision,
                self._embed_sample,
                sample=sample_digest(self._sample, self.settings.pooling),
                saved=self.choices,
            )

    def measure_precision(self) -> SavedChoices:
        """What is chosen for the requested precision on this machine, to be saved in the model's folder."""
        with torch.inference_mode():
            digest = sample_digest(self._sample, self.settings.pooling)
            return measured_choice(self.encoder, self.precision, self._embed_sample, sample=digest)

    @cached_property
    def _sample(self) -> list[np.ndarray]:
        return sample_sequences(self.tokenizer, self.encoder.max_positions)

    def _embed_sample(self, encoder: EncoderCall) -> np.ndarray:
        """The vectors of the sample texts by an encoder."""
        return unit_vectors(self._pooled_vectors(encoder, self._sample, self.settings.pooling, padded=False))

    def _pooled_vectors(
        self,
        encoder: EncoderCall,
        sequences: Sequence[TokenSequence],
        pooling: str,
        *,
        padded: bool = True,
    ) -> np.ndarray:
        """One vector for each sequence; sequences of similar length share a batch."""
        vectors = np.empty((len(sequences), self._pooled_width(pooling)), np.float32)
        if self.encoder.cls_last:
            names = ["last" if name == "cls" else name for name in pooling.split("+")]
            pooling = "+".join(names)

        @torch.inference_mode()
        def compute(rows: list[int]) -> None:
            batch = self._pack([sequences[row] for row in rows], padded=padded)
            pooled_BD = pool(encoder(batch).last_ND, batch.bounds_B1, pooling)
            # Padding is one more sequence at the end.
            vectors[rows] = pooled_BD[: len(rows)].numpy()

        lengths = [len(sequence) for sequence in sequences]
        budget = within(BATCH_TOKENS, self.encoder.width)
        compute_in_parallel(compute, list(token_batches(lengths, budget)))
        return vectors

    def _pack(self, sequences: Sequence[TokenSequence], *, padded: bool) -> Batch:
        """The sequences end to end, with padding as one more sequence where it is useful."""
        # Either all sequences are windows, or none is.
        token_windows = [sequence for sequence in sequences if isinstance(sequence, Window)]
        if token_windows:
            return pack_windows(token_windows)
        ids = [sequence for sequence in sequences if isinstance(sequence, np.ndarray)]
        if padded:
            missing = self._num_padding(sum(map(len, ids)))
            if missing:
                ids.append(np.zeros(missing, np.int64))
        return pack_tokens(ids)

    def _num_padding(self, num_tokens: int) -> int:
        """Tokens to add to a large batch, so that its size is a multiple of `ROUND_TOKENS`."""
        if num_tokens < MIN_ROUNDED_TOKENS or self.encoder.max_positions < ROUND_TOKENS:
            return 0
        # Without matrix products (word vectors) no kernels are prepared.
        if not block_linears(self.encoder):
            return 0
        return -num_tokens % ROUND_TOKENS
