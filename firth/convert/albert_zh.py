"""The layout of albert_zh, Chinese ALBERTs of 2019 -> Hugging Face's BERT, which gives the same numbers.

These models factorise only the embedding of tokens (V x E times E x D, before positions are added) and name their one
block `layer_shared`. With the factors multiplied and the block repeated for every layer, that is a BERT. The output
layer of such files (`project_layer`, `decoder`) was never trained; the tied embedding replaces it.
"""

from pathlib import Path

from firth.convert.mapped import tensor_places
from firth.files import read_json, write_bytes, write_json

SHARED = "bert.encoder.layer_shared."
TOKENS = "bert.embeddings.word_embeddings.weight"
WIDEN = "bert.embeddings.word_embeddings_2.weight"
UNTRAINED = ("cls.predictions.project_layer.weight", "cls.predictions.decoder.weight")


def is_albert_zh(weights: Path) -> bool:
    """Whether a safetensors file has the names of albert_zh."""
    return WIDEN in tensor_places(weights)


def convert(folder: Path) -> None:
    """Rewrites `config.json` and `model.safetensors` of a folder."""
    from safetensors.torch import load_file, save

    values = read_json(folder / "config.json")
    tensors = load_file(folder / "model.safetensors")
    for name in UNTRAINED:
        tensors.pop(name, None)

    tokens_VE = tensors[TOKENS]
    widen_DE = tensors.pop(WIDEN)
    tensors[TOKENS] = (tokens_VE @ widen_DE.T).contiguous()

    shared_names = [name for name in tensors if name.startswith(SHARED)]
    block = {name.removeprefix(SHARED): tensors.pop(name) for name in shared_names}
    for layer in range(values["num_hidden_layers"]):
        for name, tensor in block.items():
            tensors[f"bert.encoder.layer.{layer}.{name}"] = tensor.clone()
    write_bytes(folder / "model.safetensors", save(tensors, {"format": "pt"}))

    values.pop("embedding_size", None)
    values["model_type"] = "bert"
    write_json(folder / "config.json", values)
