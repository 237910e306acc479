"""Text without labels -> a vector head (`firth/convert/vector_head.py`) for a model whose weights stay as they are.

1. Sentences are drawn from the text. Tokens get the weights a / (a + p) of Arora et al. 2017, p their frequency.
2. The sentences' weighted means of token embeddings are centred and whitened (Su et al. 2021).
3. Weights and projection are trained by contrast: among the sentences of a batch, find the partner of each by cosine
   (InfoNCE). In odd steps the partner is the next sentence, in even steps the two are halves of one sentence, whose
   words are dealt at random.
4. Each token gets signs of its own, which are not learned; `own_weight` says how much they count.
5. The encoder reads some of the sentences, and a projection of its states becomes the other part of a vector
   (`firth/finetuning/context_part.py`).

Steps 1 to 4 read the model's input embedding only; all of it takes a minute or two on a CPU.
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import embedding_bag, normalize

from firth import rng
from firth.checkpoint import Checkpoint, token_table
from firth.console import bar
from firth.convert.vector_head import VectorHead
from firth.corpus.readers import expected_bytes, find_files, read_documents
from firth.corpus.sentences import split
from firth.errors import BadConfig, BadInput, Unsupported
from firth.finetuning.context_part import ContextConfig, partner_loss, train_context_part
from firth.tokenizers import Tokenizer
from firth.tokenizers.unknown import unknown_share, warn_about_unknown

log = logging.getLogger(__name__)

SMOOTHING = 1e-3
"""The `a` of a / (a + p)."""
SMALLEST_EIGENVALUE = 1e-3
"""Directions with less variance than this share of the mean are not scaled up further."""
WHITENED_SENTENCES = 50_000
NO_WEIGHT = 1e-6
"""The weight of a token that is left out of a half; not 0, because a half may have no token."""
BYTES_PER_SENTENCE = 120.0
"""About 100 characters, or 40 in Chinese, where a character has three bytes."""
BLOCK_SENTENCES = 4096
"""Sentences that are tokenized at once."""


@dataclass(frozen=True)
class VectorHeadConfig:
    sentences: int = 300_000
    """Sentences to learn from, drawn from the text by whole documents."""
    steps: int = 1000
    """Training steps; 0 keeps the weights and the whitening that training begins with."""
    batch_size: int = 512
    """Pairs of sentences in a step."""
    temperature: float = 0.03
    """Divides the cosines; the smaller, the more the nearest wrong sentences count."""
    projection_rate: float = 1e-3
    weight_rate: float = 1e-2
    """The rate of the tokens' weights, which are trained as logarithms."""
    own_width: int = 256
    """Random signs of each token, by which a vector also says which tokens a text has; 0 for the meaning alone."""
    own_weight: float = 1.2
    """How long a token's signs are, compared with its meaning."""
    min_tokens: int = 4
    max_tokens: int = 64
    """Sentences shorter or longer than this are left out."""
    context: ContextConfig = field(default_factory=ContextConfig)
    """The part that the encoder computes."""
    seed: int = 1

    def __post_init__(self) -> None:
        if self.temperature <= 0 or self.batch_size < 2 or self.steps < 0:
            raise BadConfig("temperature must be above 0, batch_size at least 2 and steps at least 0.")
        if self.own_width < 0 or self.own_weight < 0:
            raise BadConfig("own_width and own_weight must be at least 0.")


@dataclass(frozen=True)
class SentenceTokens:
    """The sentences of a text as tokens, end to end, in order."""

    ids_N: Tensor
    starts_S: Tensor
    lengths_S: Tensor
    has_next_S: Tensor
    """Whether the next sentence continues the same line of text."""

    def __len__(self) -> int:
        return len(self.starts_S)

    def take(self, chosen_B: Tensor) -> tuple[Tensor, Tensor]:
        """The tokens of some sentences, end to end, and where each begins."""
        lengths_B = self.lengths_S[chosen_B]
        offsets_B = lengths_B.cumsum(0) - lengths_B
        shifts_B = self.starts_S[chosen_B] - offsets_B
        num_tokens = int(lengths_B.sum())
        places_T = torch.repeat_interleave(shifts_B, lengths_B) + torch.arange(num_tokens)
        return self.ids_N[places_T], offsets_B


def train_vector_head(checkpoint: Checkpoint, texts: Sequence[Path], config: VectorHeadConfig) -> VectorHead:
    """The head for a model, learned from text files."""
    table_VE = token_table(checkpoint.encoder)
    if table_VE is None or checkpoint.tokenizer.has_word_parts:
        raise Unsupported("A vector head needs a model of BERT's kind, with one embedding for each token.")
    sentences = read_sentences(texts, checkpoint.tokenizer, config)
    warn_about_unknown("The text", checkpoint.tokenizer, unknown_share(checkpoint.tokenizer, [sentences.ids_N.numpy()]))
    num_pairs = int(sentences.has_next_S.sum())
    if num_pairs < config.batch_size:
        raise BadInput(
            f"The text has {num_pairs:,} pairs of sentences that follow each other; at least {config.batch_size:,} are "
            "needed: give more text, or a smaller batch_size."
        )
    num_tokens = len(checkpoint.tokenizer.vocab)
    learner = _Learner(table_VE[:num_tokens].float(), sentences, config)
    learner.train()
    head = learner.head(checkpoint.tokenizer)
    if not config.context.pairs or not checkpoint.encoder.num_layers:
        return head
    pairs = _neighbours(sentences, checkpoint, config)
    context = train_context_part(checkpoint.encoder, pairs, config.context, seed=config.seed)
    return replace(head, context=context)


