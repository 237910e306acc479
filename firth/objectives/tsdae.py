"""TSDAE (Wang et al. 2021): a decoder writes a sentence from one vector, which comes from a part of its words.

Cut: documents into sentences. Corruption: most words of a sentence are deleted. The encoder reads what is left, and the
mean of its states is all that the decoder sees of it. Loss: cross-entropy of the whole sentence and its end. So the
vector must hold what the sentence is about. Afterwards the encoder gives vectors (`firth embed`).

The decoder is small and belongs to the objective. A new one knows nothing about words, and its gradients ask for the
same change of every vector: an encoder that follows them gives every text nearly the same vector. So the decoder
learns first (`train.optim.heads_first`).
"""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import embedding

from firth import rng
from firth.data.packing import Pack, PairLengths, Plan
from firth.data.sources import PackedIds, Tokens, in_every_sequence, lay_end_to_end, lay_framed
from firth.data.stream import CorpusView
from firth.errors import BadConfig
from firth.nn.absolute_positions import Sinusoids
from firth.nn.attention_layers import SelfAttention
from firth.nn.blocks import Block, FeedForward, compute_dtype, initialise
from firth.nn.heads import VocabularyHead
from firth.nn.layout import layout, token_sequences
from firth.nn.likelihood import summed_cross_entropy
from firth.nn.pooling import mean_rows
from firth.nn.transformer import TransformerConfig
from firth.objectives.contrastive import sentence_plan
from firth.objectives.reconstruction import Pair, ReconstructionConfig, ReconstructionObjective
from firth.objectives.word_spans import PackText, text_of
from firth.tensors import Batch, Encoder, Loss, States
from firth.tokenizers.vocab import Vocab


class VectorDecoder(nn.Module):
    """A block that writes a text from left to right, given a vector.

    In: the embeddings of the text's tokens and one vector for each text. Out: what is compared with the embeddings to
    find the next token. Attention to a single vector is that vector, projected, so it is added to every token.
    """

    def __init__(self, shape: TransformerConfig, table_width: int) -> None:
        super().__init__()
        self.token_norm = nn.LayerNorm(table_width, eps=shape.norm_eps)
        self.places = Sinusoids(table_width)
        self.widen = nn.Linear(table_width, shape.width)
        self.read = nn.Linear(shape.width, shape.width)
        self.norm = nn.LayerNorm(shape.width, eps=shape.norm_eps)
        self.block = Block(
            SelfAttention(shape.width, shape.num_heads, causal=True),
            FeedForward(shape.width, shape.ffn_width, activation_name="gelu"),
            attention_norm=nn.LayerNorm(shape.width, eps=shape.norm_eps),
            ffn_norm=nn.LayerNorm(shape.width, eps=shape.norm_eps),
        )
        self.head = VocabularyHead(
            shape.width, shape.vocab_size, table_width=table_width, activation_name="gelu", norm_eps=shape.norm_eps
        )

    def forward(self, tokens_NE: Tensor, text: Batch, vectors_BD: Tensor) -> Tensor:
        sequence_N = token_sequences(text.bounds_B1, text.num_tokens)
        # Filler behind the last text borrows its vector.
        sequence_N = sequence_N.clamp(max=len(vectors_BD) - 1)
        vectors_ND = self.read(vectors_BD).index_select(0, sequence_N)
        places_NE = self.places(text.positions_N).to(tokens_NE.dtype)
        placed_NE = self.token_norm(tokens_NE) + places_NE
        x_ND = self.norm(self.widen(placed_NE) + vectors_ND)
        plan = layout(text, dtype=compute_dtype(self.widen.weight))
        return self.head.hidden(self.block(x_ND, plan))


