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

from firth import __version__, convert, encoders, tokenizers
from firth.config import from_dict, to_dict
from firth.convert.mapped import WORD_ROWS, write_weights
from firth.errors import BadConfig, BadInput, Damaged, Unsupported
from firth.files import (
    MANIFEST,
    atomic_folder,
    check_manifest,
    read_json,
    without_model,
    write_bytes,
    write_json,
    write_manifest,
)
from firth.nn.adapters import adapter_parameters, insert_adapters
from firth.nn.features import Features
from firth.objectives import resolve
from firth.tasks import resolve as resolve_task
from firth.tensors import UNLIMITED, Encoder, Objective, Task, parameter_count
from firth.tokenizers import Tokenizer

FORMAT = 1
HEAD = "head.safetensors"
"""What fine-tuning added: the tasks' heads, adapters, the mix of frozen features."""
FILES = ("model.safetensors", "config.json", "firth.json", "README.md")
"""What every model folder has; the tokenizer names its own files."""
_TOKENIZERS = ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "vocab.json", "merges.txt")
WRITTEN = (*FILES, *_TOKENIZERS, HEAD, WORD_ROWS, MANIFEST, "generator")
"""Files and folders that a killed process may have left half of."""
OURS = ("format", "goals", "embedding", "tasks", "adapter_width", "features")
"""Keys of `firth.json` that say what the model is made of; the others say where it comes from."""
SENTENCE_FILES = ("modules.json", "sentence_bert_config.json", "1_Pooling/config.json")
"""What sentence-transformers keeps beside a BERT: how its vectors are pooled, normalised and cut."""
POOLINGS = {"cls": "cls_token", "mean": "mean_tokens", "max": "max_tokens", "last": "lasttoken"}
"""What it calls our poolings."""


@dataclass(frozen=True)
class Embedding:
    """How a model turns a text's states into one vector."""

    pooling: str = "mean"
    normalise: bool = False
    max_length: int | None = None
    """Cut longer texts here, as the folder asks; None reads them whole, in windows."""


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
    folder.mkdir(parents=True, exist_ok=True)
    for stale in (MANIFEST, *SENTENCE_FILES, HEAD):  # of a model that was here before
        (folder / stale).unlink(missing_ok=True)
    encoder, tokenizer = checkpoint.encoder, checkpoint.tokenizer
    layout = convert.layout(checkpoint.layout or encoders.name_of(encoder))
    if weights:
        tensors = layout.tensors_of(encoder, checkpoint.goals, pad_id=tokenizer.vocab.pad)
        write_weights(folder / "model.safetensors", tensors)
    write_json(folder / "config.json", layout.config_json(encoder, checkpoint.goals, pad_id=tokenizer.vocab.pad))
    limit = None if encoder.max_positions == UNLIMITED else encoder.max_positions
    files = tokenizer.save(folder, max_length=limit)
    write_json(folder / "firth.json", _ours(checkpoint))
    write_bytes(folder / "README.md", (checkpoint.text or card(checkpoint)).encode())
    extra = [*([HEAD] if checkpoint.tasks else []), *([WORD_ROWS] if (folder / WORD_ROWS).exists() else [])]
    if checkpoint.tasks:
        heads = {name: t.detach().cpu().contiguous().clone() for name, t in _added(checkpoint).items()}
        write_bytes(folder / HEAD, to_bytes(heads))
    for name, (part, goals) in layout.beside(checkpoint.goals).items():
        with atomic_folder(folder / name, replace=True) as inner:
            save(inner, Checkpoint(part, goals, tokenizer, layout=checkpoint.layout))
        extra += [f"{name}/{file}" for file in ("model.safetensors", "config.json")]
    write_manifest(folder, [*FILES, *files, *extra, *_write_embedding(folder, checkpoint.embedding)])


def refuse_foreign(folder: Path) -> None:
    """A folder without a run of ours keeps the files that a model's would take the place of."""
    if found := next((name for name in FILES if (folder / name).exists()), None):
        raise BadInput(f"{folder} holds no run but a {found} of its own; choose another --out.")


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
    plain = Checkpoint(encoder.eval(), goals, tokenizer, _read_embedding(folder), info, layout=kind)
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


