"""What a person asks of pre-training -> a recipe as numbers: by name or from a file, with their changes and limits."""

import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from firth import encoders, lineage
from firth.config import from_dict, load_toml, override
from firth.errors import BadConfig
from firth.lineage import Recipe
from firth.train.settings import TrainConfig

if TYPE_CHECKING:
    from firth.checkpoint import Checkpoint
    from firth.data.loader import Packs

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Asked:
    """What a person asked for; None where they left it to the recipe."""

    recipe: str | None = None
    size: str | None = None
    steps: int | None = None
    epochs: float | None = None
    minutes: float | None = None
    config: str | Path | None = None
    changes: tuple[str, ...] = ()


def named(asked: Asked, saved: Path | None = None) -> Recipe:
    """The recipe a person named, or that of a file, before any changes."""
    source = saved or asked.config
    if not source:
        return lineage.make(asked.recipe or "bert", asked.size or "tiny")
    plan = from_dict(Recipe, load_toml(Path(source)))
    if (asked.recipe or plan.recipe, asked.size or plan.size) != (plan.recipe, plan.size):
        raise BadConfig(f"{source} is a '{plan.recipe}' of size '{plan.size}'; leave out `recipe=` and `size=`.")
    return plan


def resolve_config(asked: Asked, saved: Path | None, *, start: "Checkpoint | None", vocab_size: int) -> Recipe:
    """The run's numbers: by name or from a file, with the person's changes; a resumed run keeps its own."""
    plan = named(asked, saved) if saved or not start else _continued(asked, start)
    changed = _limits(override(plan, asked.changes), asked)
    changed = fitted(changed, start, vocab_size)
    if saved and changed != plan:
        raise BadConfig(
            f"`resume=True` continues the run as {saved} says; leave out options that differ from it, "
            "or begin another run from its model with `start_from=`."
        )
    return changed


def _continued(asked: Asked, start: "Checkpoint") -> Recipe:
    """The recipe a person named, or the model's own, with the shape and size that the model has."""
    encoder, own = start.encoder, str(start.info.get("size", ""))
    if not own:
        shape = (encoder.num_layers, encoder.width)
        own = next((size for size, row in lineage.SIZES.items() if row[:2] == shape), f"{shape[0]} x {shape[1]}")
    if asked.size not in (None, own):
        raise BadConfig(f"The model of `start_from=` is of size {own} and keeps it; leave out `size='{asked.size}'`.")
    recipe = asked.recipe or start.info.get("recipe") or "bert"
    nearest = min(lineage.SIZES, key=lambda size: abs(lineage.SIZES[size][1] - encoder.width))
    asked = replace(asked, size=None) if asked.config else replace(asked, recipe=recipe, size=nearest)
    plan = named(asked)
    config = encoder.config
    own_dropout = [getattr(shape, "dropout", None) for shape in plan.encoder.values()]
    if plan.finetune_dropout is not None and own_dropout[0] is not None:
        # The folder holds the dropout of fine-tuning; pre-training goes on with its own.
        config = replace(config, dropout=own_dropout[0])
    return replace(plan, size=own, encoder={encoders.name_of(encoder): config})


def fitted(plan: Recipe, start: "Checkpoint | None", vocab_size: int) -> Recipe:
    """The plan with the number of rows its embedding will have: the tokenizer decides, so that run.toml tells."""
    if start:
        return plan
    # A multiple of 64 suits the matrix units; the rows beyond the vocabulary are never asked for.
    rows = -(-vocab_size // 64) * 64
    return replace(plan, encoder={name: replace(shape, vocab_size=rows) for name, shape in plan.encoder.items()})


def tell_of_unused(plan: Recipe, *, size: str | None, device: str | None) -> None:
    """What was asked of a recipe that is solved without gradients though it has little or no use for it."""
    if device and device != "cpu":
        from firth.train.parallel import chosen_device  # needs torch, which who leaves the device alone does not

        chosen_device(device)  # raises where there is no such device
        log.info(f"{plan.recipe} is solved on the CPU: `device='{device}'` changes nothing.")
    if size:
        has_width = hasattr(next(iter(plan.encoder.values())), "width")
        use = "only sets the width of the vectors" if has_width else "changes nothing"
        log.info(f"`size='{size}'` {use} in {plan.recipe}.")


def _limits(plan: Recipe, asked: Asked) -> Recipe:
    if sum(limit is not None for limit in (asked.steps, asked.epochs, asked.minutes)) > 1:
        raise BadConfig("Give one of `steps=`, `epochs=` and `minutes=`, not several.")
    if any(limit is not None and limit <= 0 for limit in (asked.steps, asked.epochs, asked.minutes)):
        raise BadConfig("`steps=`, `epochs=` and `minutes=` must be above zero.")
    train = plan.train
    if asked.steps is not None:
        train = replace(train, steps=asked.steps, minutes=0.0)
    if asked.minutes is not None:
        train = replace(train, steps=TrainConfig().steps, minutes=asked.minutes)
    return replace(plan, train=train)


def whole_epochs(plan: Recipe, epochs: float, packs: "Packs") -> Recipe:
    """The plan with as many steps as so many passes over the packs take."""
    steps = max(1, round(epochs * packs.num_packs(0) / plan.train.accumulate))
    return replace(plan, train=replace(plan.train, steps=steps, minutes=0.0))
