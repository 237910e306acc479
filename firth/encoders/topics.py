"""Topics of a text by latent Dirichlet allocation (Blei et al. 2003): the variational posterior of each token's topic.

In: a batch whose sequences are documents. Out: for every token the probability of each topic, given its word and the
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
        self.width = config.width
        self.vocab_size = config.vocab_size
        self.alpha = config.alpha or 1 / config.width
        self.table = nn.Embedding(config.vocab_size, config.width)
        """exp E[log probability of a word in a topic]; a row of zeros is a token without topic."""
        nn.init.normal_(self.table.weight, std=config.init_std)
        self.table.weight.data.exp_()

    def forward(self, batch: Batch, *, layers: bool = False, attention: bool = False) -> States:
        lengths_B = batch.bounds_B1.long().diff()
        owners_N = torch.repeat_interleave(torch.arange(len(lengths_B), device=lengths_B.device), lengths_B)
        x_ND, _ = self.posterior(self.table(batch.ids_N), owners_N, len(lengths_B))
        pooled_BD = mean_rows(x_ND, batch.bounds_B1)
        shown = (x_ND,) if layers else ()
        return States(x_ND, self.table.weight, pooled_BD, layers=shown)

    def posterior(
        self,
        rows_ND: Tensor,
        owners_N: Tensor,
        num_documents: int,
        counts_N: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Each token's topics phi_ND, and the parameters gamma_BD of each document's Dirichlet (equations 6 and 7).

        `rows_ND` are the tokens' rows of the table, `owners_N` their documents, `counts_N` their weights.
        """
        # The scale of a row cancels; normalised rows do not underflow.
        rows_ND = rows_ND / rows_ND.sum(1, keepdim=True).clamp_min(1e-30)
        gamma_BD = rows_ND.new_ones(num_documents, self.width)
        for _ in range(self.config.num_iterations):
            # exp E[log theta] under the Dirichlet with parameters gamma.
            theta_BD = torch.exp(torch.digamma(gamma_BD) - torch.digamma(gamma_BD.sum(1, keepdim=True)))
            phi_ND = rows_ND * theta_BD[owners_N]
            phi_ND = phi_ND / phi_ND.sum(1, keepdim=True).clamp_min(1e-30)
            weighted_ND = phi_ND
            if counts_N is not None:
                weighted_ND = phi_ND * counts_N[:, None]
            tallies_BD = torch.zeros_like(gamma_BD).index_add(0, owners_N, weighted_ND)
            gamma_BD = tallies_BD + self.alpha
        return phi_ND, gamma_BD
