"""A model folder: weights, tokenizer, config and card. Loading guesses nothing, and every tensor must have its place.

The folder has Hugging Face's layout, so transformers opens it as it is. What only firth knows is in `firth.json`.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from weakref import WeakValueDictionary

from torch import Tensor

from firth import convert, encoders, objectives, tokenizers
from firth.config import from_dict, to_dict
from firth.convert import HEAD, FolderLayout, Weights
from firth.convert.languages import LANGUAGE, chosen_language, in_language
from firth.convert.mapped import write_weights
from firth.convert.peft import (
    ADAPTER_CONFIG,
    ADAPTER_WEIGHTS,
    apply_adapter,
    find_base,
    foreign_task,
    read_adapter,
    shared_copy,
    write_adapter,
)
from firth.convert.row_quantised import QUANTISED, save_quantised
from firth.convert.sentence_transformers import Embedding, read_embedding, read_layers, write_embedding
from firth.convert.task_heads import TransformersHead
from firth.convert.vector_head import VECTOR_HEAD, VectorHead, read_vector_head, write_vector_head
from firth.errors import BadConfig, BadInput, Damaged, Unsupported
from firth.files import JsonObject, atomic_folder, check_manifest, read_json, without_model
from firth.finetuned_parts import finetuning_notes, with_foreign_head, with_tasks, write_heads
from firth.folder import FORMAT, WEIGHTS, begin, card, finish
from firth.model_parts import (
    Checkpoint,
    LightAdapter,
    described,
    head_for_transformers,
    layout_name_of,
    load_weights,
    make_head,
    make_objective,
    merged,
    only_task,
    token_table,
)
from firth.nn.encoder_decoder import EncoderDecoder
from firth.objectives import resolve
from firth.objectives.objective import Objective
from firth.tensors import UNLIMITED, Encoder, parameter_count
from firth.tokenizers import Tokenizer

MODEL_KEYS = ("format", "goals", "embedding", "tasks", "adapter_width", "prefix_length", "features")
"""Keys of `firth.json` that describe the parts of the model; the others say where it comes from."""

_bases: "WeakValueDictionary[tuple[Path, int], Checkpoint]" = WeakValueDictionary()
"""The models that adapters in memory belong to, by folder and time of change."""


def save(folder: Path, checkpoint: Checkpoint, *, weights: bool = True, bits: int = 0) -> None:
    """Writes the model's files, each atomically, the manifest last.

    With `weights=False`, `model.safetensors` must already exist: large tables are written in pieces beforehand. With
    `bits`, the weights are rounded to so many bits and take a file of another name; other programs cannot open it.
    """
    begin(folder)
    encoder = checkpoint.encoder
    vocab = checkpoint.tokenizer.vocab
    layout = convert.layout(layout_name_of(checkpoint))
    head = head_for_transformers(checkpoint)
    settings = layout.config_json(encoder, checkpoint.goals, pad_id=vocab.pad)
    if head is not None and not bits:
        settings.update(head.settings)
    weights_name = WEIGHTS
    if checkpoint.light is not None:
        weights_name = _write_light(folder, checkpoint, head)
    elif bits:
        weights_name = _write_quantised(folder, checkpoint, layout, bits=bits)
    elif weights:
        _write_weights(folder, checkpoint, layout, head)
    written = _write_optional_files(folder, checkpoint)
    written += _save_nested_models(folder, checkpoint, layout)

    if isinstance(encoder, EncoderDecoder):
        # Other programs need to know how a target begins and ends.
        settings |= {"decoder_start_token_id": encoder.start_token(vocab.cls), "eos_token_id": vocab.sep}

    max_length = None
    if encoder.max_positions != UNLIMITED:
        max_length = encoder.max_positions
    finish(
        folder,
        settings=settings,
        tokenizer=checkpoint.tokenizer,
        notes=_notes(checkpoint),
        text=checkpoint.text or _card(checkpoint),
        extra_files=written,
        max_length=max_length,
        weights=weights_name,
    )


def _write_weights(folder: Path, checkpoint: Checkpoint, layout: FolderLayout, head: TransformersHead | None) -> None:
    """Writes the tensors of the encoder, of its goals and of a head that transformers has."""
    pad_id = checkpoint.tokenizer.vocab.pad
    tensors = layout.tensors_of(checkpoint.encoder, checkpoint.goals, pad_id=pad_id)
    if head is not None:
        tensors.update(head.tensors)
    write_weights(folder / WEIGHTS, tensors)


def _write_quantised(folder: Path, checkpoint: Checkpoint, layout: FolderLayout, *, bits: int) -> str:
    """Writes the rounded tensors of the encoder and of its goals; returns the name of their file."""
    pad_id = checkpoint.tokenizer.vocab.pad
    tensors = layout.tensors_of(checkpoint.encoder, checkpoint.goals, pad_id=pad_id)
    save_quantised(folder / QUANTISED, tensors, bits=bits)
    (folder / WEIGHTS).unlink(missing_ok=True)
    return QUANTISED


def _write_optional_files(folder: Path, checkpoint: Checkpoint) -> list[str]:
    """Writes what not every model has: how it embeds, a vector head, heads of tasks. Returns their files."""
    encoder = checkpoint.encoder
    written = list(write_embedding(folder, checkpoint.embedding, width=encoder.width, layers=checkpoint.vector_layers))
    if checkpoint.vector_head is not None and _fits(checkpoint.vector_head, encoder, checkpoint.tokenizer):
        write_vector_head(folder, checkpoint.vector_head)
        written.append(VECTOR_HEAD)
    if checkpoint.light is not None:
        # `_write_light` wrote it beside the weights.
        written.append(ADAPTER_CONFIG)
    if checkpoint.tasks:
        write_heads(folder / HEAD, checkpoint)
        written.append(HEAD)
    return written


def _write_light(folder: Path, checkpoint: Checkpoint, head: TransformersHead | None) -> str:
    """Writes LoRA's low-rank matrices in peft's layout; returns the name of their file."""
    light = checkpoint.light
    assert light is not None
    if head is None:
        raise Unsupported("Only a model with one head that transformers has can be saved as an adapter; merge it.")
    write_adapter(
        folder, checkpoint.encoder, head, base=light.base, layout_name=layout_name_of(checkpoint), config=light.config
    )
    return ADAPTER_WEIGHTS


def _save_nested_models(folder: Path, checkpoint: Checkpoint, layout: FolderLayout) -> list[str]:
    """Saves models such as ELECTRA's generator in subfolders; returns the files that the manifest must list."""
    written: list[str] = []
    for name, nested in layout.nested_models(checkpoint.goals).items():
        with atomic_folder(folder / name, replace=True) as subfolder:
            model = Checkpoint(nested.encoder, nested.goals, checkpoint.tokenizer, layout=checkpoint.layout)
            save(subfolder, model)
        written.append(f"{name}/model.safetensors")
        written.append(f"{name}/config.json")
    return written


