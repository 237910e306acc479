"""ONNX: the encoder as a file that onnxruntime and other programs run, with proof that it computes the same.

In: a BERT or ALBERT. Out: its folder with `model.onnx` added. Inputs are `input_ids`, `attention_mask` and
`token_type_ids`, B x L of any sizes; outputs are `last_hidden_state`, `pooler_output` if there is a pooler, and
`logits` if the model classifies by its first token. The states of up to 200 texts are compared with firth's. The gate
measures onnxruntime.
"""

import logging
import warnings
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from firth import checkpoint as checkpoints
from firth.checkpoint import Checkpoint
from firth.compression.method import CompressionJob, Method, MethodConfig
from firth.compression.onnx_runtime import OUTPUTS, OnnxEncoder
from firth.compression.structure import block_encoder
from firth.console import counted
from firth.data.items import text_sequences
from firth.data.packing import pack_tokens
from firth.encoders.albert import Albert
from firth.encoders.bert import Bert
from firth.errors import Unsupported, absent
from firth.inference.model import Model, load
from firth.nn.blocks import Block
from firth.tasks.classify import ClassifyHead
from firth.tasks.predicting import BATCH_TOKENS, token_batches
from firth.tensors import Encoder

PACKAGES = ("onnx", "onnxscript", "onnxruntime")
FILE = "model.onnx"
OPSET = 20
MOST_TEXTS = 200
TOLERANCE = 1e-4
"""The largest difference of a state that is accepted."""


class ExportOnnx(Method):
    """The encoder as an ONNX file, compared with firth's states; onnxruntime is measured."""

    name = "onnx"

    config: MethodConfig

    def __init__(self, config: MethodConfig) -> None:
        super().__init__(config)
        self.sequences: list[np.ndarray] = []
        self.difference = float("nan")

    @property
    def described(self) -> str:
        return f"run by onnxruntime, opset {OPSET}"

    @property
    def remarks(self) -> list[str]:
        if np.isnan(self.difference):
            return []
        texts = counted(len(self.sequences), "text")
        return [f"On {texts} the states of {FILE} differ from firth's by at most {self.difference:.1e}."]

    def compress(self, job: CompressionJob) -> Checkpoint:
        check_exportable(job.original, str(job.model))
        texts: list[str] = []
        for example in job.examples["data"]:
            texts += example.texts
        max_length = job.original.encoder.max_positions
        self.sequences = text_sequences(texts[:MOST_TEXTS], job.original.tokenizer, max_length=max_length)
        return job.original

    def write(self, folder: Path, checkpoint: Checkpoint) -> None:
        self.difference = write_with_proof(folder, checkpoint, self.sequences)

    def open(self, folder: Path) -> Model:
        model = load(folder)
        encoder = OnnxEncoder(model.encoder, folder / FILE)
        return Model(replace(model.checkpoint, encoder=encoder), folder=folder)


def check_exportable(checkpoint: Checkpoint, model: str) -> None:
    """Raises if packages are missing or the model is of another kind than this file knows."""
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        raise absent(f"the package {missing[0]}", extra="onnx", user="onnx")
    if not isinstance(block_encoder(checkpoint), Bert | Albert):
        raise Unsupported(f"{model} is neither a BERT nor an ALBERT, the only kinds that onnx knows.")


def write_with_proof(folder: Path, checkpoint: Checkpoint, sequences: list[np.ndarray]) -> float:
    """Writes the model's folder with its ONNX file; returns the largest difference from firth's states."""
    checkpoints.save(folder, checkpoint)
    export(checkpoint, folder / FILE)
    difference = largest_difference(checkpoint.encoder, OnnxEncoder(checkpoint.encoder, folder / FILE), sequences)
    if not difference <= TOLERANCE:
        raise Unsupported(
            f"The states of the exported model differ from firth's by {difference:.1e}, more than "
            f"{TOLERANCE:.0e}; this version of torch or onnxruntime computes something else."
        )
    return difference


