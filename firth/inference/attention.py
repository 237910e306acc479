"""A text in; its tokens, and what each of them attends to in every layer and head, out."""

import numpy as np
import torch

from firth.data.packing import pack_tokens
from firth.errors import Unsupported
from firth.tensors import Encoder
from firth.tokenizers import Tokenizer


@torch.inference_mode()
def read_attention(encoder: Encoder, tokenizer: Tokenizer, text: str) -> tuple[list[str], np.ndarray]:
    """The tokens of a text with its special ones, and the attention weights: layers x H x L x L."""
    if not (encoder.shows_attention and encoder.num_layers):
        raise Unsupported("This model has no attention to show.")
    vocab = tokenizer.vocab
    ids = vocab.frame.join(tokenizer.encode(text).ids)
    ids = ids[: encoder.max_positions]
    states = encoder(pack_tokens([ids]), attention=True)
    tokens = [vocab.tokens[token] for token in ids]
    # Each layer's weights are those of one batch with one sequence.
    weights = np.stack([layer[0].numpy() for layer in states.attention])
    return tokens, weights