def load(folder: Path) -> Checkpoint:
    """Opens a model folder, one of firth's own or one in Hugging Face's layout."""
    _check_is_model(folder)
    notes = _read_notes(folder)
    if (folder / ADAPTER_WEIGHTS).exists():
        return _load_light(folder, notes)
    settings = read_json(folder / "config.json")
    if not isinstance(settings, Mapping):
        raise Damaged(f"{folder}: config.json and firth.json must be JSON objects.")
    model_type = str(settings.get("model_type"))
    weights = convert.layout(model_type).read(folder)
    tokenizer = tokenizers.load(folder)
    if len(tokenizer.vocab) > weights.config.vocab_size:
        raise BadInput(
            f"{folder}: the tokenizer has {len(tokenizer.vocab)} tokens, the model {weights.config.vocab_size}."
        )
    # The folder's layout decides which encoder it is, and how its tensors are renamed.
    encoder: Encoder = encoders.resolve(weights.encoder_name)(in_language(weights.config, notes))  # type: ignore[type-var]
    load_weights(encoder, weights.encoder, folder)
    goals = _load_goals(folder, notes, weights, encoder, tokenizer)
    # The rest of the notes is kept, so that saving the model again loses nothing.
    info = {key: value for key, value in notes.items() if key not in MODEL_KEYS}
    vector_head = read_vector_head(folder)
    if vector_head is not None and not _fits(vector_head, encoder, tokenizer):
        raise Damaged(f"{folder / VECTOR_HEAD} is of another model; make it again with `firth vectors`.")
    checkpoint = Checkpoint(
        encoder.eval(),
        goals,
        tokenizer,
        read_embedding(folder),
        info,
        vector_head=vector_head,
        vector_layers=read_layers(folder),
        layout=model_type,
    )
    if notes.get("tasks"):
        checkpoint = with_tasks(folder, checkpoint, notes)
    elif weights.task is not None:
        checkpoint = with_foreign_head(folder, checkpoint, weights.task)
    return checkpoint


def _fits(head: VectorHead, encoder: Encoder, tokenizer: Tokenizer) -> bool:
    """Whether a vector head was made for these tokens and embeddings."""
    table_VE = token_table(encoder)
    if table_VE is None:
        return False
    return head.fits(len(tokenizer.vocab), table_VE.shape[1], encoder.width)


