"""One folder is one model: weights, tokenizer, config, card. Loading guesses nothing and accounts for every tensor.

The folder is Hugging Face's layout, so transformers opens it as it is; what is ours stands beside it in `firth.json`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from safetensors.torch import save as to_bytes
from torch import Tensor, nn

from firth import convert, encoders, tokenizers
from firth.config import from_dict, to_dict
from firth.convert.mapped import write_weights
from firth.convert.sentences import Embedding, read_embedding, write_embedding
from firth.errors import BadConfig, BadInput, Damaged
from firth.files import atomic_folder, check_manifest, read_json, without_model, write_bytes
from firth.folder import FORMAT, HEAD, begin, card, finish
from firth.nn.adapters import adapter_parameters, insert_adapters
from firth.nn.features import Features
from firth.objectives import resolve
from firth.tasks import resolve as resolve_task
from firth.tensors import UNLIMITED, Encoder, Objective, Task, parameter_count
from firth.tokenizers import Tokenizer

OURS = ("format", "goals", "embedding", "tasks", "adapter_width", "features")
"""Keys of `firth.json` that say what the model is made of; the others say where it comes from."""


@dataclass(frozen=True)
class Checkpoint:
    encoder: Encoder
    goals: Mapping[str, Objective]
    tokenizer: Tokenizer
    embedding: Embedding = field(default_factory=Embedding)
    info: Mapping[str, Any] = field(default_factory=dict)
    """What `firth.json` says of where the model comes from."""
    tasks: Mapping[str, Task] = field(default_factory=dict)
    """What it was fine-tuned for, by name."""
    reader: Encoder | None = None
    """What the tasks read where it is not the encoder itself: frozen features of it."""
    adapter_width: int = 0
    """Bottleneck of the adapters in the encoder's blocks; 0 where there are none."""
    layout: str = ""
    """The `model_type` its folder has; empty: the one that bears the encoder's name."""
    text: str = ""
    """Its card where it is not the usual one: a fine-tuned model's, with its figures."""


def save(folder: Path, checkpoint: Checkpoint, *, weights: bool = True) -> None:
    """Writes the model's files, each atomically, the manifest last.

    Without `weights`, `model.safetensors` is there already: it was written in pieces, because it may be large.
    """
    begin(folder)
    encoder, tokenizer, goals, tasks = checkpoint.encoder, checkpoint.tokenizer, checkpoint.goals, checkpoint.tasks
    layout, pad = convert.layout(checkpoint.layout or encoders.name_of(encoder)), tokenizer.vocab.pad
    if weights:
        write_weights(folder / "model.safetensors", layout.tensors_of(encoder, goals, pad_id=pad))
    beside = [*write_embedding(folder, checkpoint.embedding), *([HEAD] if tasks else [])]
    if tasks:
        heads = {name: t.detach().cpu().contiguous().clone() for name, t in _added(checkpoint).items()}
        write_bytes(folder / HEAD, to_bytes(heads))
    for name, (part, own) in layout.beside(goals).items():
        with atomic_folder(folder / name, replace=True) as inner:
            save(inner, Checkpoint(part, own, tokenizer, layout=checkpoint.layout))
        beside += [f"{name}/{file}" for file in ("model.safetensors", "config.json")]
    finish(
        folder,
        settings=layout.config_json(encoder, goals, pad_id=pad),
        tokenizer=tokenizer,
        notes=_notes(checkpoint),
        text=checkpoint.text or _card(checkpoint),
        beside=beside,
        max_length=None if encoder.max_positions == UNLIMITED else encoder.max_positions,
    )