def _neighbours(sentences: SentenceTokens, checkpoint: Checkpoint, config: VectorHeadConfig) -> list[np.ndarray]:
    """Sentences drawn at random, as the encoder reads them, and after them the sentence that follows each."""
    with_next = sentences.has_next_S.nonzero()[:, 0].numpy()
    order = rng.permutation(rng.key(config.seed, "vector head", "neighbours"), len(with_next))
    firsts = with_next[order[: config.context.pairs]]
    frame = checkpoint.tokenizer.vocab.frame
    longest = checkpoint.encoder.max_positions - frame.size()
    sequences = []
    for number in [*firsts, *(firsts + 1)]:
        start = int(sentences.starts_S[number])
        length = min(int(sentences.lengths_S[number]), longest)
        sequences.append(frame.join(sentences.ids_N[start : start + length].numpy()))
    return sequences


def read_sentences(texts: Sequence[Path], tokenizer: Tokenizer, config: VectorHeadConfig) -> SentenceTokens:
    """Sentences of the text as tokens, about as many as `config.sentences`."""
    collector = _SentenceCollector(tokenizer, config)
    sentences = _sentences(texts, config)
    while len(collector.ids) < config.sentences:
        block = list(islice(sentences, BLOCK_SENTENCES))
        if not block:
            break
        collector.add(block)
    if not collector.ids:
        raise BadInput(
            f"The text has no sentences of {config.min_tokens} to {config.max_tokens} tokens; give other text."
        )
    lengths_S = torch.tensor([len(sentence_ids) for sentence_ids in collector.ids])
    return SentenceTokens(
        ids_N=torch.from_numpy(np.concatenate(collector.ids)),
        starts_S=lengths_S.cumsum(0) - lengths_S,
        lengths_S=lengths_S,
        # The last sentence has none after it.
        has_next_S=torch.tensor([*collector.continues[1:], False]),
    )


class _SentenceCollector:
    """The tokens of sentences that are neither too short nor too long, added block by block."""

    def __init__(self, tokenizer: Tokenizer, config: VectorHeadConfig) -> None:
        self.tokenizer = tokenizer
        self.config = config
        self.ids: list[np.ndarray] = []
        self.continues: list[bool] = []
        """Whether each sentence continues the line of the sentence before it."""
        self._previous_line = -1

    def add(self, block: Sequence[tuple[int, str]]) -> None:
        """Adds sentences, each with the number of its line."""
        texts = [sentence for _, sentence in block]
        for (line, _), sentence_ids in zip(block, self.tokenizer.ids_batch(texts), strict=True):
            if self.config.min_tokens <= len(sentence_ids) <= self.config.max_tokens:
                self.ids.append(np.array(sentence_ids, np.int64))
                self.continues.append(line == self._previous_line)
                self._previous_line = line
            else:
                # The sentence after this gap continues none.
                self._previous_line = -1


def _sentences(texts: Sequence[Path], config: VectorHeadConfig) -> Iterator[tuple[int, str]]:
    """The sentences of documents drawn from all of the text, each with the number of its line."""
    files = find_files(texts)
    wanted_bytes = BYTES_PER_SENTENCE * config.sentences
    share = min(1.0, wanted_bytes / max(1, expected_bytes(files)))
    draw = rng.key(config.seed, "vector head", "documents")
    line_number = 0
    for number, document in enumerate(read_documents(files)):
        if float(rng.uniform(draw, number)) >= share:
            continue
        for line in document.lines:
            line_number += 1
            for sentence in split(line):
                yield line_number, sentence


