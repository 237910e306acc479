"""Pre-training with gradients and its evaluation: a recipe, shards and a folder in, a model out."""

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch

from firth import checkpoint as checkpoints
from firth import convert, encoders, tokenizers
from firth.checkpoint import Checkpoint, make_objective
from firth.convert.languages import LANGUAGES
from firth.data.languages import lone_document
from firth.data.loader import Packs
from firth.data.settings import BatchConfig
from firth.data.shards import Shards
from firth.data.stream import CorpusView, split
from firth.errors import BadConfig, BadInput, Unsupported
from firth.files import MANIFEST, sha256
from firth.lineage import Recipe
from firth.objectives import trained_objectives, word_losses
from firth.objectives.objective import Objective
from firth.objectives.replaced_token import trainable_goals
from firth.pretraining import solving
from firth.pretraining.planning import (
    PretrainRequest,
    named_recipe,
    num_sentinels,
    resolve_config,
    with_cls_place,
    with_epochs,
    with_languages,
    with_vocab_size,
)
from firth.run_folder import RunFolder
from firth.run_source import DATA, PretrainingSource, SourceFile, input_file, model_sha256
from firth.tensors import Encoder, Goal
from firth.tokenizers import Tokenizer
from firth.tokenizers.sentinels import with_sentinels, without_sentinels
from firth.train.evaluation import evaluate as measure
from firth.train.layer_rates import rate_share
from firth.train.limit import PLAN, EvaluationExtent
from firth.train.loop import Learner
from firth.train.parallel import chosen_device, compiled, micro_batches_of_rank, reseed, with_micro_batches
from firth.train.run import LastPhase, Measure, TrainingRun, held_out_figures
from firth.train.settings import OPTIMIZER

log = logging.getLogger(__name__)

ExtendGoal = Callable[[Objective, Encoder], Goal]


@dataclass(frozen=True)
class TextPacks:
    """The text as batches of one length."""

    training: Packs
    held_out: Packs | None

    def measure(self, learner: Learner, precision: str, extent: EvaluationExtent) -> Measure | None:
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


def pretrain(
    data: Path,
    folder: RunFolder,
    *,
    request: PretrainRequest,
    start_from: str | Path | None = None,
    device: str | None = None,
    extend: ExtendGoal | None = None,
) -> dict[str, float]:
    """Trains a new run, or the rest of one, and writes the model; returns the last held-out figures.

    `extend` makes of each objective what learns in its place, such as a lesson by a teacher.
    """
    resumed = folder.begun
    shards = Shards.open(_shards_folder(data, folder, request), verify=not resumed)
    source = _source(folder, shards, start_from)
    start = _load_trainable(Path(source.start_from)) if source.start_from else None
    saved = folder.config_path if resumed else None
    vocab = tokenizers.load(shards.tokenizer_folder).vocab
    recipe = resolve_config(request, saved, start=start, vocab_size=len(vocab), known_sentinels=len(vocab.sentinels))
    recipe = with_cls_place(recipe, vocab)
    recipe = with_languages(recipe, shards.language_names, start)
    if resumed:
        folder.refuse_changed_inputs(source.inputs)
    else:
        source = replace(source, inputs=_inputs(recipe))
        recipe = replace(recipe, train=with_micro_batches(recipe.train))
    micro_batches_of_rank(recipe.train)  # raises now rather than after files were written
    if start:
        _refuse_other_tokenizer(start.tokenizer, shards, Path(source.start_from))
    parts = build(recipe, shards, start=start, device=device, extend=extend)
    if request.epochs is not None:
        before = recipe
        recipe = with_epochs(recipe, request.epochs, parts.text.training)
        if resumed and recipe != before:
            raise folder.refuse_other_numbers("leave out `epochs=`")
    # Only now are all mistakes of a request known, also for a finished run.
    if folder.finished:
        folder.say_finished()
        return _figures(folder.path)
    if not resumed:
        parts.check()
    folder.begin(source, recipe, leftovers=[PLAN])
    # The loss of a model that knows only how frequent each token is.
    floor = shards.info["health"]["entropy_nats"]
    needs_whole = "a teacher compares whole weights" if extend else ""
    run = _training_run(folder, parts, recipe, floor=floor, resume=resumed, needs_whole=needs_whole)
    run.go()
    figures = _figures(folder.path)
    start_layout = start.layout if start else ""
    model = _checkpoint(
        parts, recipe, steps=run.progress.steps, figures=figures, floor=floor, start_layout=start_layout
    )
    folder.on_main(lambda: checkpoints.save(folder.path, model))
    return figures


