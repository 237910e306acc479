"""How the states of a text become one vector, in the files of sentence-transformers.

A folder of theirs is a chain of modules, which `modules.json` lists: the Transformer, a pooling, and layers over the
pooled vector (Dense, LayerNorm, Normalize), each with a subfolder. Prompts, texts that are put before others, are in
`config_sentence_transformers.json`. All of it is read and written.
"""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from firth.errors import BadConfig, Damaged, Unsupported
from firth.files import JsonObject, read_json, write_bytes, write_json
from firth.metrics.cosines import unit_vectors

PROMPTS_FILE = "config_sentence_transformers.json"
SENTENCE_FILES = ("modules.json", "sentence_bert_config.json", "1_Pooling/config.json", PROMPTS_FILE)
"""The files of sentence-transformers that do not depend on the model's layers."""
POOLINGS = {
    "cls": ("cls_token", "cls"),
    "max": ("max_tokens", "max"),
    "mean": ("mean_tokens", "mean"),
    "mean-sqrt": ("mean_sqrt_len_tokens", "mean_sqrt_len_tokens"),
    "weighted-mean": ("weightedmean_tokens", "weightedmean"),
    "last": ("lasttoken", "lasttoken"),
}
"""Firth's names of the poolings -> those of sentence-transformers: in older files, in newer ones. Several of them, side
by side, are joined by `+`."""
ACTIVATIONS = {"": "linear.Identity", "tanh": "activation.Tanh", "relu": "activation.ReLU", "gelu": "activation.GELU"}
"""Firth's names of the activations of a dense layer -> the end of those of torch."""
_MODE = "pooling_mode_"
_TORCH = "torch.nn.modules."
_LAYERS = {"Dense": "dense", "LayerNorm": "layer-norm", "Normalize": "normalise"}
"""The modules over the pooled vector that firth knows -> its names of them."""
_IGNORED = ("Transformer", "Pooling", "Dropout")
"""Modules that are read elsewhere, or do nothing in prediction."""
NORM_EPS = 1e-5


@dataclass(frozen=True)
class Embedding:
    """How a model turns the states of a text into one vector."""

    pooling: str = "mean"
    normalise: bool = False
    max_length: int | None = None
    """Longer texts are truncated here; None reads them whole, in windows."""
    prompts: Mapping[str, str] = field(default_factory=dict)
    """Texts that are put before others, by name, such as `query`."""
    default_prompt: str = ""
    """The name of the prompt if none is asked for; empty for none."""

    def prompt(self, name: str | None) -> str:
        """The text of a prompt; raises if there is none of this name."""
        name = self.default_prompt if name is None else name
        if not name:
            return ""
        if name not in self.prompts:
            known = ", ".join(self.prompts) or "none"
            raise BadConfig(f"This model has no prompt named '{name}' (known: {known}).")
        return self.prompts[name]


@dataclass(frozen=True, eq=False)
class VectorLayer:
    """A layer over pooled vectors: dense (act(W x + b)), layer-norm, or normalise (to length 1)."""

    kind: str
    weight: np.ndarray | None = None
    """Of a dense layer outputs x inputs, of a norm one number for each column."""
    bias: np.ndarray | None = None
    activation: str = ""

    def __call__(self, x_BD: np.ndarray) -> np.ndarray:
        if self.kind == "normalise":
            return unit_vectors(x_BD)
        assert self.weight is not None
        if self.kind == "layer-norm":
            assert self.bias is not None
            centred_BD = x_BD - x_BD.mean(1, keepdims=True)
            deviation_B1 = np.sqrt((centred_BD**2).mean(1, keepdims=True) + NORM_EPS)
            return np.asarray(centred_BD / deviation_B1 * self.weight + self.bias, np.float32)
        out = x_BD @ self.weight.T
        if self.bias is not None:
            out = out + self.bias
        return np.asarray(_activated(out, self.activation), np.float32)

    def width(self, width: int) -> int:
        """The width of its vectors, given that of its inputs."""
        if self.kind == "dense":
            assert self.weight is not None
            return len(self.weight)
        return width


def _activated(x: np.ndarray, name: str) -> np.ndarray:
    if name == "tanh":
        return np.asarray(np.tanh(x))
    if name == "relu":
        return np.asarray(np.maximum(x, 0.0))
    if name == "gelu":
        import torch

        activated = torch.nn.functional.gelu(torch.from_numpy(x))
        return np.asarray(activated.numpy())
    return x


