"""A model -> a folder for others: Hugging Face's plain files, or firth's own with weights in few bits.

Both hold the same model. What only further pre-training needs, ELECTRA's generator, is left out where the model fills
masks without it.
"""

import logging
from dataclasses import replace
from pathlib import Path

from firth import checkpoint as checkpoints
from firth.checkpoint import Checkpoint, head_for_transformers, make_objective
from firth.files import atomic_folder
from firth.objectives.replaced_token import Generator, ReplacedToken

log = logging.getLogger(__name__)

LONGEST = 8192
"""Where texts are cut for models without a longest one."""


def export_folder(model: Path, out: Path, *, bits: int = 0) -> Checkpoint:
    """Writes the model to a new folder; with `bits`, its weights take so many bits each. Returns what was written."""
    checkpoint = without_generator(checkpoints.merged(checkpoints.load(model)))
    if bits:
        checkpoint = noting_bits(checkpoint, bits)
    with atomic_folder(out) as folder:
        checkpoints.save(folder, checkpoint, bits=bits)
    if checkpoint.tasks and not bits and head_for_transformers(checkpoint) is None:
        names = ", ".join(checkpoint.tasks)
        log.warning(f"transformers opens {out} without the head of {names}, for which it has no class; firth has it.")
    return checkpoint


def export_sentence_transformers(model: Path, out: Path) -> Checkpoint:
    """Writes the model as a folder of sentence-transformers; texts are cut at what the model reads, unless its own
    folder says less. Returns what was written."""
    checkpoint = without_generator(checkpoints.merged(checkpoints.load(model)))
    embedding = checkpoint.embedding
    if embedding.max_length is None:
        embedding = replace(embedding, max_length=min(checkpoint.encoder.max_positions, LONGEST))
    exported = replace(checkpoint, embedding=embedding)
    with atomic_folder(out) as folder:
        checkpoints.save(folder, exported)
    return exported


def noting_bits(checkpoint: Checkpoint, bits: int) -> Checkpoint:
    """The model whose notes and card say that its figures were measured before its weights were rounded."""
    info = {**checkpoint.info, "bits_of_a_weight": bits}
    if "held_out" in info:
        info["held_out_before_rounding"] = info.pop("held_out")
    text = checkpoint.text
    if text:
        text = f"{text.rstrip()}\n\nThe weights are rounded to {bits} bits; all figures were measured before that.\n"
    return replace(checkpoint, info=info, text=text)


def without_generator(checkpoint: Checkpoint) -> Checkpoint:
    """The model without ELECTRA's generator, if its encoder fills masks itself."""
    objective = checkpoint.goals.get("replaced_token")
    if not isinstance(objective, ReplacedToken) or not objective.fills_masks_itself:
        return checkpoint
    config = replace(objective.config, generator=Generator(width=0))
    smaller = make_objective("replaced_token", config, checkpoint.encoder, checkpoint.tokenizer)
    state = objective.state_dict()
    smaller.load_state_dict({name: state[name] for name in smaller.state_dict()})
    return replace(checkpoint, goals={**checkpoint.goals, "replaced_token": smaller})
