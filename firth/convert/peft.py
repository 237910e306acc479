"""LoRA adapters in the files of peft: `adapter_config.json` and `adapter_model.safetensors`, read and written.

In: an encoder with low-rank matrices (`firth.nn.lora`) and the head of a task. Out: a small folder that peft opens over
the same base model, and the other way round. Where a model type stores several matrices as one (ModernBERT), the
low-rank matrices of its parts are written as those of the whole: side by side, with zeros elsewhere.
"""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from safetensors.torch import save as to_bytes
from torch import Tensor

from firth import convert, models
from firth.convert.huggingface import HuggingFaceLayout
from firth.convert.task_heads import ANSWERS, TEXT, TOKENS, TYPES, TaskWeights, TransformersHead, pop_head
from firth.errors import BadInput, Damaged, Unsupported
from firth.files import JsonObject, read_json, write_bytes, write_json
from firth.nn.lora import QKV, TARGETS, LoraConfig, LoraLinear, insert_lora, lora_parameters
from firth.tensors import Encoder

ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
PREFIX = "base_model.model."
SAVED_MODULE = ".modules_to_save"
TASK_TYPES = {TEXT: "SEQ_CLS", TOKENS: "TOKEN_CLS", ANSWERS: "QUESTION_ANS"}
"""The end of a class's name -> peft's name of the task."""
FIXED: dict[str, tuple[object, ...]] = {
    "peft_type": ("LORA",),
    "bias": ("none", None),
    "use_dora": (False, None),
    "fan_in_fan_out": (False, None),
    "layers_to_transform": (None,),
}
"""Keys of `adapter_config.json` -> the values that firth can have."""


@dataclass(frozen=True)
class PeftAdapter:
    """What an adapter folder says."""

    base: str
    """The folder or the name of the model that it belongs to."""
    config: LoraConfig
    thin: Mapping[str, Tensor]
    """The low-rank matrices by peft's name of their layer and `lora_A` or `lora_B`, multiplied by the scale of the
    layer over that of the config."""
    head: Mapping[str, Tensor]
    """All other tensors: the head of a task."""
    task_type: str


def find_base(folder: Path, adapter: PeftAdapter) -> Path:
    """The folder of the model that an adapter belongs to."""
    if not adapter.base:
        raise BadInput(f"{folder / ADAPTER_CONFIG} does not name its base model in 'base_model_name_or_path'.")
    for path in (Path(adapter.base), folder / adapter.base):
        if path.is_dir():
            return path
    if adapter.base in models.names():
        return models.find(adapter.base)
    raise BadInput(
        f"{folder} belongs to the model {adapter.base}, which is not there: correct 'base_model_name_or_path' in its "
        f"{ADAPTER_CONFIG}."
    )


def shared_copy(encoder: Encoder) -> Encoder:
    """A copy that shares every parameter, so that several adapters over one model cost little memory."""
    shared = {id(parameter): parameter for parameter in encoder.parameters()}
    return deepcopy(encoder, shared)


def read_adapter(folder: Path) -> PeftAdapter:
    """The content of an adapter folder; raises if it is not understood."""
    path = folder / ADAPTER_CONFIG
    values = read_json(path)
    for key, allowed in FIXED.items():
        if values.get(key, allowed[0]) not in allowed:
            raise Unsupported(f"{path} has {key} = {values[key]!r}; firth reads adapters with {allowed[0]!r}.")
    rank = int(values.get("r", 8))
    alpha = float(values.get("lora_alpha", 8))
    if values.get("use_rslora"):
        alpha *= rank**0.5
    config = LoraConfig(rank=rank, alpha=alpha, dropout=float(values.get("lora_dropout") or 0.0))
    try:
        tensors = load_file(folder / ADAPTER_WEIGHTS)
    except (SafetensorError, FileNotFoundError) as error:
        raise Damaged(f"{folder / ADAPTER_WEIGHTS} cannot be read ({error}); fetch or make it again.") from None
    thin: dict[str, Tensor] = {}
    head: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        own_name = name.removeprefix(PREFIX).replace(".default", "").replace(SAVED_MODULE, "")
        if ".lora_" in own_name:
            thin[own_name.removesuffix(".weight")] = tensor.float()
        else:
            head[own_name] = tensor.float()
    _apply_patterns(values, config, thin)
    base = str(values.get("base_model_name_or_path") or "")
    return PeftAdapter(base, config, thin, head, str(values.get("task_type")))


