"""An encoder that onnxruntime computes. In: a batch. Out: its states, as firth's own encoder gives them."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from firth.inference.fast_encoder import FastEncoder
from firth.tensors import Batch, Encoder, States

OUTPUTS = ("last_hidden_state", "pooler_output", "logits")


class OnnxEncoder(FastEncoder):
    """Sequences are padded to the longest of their batch."""

    def __init__(self, original: Encoder, path: Path) -> None:
        import onnxruntime

        super().__init__(original)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        self.session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        names = [output.name for output in self.session.get_outputs()]
        self.wanted = [name for name in OUTPUTS[:2] if name in names]
        self.eval()

    def fast_states(self, batch: Batch) -> States:
        lengths_B = np.diff(batch.bounds_B1.numpy())
        mask_BL = np.arange(lengths_B.max()) < lengths_B[:, None]
        inputs = {
            "input_ids": _padded(batch.ids_N, mask_BL),
            "attention_mask": mask_BL.astype(np.int64),
            "token_type_ids": _padded(batch.segments_N, mask_BL),
        }
        known = {one.name for one in self.session.get_inputs()}
        given = {name: array for name, array in inputs.items() if name in known}
        states_BLD, *pooled = self.session.run(self.wanted, given)
        pooled_BD = torch.from_numpy(pooled[0]) if pooled else None
        return States(torch.from_numpy(states_BLD[mask_BL]), self._table(), pooled_BD)

    def _table(self) -> Tensor:
        table_VD: Tensor = self.original.get_parameter("embeddings.tokens.weight")
        return table_VD


def _padded(values_N: Tensor, mask_BL: np.ndarray) -> np.ndarray:
    """Values of all tokens as a matrix with zeros where there is no token."""
    padded_BL = np.zeros(mask_BL.shape, np.int64)
    padded_BL[mask_BL] = values_N.numpy()
    return padded_BL
