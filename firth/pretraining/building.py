"""What a recipe names, built: shards and a recipe in; an encoder with its objectives and the text in batches out."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

import torch

from firth import encoders, tokenizers
from firth.checkpoint import Checkpoint, make_objective
from firth.data.languages import lone_document
from firth.data.loader import Packs
from firth.data.settings import BatchConfig
from firth.data.shards import Shards
from firth.data.stream import split
from firth.errors import BadConfig, BadInput
from firth.lineage import Recipe
from firth.objectives.objective import Objective
from firth.pretraining.planning import num_sentinels, with_vocab_size
from firth.tensors import Encoder, Goal
from firth.tokenizers import Tokenizer
from firth.tokenizers.sentinels import with_sentinels
from firth.train.evaluation import evaluate as measure
from firth.train.limit import EvaluationExtent
from firth.train.loop import Learner
from firth.train.parallel import Precision, chosen_device, compiled, reseed
from firth.train.run import Measure

log = logging.getLogger(__name__)

ExtendGoal = Callable[[Objective, Encoder], Goal]


@dataclass(frozen=True)
class TextPacks:
    """The text as batches of one length."""

    training: Packs
    held_out: Packs | None

    def measure(self, learner: Learner, precision: Precision, extent: EvaluationExtent) -> Measure | None:
        """A function that gives means over the held-out documents, with the masks and pairs of epoch 0."""
        if not self.held_out:
            return None
        return partial(measure, learner, self.held_out, precision=precision, extent=extent)

    def check(self) -> None:
        """Raises if the text cannot be cut into sequences, before anything is written."""
        self.training.num_packs(0)
        if self.held_out:
            self.held_out.num_packs(0)


@dataclass(frozen=True)
class Parts:
    """What a recipe names, built."""

    learner: Learner
    text: TextPacks
    last_text: TextPacks | None
    """The text of the last steps, if its sequences have another length."""
    tokenizer: Tokenizer
    objectives: Mapping[str, Objective]
    """The goals that make the batches and that the model keeps; the learner may have others in their place."""

    def check(self) -> None:
        self.text.check()
        if self.last_text:
            self.last_text.check()


def build(
    recipe: Recipe,
    shards: Shards,
    *,
    start: Checkpoint | None = None,
    device: str | None = None,
    extend: ExtendGoal | None = None,
) -> Parts:
    """Builds what a recipe names; all random numbers come from its seed."""
    if len(recipe.encoder) != 1 or not recipe.objectives:
        raise BadConfig("A run needs one encoder and at least one objective.")
    tokenizer = with_sentinels(tokenizers.load(shards.tokenizer_folder), num_sentinels(recipe))
    recipe = with_vocab_size(recipe, start, len(tokenizer.vocab))
    torch_device = chosen_device(device)
    reseed(recipe.train.seed, "initial weights")
    encoder = _make_encoder(recipe, torch_device)
    _check_lengths(recipe.batches, encoder.max_positions)
    _check_rows(encoder, tokenizer)
    goals = _make_goals(recipe, encoder, tokenizer)
    if start:
        _start_from(start, encoder, goals)
    learned: dict[str, Goal] = dict(goals)
    if extend:
        learned = {goal_name: extend(goal, encoder) for goal_name, goal in goals.items()}
    learner = Learner(encoder, learned).to(torch_device)
    compiled(learner, recipe.train, torch_device)  # raises now rather than after files were written
    text = _make_packs(recipe, recipe.batches, shards, list(goals.values()), tokenizer)
    last_text = None
    if recipe.batches.last_length:
        batches = replace(recipe.batches, max_length=recipe.batches.last_length)
        last_text = _make_packs(recipe, batches, shards, _cutters(recipe, batches, encoder, tokenizer), tokenizer)
    return Parts(learner, text, last_text, tokenizer, goals)


def _make_encoder(recipe: Recipe, device: torch.device) -> Encoder:
    """The recipe's encoder as this device can train it."""
    name, config = next(iter(recipe.encoder.items()))
    is_half = device.type == "cuda" and recipe.train.precision != "fp32"
    if is_half and getattr(config, "attention_dropout", 0.0) > 0:
        log.warning("Attention dropout is not available on the GPU in half precision; it is 0 in this run.")
        config = replace(config, attention_dropout=0.0)
    encoder: Encoder = encoders.resolve(name)(config)
    return encoder