def _training_run(
    folder: RunFolder, parts: Parts, recipe: Recipe, *, floor: float, resume: bool, needs_whole: str
) -> TrainingRun:
    extent = EvaluationExtent()
    learner = parts.learner
    precision = recipe.train.precision
    last_phase = None
    if parts.last_text:
        # The same extent: a time limit bounds the evaluations of both phases.
        last_measure = parts.last_text.measure(learner, precision, extent)
        last_phase = LastPhase(parts.last_text.training, last_measure, recipe.batches.last_share)
    num_layers = learner.encoder.num_layers
    return TrainingRun(
        folder.path,
        learner,
        packs=parts.text.training,
        measure=parts.text.measure(learner, precision, extent),
        extent=extent,
        last_phase=last_phase,
        config=recipe.train,
        floor=floor,
        resume=resume,
        interrupts=folder.interrupts,
        needs_whole=needs_whole,
        scale=partial(rate_share, num_layers=num_layers, decay=recipe.layer_decay),
    )


def evaluate(model: Path, data: Path, *, seed: int) -> dict[str, float]:
    """A model's losses and accuracies on all documents of prepared shards."""
    checkpoint = _load_trainable(model)
    # Checked before the text is opened: no other text would help.
    if not checkpoint.goals:
        raise Unsupported(f"{model} has no pre-training head, so there is nothing to evaluate on plain text.")
    shards = Shards.open(data)
    _refuse_other_tokenizer(checkpoint.tokenizer, shards, model)
    usual_length = min(128, checkpoint.encoder.max_positions)
    length = int(checkpoint.info.get("max_length", usual_length))
    goals = _evaluation_goals(checkpoint, max_length=length, seed=seed)
    batches = BatchConfig(max_length=length, tokens=max(4096, 4 * length))
    languages = tuple(checkpoint.info.get(LANGUAGES, ()))
    if languages:
        batches = _with_languages(batches, languages, shards, checkpoint.encoder)
    everything = CorpusView(shards, np.arange(shards.num_documents))
    packs = Packs(everything, list(goals.values()), batches, specials=checkpoint.tokenizer.vocab, seed=seed)
    learner = Learner(checkpoint.encoder, goals)
    figures = measure(learner, packs, precision="fp32", extent=EvaluationExtent())
    floor = shards.info["health"]["entropy_nats"]
    return _with_perplexity(figures) | {"unigram_floor": floor}


def _with_languages(batches: BatchConfig, languages: tuple[str, ...], shards: Shards, encoder: Encoder) -> BatchConfig:
    """Batches that say the language of each token, for a model with embeddings of these."""
    unknown = [name for name in shards.language_names if name not in languages]
    if unknown:
        raise BadInput(
            f"The model does not know the language {unknown[0]} of {shards.folder} (known: {', '.join(languages)})."
        )
    encoder.config = replace(encoder.config, language=-1)
    return replace(batches, segments="languages", languages=languages)


def _load_trainable(model: Path) -> Checkpoint:
    """A model with the objectives that it can be trained on."""
    checkpoint = checkpoints.load(model)
    return replace(checkpoint, goals=trainable_goals(checkpoint.goals))


def _evaluation_goals(checkpoint: Checkpoint, *, max_length: int, seed: int) -> dict[str, Objective]:
    """The objectives of a model for sequences of this length, with its weights."""
    # The first objective cuts the text, so one that makes pairs comes first; one that needs another's corruption comes
    # last.
    order = sorted(
        checkpoint.goals, key=lambda name: (checkpoint.goals[name].requires, not checkpoint.goals[name].makes_pairs)
    )
    goals: dict[str, Objective] = {}
    for name in order:
        trained = checkpoint.goals[name]
        goal = make_objective(
            name, trained.config, checkpoint.encoder, checkpoint.tokenizer, max_length=max_length, seed=seed
        )
        goal.load_state_dict(trained.state_dict())
        goal.set_tokenizer(checkpoint.tokenizer)
        goals[name] = goal
    return goals


def _shards_folder(data: Path, folder: RunFolder, request: PretrainRequest) -> Path:
    """The folder of prepared text. A text file is prepared only for recipes over whole words: their tokenizer needs no
    settings."""
    if not data.is_file():
        return data
    prepared = folder.path / DATA
    if folder.begun and prepared.exists():
        return prepared
    recipe = named_recipe(request)
    if "words" not in recipe.tokenizer:
        return data
    return solving.prepare_text(data, folder, recipe, solving.SolveRequest())


def _figures(out: Path) -> dict[str, float]:
    """The last held-out figures of a run."""
    figures = held_out_figures(out)
    for objective in trained_objectives():
        if objective.gives_perplexity and objective.word_losses.keys() & figures.keys():
            return _with_perplexity(figures)
    return figures


def _with_perplexity(figures: dict[str, float]) -> dict[str, float]:
    """The figures with the perplexity: the exponential of the first loss over the vocabulary."""
    losses = [figures[name] for name in word_losses() if name in figures]
    if not losses:
        return figures
    return figures | {"perplexity": float(np.exp(losses[0]))}