class _Learner:
    """Weights, projection and bias in training."""

    def __init__(self, table_VE: Tensor, sentences: SentenceTokens, config: VectorHeadConfig) -> None:
        self.table_VE = table_VE
        self.sentences = sentences
        self.config = config
        self.pairs = sentences.has_next_S.nonzero()[:, 0]
        counts_V = torch.bincount(sentences.ids_N, minlength=len(table_VE)).float()
        self.is_seen_V = counts_V > 0
        frequencies_V = counts_V / counts_V.sum()
        self.log_weights_V = (SMOOTHING / (SMOOTHING + frequencies_V)).log().requires_grad_()
        self.projection_ED, self.bias_D = self._whitening()

    def _whitening(self) -> tuple[Tensor, Tensor]:
        """The projection and bias that whiten the sentences' means: mean 0, the same variance in all directions."""
        order = rng.permutation(rng.key(self.config.seed, "vector head", "whitening"), len(self.sentences))
        ids_T, offsets_S = self.sentences.take(torch.from_numpy(order[:WHITENED_SENTENCES].copy()))
        with torch.no_grad():
            means_SE = self._means(ids_T, offsets_S, self.log_weights_V.exp()[ids_T])
            centre_E = means_SE.mean(0)
            values_E, directions_EE = torch.linalg.eigh(torch.cov((means_SE - centre_E).T))
            values_E = values_E.clamp(min=SMALLEST_EIGENVALUE * float(values_E.mean()))
            projection_ED = directions_EE / values_E.sqrt()
            bias_D = -centre_E @ projection_ED
        return projection_ED.requires_grad_(), bias_D.requires_grad_()

    def train(self) -> None:
        """Trains weights, projection and bias in place."""
        config = self.config
        rates = (config.projection_rate, config.weight_rate)
        optimizer = torch.optim.Adam(
            [
                {"params": [self.projection_ED, self.bias_D], "lr": rates[0]},
                {"params": [self.log_weights_V], "lr": rates[1]},
            ]
        )
        with bar("vector head", config.steps, unit="steps") as advance:
            for step in range(config.steps):
                for group, rate in zip(optimizer.param_groups, rates, strict=True):
                    group["lr"] = rate * (1 - step / config.steps)
                loss = self._loss(step)
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                advance(step + 1, f"loss {loss.item():.3f}")

    def _loss(self, step: int) -> Tensor:
        """The cross-entropy of finding the partner of each sentence."""
        draw = rng.key(self.config.seed, "vector head", step)
        numbers = rng.below(draw, len(self.pairs), np.arange(self.config.batch_size))
        first_B = self.pairs[torch.from_numpy(numbers)]
        if step % 2:
            x_BD, y_BD = self._neighbour_vectors(first_B)
        else:
            x_BD, y_BD = self._half_vectors(first_B, draw)
        return partner_loss(x_BD, y_BD, self.config.temperature)

    def _neighbour_vectors(self, first_B: Tensor) -> tuple[Tensor, Tensor]:
        """The vectors of sentences, and of the sentences that follow them."""
        return self._sentence_vectors(first_B), self._sentence_vectors(first_B + 1)

    def _sentence_vectors(self, numbers_B: Tensor) -> Tensor:
        ids_T, offsets_B = self.sentences.take(numbers_B)
        return self._vectors(ids_T, offsets_B, self.log_weights_V.exp()[ids_T])

    def _half_vectors(self, numbers_B: Tensor, draw: np.uint64) -> tuple[Tensor, Tensor]:
        """The vectors of two halves of each sentence, whose words are dealt at random."""
        ids_T, offsets_B = self.sentences.take(numbers_B)
        weights_T = self.log_weights_V.exp()[ids_T]
        is_first_T = torch.from_numpy(rng.uniform(draw, np.arange(len(ids_T)), 1) < 0.5)
        x_BD = self._vectors(ids_T, offsets_B, weights_T * is_first_T + NO_WEIGHT)
        y_BD = self._vectors(ids_T, offsets_B, weights_T * ~is_first_T + NO_WEIGHT)
        return x_BD, y_BD

    def _vectors(self, ids_T: Tensor, offsets_B: Tensor, weights_T: Tensor) -> Tensor:
        means_BE = self._means(ids_T, offsets_B, weights_T)
        return normalize(means_BE @ self.projection_ED + self.bias_D, dim=-1)

    def _means(self, ids_T: Tensor, offsets_B: Tensor, weights_T: Tensor) -> Tensor:
        """The weighted mean of each sentence's token embeddings."""
        sums_BE = embedding_bag(ids_T, self.table_VE, offsets_B, mode="sum", per_sample_weights=weights_T)
        lengths_B = torch.diff(offsets_B, append=torch.tensor([len(ids_T)]))
        owners_T = torch.repeat_interleave(torch.arange(len(offsets_B)), lengths_B)
        totals_B = weights_T.new_zeros(len(offsets_B)).index_add_(0, owners_T, weights_T)
        return sums_BE / totals_B[:, None]

    def head(self, tokenizer: Tokenizer) -> VectorHead:
        """What was learned; special tokens have no weight."""
        weights_V = self.log_weights_V.detach().exp()
        weights_V /= weights_V.max()
        weights_V[list(tokenizer.vocab.specials)] = 0.0
        projection_ED = self.projection_ED.detach()
        bias_D = self.bias_D.detach()
        return VectorHead(weights_V.numpy(), projection_ED.numpy(), bias_D.numpy(), self._own_scales(weights_V))

    def _own_scales(self, weights_V: Tensor) -> np.ndarray:
        """What makes signs `own_weight` times as long as meanings, by root mean squares over the tokens seen."""
        with torch.no_grad():
            meanings_VD = self.table_VE @ self.projection_ED + self.bias_D
        lengths_V = meanings_VD.norm(dim=1)
        weights_U = weights_V[self.is_seen_V]
        mean_square = (weights_U * lengths_V[self.is_seen_V]).square().mean() / weights_U.square().mean()
        width = self.config.own_width
        scale = self.config.own_weight * float(mean_square) ** 0.5 / max(1, width) ** 0.5
        return np.full(width, scale, np.float32)
