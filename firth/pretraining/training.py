"""Pre-training and its evaluation put together: a recipe, shards and a folder in, a model out."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from firth import checkpoint as checkpoints
from firth import convert, encoders, tokenizers
from firth.checkpoint import Checkpoint, make_goal
from firth.data.loader import Packs
from firth.data.settings import BatchConfig
from firth.data.shards import Shards
from firth.data.stream import Stream, split
from firth.errors import BadConfig, BadInput, Unsupported
from firth.files import MANIFEST, sha256
from firth.lineage import Recipe
from firth.objectives import word_losses
from firth.pretraining import solving
from firth.pretraining.planning import Asked, fitted, named, resolve_config, whole_epochs
from firth.run_folder import DATA, PretrainingSource, RunFolder, model_sha256
from firth.tensors import Encoder
from firth.tokenizers import Tokenizer
from firth.train.layer_rates import rate_share
from firth.train.limit import PLAN, Extent
from firth.train.loop import Learner
from firth.train.parallel import chosen_device, compiled, reseed
from firth.train.run import Run, held_out_figures
from firth.train.run import evaluate as measure

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Parts:
    """A run put together."""

    learner: Learner
    packs: Packs
    held_out: Packs | None
    tokenizer: Tokenizer

    def measure(self, precision: str, extent: Extent) -> Callable[[], dict[str, float]] | None:
        """Gives means over the held-out documents, with the masks and pairs of epoch 0."""
        if not self.held_out:
            return None
        return partial(measure, self.learner, self.held_out, precision=precision, extent=extent)

    def check(self) -> None:
        """Raises if the text cannot be cut into sequences, before anything is written."""
        for packs in (self.packs, self.held_out):
            if packs:
                packs.num_packs(0)


def pretrain(
    data: Path,
    folder: RunFolder,
    *,
    asked: Asked,
    start_from: str | Path | None = None,
    device: str | None = None,
) -> dict[str, float]:
    """Trains a new run, or the rest of one, and writes the model; gives the last held-out figures."""
    resumed = folder.begun
    shards = Shards.open(_as_shards(data, folder, asked), verify=not resumed)
    source = _source(folder, shards, start_from)
    start = checkpoints.load(Path(source.start_from)) if source.start_from else None
    plan = _plan(folder, asked, start=start, vocab_size=int(shards.info["vocab_size"]))
    if start:
        _same_tokenizer(start.tokenizer, shards, Path(source.start_from))
    parts = build(plan, shards, start=start, device=device)
    if asked.epochs is not None:
        given = plan
        plan = whole_epochs(plan, asked.epochs, parts.packs)
        if resumed and plan != given:
            raise folder.refuse_other_numbers("leave out `epochs=`")
    if folder.finished:
        folder.say_finished()
        return _figures(folder.path)
    if not resumed:
        parts.check()
    folder.begin(source, plan, leftovers=[PLAN])
    floor = shards.info["health"]["entropy_nats"]
    extent = Extent()
    run = Run(
        folder.path,
        parts.learner,
        packs=parts.packs,
        measure=parts.measure(plan.train.precision, extent),
        extent=extent,
        config=plan.train,
        floor=floor,
        resume=resumed,
        interrupts=folder.interrupts,
        scale=partial(rate_share, num_layers=parts.learner.encoder.num_layers, decay=plan.layer_decay),
    )
    run.go()
    figures = _figures(folder.path)
    checkpoints.save(folder.path, _finished(parts, plan, run.progress.steps, figures, floor))
    return figures


def _plan(folder: RunFolder, asked: Asked, *, start: Checkpoint | None, vocab_size: int) -> Recipe:
    saved = folder.config_path if folder.begun else None
    return resolve_config(asked, saved, start=start, vocab_size=vocab_size)


def evaluate(model: Path, data: Path, *, seed: int) -> dict[str, float]:
    """A model's losses and accuracies on all documents of prepared shards."""
    checkpoint = checkpoints.load(model)
    if not checkpoint.goals:  # before a look at the text: no other text would help
        raise Unsupported(f"{model} has no pre-training head, so there is nothing to evaluate on plain text.")
    shards = Shards.open(data)
    _same_tokenizer(checkpoint.tokenizer, shards, model)
    length = int(checkpoint.info.get("max_length", min(128, checkpoint.encoder.max_positions)))
    goals = {}
    # The one that makes pairs comes first, for it cuts; those that need another's corruption come last.
    for name in sorted(checkpoint.goals, key=lambda name: (checkpoint.goals[name].requires, name == "masked_lm")):
        trained = checkpoint.goals[name]
        goals[name] = make_goal(
            name, trained.config, checkpoint.encoder, checkpoint.tokenizer, max_length=length, seed=seed
        )
        goals[name].load_state_dict(trained.state_dict())
        goals[name].set_tokenizer(checkpoint.tokenizer)
    batches = BatchConfig(max_length=length, tokens=max(4096, length))
    everything = Stream(shards, np.arange(shards.num_documents))
    packs = Packs(everything, list(goals.values()), batches, specials=checkpoint.tokenizer.vocab, seed=seed)
    figures = measure(Learner(checkpoint.encoder, goals), packs, precision="fp32", extent=Extent())
    return _with_perplexity(figures) | {"unigram_floor": shards.info["health"]["entropy_nats"]}


def _as_shards(data: Path, folder: RunFolder, asked: Asked) -> Path:
    """Prepared text as it is; a text file only for recipes over whole words, whose vocabulary needs no thought."""
    prepared = folder.path / DATA
    if not data.is_file():
        return data
    if folder.begun and prepared.exists():
        return prepared
    plan = named(asked)
    if "words" not in plan.tokenizer:
        return data
    return solving.prepare_text(data, folder, plan, solving.Wanted())


