"""A request for pre-training -> a recipe with all its numbers: by name or from a file, with changes and limits."""

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from firth import encoders, lineage
from firth.config import check_limits, check_whole, from_dict, load_toml, override
from firth.errors import BadConfig
from firth.lineage import Recipe
from firth.train.settings import OPTIMIZER, OptimConfig, TrainConfig

if TYPE_CHECKING:
    from firth.checkpoint import Checkpoint
    from firth.data.loader import Packs
    from firth.tensors import Encoder
    from firth.tokenizers.vocab import Vocab

log = logging.getLogger(__name__)

MASKED_LM = "roberta"
"""The recipe that has no objective but masked LM."""
CONTINUED_RATE = 0.2
"""Share of a recipe's rate for AdamW if a trained model continues: at the whole rate it forgets what it knows."""
CONTINUED_MUON_RATE = 5e-4
ROW_MULTIPLE = 64
"""The rows of an embedding are a multiple of it, which suits the matrix units."""


@dataclass(frozen=True)
class PretrainRequest:
    """What the user asks for; None leaves a number to the recipe."""

    recipe: str | None = None
    size: str | None = None
    steps: int | None = None
    epochs: float | None = None
    minutes: float | None = None
    config: str | Path | None = None
    """A TOML file with a whole recipe, such as the run.toml of another run."""
    changes: tuple[str, ...] = ()
    """Settings as `key=value`."""


def named_recipe(request: PretrainRequest, saved: Path | None = None) -> Recipe:
    """The recipe that the request names, or that of a file, before any changes; `saved` is a run's run.toml."""
    source = saved or request.config
    if not source:
        return lineage.make(request.recipe or "bert", request.size or "tiny")
    recipe = from_dict(Recipe, load_toml(Path(source)))
    other_recipe = request.recipe not in (None, "", recipe.recipe)
    other_size = request.size not in (None, "", recipe.size)
    if other_recipe or other_size:
        raise BadConfig(f"{source} is a '{recipe.recipe}' of size '{recipe.size}'; leave out `recipe=` and `size=`.")
    return recipe


def resolve_config(
    request: PretrainRequest,
    saved: Path | None,
    *,
    start: "Checkpoint | None",
    vocab_size: int,
    known_sentinels: int = 0,
) -> Recipe:
    """The run's numbers: by name or from a file, with the user's changes. A resumed run keeps its own.

    `saved` is the run.toml of a run that is resumed, `start` the model whose weights a new run starts from. Of the
    sentinels that the recipe needs the vocabulary has `known_sentinels`.
    """
    recipe = _recipe_for_model(request, start) if start and not saved else named_recipe(request, saved)
    if recipe.continues and not start:
        raise BadConfig(f"The recipe {recipe.recipe} trains a model further; name the model with `start_from=`.")
    changed = override(recipe, request.changes)
    changed = _with_limits(changed, request)
    missing_sentinels = max(0, num_sentinels(changed) - known_sentinels)
    changed = with_vocab_size(changed, start, vocab_size + missing_sentinels)
    if saved and changed != recipe:
        raise BadConfig(
            f"`resume=True` continues the run as {saved} says; leave out options that differ from it, "
            "or begin another run from its model with `start_from=`."
        )
    return changed


def _recipe_for_model(request: PretrainRequest, start: "Checkpoint") -> Recipe:
    """The recipe that the request names, or the model's own, with the shape and size of the model."""
    encoder = start.encoder
    size = _size_of(start)
    if request.size not in (None, size):
        raise BadConfig(
            f"The model of `start_from=` is of size {size} and keeps it; leave out `size='{request.size}'`."
        )
    if request.config:
        recipe = named_recipe(replace(request, size=None))
    else:
        name = request.recipe or _own_recipe(start)
        recipe = named_recipe(replace(request, recipe=name, size=_nearest_size(encoder)))
        if not recipe.continues:
            recipe = replace(recipe, train=replace(recipe.train, optim=_continued_optim(recipe.train.optim, start)))
    config = encoder.config
    pretraining_dropout = _dropout_of(recipe.encoder)
    if recipe.finetune_dropout is not None and pretraining_dropout is not None:
        # The folder holds the dropout of fine-tuning; pre-training continues with its own.
        config = replace(config, dropout=pretraining_dropout)
    objectives = _with_generator_of(start, recipe.objectives)
    return replace(recipe, size=size, encoder={encoders.name_of(encoder): config}, objectives=objectives)


def _continued_optim(optim: OptimConfig, start: "Checkpoint") -> OptimConfig:
    """The optimizer that made the model's weights, at a rate for weights that have learned."""
    if start.info.get(OPTIMIZER) == "muon":
        return replace(optim, optimizer="muon", rate=CONTINUED_MUON_RATE)
    return replace(optim, rate=CONTINUED_RATE * optim.rate)


def _nearest_size(encoder: "Encoder") -> str:
    """The size whose numbers, such as the learning rate, suit this encoder: the nearest in width, then in depth."""

    def distance(name: str) -> tuple[int, int]:
        num_layers, width, _ = lineage.SIZES[name]
        return abs(width - encoder.width), abs(num_layers - encoder.num_layers)

    return min(lineage.SIZES, key=distance)


def _with_generator_of(start: "Checkpoint", objectives: Mapping[str, object]) -> dict[str, object]:
    """The objectives with the generator's shape of the model, whose generator is trained further."""
    # Planning alone does not load torch.
    from firth.objectives.replaced_token import ReplacedToken

    kept = dict(objectives)
    own = start.goals.get("replaced_token")
    named = kept.get("replaced_token")
    if isinstance(own, ReplacedToken) and isinstance(named, ReplacedToken.Config) and own.generator is not None:
        kept["replaced_token"] = replace(named, generator=own.config.generator)
    return kept


