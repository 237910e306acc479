"""A masked language model writes: source and target in one sequence (Dong et al. 2019, section 2.4).

In: pairs of token ids. Out: batches `[CLS] source [SEP] target [SEP]` with prefixes, whose loss is that of hidden
tokens of the target, and the scores of next tokens (`nn/prefix_writing.py`). The output layer begins as that of
pre-training.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn

from firth.data.items import Item, Window, window
from firth.nn.blocks import initialise
from firth.nn.heads import VocabularyHead
from firth.nn.likelihood import IGNORE, summed_cross_entropy
from firth.nn.prefix_writing import PrefixScores, mask_targets, pair_batch
from firth.tensors import Batch, Encoder, Goal, States
from firth.tokenizers.vocab import Vocab

LABELS = "labels_N"
"""The targets of a batch: all tokens that are to be written."""
POSITIONS = "positions_P"
"""Where they are."""
HIDDEN = "hidden_P"
"""Those of them that are hidden; the others have no label."""
MASK = "mask"
"""The id of [MASK]."""
HIDDEN_RATE = 0.7
"""Share of a target's tokens that are hidden and predicted (Dong et al. 2019, section 3)."""


class PrefixShape(Protocol):
    """What is read of the config of an encoder that knows prefixes and segments, such as BERT's."""

    activation: str
    norm_eps: float
    num_segments: int


@runtime_checkable
class HasHead(Protocol):
    """An objective with an output layer of its own."""

    head: nn.Module


class PrefixWriter(nn.Module):
    """Half of a sequence is for the source, half for the target."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        shape: PrefixShape = encoder.config
        self.head = VocabularyHead(
            encoder.width,
            encoder.vocab_size,
            table_width=encoder.table_width,
            activation_name=shape.activation,
            norm_eps=shape.norm_eps,
        )
        initialise(self.head, std=encoder.init_std)
        self.target_segment = 1 if shape.num_segments > 1 else 0

    def start_from(self, goals: Mapping[str, Goal]) -> None:
        """Takes the output layer of pre-training, if there is one."""
        for goal in goals.values():
            if isinstance(goal, HasHead) and isinstance(goal.head, VocabularyHead):
                self.head.load_state_dict(goal.head.state_dict())
                return

    def room(self, max_length: int, vocab: Vocab) -> int:
        return max_length // 2 - 1

    def longest(self, max_positions: int) -> int:
        return max_positions // 2

    def source_window(self, source: np.ndarray, vocab: Vocab, *, max_length: int) -> Window:
        room = max_length - max_length // 2 - vocab.frame.size()
        return window(vocab, source[: max(room, 0)])

    def batch(self, items: Sequence[Item], targets: Sequence[np.ndarray], vocab: Vocab) -> Batch:
        ended = [np.concatenate([target, [vocab.sep]]) for target in targets]
        batch = pair_batch(_sources(items), ended, target_segment=self.target_segment)
        # A target is the end of its sequence.
        places = []
        for target, end in zip(ended, batch.bounds_B1[1:].tolist(), strict=True):
            places.append(np.arange(end - len(target), end))
        positions_P = torch.from_numpy(np.concatenate(places))
        labels = {LABELS: batch.ids_N[positions_P], POSITIONS: positions_P, MASK: torch.tensor(vocab.mask)}
        return replace(batch, targets=labels)

    def training_input(self, batch: Batch) -> Batch:
        """The batch with random tokens of the targets hidden.

        The loop reseeds torch for each micro-batch, so a resumed run hides the same ones.
        """
        draws_N = torch.rand(batch.num_tokens, device=batch.ids_N.device)
        hidden, labels_N = mask_targets(batch, draws_N, mask=batch.targets[MASK], rate=HIDDEN_RATE)
        labels_P = labels_N[batch.targets[POSITIONS]]
        return replace(hidden, targets={**batch.targets, HIDDEN: labels_P})

    def loss(self, states: States, batch: Batch, *, smoothing: float) -> tuple[Tensor, dict[str, Tensor]]:
        """The expected loss if all tokens were predicted; of those that are hidden, how many have the highest score."""
        labels_P = batch.targets[HIDDEN]
        x_PD = states.last_ND.index_select(0, batch.targets[POSITIONS])
        total, correct = summed_cross_entropy(
            self.head.hidden(x_PD), states.table_VD, self.head.bias, labels_P=labels_P, smoothing=smoothing
        )
        num_hidden = (labels_P != IGNORE).sum()
        return total / HIDDEN_RATE, {"accuracy": correct, "accuracy_of": num_hidden}

    def next_scores(self, encoder: Encoder, items: Sequence[Item], vocab: Vocab, *, longest: int) -> PrefixScores:
        return PrefixScores(
            encoder,
            self.head,
            _sources(items),
            mask=vocab.mask,
            longest=longest,
            target_segment=self.target_segment,
        )


def _sources(items: Sequence[Item]) -> list[np.ndarray]:
    return [item.windows[0].ids for item in items]