def _figures(out: Path) -> dict[str, float]:
    figures = held_out_figures(out)
    return figures if "masked_lm" in figures else _with_perplexity(figures)  # to fill masks is not to tell a text


def _with_perplexity(figures: dict[str, float]) -> dict[str, float]:
    """The loss over words also as the number of words a model is as unsure as if it chose among."""
    losses = [figures[name] for name in word_losses() if name in figures]
    return figures | ({"perplexity": float(np.exp(losses[0]))} if losses else {})


def _new_source(shards: Shards, start_from: str | Path | None) -> PretrainingSource:
    """What a run is made from."""
    start = str(Path(start_from).resolve()) if start_from else ""
    return PretrainingSource(
        data=str(shards.folder.resolve()),
        sha256=sha256(shards.folder / MANIFEST),
        start_from=start,
        start_sha256=model_sha256(start),
    )


def _source(folder: RunFolder, shards: Shards, start_from: str | Path | None) -> PretrainingSource:
    """What the run is made from; where it is resumed, data and model given now must be those it began with."""
    given = _new_source(shards, start_from)
    if not folder.begun:
        return given
    saved = folder.read_source(PretrainingSource)
    if saved.sha256 != given.sha256:
        raise BadInput(f"{folder.path} was trained on other data than {shards.folder}; resume it with its own data.")
    if start_from and saved.start_from != given.start_from:
        raise BadInput(f"{folder.path} did not start from {start_from}; leave out `start_from=`.")
    folder.refuse_changed_model(saved.start_from, saved.start_sha256)
    return saved


def _same_tokenizer(tokenizer: Tokenizer, shards: Shards, model: Path) -> None:
    if tokenizer.fingerprint != shards.info["tokenizer_fingerprint"]:
        raise BadInput(
            f"{shards.folder} was prepared with another tokenizer than the model's; "
            f"prepare the text again with `tokenizer='{model}'`."
        )


def build(plan: Recipe, shards: Shards, *, start: Checkpoint | None = None, device: str | None = None) -> Parts:
    """Puts together what a plan names; all random numbers in it come from the plan's seed."""
    tokenizer = tokenizers.load(shards.tokenizer_folder)
    if len(plan.encoder) != 1 or not plan.objectives:
        raise BadConfig("A run needs one encoder and at least one objective.")
    plan = fitted(plan, start, len(tokenizer.vocab))
    name, shape = next(iter(plan.encoder.items()))
    where = chosen_device(device)
    if getattr(shape, "attention_dropout", 0) and where.type == "cuda" and plan.train.precision != "fp32":
        log.warning("Attention dropout is not available on the GPU in half precision; it is 0 in this run.")
        shape = replace(shape, attention_dropout=0.0)
    length, seed = plan.batches.max_length, plan.train.seed
    reseed(seed, "initial weights")
    encoder: Encoder = encoders.resolve(name)(shape)
    _check_sizes(plan, encoder.max_positions)
    goals = {
        goal: make_goal(goal, config, encoder, tokenizer, max_length=length, seed=seed)
        for goal, config in plan.objectives.items()
    }
    for place, (goal, made) in enumerate(goals.items()):
        if missing := set(made.requires) - set(list(goals)[:place]):
            raise BadConfig(f"The objective {goal} needs {', '.join(missing)} before it.")
        made.set_tokenizer(tokenizer)
        if warning := made.warning():
            log.warning(warning)
    if start:
        encoder.load_state_dict(start.encoder.state_dict())
        for goal in goals.keys() & start.goals.keys():
            goals[goal].load_state_dict(start.goals[goal].state_dict())
    learner = Learner(encoder, goals).to(where)
    compiled(learner, plan.train, where)  # refused now, not when files are there
    training, held_out = split(shards, held_out_rate=plan.batches.held_out_rate, seed=seed)
    step = plan.batches.tokens * plan.train.accumulate
    if training.num_tokens < step:
        raise BadInput(
            f"{shards.folder} has {training.num_tokens:,} tokens to train on, fewer than one step of {step:,}; "
            "add text or lower batches.tokens."
        )
    objectives = list(goals.values())
    first, second = (
        Packs(stream, objectives, plan.batches, specials=tokenizer.vocab, seed=seed)
        if len(stream.documents_D)
        else None
        for stream in (training, held_out)
    )
    assert first
    return Parts(learner, first, second, tokenizer)


def _check_sizes(plan: Recipe, max_positions: int) -> None:
    length, tokens = plan.batches.max_length, plan.batches.tokens
    if length > max_positions:
        raise BadConfig(f"batches.max_length={length} is more than the model's {max_positions} positions; lower it.")
    if not 8 <= length <= tokens:
        raise BadConfig(f"batches.max_length={length} must be at least 8 and at most batches.tokens={tokens}.")


def _finished(parts: Parts, plan: Recipe, steps: int, figures: dict[str, float], floor: float) -> Checkpoint:
    info = {
        "recipe": plan.recipe,
        "size": plan.size,
        "steps": steps,
        "tokens": steps * plan.train.accumulate * plan.batches.tokens,
        "max_length": plan.batches.max_length,
        "unigram_floor": floor,
        "held_out": figures,
    }
    learner = parts.learner.cpu().eval()
    if plan.finetune_dropout is not None:
        learner.encoder.config = replace(learner.encoder.config, dropout=plan.finetune_dropout)
    goals = dict(learner.goals.items())
    layout = plan.layout if plan.layout and convert.layout(plan.layout).suits(learner.encoder, goals) else ""
    return Checkpoint(learner.encoder, goals, parts.tokenizer, info=info, layout=layout)  # type: ignore[arg-type]
