"""Texts -> the states that a model has of them in every layer. Shapes: K layers, L tokens, D width."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from firth.inference.model import Model
    from firth.types import Encoding

BATCH = 32
"""Texts that are read together."""


def read_layers(model: "Model", texts: Sequence[str]) -> Iterator[tuple["Encoding", np.ndarray]]:
    """For each text its encoding and the states of its own tokens, K x L x D; layer 0 is the embeddings.

    A text that is too long is cut at the end.
    """
    import torch

    from firth.data.packing import pack_tokens

    frame = model.tokenizer.vocab.frame
    room = model.encoder.max_positions - frame.size()
    for begin in range(0, len(texts), BATCH):
        encodings = model.tokenizer.encode_batch(list(texts[begin : begin + BATCH]))
        batch = pack_tokens([frame.join(encoding.ids[:room]) for encoding in encodings])
        with torch.inference_mode():
            layers = model.encoder(batch, layers=True).layers
        layers_KND = torch.stack(list(layers)).numpy()
        starts = batch.bounds_B1[:-1].tolist()
        for encoding, start in zip(encodings, starts, strict=True):
            first = start + len(frame.opening)
            yield encoding, layers_KND[:, first : first + min(len(encoding), room)]