class Tsdae(ReconstructionObjective):
    word_losses = {"tsdae": "token of the sentence"}
    has_weights = True
    is_kept = False
    per_token = ("decoder.head.bias",)

    @dataclass(frozen=True)
    class Config(ReconstructionConfig):
        delete: float = 0.6
        """Share of the words that the encoder does not read."""
        min_tokens: int = 8
        """Shorter sentences are left out."""

        def __post_init__(self) -> None:
            super().__post_init__()
            if not 0 <= self.delete < 1:
                raise BadConfig("objectives.tsdae.delete must be at least 0 and below 1.")

    config: Config

    def __init__(self, config: Config, encoder: Encoder, *, vocab: Vocab, max_length: int, seed: int) -> None:
        super().__init__(config, encoder, vocab=vocab, max_length=max_length, seed=seed)
        self.decoder = VectorDecoder(encoder.config, encoder.table_width)
        initialise(self, std=encoder.init_std)

    def start_token(self, encoder: Encoder) -> int:
        if not isinstance(encoder.config, TransformerConfig):
            raise BadConfig("The objective tsdae trains Transformers, such as the encoder of the recipe 'bert'.")
        return self.vocab.cls

    def begin(self, encoder: Encoder) -> None:
        """The decoder's block begins as the encoder's last one, where both have the same form."""
        own = self.decoder.block
        blocks = getattr(encoder, "blocks", None)
        if blocks and blocks[-1].norm_order == own.norm_order:
            _copy_alike(blocks[-1], own)
        project = getattr(getattr(encoder, "embeddings", None), "project", None)
        if isinstance(project, nn.Linear):
            _copy_alike(project, self.decoder.widen)

    def pair_lengths(self, sizes_S: np.ndarray) -> PairLengths:
        kept_S = (1 - self.config.delete) * sizes_S
        source_S = np.minimum(kept_S + self.vocab.frame.size(), self.max_length)
        spread = 0.03 if self.config.delete else 0.0
        return PairLengths(source_S, sizes_S + 1, self.max_length, source_spread=spread)

    def sequences(self, stream: CorpusView, epoch: int) -> Plan:
        frame = self.vocab.frame
        # A target has an end also where texts have no special tokens around them.
        longest_sentence = self.max_length if frame.size() else self.max_length - 1
        plan = sentence_plan(stream, longest_sentence, frame=frame, min_tokens=self.config.min_tokens)
        return replace(plan, pair_lengths=self.pair_lengths(plan.lengths_S - frame.size()))

    def pair(self, pack: Pack, key: np.uint64) -> Pair:
        text = text_of(pack)
        num_sequences = len(text.rows_B)
        behind_all = int(text.sizes_B.max(initial=0))
        ends = in_every_sequence((self.vocab.sep,), num_sequences, place=behind_all)
        whole = Tokens(text.sequence_T, text.offsets_T, text.ids_T)
        written = lay_end_to_end([whole, ends], num_sequences)
        return Pair(self._source(text, key), written, self.start)

    def _source(self, text: PackText, key: np.uint64) -> PackedIds:
        """What is left of the sentences."""
        words = text.words
        rows_W = text.rows_B[words.sequence_W]
        draws_W = rng.uniform(key, rows_W, text.offsets_T[words.first_W])
        kept_T = np.repeat(draws_W >= self.config.delete, words.ends_W - words.first_W)
        left = Tokens(text.sequence_T[kept_T], text.offsets_T[kept_T], text.ids_T[kept_T])
        return lay_framed([left], len(text.rows_B), frame=self.vocab.frame)

    def rewrite(self, batch: Batch) -> tuple[Batch, Loss]:
        """The encoder reads what is left; what the decoder writes waits among the targets."""
        if batch.source is None or len(batch.targets) > 1:
            raise BadConfig("The objective tsdae learns alone; leave out the other objectives.")
        written = {
            "tsdae_ids": batch.ids_N,
            "tsdae_positions": batch.positions_N,
            "tsdae_bounds": batch.bounds_B1,
        }
        return replace(batch.source, targets={**batch.targets, **written}), Loss({})

    def loss(self, states: States, batch: Batch) -> Loss:
        ids_N = batch.targets["tsdae_ids"]
        positions_N = batch.targets["tsdae_positions"]
        bounds_B1 = batch.targets["tsdae_bounds"]
        text = Batch(ids_N, positions_N, torch.zeros_like(ids_N), bounds_B1, self.max_length)
        table_VE = states.table_VD  # also the output layer's
        vectors_BD = mean_rows(states.last_ND, batch.bounds_B1)
        output_NE = self.decoder(embedding(ids_N, table_VE), text, vectors_BD)
        total, correct = summed_cross_entropy(
            output_NE,
            table_VE,
            self.decoder.head.bias,
            labels_P=batch.targets["tsdae_labels"],
            smoothing=self.config.smoothing if self.training else 0.0,
        )
        return Loss({"tsdae": total}, {"tsdae_correct": correct})


def _copy_alike(module: nn.Module, copy: nn.Module) -> None:
    """Copies the weights of a module into another if their names and shapes are the same."""
    state = module.state_dict()
    shapes = {name: tensor.shape for name, tensor in state.items()}
    if shapes == {name: tensor.shape for name, tensor in copy.state_dict().items()}:
        copy.load_state_dict(state)