def load(folder: Path) -> Checkpoint:
    """Opens a folder of ours or one of Hugging Face's layouts."""
    if not folder.is_dir():
        raise BadInput(f"{folder} is not a folder with a model; train one with `firth pretrain` or name its folder.")
    if why := without_model(folder):
        raise BadInput(f"{folder} {why}.")
    if not (folder / "config.json").exists():
        raise BadInput(f"{folder} does not hold a model: it has no config.json; `firth pretrain` makes one.")
    ours = read_json(folder / "firth.json") if (folder / "firth.json").exists() else {}
    if ours:
        if ours.get("format") != FORMAT:
            raise Damaged(f"{folder}/firth.json is of format {ours.get('format')}; this firth reads format {FORMAT}.")
        check_manifest(folder)
    settings = read_json(folder / "config.json")
    if not isinstance(settings, Mapping) or not isinstance(ours, Mapping):
        raise Damaged(f"{folder}: config.json and firth.json must be JSON objects.")
    kind = str(settings.get("model_type"))
    weights = convert.layout(kind).read(folder)
    tokenizer = tokenizers.load(folder)
    if len(tokenizer.vocab) > weights.config.vocab_size:
        raise BadInput(
            f"{folder}: the tokenizer has {len(tokenizer.vocab)} tokens, the model {weights.config.vocab_size}."
        )
    encoder: Encoder = encoders.resolve(weights.encoder_name)(weights.config)
    _fill(encoder, weights.encoder, folder)
    goals = {}
    for name, tensors in weights.goals.items():
        told = {**weights.settings.get(name, {}), **ours.get("goals", {}).get(name, {})}
        try:
            config = from_dict(resolve(name).Config, told)
        except BadConfig as error:
            raise Damaged(f"{folder}/firth.json was written by another version of firth: {error}") from None
        goals[name] = make_goal(name, config, encoder, tokenizer)
        _fill(goals[name], tensors, folder)
    info = {key: value for key, value in ours.items() if key not in OURS}
    plain = Checkpoint(encoder.eval(), goals, tokenizer, read_embedding(folder), info, layout=kind)
    return _with_tasks(folder, plain, ours) if ours.get("tasks") else plain


def _fill(module: nn.Module, tensors: Mapping[str, Tensor], folder: Path) -> None:
    """Loads the weights; those that do not fit are told by name."""
    own = module.state_dict()
    for name, tensor in tensors.items():
        if name in own and own[name].shape != tensor.shape:
            shapes = f"{tuple(tensor.shape)} where config.json asks for {tuple(own[name].shape)}"
            raise Damaged(f"{folder}: the weights and the config are not of one model: {name} has {shapes}.")
    module.load_state_dict(tensors)


def _with_tasks(folder: Path, checkpoint: Checkpoint, ours: Mapping[str, Any]) -> Checkpoint:
    """The model with the heads, adapters and features that `firth.json` tells of; every tensor must be theirs."""
    width, features = ours.get("adapter_width", 0), ours.get("features")
    encoder = checkpoint.encoder
    if width:
        insert_adapters(encoder, width)
    reader = Features(from_dict(Features.Config, features), encoder).eval() if features else None
    tasks = {
        name: make_task(name, row["config"], reader or encoder, labels=row["labels"])
        for name, row in ours["tasks"].items()
    }
    text = (folder / "README.md").read_text("utf-8")
    whole = replace(checkpoint, tasks=tasks, reader=reader, adapter_width=width, text=text)
    wanted = _added(whole)
    try:
        found = load_file(folder / HEAD)
    except SafetensorError as error:
        raise Damaged(f"{folder}/{HEAD} cannot be read ({error}); fetch or make it again.") from None
    if wanted.keys() != found.keys():
        strange = sorted(wanted.keys() ^ found.keys())
        raise Damaged(
            f"{folder}/{HEAD} and firth.json differ: {strange[0]} is in one of them only; make the model again."
        )
    with torch.no_grad():
        for name, tensor in wanted.items():
            if tensor.shape != found[name].shape:
                raise Damaged(f"{folder}/{HEAD}: {name} has the shape {tuple(found[name].shape)}.")
            tensor.copy_(found[name])
    return whole


