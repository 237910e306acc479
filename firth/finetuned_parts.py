"""What fine-tuning adds to a model <-> `head.safetensors` and notes in `firth.json`.

That is: heads of tasks, adapters, learned prefixes, and the weights over frozen features. A head that transformers
wrote is among the model's own weights.
"""

from dataclasses import replace
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from safetensors.torch import save as to_bytes
from torch import Tensor

from firth.config import from_dict, to_dict
from firth.convert import HEAD
from firth.convert.task_heads import TaskWeights
from firth.errors import Damaged
from firth.files import JsonObject, write_bytes
from firth.model_parts import Checkpoint, load_weights, make_head
from firth.nn.adapters import adapter_parameters, insert_adapters
from firth.nn.features import Features
from firth.nn.prefix import insert_prefixes, prefix_parameters
from firth.tasks.task import Head


def write_heads(path: Path, checkpoint: Checkpoint) -> None:
    """Writes all tensors that fine-tuning added."""
    tensors: dict[str, Tensor] = {}
    for name, tensor in _finetuned_tensors(checkpoint).items():
        # Cloned, because safetensors refuses tensors that share memory.
        on_cpu = tensor.detach().cpu().contiguous()
        tensors[name] = on_cpu.clone()
    write_bytes(path, to_bytes(tensors))


def finetuning_notes(checkpoint: Checkpoint) -> dict[str, object]:
    """The part of `firth.json` that `with_tasks` reads."""
    features = None
    if isinstance(checkpoint.feature_encoder, Features):
        features = to_dict(checkpoint.feature_encoder.features)
    tasks: dict[str, dict[str, object]] = {}
    for name, task in checkpoint.tasks.items():
        tasks[name] = {"config": to_dict(task.config), "labels": to_dict(task.labels)}
    notes = {"adapter_width": checkpoint.adapter_width, "features": features, "tasks": tasks}
    if checkpoint.prefix_length:
        notes["prefix_length"] = checkpoint.prefix_length
    return notes


def with_tasks(folder: Path, checkpoint: Checkpoint, notes: JsonObject) -> Checkpoint:
    """The model with the heads, adapters and features that `firth.json` describes, and with their weights."""
    adapter_width = notes.get("adapter_width", 0)
    # All parts are made with new weights here; `_load_heads` fills them.
    if adapter_width:
        insert_adapters(checkpoint.encoder, adapter_width)
    prefix_length = notes.get("prefix_length", 0)
    if prefix_length:
        insert_prefixes(checkpoint.encoder, prefix_length)
    feature_encoder = None
    if notes.get("features"):
        feature_encoder = Features(from_dict(Features.Config, notes["features"]), checkpoint.encoder).eval()
    tasks: dict[str, Head] = {}
    for name, row in notes["tasks"].items():
        tasks[name] = make_head(name, row["config"], feature_encoder or checkpoint.encoder, labels=row["labels"])
    text = (folder / "README.md").read_text("utf-8")
    finetuned = replace(
        checkpoint,
        tasks=tasks,
        feature_encoder=feature_encoder,
        adapter_width=adapter_width,
        prefix_length=prefix_length,
        text=text,
    )
    _load_heads(folder / HEAD, finetuned)
    return finetuned


def with_foreign_head(folder: Path, checkpoint: Checkpoint, found: TaskWeights) -> Checkpoint:
    """The model with the head of a task that transformers wrote."""
    head = make_head(found.task, dict(found.config), checkpoint.encoder, labels=found.labels)
    missing = sorted(head.state_dict().keys() - found.tensors.keys())
    if missing:
        raise Damaged(f"{folder} lacks the weights of the head that its config.json names ({missing[0]}).")
    load_weights(head, found.tensors, folder)
    return replace(checkpoint, tasks={found.task: head})


def _load_heads(path: Path, checkpoint: Checkpoint) -> None:
    """Copies the tensors of `head.safetensors` into a fine-tuned model; the names and shapes must be the same."""
    wanted = _finetuned_tensors(checkpoint)
    try:
        found = load_file(path)
    except SafetensorError as error:
        raise Damaged(f"{path} cannot be read ({error}); fetch or make it again.") from None
    # Strict, as everywhere: no tensor may be missing, and none may be left over.
    only_in_one = sorted(wanted.keys() ^ found.keys())
    if only_in_one:
        raise Damaged(f"{path} and firth.json differ: {only_in_one[0]} is in one of them only; make the model again.")
    with torch.no_grad():
        for name, tensor in wanted.items():
            if tensor.shape != found[name].shape:
                raise Damaged(f"{path}: {name} has the shape {tuple(found[name].shape)}.")
            tensor.copy_(found[name])


def _finetuned_tensors(checkpoint: Checkpoint) -> dict[str, Tensor]:
    """The tensors that fine-tuning added, with their names in `head.safetensors`."""
    tensors: dict[str, Tensor] = {}
    added = {**adapter_parameters(checkpoint.encoder), **prefix_parameters(checkpoint.encoder)}
    for name, parameter in added.items():
        tensors[f"encoder.{name}"] = parameter
    if isinstance(checkpoint.feature_encoder, Features):
        for name, parameter in checkpoint.feature_encoder.own_parameters().items():
            tensors[f"features.{name}"] = parameter
    for task_name, task in checkpoint.tasks.items():
        for name, tensor in task.state_dict().items():
            tensors[f"{task_name}.{name}"] = tensor
    return tensors
