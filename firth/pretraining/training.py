"""Pre-training with gradients and its evaluation: a recipe, shards and a folder in, a model out."""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from firth import checkpoint as checkpoints
from firth import convert, tokenizers
from firth.checkpoint import Checkpoint, make_objective
from firth.console import counted
from firth.convert.languages import LANGUAGES
from firth.data.loader import Packs
from firth.data.settings import BatchConfig
from firth.data.shards import Shards
from firth.data.stream import CorpusView
from firth.errors import BadInput, Unsupported
from firth.files import MANIFEST, JsonObject, sha256
from firth.lineage import Recipe
from firth.objectives import trained_objectives, word_losses
from firth.objectives.objective import Objective
from firth.objectives.replaced_token import trainable_goals
from firth.pretraining import solving
from firth.pretraining.building import ExtendGoal, Parts, build
from firth.pretraining.planning import (
    PretrainRequest,
    named_recipe,
    resolve_config,
    with_cls_place,
    with_epochs,
    with_languages,
)
from firth.run_folder import RunFolder
from firth.run_source import DATA, PretrainingSource, SourceFile, input_file, model_sha256
from firth.tensors import Encoder
from firth.tokenizers import Tokenizer
from firth.tokenizers.sentinels import without_sentinels
from firth.train.evaluation import evaluate as measure
from firth.train.layer_rates import rate_share
from firth.train.limit import PLAN, EvaluationExtent, evaluation_extent
from firth.train.loop import Learner
from firth.train.parallel import chosen_precision, micro_batches_of_rank, with_micro_batches
from firth.train.run import LastPhase, TrainingRun, held_out_figures
from firth.train.settings import OPTIMIZER

log = logging.getLogger(__name__)


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
    model = _checkpoint(parts, recipe, start=start, steps=run.progress.steps, figures=figures, floor=floor)
    folder.on_main(lambda: checkpoints.save(folder.path, model))
    return figures


def _training_run(
    folder: RunFolder,
    parts: Parts,
    recipe: Recipe,
    *,
    floor: float,
    resume: bool,
    needs_whole: str,
) -> TrainingRun:
    extent = evaluation_extent(recipe.train, tokens_of_a_pack=recipe.batches.tokens)
    learner = parts.learner
    precision = chosen_precision(recipe.train, next(learner.parameters()).device)
    last_phase = None
    if parts.last_text:
        # The same extent: a time limit bounds the evaluations of both phases.
        last_measure = parts.last_text.measure(learner, precision, extent)
        last_phase = LastPhase(parts.last_text.training, last_measure, recipe.batches.last_share)
    _report_extent(parts, extent)
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


def _report_extent(parts: Parts, extent: EvaluationExtent) -> None:
    """Says so if an evaluation reads only a part of the held-out text."""
    if not parts.text.held_out or not extent.packs:
        return
    num_packs = parts.text.held_out.num_packs(0)
    if extent.packs < num_packs:
        share = extent.packs / num_packs
        log.info(f"An evaluation reads {share:.1%} of the held-out text, because the run is short.")


def evaluate(model: Path, data: Path, *, seed: int) -> dict[str, float]:
    """A model's losses and accuracies on all documents of prepared shards."""
    checkpoint = _load_trainable(model)
    # Checked before the text is opened: no other text would help.
    if not checkpoint.goals:
        tasks = ", ".join(checkpoint.tasks)
        remedy = f"; it is fine-tuned for {tasks}, so give a file of labelled rows as `data=`." if tasks else "."
        raise Unsupported(f"{model} has no pre-training head, so there is nothing to evaluate on plain text{remedy}")
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


def _checkpoint(
    parts: Parts,
    recipe: Recipe,
    *,
    start: Checkpoint | None,
    steps: int,
    figures: Mapping[str, float],
    floor: float,
) -> Checkpoint:
    """The trained model with what its card says; its folder has the recipe's layout, or that of its start."""
    max_length = max(recipe.batches.max_length, recipe.batches.last_length)
    if start:
        # Sequences of a short second training do not take away what the model can read.
        max_length = max(max_length, int(start.info.get("max_length", 0)))
    info: dict[str, object] = {
        "recipe": recipe.recipe,
        "size": recipe.size,
        "steps": steps,
        "tokens": steps * recipe.train.accumulate * recipe.batches.tokens,
        "max_length": max_length,
        OPTIMIZER: recipe.train.optim.optimizer,
        "unigram_floor": floor,
        "held_out": figures,
    }
    if start:
        info["trained_before"] = _training_so_far(start.info)
        if recipe.continues:
            # A short training of another kind does not change which optimizer made the weights.
            info[OPTIMIZER] = start.info.get(OPTIMIZER, info[OPTIMIZER])
    if recipe.batches.languages:
        info[LANGUAGES] = list(recipe.batches.languages)
    # On the CPU, so that a GPU holds no second copy while the folder is written.
    learner = parts.learner.cpu().eval()
    encoder = learner.encoder
    if recipe.finetune_dropout is not None:
        encoder.config = replace(encoder.config, dropout=recipe.finetune_dropout)
    goals = {name: goal for name, goal in parts.objectives.items() if goal.is_kept}
    start_layout = start.layout if start else ""
    has_layout = recipe.layout or recipe.continues
    layout = _suiting_layout((recipe.layout, start_layout), encoder, goals) if has_layout else ""
    return Checkpoint(encoder, goals, parts.tokenizer, info=info, layout=layout)


def _training_so_far(info: JsonObject) -> str:
    """A line for the card: by which recipe a model was trained and for how long, and what came before that."""
    parts = [str(info["trained_before"])] if info.get("trained_before") else []
    recipe = str(info.get("recipe") or "another program")
    if "steps" in info and "tokens" in info:
        steps = counted(int(info["steps"]), "step")
        parts.append(f"{recipe}, {steps} of {int(info['tokens']):,} tokens in all")
    else:
        parts.append(recipe)
    return "; ".join(parts)


def _suiting_layout(model_types: Iterable[str], encoder: Encoder, goals: Mapping[str, Objective]) -> str:
    """The first of these types of model folder that can hold the model without loss; empty if none can."""
    for model_type in model_types:
        if model_type and convert.layout(model_type).suits(encoder, goals):
            return model_type
    return ""


__all__ = ["Parts", "build", "evaluate", "pretrain"]