def _start_from(start: Checkpoint, encoder: Encoder, goals: Mapping[str, Objective]) -> None:
    """Loads the weights of a trained model; an objective that it does not have begins anew."""
    encoder.load_state_dict(start.encoder.state_dict())
    for name, goal in goals.items():
        if name in start.goals:
            _load_objective(name, goal, start.goals[name])
        else:
            goal.begin(encoder)


def _cutters(recipe: Recipe, batches: BatchConfig, encoder: Encoder, tokenizer: Tokenizer) -> list[Objective]:
    """Objectives without weights, which only cut and corrupt the text for other batches than the learner's own."""
    with torch.device("meta"):
        goals = _make_goals(replace(recipe, batches=batches), encoder, tokenizer)
    return list(goals.values())


def _load_objective(name: str, goal: Objective, trained: Objective) -> None:
    """The trained weights of an objective; raises if its config gives it other ones."""
    expected = {key: tensor.shape for key, tensor in goal.state_dict().items()}
    state = trained.state_dict()
    if expected != {key: tensor.shape for key, tensor in state.items()}:
        raise BadConfig(
            f"The objective {name} of the model of `start_from=` has other weights than objectives.{name} asks for; "
            "leave out the changes of its shape."
        )
    goal.load_state_dict(state)


def _make_goals(recipe: Recipe, encoder: Encoder, tokenizer: Tokenizer) -> dict[str, Objective]:
    """The objectives of a recipe, in order; draws the weights of their heads."""
    goals: dict[str, Objective] = {}
    for name, config in recipe.objectives.items():
        goals[name] = make_objective(
            name, config, encoder, tokenizer, max_length=recipe.batches.max_length, seed=recipe.train.seed
        )
    names_before: set[str] = set()
    for name, goal in goals.items():
        missing = set(goal.requires) - names_before
        if missing:
            raise BadConfig(f"The objective {name} needs {', '.join(missing)} before it.")
        names_before.add(name)
        goal.set_tokenizer(tokenizer)
        warning = goal.warning()
        if warning:
            log.warning(warning)
    return goals


def _make_packs(
    recipe: Recipe,
    batches: BatchConfig,
    shards: Shards,
    goals: list[Objective],
    tokenizer: Tokenizer,
) -> TextPacks:
    """The packs to train on and those held out."""
    seed = recipe.train.seed
    training, held_out = split(shards, held_out_rate=batches.held_out_rate, seed=seed)
    tokens_of_step = batches.tokens * recipe.train.accumulate
    if training.num_tokens < tokens_of_step:
        raise BadInput(
            f"{shards.folder} has {training.num_tokens:,} tokens to train on, fewer than one step of "
            f"{tokens_of_step:,}; add text or lower batches.tokens."
        )
    lone = lone_document(training)
    if lone:
        raise BadInput(
            f"{shards.folder} has a single document in {lone} to train on; add text, or prepare it with "
            "`documents='line'`, which cuts it finer."
        )
    packs = Packs(training, goals, batches, specials=tokenizer.vocab, seed=seed)
    if not len(held_out.documents_D):
        return TextPacks(packs, None)
    # Held-out text is measured as it is.
    unsmoothed = replace(batches, language_alpha=1.0)
    return TextPacks(packs, Packs(held_out, goals, unsmoothed, specials=tokenizer.vocab, seed=seed))


def _check_lengths(batches: BatchConfig, max_positions: int) -> None:
    _check_length("max_length", batches.max_length, batches, max_positions)
    if batches.last_length:
        _check_length("last_length", batches.last_length, batches, max_positions)


def _check_length(name: str, length: int, batches: BatchConfig, max_positions: int) -> None:
    if length > max_positions:
        raise BadConfig(f"batches.{name}={length} is more than the model's {max_positions} positions; lower it.")
    if not 8 <= length <= batches.tokens:
        raise BadConfig(f"batches.{name}={length} must be at least 8 and at most batches.tokens={batches.tokens}.")


def _check_rows(encoder: Encoder, tokenizer: Tokenizer) -> None:
    """Raises if a model that a run starts from has no rows for the sentinels that were added to the vocabulary."""
    rows = encoder.vocab_size
    if len(tokenizer.vocab) > rows:
        raise BadConfig(
            f"The model has {rows} rows for tokens, but with {len(tokenizer.vocab.sentinels)} sentinels the vocabulary "
            f"has {len(tokenizer.vocab)}; set fewer objectives.span_corruption.sentinels."
        )