def only_task(checkpoint: Checkpoint, model: Path | str, name: str = "") -> tuple[str, Task]:
    """The task asked for, or the only one there is."""
    if not checkpoint.tasks:
        raise BadInput(f"{model} is not fine-tuned for a task; `firth finetune` makes such a model.")
    if not name and len(checkpoint.tasks) > 1:
        raise BadConfig(f"{model} has several tasks ({', '.join(checkpoint.tasks)}); name one by --task.")
    name = name or next(iter(checkpoint.tasks))
    if name not in checkpoint.tasks:
        raise BadConfig(f"{model} has no task '{name}' but {', '.join(checkpoint.tasks)}.")
    return name, checkpoint.tasks[name]


def _added(checkpoint: Checkpoint) -> dict[str, Tensor]:
    """All that `head.safetensors` holds, by name."""
    reader = checkpoint.reader
    return {
        **{f"encoder.{name}": p for name, p in adapter_parameters(checkpoint.encoder).items()},
        **(
            {f"features.{name}": p for name, p in reader.own_parameters().items()}
            if isinstance(reader, Features)
            else {}
        ),
        **{f"{task}.{name}": t for task, goal in checkpoint.tasks.items() for name, t in goal.state_dict().items()},
    }


def make_task(name: str, config: Any, encoder: Encoder, *, labels: Mapping[str, Sequence[str]]) -> Task:
    """A task over an encoder, with new weights."""
    cls = resolve_task(name)
    known = config if isinstance(config, cls.Config) else from_dict(cls.Config, config)
    task: Task = cls(known, encoder, labels={group: tuple(names) for group, names in labels.items()})
    task.name = name
    return task.eval()


def make_goal(
    name: str, config: Any, encoder: Encoder, tokenizer: Tokenizer, *, max_length: int = 0, seed: int = 0
) -> Objective:
    """An objective over an encoder, with new weights."""
    size = max_length or encoder.max_positions
    goal: Objective = resolve(name)(config, encoder, vocab=tokenizer.vocab, max_length=size, seed=seed)
    return goal.eval()


def _card(checkpoint: Checkpoint) -> str:
    goals, encoder = checkpoint.goals, checkpoint.encoder
    question = 'model.fill("The [MASK] is open.")\n' if {"masked_lm", "replaced_token"} & goals.keys() else ""
    return card(
        described(encoder),
        parameters=parameter_count([encoder, *goals.values()]),
        tokens=len(checkpoint.tokenizer.vocab),
        info=checkpoint.info,
        goals=list(goals),
        question='model.generate("The")\n' if encoder.causal and "causal_lm" in goals else question,
    )


def described(encoder: Encoder) -> str:
    """An encoder in a few words."""
    heads = f", {encoder.config.num_heads} heads" if hasattr(encoder.config, "num_heads") else ""
    layers = f", {encoder.num_layers} layers" if encoder.num_layers else ""
    return f"{type(encoder).__name__}{layers}, width {encoder.width}{heads}"


def _notes(checkpoint: Checkpoint) -> dict[str, Any]:
    """What `firth.json` says."""
    return {
        **{key: value for key, value in checkpoint.info.items() if key != "firth"},
        "goals": {name: to_dict(goal.config) for name, goal in checkpoint.goals.items()},
        **(_fine_tuned(checkpoint) if checkpoint.tasks else {}),
    }


def _fine_tuned(checkpoint: Checkpoint) -> dict[str, Any]:
    reader = checkpoint.reader
    return {
        "adapter_width": checkpoint.adapter_width,
        "features": to_dict(reader.features) if isinstance(reader, Features) else None,
        "tasks": {
            name: {"config": to_dict(task.config), "labels": to_dict(task.labels)}
            for name, task in checkpoint.tasks.items()
        },
    }


__all__ = ["Checkpoint", "Embedding", "load", "make_goal", "make_task", "only_task", "save"]
