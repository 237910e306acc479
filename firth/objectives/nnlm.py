"""A neural probabilistic language model (Bengio et al. 2003, equation 1).

Cut: every document into runs of at most `max_length`. Nothing is corrupted: every word is predicted from the words
before it. The vectors C of the n - 1 words before it, concatenated, are x. The scores are b + W x + U tanh(d + H x),
one for each word of the vocabulary. Words before the start of a sequence have zero vectors. C is the encoder's table.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from firth.data.packing import Pack, Plan, runs
from firth.data.stream import CorpusView
from firth.errors import BadConfig
from firth.nn.blocks import initialise
from firth.nn.likelihood import IGNORE
from firth.objectives.objective import Objective
from firth.tensors import Batch, Encoder, Loss, States
from firth.tokenizers.vocab import Vocab


class Nnlm(Objective):
    word_losses = {"nnlm": "next word"}
    gives_perplexity = True

    @dataclass(frozen=True)
    class Config:
        order: int = 5
        """Words in an n-gram: the one predicted and those before it (n in the paper)."""
        hidden: int = 100
        """Width of the tanh layer (h in the paper)."""
        direct: bool = False
        """Whether the vectors also go straight to the scores (W in the paper)."""

        def __post_init__(self) -> None:
            if self.order < 2 or self.hidden < 1:
                raise BadConfig("An n-gram network needs an order of at least 2 and a hidden layer of at least 1.")

    def __init__(self, config: Config, encoder: Encoder, *, vocab: Vocab, max_length: int, seed: int) -> None:
        super().__init__()
        self.config = config
        self.vocab = vocab
        self.max_length = max_length
        width = (config.order - 1) * encoder.width
        self.hidden = nn.Linear(width, config.hidden)
        self.out = nn.Linear(config.hidden, encoder.vocab_size)
        self.direct = nn.Linear(width, encoder.vocab_size, bias=False) if config.direct else None
        initialise(self, std=0.05)

    def sequences(self, stream: CorpusView, epoch: int) -> Plan:
        return runs(stream, self.max_length, frame=self.vocab.frame)

    def corrupt(self, pack: Pack, epoch: int) -> None:
        labels = np.full(pack.num_tokens, IGNORE, np.int64)
        labels[: len(pack.ids_N)] = np.where(pack.ordinary_N, pack.ids_N, IGNORE)
        pack.targets["nnlm_labels"] = labels

    def loss(self, states: States, batch: Batch) -> Loss:
        labels_N = batch.targets["nnlm_labels"]
        scores_NV = self.scores(states.last_ND, batch.positions_N)
        total = cross_entropy(scores_NV.float(), labels_N, ignore_index=IGNORE, reduction="sum")
        correct = (scores_NV.argmax(-1) == labels_N).sum()
        return Loss({"nnlm": total}, {"nnlm_correct": correct})

    def counts(self, batch: Batch) -> Mapping[str, int]:
        is_label_N = batch.targets["nnlm_labels"] != IGNORE
        return {"nnlm": int(is_label_N.sum())}

    def scores(self, x_ND: Tensor, positions_N: Tensor) -> Tensor:
        """Scores over the vocabulary of every token, from the tokens before it."""
        before = []
        for distance in range(1, self.config.order):
            # Tokens that are not this far into their sequence would see the sequence before it.
            exists_N1 = positions_N[:, None] >= distance
            before.append(torch.where(exists_N1, x_ND.roll(distance, 0), 0.0))
        context_NC = torch.cat(before, 1)
        scores_NV: Tensor = self.out(torch.tanh(self.hidden(context_NC)))
        if self.direct is not None:
            scores_NV = scores_NV + self.direct(context_NC)
        return scores_NV