def export(checkpoint: Checkpoint, path: Path) -> None:
    """Writes the encoder, and the layer of a classifier, as one file."""
    module = PaddedEncoder(checkpoint).eval()
    # Two sequences of different lengths, so that no size is taken for a constant.
    ids_BL = torch.tensor([[1, 2, 3, 4, 5], [1, 2, 3, 0, 0]])
    mask_BL = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
    sizes = {0: "batch", 1: "length"}
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # about things inside of the exporter
        level = logging.root.manager.disable
        logging.disable(logging.WARNING)
        try:
            program = torch.onnx.export(
                module,
                (ids_BL, mask_BL, torch.zeros_like(ids_BL)),
                input_names=["input_ids", "attention_mask", "token_type_ids"],
                output_names=module.output_names,
                dynamic_shapes=[sizes, sizes, sizes],
                opset_version=OPSET,
                dynamo=True,
                verbose=False,
            )
            assert program is not None
            program.save(str(path))
        finally:
            logging.disable(level)


def largest_difference(encoder: Encoder, other: Encoder, sequences: list[np.ndarray]) -> float:
    """The largest absolute difference of a state of these texts."""
    largest = 0.0
    with torch.inference_mode():
        for rows in token_batches([len(sequence) for sequence in sequences], BATCH_TOKENS):
            batch = pack_tokens([sequences[row] for row in rows])
            difference = (encoder(batch).last_ND - other(batch).last_ND).abs().max()
            largest = max(largest, float(difference))
    return largest


class PaddedEncoder(nn.Module):
    """The same computation on padded matrices of B sequences with L tokens each, as other programs expect it."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        super().__init__()
        encoder = checkpoint.encoder
        assert isinstance(encoder, Bert | Albert)
        self.embeddings = encoder.embeddings
        self.widen = encoder.widen if isinstance(encoder, Albert) else nn.Identity()
        self.blocks = encoder.blocks
        self.num_layers = encoder.num_layers
        self.pooler = encoder.pooler
        self.classifier = _classifier(checkpoint)
        self.output_names = [OUTPUTS[0]]
        if self.pooler is not None:
            self.output_names.append(OUTPUTS[1])
        if self.classifier is not None:
            self.output_names.append(OUTPUTS[2])

    def forward(self, ids_BL: Tensor, mask_BL: Tensor, segments_BL: Tensor) -> tuple[Tensor, ...]:
        positions_1L = torch.arange(ids_BL.shape[1], device=ids_BL.device)[None]
        x_BLD = self.widen(self.embeddings(ids_BL, positions_1L, segments_BL))
        hidden_B11L = (mask_BL == 0)[:, None, None]
        for number in range(self.num_layers):
            block = self.blocks[number % len(self.blocks)]
            x_BLD = _run_block(block, x_BLD, hidden_B11L)  # type: ignore[arg-type]
        outputs = [x_BLD]
        first_BD = x_BLD[:, 0]
        if self.pooler is not None:
            first_BD = self.pooler(first_BD)
            outputs.append(first_BD)
        if self.classifier is not None:
            outputs.append(self.classifier(first_BD))
        return tuple(outputs)


def _run_block(block: Block, x_BLD: Tensor, hidden_B11L: Tensor) -> Tensor:
    """A block with norms after its sublayers."""
    attention = block.attention
    batch, length, _ = x_BLD.shape
    qkv = attention.qkv(x_BLD).view(batch, length, 3, attention.num_heads, -1)
    q_BHLK, k_BHLK, v_BHLK = qkv.permute(2, 0, 3, 1, 4).unbind(0)
    scale = q_BHLK.shape[-1] ** -0.5 if attention.scale is None else attention.scale
    scores_BHLL = (q_BHLK @ k_BHLK.transpose(-1, -2)) * scale
    weights_BHLL = scores_BHLL.masked_fill(hidden_B11L, torch.finfo(torch.float32).min).softmax(-1)
    mixed_BLHK = (weights_BHLL @ v_BHLK).transpose(1, 2)
    x_BLD = block.attention_norm(x_BLD + attention.out(mixed_BLHK.flatten(2)))
    out_BLD: Tensor = block.ffn_norm(x_BLD + block.ffn(x_BLD))
    return out_BLD


def _classifier(checkpoint: Checkpoint) -> nn.Module | None:
    """The layer of the only task, if it classifies by the first token."""
    if len(checkpoint.tasks) != 1:
        return None
    (head,) = checkpoint.tasks.values()
    if isinstance(head, ClassifyHead) and head.config.pooling == "cls" and isinstance(head.head, nn.Linear):
        return nn.Sequential(head.layer, head.head)
    return None