def _own_recipe(start: "Checkpoint") -> str:
    """The recipe by which a model was pre-trained, or masked LM alone if it cannot be continued by that recipe."""
    name = str(start.info.get("recipe") or "bert")
    needs_generator = name in lineage.TABLE and "replaced_token" in lineage.make(name, "tiny").objectives
    if not needs_generator or "replaced_token" in start.goals:
        return name
    log.info(f"The model came without the generator of its recipe {name}: it is trained further by masked LM.")
    return MASKED_LM


def _size_of(start: "Checkpoint") -> str:
    """The name of a model's size, or its layers and width if these have no name."""
    written = str(start.info.get("size", ""))
    if written:
        return written
    encoder: Encoder = start.encoder
    for name, (num_layers, width, _) in lineage.SIZES.items():
        if (num_layers, width) == (encoder.num_layers, encoder.width):
            return name
    return f"{encoder.num_layers} x {encoder.width}"


def _dropout_of(encoder_configs: Mapping[str, object]) -> float | None:
    """The dropout of a recipe's encoder; None if it has no such field."""
    config = next(iter(encoder_configs.values()), None)
    return getattr(config, "dropout", None)


def num_sentinels(recipe: Recipe) -> int:
    """How many sentinel tokens the objectives need."""
    return max((getattr(config, "sentinels", 0) for config in recipe.objectives.values()), default=0)


def with_vocab_size(recipe: Recipe, start: "Checkpoint | None", vocab_size: int) -> Recipe:
    """The recipe with the number of rows of its embedding, so that run.toml has it. The tokenizer decides."""
    if start:
        return recipe
    rows = padded_rows(vocab_size)
    configs = {name: replace(config, vocab_size=rows) for name, config in recipe.encoder.items()}
    return replace(recipe, encoder=configs)


def padded_rows(num_tokens: int) -> int:
    """The rows of an embedding for so many tokens; those above the vocabulary are never read."""
    return math.ceil(num_tokens / ROW_MULTIPLE) * ROW_MULTIPLE


def with_cls_place(recipe: Recipe, vocab: "Vocab") -> Recipe:
    """The recipe of an encoder that must know whether sequences end with their `[CLS]`. The tokenizer decides."""
    is_last = vocab.frame.closing[-1:] == (vocab.cls,)
    configs = {}
    for name, config in recipe.encoder.items():
        configs[name] = replace(config, cls_last=is_last) if hasattr(config, "cls_last") else config
    return replace(recipe, encoder=configs)


def with_languages(recipe: Recipe, names: tuple[str, ...], start: "Checkpoint | None") -> Recipe:
    """The recipe of a model with language embeddings, with its languages. The text or the start decides."""
    if recipe.batches.segments != "languages":
        return recipe
    configs = {}
    known = tuple(start.info.get("languages", ())) if start else names
    for name, config in recipe.encoder.items():
        if not hasattr(config, "language"):
            raise BadConfig(f"The encoder {name} has no language embeddings; use bert, or batches.segments=texts.")
        rows = config.num_segments if start else max(1, len(known))
        configs[name] = replace(config, num_segments=rows, language=-1)
    unknown = [name for name in names if name not in known]
    if unknown:
        raise BadConfig(
            f"The model of `start_from=` has no embedding for the language {unknown[0]} (known: "
            f"{', '.join(known) or 'none'})."
        )
    if not known:
        log.warning("The text has no languages, so it is trained as one; prepare it with LANGUAGE=FILE.")
    return replace(recipe, encoder=configs, batches=replace(recipe.batches, languages=known))


def report_unused_options(recipe: Recipe, *, size: str | None, device: str | None) -> None:
    """Says which options have little or no effect on a recipe that is solved without gradients."""
    if device and device != "cpu":
        from firth.train.parallel import chosen_device  # imports torch, which solving does not need

        chosen_device(device)  # raises if there is no such device
        log.info(f"{recipe.recipe} is solved on the CPU: `device='{device}'` changes nothing.")
    if size:
        config = next(iter(recipe.encoder.values()))
        effect = "only sets the width of the vectors" if hasattr(config, "width") else "changes nothing"
        log.info(f"`size='{size}'` {effect} in {recipe.recipe}.")


def _with_limits(recipe: Recipe, request: PretrainRequest) -> Recipe:
    """The recipe with the steps or minutes of the request; `with_epochs` needs the batches and comes later."""
    limits = [limit for limit in (request.steps, request.epochs, request.minutes) if limit is not None]
    if len(limits) > 1:
        raise BadConfig("Give one of `steps=`, `epochs=` and `minutes=`, not several.")
    check_whole(steps=request.steps)
    check_limits(epochs=request.epochs, minutes=request.minutes)
    # A limit replaces the other kind of limit in a config file.
    train = recipe.train
    if request.steps is not None:
        train = replace(train, steps=request.steps, minutes=0.0)
    if request.minutes is not None:
        train = replace(train, steps=TrainConfig().steps, minutes=request.minutes)
    return replace(recipe, train=train)


def with_epochs(recipe: Recipe, epochs: float, packs: "Packs") -> Recipe:
    """The recipe with as many steps as these passes over the packs take."""
    steps = max(1, round(epochs * packs.num_packs(0) / recipe.train.accumulate))
    train = replace(recipe.train, steps=steps, minutes=0.0)
    return replace(recipe, train=train)