def read_embedding(folder: Path) -> Embedding:
    """The settings in a folder's files; the defaults if it has none."""
    if not (folder / "modules.json").exists():
        return Embedding()
    modules = _modules(folder)
    kinds = [kind for kind, _ in modules]
    paths = dict(modules)
    pooling = "mean"
    if "Pooling" in paths:
        pooling = _read_pooling(folder / paths["Pooling"] / "config.json")
    max_length = None
    settings = folder / "sentence_bert_config.json"
    if settings.exists():
        max_length = read_json(settings).get("max_seq_length")
    prompts: JsonObject = {}
    if (folder / PROMPTS_FILE).exists():
        prompts = read_json(folder / PROMPTS_FILE)
    return Embedding(
        pooling,
        normalise=kinds[-1] == "Normalize",
        max_length=max_length,
        prompts=dict(prompts.get("prompts") or {}),
        default_prompt=prompts.get("default_prompt_name") or "",
    )


def read_layers(folder: Path) -> tuple[VectorLayer, ...]:
    """The layers over the pooled vector, but the last one if it is `Embedding.normalise`."""
    if not (folder / "modules.json").exists():
        return ()
    modules = [(kind, path) for kind, path in _modules(folder) if kind in _LAYERS]
    if modules and modules[-1][0] == "Normalize":
        modules.pop()
    return tuple(_read_layer(kind, folder / path) for kind, path in modules)


def _modules(folder: Path) -> list[tuple[str, str]]:
    """The kind and the path of every module, in order; raises if firth does not have one."""
    modules = []
    for module in read_json(folder / "modules.json"):
        # For example, `sentence_transformers.models.Pooling`.
        kind = module["type"].rsplit(".", 1)[-1]
        if kind not in _LAYERS and kind not in _IGNORED:
            raise Unsupported(f"{folder}/modules.json has a {kind} layer, which firth does not have.")
        modules.append((kind, module["path"]))
    return modules


def _read_layer(kind: str, folder: Path) -> VectorLayer:
    if kind == "Normalize":
        return VectorLayer("normalise")
    values = read_json(folder / "config.json")
    tensors = _read_weights(folder)
    prefix = "linear." if kind == "Dense" else "norm."
    weight = tensors.get(f"{prefix}weight")
    if weight is None:
        raise Damaged(f"{folder} has no {prefix}weight.")
    activation = ""
    if kind == "Dense":
        for key in ("module_input_name", "module_output_name"):
            if values.get(key, "sentence_embedding") != "sentence_embedding":
                raise Unsupported(f"{folder}/config.json has {key} = {values[key]!r}; firth has 'sentence_embedding'.")
        function = str(values.get("activation_function") or _TORCH + ACTIVATIONS["tanh"])
        names = {_TORCH + name: own_name for own_name, name in ACTIVATIONS.items()}
        if function not in names:
            raise Unsupported(f"{folder}/config.json has the activation {function}, which firth does not have.")
        activation = names[function]
    return VectorLayer(_LAYERS[kind], weight, tensors.get(f"{prefix}bias"), activation)


def _read_weights(folder: Path) -> dict[str, np.ndarray]:
    path = folder / "model.safetensors"
    if not path.exists():
        other = " (pytorch_model.bin is a pickle: save it as safetensors)" if any(folder.glob("*.bin")) else ""
        raise Damaged(f"{folder} has no model.safetensors{other}.")
    try:
        return {name: array.astype(np.float32) for name, array in load_file(path).items()}
    except SafetensorError as error:
        raise Damaged(f"{path} cannot be read ({error}); fetch or make it again.") from None


def _read_pooling(path: Path) -> str:
    """Firth's name of the pooling that a file asks for."""
    values = read_json(path)
    if not values:
        return "mean"
    if values.get("include_prompt", True) is not True:
        raise Unsupported(f"{path} leaves prompts out of the pooling, which firth does not do.")
    modes: list[str] = []
    named = values.get("pooling_mode")
    if named:
        own_names = {name: own_name for own_name, (_, name) in POOLINGS.items()}
        if isinstance(named, str):
            named = [named]
        modes = [own_names.get(mode, "") for mode in named]
    else:
        for own_name, (name, _) in POOLINGS.items():
            if values.get(_MODE + name) is True:
                modes.append(own_name)
    if not modes or "" in modes:
        raise Unsupported(f"{path} asks for a pooling firth does not have.")
    return "+".join(modes)