def _source(folder: RunFolder, shards: Shards, start_from: str | Path | None) -> PretrainingSource:
    """What the run is made from; raises if a resumed run is given other data or another model than it began with."""
    start = str(Path(start_from).resolve()) if start_from else ""
    given = PretrainingSource(
        data=str(shards.folder.resolve()),
        sha256=sha256(shards.folder / MANIFEST),
        start_from=start,
        start_sha256=model_sha256(start),
    )
    if not folder.begun:
        return given
    saved = folder.read_source(PretrainingSource)
    if saved.sha256 != given.sha256:
        raise BadInput(f"{folder.path} was trained on other data than {shards.folder}; resume it with its own data.")
    if start_from and saved.start_from != given.start_from:
        raise BadInput(f"{folder.path} did not start from {start_from}; leave out `start_from=`.")
    folder.refuse_changed_model(saved.start_from, saved.start_sha256)
    return saved


def _inputs(recipe: Recipe) -> dict[str, SourceFile]:
    """The files that objectives read, such as lists of names."""
    inputs: dict[str, SourceFile] = {}
    for name, config in recipe.objectives.items():
        path = getattr(config, "entities", "")
        if path:
            inputs[f"objectives.{name}.entities"] = input_file(path)
    return inputs


def _refuse_other_tokenizer(tokenizer: Tokenizer, shards: Shards, model: Path) -> None:
    # Sentinels decide no ids of the text, and a run may have added them.
    known = (tokenizer.fingerprint, without_sentinels(tokenizer).fingerprint)
    if shards.info["tokenizer_fingerprint"] not in known:
        raise BadInput(
            f"{shards.folder} was prepared with another tokenizer than the model's; "
            f"prepare the text again with `tokenizer='{model}'`."
        )


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
    name, config = next(iter(recipe.encoder.items()))
    is_half = torch_device.type == "cuda" and recipe.train.precision != "fp32"
    if is_half and getattr(config, "attention_dropout", 0.0) > 0:
        log.warning("Attention dropout is not available on the GPU in half precision; it is 0 in this run.")
        config = replace(config, attention_dropout=0.0)
    reseed(recipe.train.seed, "initial weights")
    encoder: Encoder = encoders.resolve(name)(config)
    _check_lengths(recipe.batches, encoder.max_positions)
    _check_rows(encoder, tokenizer)
    goals = _make_goals(recipe, encoder, tokenizer)
    # Objectives that the start does not have keep their new weights.
    if start:
        encoder.load_state_dict(start.encoder.state_dict())
        for goal_name in goals.keys() & start.goals.keys():
            _load_objective(goal_name, goals[goal_name], start.goals[goal_name])
    learned: dict[str, Goal] = dict(goals)
    if extend:
        learned = {goal_name: extend(goal, encoder) for goal_name, goal in goals.items()}
    learner = Learner(encoder, learned).to(torch_device)
    compiled(learner, recipe.train, torch_device)  # raises now rather than after files were written
    text = _make_packs(recipe, recipe.batches, shards, list(goals.values()), tokenizer)
    last_text = None
    if recipe.batches.last_length:
        batches = replace(recipe.batches, max_length=recipe.batches.last_length)
        with torch.device("meta"):
            # These only cut and corrupt the text; the learner's own goals have the weights.
            cutters = _make_goals(replace(recipe, batches=batches), encoder, tokenizer)
        last_text = _make_packs(recipe, batches, shards, list(cutters.values()), tokenizer)
    return Parts(learner, text, last_text, tokenizer, goals)


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
    recipe: Recipe, batches: BatchConfig, shards: Shards, goals: list[Objective], tokenizer: Tokenizer
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


def _checkpoint(
    parts: Parts, recipe: Recipe, *, steps: int, figures: Mapping[str, float], floor: float, start_layout: str
) -> Checkpoint:
    """The trained model with what its card says; its folder has the recipe's layout, or that of its start."""
    info = {
        "recipe": recipe.recipe,
        "size": recipe.size,
        "steps": steps,
        "tokens": steps * recipe.train.accumulate * recipe.batches.tokens,
        "max_length": max(recipe.batches.max_length, recipe.batches.last_length),
        OPTIMIZER: recipe.train.optim.optimizer,
        "unigram_floor": floor,
        "held_out": figures,
    }
    if recipe.batches.languages:
        info[LANGUAGES] = list(recipe.batches.languages)
    # On the CPU, so that a GPU holds no second copy while the folder is written.
    learner = parts.learner.cpu().eval()
    encoder = learner.encoder
    if recipe.finetune_dropout is not None:
        encoder.config = replace(encoder.config, dropout=recipe.finetune_dropout)
    goals = parts.objectives
    layout = _suiting_layout((recipe.layout, start_layout), encoder, goals) if recipe.layout else ""
    return Checkpoint(encoder, goals, parts.tokenizer, info=info, layout=layout)


def _suiting_layout(model_types: Iterable[str], encoder: Encoder, goals: Mapping[str, Objective]) -> str:
    """The first of these types of model folder that can hold the model without loss; empty if none can."""
    for model_type in model_types:
        if model_type and convert.layout(model_type).suits(encoder, goals):
            return model_type
    return ""