def _apply_patterns(values: JsonObject, config: LoraConfig, thin: dict[str, Tensor]) -> None:
    """Multiplies second matrices of layers with another alpha or rank, so that one scale is right for all."""
    alphas: JsonObject = values.get("alpha_pattern") or {}
    for name in [name for name in thin if name.endswith(".lora_B")]:
        layer = name.removesuffix(".lora_B")
        alpha = config.alpha
        for pattern, value in alphas.items():
            if layer.endswith(pattern):
                alpha = float(value)
        rank = thin[name].shape[1]
        thin[name] = thin[name] * (alpha / rank / config.scale)


def write_adapter(
    folder: Path,
    encoder: Encoder,
    head: TransformersHead,
    *,
    base: str,
    layout_name: str,
    config: LoraConfig,
) -> None:
    """Writes the low-rank matrices and the head in peft's layout."""
    layout = _layout(layout_name)
    thin = _joined(layout, _their_matrices(layout, encoder), config)
    tensors: dict[str, Tensor] = {}
    for name, tensor in thin.items():
        on_cpu = tensor.detach().cpu().contiguous()
        tensors[f"{PREFIX}{name}.weight"] = on_cpu.clone()
    for name, tensor in head.tensors.items():
        tensors[PREFIX + name] = tensor
    ranks: dict[str, int] = {}
    for name, tensor in thin.items():
        layer, _, factor = name.rpartition(".")
        if factor == "lora_A":
            ranks[layer.removeprefix(layout.prefix)] = tensor.shape[0]
    write_bytes(folder / ADAPTER_WEIGHTS, to_bytes(tensors))
    write_json(folder / ADAPTER_CONFIG, _adapter_settings(dict(sorted(ranks.items())), head, base=base, config=config))


def _adapter_settings(
    ranks: Mapping[str, int], head: TransformersHead, *, base: str, config: LoraConfig
) -> dict[str, object]:
    """peft's description of the adapter; `ranks` are those of all layers that have one."""
    architectures = head.settings["architectures"]
    assert isinstance(architectures, list)
    architecture = architectures[0]
    task_type = next(kind for ending, kind in TASK_TYPES.items() if architecture.endswith(ending))
    other_ranks = {layer: rank for layer, rank in ranks.items() if rank != config.rank}
    return {
        "peft_type": "LORA",
        "base_model_name_or_path": base,
        "task_type": task_type,
        "r": config.rank,
        "lora_alpha": config.alpha,
        "lora_dropout": config.dropout,
        "target_modules": sorted(ranks),
        "modules_to_save": sorted({name.partition(".")[0] for name in head.tensors}),
        "rank_pattern": other_ranks,
        "alpha_pattern": {layer: config.scale * rank for layer, rank in other_ranks.items()},
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "use_rslora": False,
    }


def foreign_task(adapter: PeftAdapter, layout_name: str, *, settings: JsonObject) -> TaskWeights | None:
    """The head of a task that peft saved with an adapter; labels are those of a `config.json` beside it, if any."""
    endings = {kind: ending for ending, kind in TASK_TYPES.items()}
    if adapter.task_type not in endings or layout_name not in TYPES:
        return None
    architecture = TYPES[layout_name].classes + endings[adapter.task_type]
    tensors = dict(adapter.head)
    return pop_head(layout_name, {**settings, "architectures": [architecture]}, tensors)


def apply_adapter(encoder: Encoder, adapter: PeftAdapter, *, layout_name: str) -> LoraConfig:
    """Puts the low-rank matrices of an adapter into an encoder; returns the config with the targets found."""
    layout = _layout(layout_name)
    found = _own_matrices(layout, encoder, adapter)
    targets = {name.rpartition(".")[2] for name in found}
    config = replace(adapter.config, targets=tuple(target for target in TARGETS if target in targets))
    insert_lora(encoder, config)
    for path, layer in encoder.named_modules():
        if isinstance(layer, LoraLinear):
            for kind, matrices in (("a", layer.a), ("b", layer.b)):
                for part in list(matrices):
                    _fill(matrices, part, found.pop(f"{path}.{kind}.{part}", None))
    if found:
        raise BadInput(f"The adapter has matrices for {next(iter(found))}, which the model does not have.")
    return config


def _fill(matrices: "torch.nn.ParameterDict", part: str, tensor: Tensor | None) -> None:
    """Sets a low-rank matrix; a layer that the adapter leaves alone keeps its zeros."""
    if tensor is not None:
        # The rank may be another one, so the parameter is a new one.
        matrices[part] = torch.nn.Parameter(tensor, requires_grad=False)


def _layout(layout_name: str) -> HuggingFaceLayout:
    layout = convert.layout(layout_name)
    if not isinstance(layout, HuggingFaceLayout):
        raise Unsupported(f"Models of type {layout_name} have no adapters in peft's layout; use transfer.merge=true.")
    return layout