def _load_light(folder: Path, notes: JsonObject) -> Checkpoint:
    """Opens LoRA's low-rank matrices over the model they belong to, which all such folders in memory share."""
    adapter = read_adapter(folder)
    base_folder = find_base(folder, adapter).resolve()
    key = (base_folder, (base_folder / "config.json").stat().st_mtime_ns)
    base = _bases.get(key)
    if base is None:
        base = load(base_folder)
        _bases[key] = base
    encoder = shared_copy(base.encoder)
    config = apply_adapter(encoder, adapter, layout_name=base.layout)
    info = {name: value for name, value in notes.items() if name not in MODEL_KEYS}
    light = LightAdapter(str(base_folder), config, base)
    checkpoint = replace(base, encoder=encoder.eval(), goals={}, info=info or base.info, tasks={}, light=light)
    if notes.get("tasks"):
        return with_tasks(folder, checkpoint, notes)
    task = foreign_task(adapter, base.layout, settings=_settings_if_any(folder))
    if task is None:
        return checkpoint
    if task.config.get("layer", "none") != "none" and getattr(encoder, "pooler", None) is not None:
        # Classes with a layer of their own do not use the model's.
        encoder.pooler = None  # type: ignore[assignment]
        encoder.config = replace(encoder.config, pooler=False)
    return with_foreign_head(folder, checkpoint, task)


def _settings_if_any(folder: Path) -> JsonObject:
    path = folder / "config.json"
    settings: JsonObject = read_json(path) if path.exists() else {}
    return settings


def set_language(checkpoint: Checkpoint, language: str) -> Checkpoint:
    """The same model, which from now on reads texts of this language; raises if it does not know the language."""
    chosen = chosen_language(checkpoint.info, language)
    checkpoint.encoder.config = in_language(checkpoint.encoder.config, checkpoint.info, language)
    return replace(checkpoint, info={**checkpoint.info, LANGUAGE: chosen})


def _check_is_model(folder: Path) -> None:
    """Raises if a folder has no model, with the reason if it is known."""
    if not folder.is_dir():
        raise BadInput(f"{folder} is not a folder with a model; train one with `firth pretrain` or name its folder.")
    reason = without_model(folder)
    if reason:
        raise BadInput(f"{folder} {reason}.")
    if not (folder / "config.json").exists() and not (folder / ADAPTER_CONFIG).exists():
        raise BadInput(f"{folder} does not hold a model: it has no config.json; `firth pretrain` makes one.")


def _read_notes(folder: Path) -> JsonObject:
    """The content of `firth.json` after the manifest is checked; empty if the folder is not one of firth's own."""
    path = folder / "firth.json"
    if not path.exists():
        return {}
    notes = read_json(path)
    if not isinstance(notes, Mapping):
        raise Damaged(f"{folder}: config.json and firth.json must be JSON objects.")
    if notes:
        if notes.get("format") != FORMAT:
            raise Damaged(f"{path} is of format {notes.get('format')}; this firth reads format {FORMAT}.")
        check_manifest(folder)
    return notes


def _load_goals(
    folder: Path,
    notes: JsonObject,
    weights: Weights,
    encoder: Encoder,
    tokenizer: Tokenizer,
) -> dict[str, Objective]:
    """The objectives with their weights."""
    goals: dict[str, Objective] = {}
    # A goal without weights is only in `firth.json`.
    found: dict[str, Mapping[str, Tensor]] = dict(weights.goals)
    for name in notes.get("goals", {}):
        if name in objectives.TABLE and not getattr(resolve(name), "has_weights", True):
            found.setdefault(name, {})
    for name, tensors in found.items():
        # What `firth.json` says takes precedence over what the model type implies.
        values = dict(weights.settings.get(name, {}))
        values.update(notes.get("goals", {}).get(name, {}))
        try:
            config = from_dict(resolve(name).Config, values)
        except BadConfig as error:
            raise Damaged(f"{folder}/firth.json was written by another version of firth: {error}") from None
        goals[name] = make_objective(name, config, encoder, tokenizer)
        load_weights(goals[name], tensors, folder)
    return goals


def _card(checkpoint: Checkpoint) -> str:
    """The default model card."""
    encoder = checkpoint.encoder
    goals = checkpoint.goals
    example = ""
    if encoder.causal and "causal_lm" in goals:
        example = 'model.generate("The")\n'
    elif goals.keys() & {"masked_lm", "unilm", "translation_lm", "replaced_token"}:
        example = 'model.fill("The [MASK] is open.")\n'
    return card(
        described(encoder),
        parameters=parameter_count([encoder, *goals.values()]),
        tokens=len(checkpoint.tokenizer.vocab),
        info=checkpoint.info,
        goals=list(goals),
        question=example,
    )


def _notes(checkpoint: Checkpoint) -> dict[str, object]:
    """The content of `firth.json`."""
    # The version is left out: saving writes its own.
    notes: dict[str, object] = dict(checkpoint.info)
    notes.pop("firth", None)
    notes["goals"] = {name: to_dict(goal.config) for name, goal in checkpoint.goals.items()}
    if checkpoint.tasks:
        notes.update(finetuning_notes(checkpoint))
    return notes


__all__ = [
    "Checkpoint",
    "Embedding",
    "LightAdapter",
    "described",
    "head_for_transformers",
    "load",
    "make_head",
    "make_objective",
    "merged",
    "only_task",
    "save",
    "token_table",
]
