"""The layout of albert_zh, Chinese ALBERTs of 2019 -> Hugging Face's BERT, which gives the same numbers.

These models factorise only the embedding of tokens (V x E times E x D, before positions are added) and name their one
block `layer_shared`. Multiplied out and repeated for every layer that is a BERT. The output layer of such files
(`project_layer`, `decoder`) was never trained; the tied embedding stands in for it.
"""

from pathlib import Path
from typing import Any

from firth.convert.mapped import tensor_places
from firth.files import read_json, write_bytes, write_json

SHARED = "bert.encoder.layer_shared."
TOKENS, WIDEN = "bert.embeddings.word_embeddings.weight", "bert.embeddings.word_embeddings_2.weight"
UNTRAINED = ("cls.predictions.project_layer.weight", "cls.predictions.decoder.weight")


def is_albert_zh(weights: Path) -> bool:
    return WIDEN in tensor_places(weights)


def convert(folder: Path) -> None:
    """Rewrites `config.json` and `model.safetensors` of a folder."""
    from safetensors.torch import load_file, save

    values: dict[str, Any] = read_json(folder / "config.json")
    tensors = {name: t for name, t in load_file(folder / "model.safetensors").items() if name not in UNTRAINED}
    tensors[TOKENS] = (tensors[TOKENS] @ tensors.pop(WIDEN).T).contiguous()
    block = {name.removeprefix(SHARED): tensors.pop(name) for name in list(tensors) if name.startswith(SHARED)}
    for layer in range(values["num_hidden_layers"]):
        tensors |= {f"bert.encoder.layer.{layer}.{name}": tensor.clone() for name, tensor in block.items()}
    write_bytes(folder / "model.safetensors", save(tensors, {"format": "pt"}))
    kept = {name: value for name, value in values.items() if name != "embedding_size"}
    write_json(folder / "config.json", {**kept, "model_type": "bert"})