def write_embedding(
    folder: Path,
    embedding: Embedding,
    *,
    width: int = 0,
    layers: tuple[VectorLayer, ...] = (),
    always: bool = False,
) -> tuple[str, ...]:
    """Writes settings and layers as files of sentence-transformers and returns their names.

    Nothing is written for the defaults without layers, unless `always`. `width` is that of the states.
    """
    if embedding == Embedding() and not layers and not always:
        return ()
    written = [name for name in SENTENCE_FILES if name != PROMPTS_FILE]
    written += _write_modules(folder, embedding, layers)
    settings: dict[str, int | bool] = {}
    if embedding.max_length is not None:
        settings["max_seq_length"] = embedding.max_length
    settings["do_lower_case"] = False
    write_json(folder / "sentence_bert_config.json", settings)
    if embedding.prompts:
        write_json(folder / PROMPTS_FILE, _prompt_settings(embedding))
        written.append(PROMPTS_FILE)
    write_json(folder / "1_Pooling/config.json", _pooling_settings(embedding, width))
    return tuple(written)


def _write_modules(folder: Path, embedding: Embedding, layers: Sequence[VectorLayer]) -> list[str]:
    """Writes the layers and the list of all modules; returns the names of the layers' files."""
    modules: list[tuple[str, str]] = [("Transformer", ""), ("Pooling", "1_Pooling")]
    written: list[str] = []
    classes = {name: kind for kind, name in _LAYERS.items()}
    all_layers = list(layers)
    if embedding.normalise:
        all_layers.append(VectorLayer("normalise"))
    for layer in all_layers:
        kind = classes[layer.kind]
        path = f"{len(modules)}_{kind}"
        modules.append((kind, path))
        written += _write_layer(folder, path, layer)
    rows: list[dict[str, int | str]] = []
    for number, (kind, path) in enumerate(modules):
        class_name = f"sentence_transformers.models.{kind}"
        rows.append({"idx": number, "name": str(number), "path": path, "type": class_name})
    write_json(folder / "modules.json", rows)
    return written


def _pooling_settings(embedding: Embedding, width: int) -> JsonObject:
    modes = embedding.pooling.split("+")
    usual_order = [name for name in POOLINGS if name in modes]
    if modes != usual_order:
        # Only newer files can say in which order poolings are side by side.
        return {"pooling_mode": [POOLINGS[mode][1] for mode in modes], "embedding_dimension": width}
    settings: dict[str, object] = {}
    for own_name, (name, _) in POOLINGS.items():
        settings[f"{_MODE}{name}"] = own_name in modes
    if width:
        settings["word_embedding_dimension"] = width
    return settings


def _prompt_settings(embedding: Embedding) -> JsonObject:
    return {
        "prompts": dict(embedding.prompts),
        "default_prompt_name": embedding.default_prompt or None,
        "similarity_fn_name": "cosine",
    }


def _write_layer(folder: Path, path: str, layer: VectorLayer) -> list[str]:
    """Writes a layer into its subfolder; returns its files."""
    if layer.weight is None:
        return []
    prefix = "linear." if layer.kind == "dense" else "norm."
    arrays = {f"{prefix}weight": np.ascontiguousarray(layer.weight)}
    if layer.bias is not None:
        arrays[f"{prefix}bias"] = np.ascontiguousarray(layer.bias)
    values: JsonObject = {"dimension": len(layer.weight)}
    if layer.kind == "dense":
        outputs, inputs = layer.weight.shape
        values = {
            "in_features": inputs,
            "out_features": outputs,
            "bias": layer.bias is not None,
            "activation_function": _TORCH + ACTIVATIONS[layer.activation],
        }
    write_json(folder / path / "config.json", values)
    write_bytes(folder / path / "model.safetensors", save(arrays))
    return [f"{path}/config.json", f"{path}/model.safetensors"]


def remove_modules(folder: Path) -> None:
    """Deletes what a model that was in the folder before had of these files."""
    for name in SENTENCE_FILES:
        (folder / name).unlink(missing_ok=True)
    for kind in _LAYERS:
        for path in folder.glob(f"[0-9]*_{kind}"):
            shutil.rmtree(path)
