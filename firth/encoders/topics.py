"""Topics of a text by latent Dirichlet allocation (Blei et al. 2003): the variational posterior of each token's topic.

In: a batch whose sequences are documents. Out: for every token how likely each topic made it, given its word and the
rest of its document; the mean over a document is its mixture of topics.
"""

import torch
from torch import Tensor, nn

from firth.encoders.tables import TopicsConfig
from firth.nn.pooling import mean_rows
from firth.tensors import Batch, Encoder, States


class Topics(Encoder):
    Config = TopicsConfig

    def __init__(self, config: TopicsConfig) -> None:
        super().__init__()
        self.config = config
        self.width, self.vocab_size = config.width, config.vocab_size
        self.alpha = config.alpha or 1 / config.width
        self.table = nn.Embedding(config.vocab_size, config.width)
        """exp E[log probability of a word in a topic]; a row of zeros is a token without topic."""
        nn.init.normal_(self.table.weight, std=config.init_std)
        self.table.weight.data.exp_()

    def forward(self, batch: Batch, *, layers: bool = False, attention: bool = False) -> States:
        lengths_B = batch.bounds_B1.long().diff()
        owners_N = torch.repeat_interleave(torch.arange(len(lengths_B), device=lengths_B.device), lengths_B)
        x_ND, _ = self.posterior(self.table(batch.ids_N), owners_N, len(lengths_B))
        return States(x_ND, self.table.weight, mean_rows(x_ND, batch.bounds_B1), (x_ND,) if layers else ())

    def posterior(
        self, rows_ND: Tensor, owners_N: Tensor, num_documents: int, counts_N: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Each token's topics, and each document's Dirichlet (equations 6 and 7); `counts_N` weigh the tokens."""
        rows_ND = rows_ND / rows_ND.sum(1, keepdim=True).clamp_min(1e-30)  # a scale that cancels, before it underflows
        gamma_BD = rows_ND.new_ones(num_documents, self.width)
        for _ in range(self.config.num_iterations):
            theta_BD = torch.exp(torch.digamma(gamma_BD) - torch.digamma(gamma_BD.sum(1, keepdim=True)))
            phi_ND = rows_ND * theta_BD[owners_N]
            phi_ND = phi_ND / phi_ND.sum(1, keepdim=True).clamp_min(1e-30)
            weighted_ND = phi_ND if counts_N is None else phi_ND * counts_N[:, None]
            gamma_BD = torch.zeros_like(gamma_BD).index_add(0, owners_N, weighted_ND) + self.alpha
        return phi_ND, gamma_BD