def card(checkpoint: Checkpoint) -> str:
    """The model card: what this is, where it comes from, how to use it."""
    info = checkpoint.info
    count = parameter_count([checkpoint.encoder, *checkpoint.goals.values()])
    told = {key.replace("_", " ").capitalize(): v for key, v in info.items() if isinstance(v, str | int | float)}
    facts = {
        "Encoder": described(checkpoint.encoder),
        "Parameters": f"{count:,}",
        "Vocabulary": f"{len(checkpoint.tokenizer.vocab):,} tokens",
        "Heads": ", ".join(checkpoint.goals) or "none",
        **told,
    }
    writes = checkpoint.encoder.causal and "causal_lm" in checkpoint.goals
    ask = 'model.generate("The")\n' if writes else 'model.fill("The [MASK] is open.")\n'
    rows = "\n".join(f"| {name} | {value} |" for name, value in facts.items())
    scores = "\n".join(f"| {name} | {value:.4f} |" for name, value in info.get("held_out", {}).items())
    measured = f"\n## Held-out documents\n\n| figure | value |\n|---|---|\n{scores}\n" if scores else ""
    return (
        f"# A model made by firth\n\n| | |\n|---|---|\n{rows}\n{measured}\n## Use\n\n```python\nimport firth\n\n"
        f'model = firth.load("FOLDER")\n{ask}model.embed(["a text", "another"])\n```\n'
    )


def described(encoder: Encoder) -> str:
    """An encoder in a few words."""
    heads = f", {encoder.config.num_heads} heads" if hasattr(encoder.config, "num_heads") else ""
    layers = f", {encoder.num_layers} layers" if encoder.num_layers else ""
    return f"{type(encoder).__name__}{layers}, width {encoder.width}{heads}"


def _ours(checkpoint: Checkpoint) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "firth": __version__,
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


def _read_embedding(folder: Path) -> Embedding:
    if not (folder / "modules.json").exists():
        return Embedding()
    paths = {module["type"].rsplit(".", 1)[-1]: module["path"] for module in read_json(folder / "modules.json")}
    kinds = list(paths)
    if unknown := [kind for kind in kinds if kind not in ("Transformer", "Pooling", "Normalize")]:
        raise Unsupported(f"{folder}/modules.json has a {unknown[0]} layer, which firth does not have.")
    pooling = read_json(folder / paths["Pooling"] / "config.json") if "Pooling" in kinds else {}
    modes = [
        name.removeprefix("pooling_mode_") for name, on in pooling.items() if "pooling_mode_" in name and on is True
    ]
    if pooling and (len(modes) != 1 or modes[0] not in POOLINGS.values()):
        raise Unsupported(f"{folder}/{paths['Pooling']}/config.json asks for a pooling firth does not have.")
    settings = folder / "sentence_bert_config.json"
    length = read_json(settings).get("max_seq_length") if settings.exists() else None
    ours = {theirs: name for name, theirs in POOLINGS.items()}
    return Embedding(ours[modes[0]] if modes else "mean", "Normalize" in kinds, length)


def _write_embedding(folder: Path, embedding: Embedding) -> tuple[str, ...]:
    """The same settings as sentence-transformers' files, where the model has any of its own."""
    if embedding == Embedding():
        return ()
    kinds = ["Transformer", "Pooling"] + ["Normalize"] * embedding.normalise
    paths = {"Transformer": "", "Pooling": "1_Pooling", "Normalize": "2_Normalize"}
    rows = [
        {"idx": i, "name": str(i), "path": paths[kind], "type": f"sentence_transformers.models.{kind}"}
        for i, kind in enumerate(kinds)
    ]
    write_json(folder / "modules.json", rows)
    modes = {f"pooling_mode_{theirs}": name == embedding.pooling for name, theirs in POOLINGS.items()}
    length = {} if embedding.max_length is None else {"max_seq_length": embedding.max_length}
    write_json(folder / "sentence_bert_config.json", {**length, "do_lower_case": False})
    write_json(folder / "1_Pooling/config.json", modes)
    return SENTENCE_FILES


__all__ = ["Checkpoint", "Embedding", "card", "load", "make_goal", "make_task", "only_task", "refuse_foreign", "save"]