def _layers_by_their_name(layout: HuggingFaceLayout, encoder: Encoder) -> dict[str, str]:
    """Hugging Face's name of a matrix -> firth's `blocks.0.attention.qkv.KIND.query`, with KIND to be filled in."""
    found: dict[str, str] = {}
    for name, their_name in layout.encoder_names(encoder.config).items():
        path, _, kind = name.rpartition(".")
        parent, _, part = path.rpartition(".")
        in_block = ".attention" in parent or parent.endswith(".ffn")
        if kind == "weight" and in_block and part in TARGETS:
            layer = f"{parent}.qkv" if part in QKV else path
            found[their_name.removesuffix(".weight")] = f"{layer}.KIND.{part}"
    return found


def _their_matrices(layout: HuggingFaceLayout, encoder: Encoder) -> dict[str, Tensor]:
    """The low-rank matrices with Hugging Face's names of the layers, joined ones still separate."""
    own = lora_parameters(encoder)
    found: dict[str, Tensor] = {}
    for their_name, own_name in _layers_by_their_name(layout, encoder).items():
        for kind, their_kind in (("a", "lora_A"), ("b", "lora_B")):
            matrix = own.get(own_name.replace("KIND", kind))
            if matrix is not None:
                found[f"{their_name}.{their_kind}"] = matrix
    return found


def _joined(layout: HuggingFaceLayout, thin: dict[str, Tensor], config: LoraConfig) -> dict[str, Tensor]:
    """Parts that the model type stores as one: their matrices side by side, zeros for the outputs of other parts."""
    for whole, parts in layout.joined.items():
        layers = set()
        for part in parts:
            for name in thin:
                if f"{part}." in name:
                    layers.add(name.rpartition(".")[0].replace(part, whole))
        for layer in sorted(layers):
            names = [layer.replace(whole, part) for part in parts]
            _join_layer(thin, layer, names)
    return thin


def _join_layer(thin: dict[str, Tensor], layer: str, names: Sequence[str]) -> None:
    """Replaces the matrices of a layer's parts by those of the whole layer; some parts may have none."""
    present = [name for name in names if f"{name}.lora_A" in thin]
    firsts = [thin.pop(f"{name}.lora_A") for name in present]
    seconds = [thin.pop(f"{name}.lora_B") for name in present]
    size, rank = seconds[0].shape
    joined = torch.zeros(size * len(names), rank * len(present))
    for place, (name, second) in enumerate(zip(present, seconds, strict=True)):
        first_row = names.index(name) * size
        first_column = place * rank
        rows = slice(first_row, first_row + size)
        columns = slice(first_column, first_column + rank)
        joined[rows, columns] = second
    thin[f"{layer}.lora_A"] = torch.cat(firsts)
    thin[f"{layer}.lora_B"] = joined


def _own_matrices(layout: HuggingFaceLayout, encoder: Encoder, adapter: PeftAdapter) -> dict[str, Tensor]:
    """The low-rank matrices with firth's names."""
    own_names = _layers_by_their_name(layout, encoder)
    found: dict[str, Tensor] = {}
    for layer in sorted({name.rpartition(".")[0] for name in adapter.thin}):
        their_layer = layer if layer.startswith(layout.prefix) else layout.prefix + layer
        first = adapter.thin[f"{layer}.lora_A"]
        second = adapter.thin[f"{layer}.lora_B"]
        for name, part_first, part_second in _separate(layout, their_layer, first, second):
            if name not in own_names:
                raise Unsupported(f"The adapter has matrices for {layer}, which firth's LoRA cannot learn beside.")
            own_name = own_names[name]
            found[own_name.replace("KIND", "a")] = part_first
            found[own_name.replace("KIND", "b")] = part_second
    return found


def _separate(layout: HuggingFaceLayout, layer: str, first: Tensor, second: Tensor) -> list[tuple[str, Tensor, Tensor]]:
    """The matrices of each part of a layer that the model type stores as one; otherwise only the layer's."""
    for whole, parts in layout.joined.items():
        if layer.endswith(whole):
            pieces = second.chunk(len(parts))
            rows = []
            for part, piece in zip(parts, pieces, strict=True):
                # Columns of zeros do nothing, so their rows of the first matrix are left out.
                used = piece.any(0).nonzero().flatten()
                if len(used):
                    name = layer.replace(whole, part)
                    columns = piece[:, used].contiguous()
                    rows.append((name, first[used], columns))
            return rows
    return [(layer, first, second)]
