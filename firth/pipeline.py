"""The steps from text to a measured model: prepare, pretrain, check, finetune, tune, evaluate.

In: paths and options. Out: folders on disk, and the figures of each step. `firth.prepare` etc. are these functions.
Each function imports only what it needs: preparing text and training word vectors never load torch.
"""

import json
import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from firth import models
from firth.arguments import checked
from firth.errors import BadConfig, BadInput
from firth.remote import is_remote
from firth.train.launch import is_restart, joined_ranks, launched_size

if TYPE_CHECKING:
    from firth.finetuning.checking import Findings
    from firth.finetuning.few.running import FewRequest
    from firth.finetuning.figures import FinetuningSummary
    from firth.finetuning.tuning.running import TuningSummary
    from firth.pretraining.planning import PretrainRequest
    from firth.run_folder import RunFolder
    from firth.trust.label_errors import Way

log = logging.getLogger(__name__)

FINETUNING_RECIPES = ("fasttext", "ulmfit", "transformer")
Changes = Iterable[str] | Mapping[str, object]
"""Settings: `["epochs=5"]` or `{"epochs": 5}`."""
NEW_ENCODERS = ("bag", "static")
"""Values of `encoder` that are not a model's folder."""


# Pre-train


@checked
def pretrain(
    data: str | Path,
    *,
    out: str | Path,
    recipe: str | None = None,
    size: str | None = None,
    steps: int | None = None,
    epochs: float | None = None,
    minutes: float | None = None,
    resume: bool = False,
    start_from: str | Path | None = None,
    config: str | Path | None = None,
    changes: Changes = (),
    device: str | None = None,
    width: int | None = None,
    window: int | None = None,
    min_count: int | None = None,
    threads: int | None = None,
) -> dict[str, float]:
    """Trains a model on shards into `out`; returns the last held-out figures. Word vectors also take plain text.

    `start_from` is a model whose weights to start from: its folder, or a name such as en-small. `changes` are
    settings: `["train.optim.rate=1e-3"]` or `{"train.optim.rate": 1e-3}`. `width`, `window`, `min_count` and `threads`
    are for word vectors and other recipes that are solved without gradients. Processes that torchrun started train
    together.
    """
    from firth.pretraining import planning
    from firth.run_folder import RunFolder

    request = planning.PretrainRequest(
        recipe=recipe,
        size=size,
        steps=steps,
        epochs=epochs,
        minutes=minutes,
        config=config,
        changes=_change_list(changes),
    )
    word_options = {"width": width, "window": window, "min_count": min_count, "threads": threads}
    given = {name: value for name, value in word_options.items() if value is not None}
    with joined_ranks(), RunFolder(Path(out), command="pretrain", resume=resume or _is_begun_again(out)) as folder:
        figures = _train_or_solve(Path(data), folder, request, given, start_from=start_from, device=device)
        folder.write_report(lambda: _render_pretraining(folder.path))
    return figures


def _is_begun_again(out: str | Path) -> bool:
    """Whether torchrun started this process again for a run that has begun."""
    from firth.run_folder import is_begun

    return is_restart() and is_begun(Path(out))


def _train_or_solve(
    data: Path,
    folder: "RunFolder",
    request: "PretrainRequest",
    word_options: dict[str, int],
    *,
    start_from: str | Path | None,
    device: str | None,
) -> dict[str, float]:
    """Runs the training loop, or a solver where the recipe needs no gradients."""
    from firth.pretraining import planning, solving

    saved = folder.config_path if folder.begun else None
    plan = planning.named_recipe(request, saved)
    if solving.is_solved(plan):
        if request.steps is not None or request.minutes is not None or start_from is not None:
            raise BadConfig(
                f"{plan.recipe} is solved without gradients: leave out `steps=`, `minutes=` and `start_from=`."
            )
        if launched_size() > 1:
            raise BadConfig(f"{plan.recipe} is solved by one process; run it without torchrun.")
        planning.report_unused_options(plan, size=request.size, device=device)
        solve_request = solving.SolveRequest(epochs=request.epochs, changes=request.changes, **word_options)
        return solving.pretrain(data, folder, plan, request=solve_request)
    if word_options:
        option = min(word_options)
        raise BadConfig(f"`{option}=` is for recipes that are solved without gradients; change others by key=value.")
    from firth.pretraining import training  # torch

    if start_from is not None:
        start_from = models.find(start_from)
    return training.pretrain(data, folder, request=request, start_from=start_from, device=device)


def _render_pretraining(run: Path) -> str:
    """The page that shows a pre-training run."""
    from firth.report.gather import gather
    from firth.report.pretraining import render

    return render(gather(run))


# Fine-tune and measure


@checked
def check(
    file: str | Path,
    *,
    task: str,
    dev: str | Path | None = None,
    test: str | Path | None = None,
    model: str | Path | None = None,
    deep: bool = False,
    deep_by: "Way" = "vectors",
    **options: object,
) -> "Findings":
    """Inspects labelled rows before any training; returns what is there and what is wrong, with row numbers.

    With `deep` the training rows are also cross-validated, and labels that are probably wrong are listed with the
    evidence. `deep_by` is vectors (logistic regression on the model's vectors) or finetune (slower, and surer).
    `options` are fields of the task's config, as in `finetune`.
    """
    from firth.finetuning import checking
    from firth.tasks import make_config

    files = {"train": Path(file)}
    if dev:
        files["dev"] = Path(dev)
    if test:
        files["test"] = Path(test)
    config = make_config(task, options)
    folder = models.find(model) if model else None
    findings = checking.check(task, config, files, model=folder)
    if deep:
        from firth.finetuning import labelled
        from firth.trust.label_errors import find_label_errors

        rows = labelled.read(task, config, files)
        findings["deep"] = find_label_errors(task, rows, model=folder, way=deep_by)
    return findings


@checked
def finetune(
    model: str | Path | None = None,
    *,
    task: str | Sequence[str] = (),
    train: str | Path | Sequence[str | Path] = (),
    dev: str | Path | Sequence[str | Path] = (),
    test: str | Path | Sequence[str | Path] = (),
    out: str | Path,
    seeds: int = 1,
    random: bool = False,
    skip_bad: bool = False,
    resume: bool = False,
    changes: Changes = (),
    device: str | None = None,
    encoder: str | Path | None = None,
    recipe: str | None = None,
    language: str = "",
    few: str = "",
    unlabelled: str | Path = "",
    **options: object,
) -> "FinetuningSummary":
    """Trains a model on labelled rows into `out` and measures it; returns all its figures.

    `model` is a folder or a name such as en-small. Without one, a model that comes with firth is used: the one for the
    language of the training rows. `random=True` starts from random weights in the shape of `model`, or of a tiny BERT.
    `encoder` is `bag` (features written by hand), `static` (new vectors of words or characters) or a model folder.
    `language` is that of the rows, for a model with language embeddings.
    `few` is a way to learn from few labels: contrast, prompt, plain, or choose (the best by cross-validation);
    `unlabelled` is a file with a text on each line, which it also learns from.
    `changes` are settings of the run: `["epochs=5"]` or `{"epochs": 5}`.
    `options` are fields of the task's config: preset, text_column, label_columns, kind, tagger, format ...
    """
    from firth.finetuning import running, ulmfit
    from firth.finetuning.few import running as few_labels
    from firth.finetuning.job_config import FinetuneRequest
    from firth.report.finetuning import gather
    from firth.run_folder import RunFolder

    start, start_changes = _start_of(model, encoder, recipe)
    if language:
        start_changes.append(f"language={language}")
    tasks = (task,) if isinstance(task, str) else tuple(task)
    request = FinetuneRequest(
        model=start,
        tasks=tasks,
        files={"train": _files(train), "dev": _files(dev), "test": _files(test)},
        options=options,
        seeds=seeds,
        random=random,
        skip_bad=skip_bad,
        changes=(*_change_list(changes), *start_changes),
    )
    run = ulmfit.finetune if recipe == "ulmfit" else running.finetune
    with joined_ranks(), RunFolder(Path(out), command="finetune", resume=resume or _is_begun_again(out)) as folder:
        if few or unlabelled:
            summary = few_labels.finetune(folder, request, _few_request(few, recipe, unlabelled), device=device)
        else:
            summary = run(folder, request, device=device)
        folder.write_report(lambda: gather(folder.path))
    return summary


@checked
def tune(
    model: str | Path | None = None,
    *,
    task: str,
    train: str | Path,
    dev: str | Path | None = None,
    out: str | Path,
    minutes: float = 10.0,
    seed: int = 1,
    skip_bad: bool = False,
    resume: bool = False,
    changes: Changes = (),
    device: str | None = None,
    **options: object,
) -> "TuningSummary":
    """Searches the settings of `finetune` for at most so many minutes; returns all trials, and `out` is the best model.

    `changes` are settings of all trials, which are not searched. There is no test file: measure the model afterwards.
    """
    from firth.finetuning.job_config import FinetuneRequest
    from firth.finetuning.tuning import running as tuning
    from firth.report.tuning import gather
    from firth.run_folder import RunFolder

    found = str(models.find(model)) if model else ""
    dev_files = _files(dev) if dev else []
    request = FinetuneRequest(
        model=found,
        tasks=(task,),
        files={"train": _files(train), "dev": dev_files},
        options=options,
        skip_bad=skip_bad,
    )
    config = tuning.TuneConfig(minutes=minutes, seed=seed, changes=_change_list(changes))
    with RunFolder(Path(out), command="tune", resume=resume) as folder:
        summary = tuning.tune(folder, request, config, device=device)
        folder.write_report(lambda: gather(folder.path))
    return summary


def _few_request(few: str, recipe: str | None, unlabelled: str | Path) -> "FewRequest":
    """How to learn from few labels; raises if it does not go with the other options."""
    from firth.finetuning.few.running import FewRequest

    if recipe is not None:
        raise BadConfig(f"`few=` and `recipe='{recipe}'` are two ways to learn; leave one out.")
    if not few:
        raise BadConfig("`unlabelled=` goes with `few=`: say how to learn, such as `few='choose'`.")
    return FewRequest(few, str(unlabelled))


def _start_of(model: str | Path | None, encoder: str | Path | None, recipe: str | None) -> tuple[str, list[str]]:
    """The model folder to start from ("" for none), and the settings that `encoder` and `recipe` stand for."""
    if model and encoder:
        raise BadConfig(f"{model} and `encoder='{encoder}'` both say what to start from; leave one out.")
    if recipe is not None and recipe not in FINETUNING_RECIPES:
        known = ", ".join(FINETUNING_RECIPES)
        raise BadConfig(f"There is no recipe '{recipe}' for fine-tuning (known: {known}).")
    if recipe == "ulmfit" and launched_size() > 1:
        raise BadConfig("The stages of `recipe='ulmfit'` run in one process; leave out torchrun.")
    if recipe in ("fasttext", "transformer"):
        if model or encoder:
            raise BadConfig(f"`recipe='{recipe}'` starts from nothing; leave out the model and `encoder=`.")
        return "", [f"encoder={recipe}"]
    if encoder in NEW_ENCODERS:
        return "", [f"encoder={recipe or encoder}"]
    named = model or encoder
    return (str(models.find(named)) if named else ""), []


@checked
def evaluate(
    run: str | Path,
    *,
    data: str | Path | None = None,
    words: str | Path | Sequence[str | Path] = (),
    task: str = "",
    seed: int = 1,
    skip_bad: bool = False,
    language: str = "",
    **options: object,
) -> dict[str, Any]:
    """Measures a model: on a labelled file, on all documents of prepared shards, or on files of word tests.

    `data` is a labelled file for a fine-tuned model, else a folder made by `prepare`. `words` are files of word pairs
    or analogies, for a model with word vectors. With a `task` that needs no training (compare) and its `options`, any
    model is measured on a labelled file. `language` is that of the file, for a model with language embeddings.
    """
    files = _as_list(words)
    if bool(files) == (data is not None):
        raise BadConfig("Give `data=` or `words=`, one of the two.")
    model = models.find(run)
    if data is None:
        return _evaluate_words(model, [Path(file) for file in files])
    from firth.finetuning import measuring
    from firth.pretraining import training

    if not is_remote(data) and not Path(data).exists():
        raise BadInput(f"{data} does not exist.")
    if Path(data).is_file():
        with joined_ranks():
            return measuring.evaluate(
                model, Path(data), task_name=task, options=options, skip_bad=skip_bad, language=language
            )
    if task or options or skip_bad or language:
        raise BadConfig(f"{data} is a folder of prepared text, which takes no task, columns or settings of one.")
    with joined_ranks():
        return training.evaluate(model, Path(data), seed=seed)


def _evaluate_words(model: Path, files: Sequence[Path]) -> dict[str, Any]:
    """The figures of each file, by its stem, or by its path where two files have one stem."""
    from firth.inference.lexicon import open_lexicon
    from firth.inference.word_benchmarks import evaluate_word_file

    lexicon = open_lexicon(model)
    stems = Counter(file.stem for file in files)
    figures = {}
    for file in files:
        name = file.stem if stems[file.stem] == 1 else str(file)
        figures[name] = asdict(evaluate_word_file(lexicon, file))
    return figures


# Shared


def _as_list(given: str | Path | Sequence[str | Path]) -> list[str | Path]:
    """One path or several, as a list."""
    return [given] if isinstance(given, str | Path) else list(given)


def _files(given: str | Path | Sequence[str | Path]) -> list[str]:
    """The paths of labelled files, as texts."""
    paths = _as_list(given)
    for path in paths:
        if not isinstance(path, str | Path):
            raise BadInput(
                f"`train=`, `dev=` and `test=` take files of labelled rows, not {path!r:.60}; write the rows to a "
                ".jsonl file, one JSON object on each line."
            )
    return [str(path) for path in paths]


def _change_list(changes: Changes) -> tuple[str, ...]:
    """Settings as `key=value` texts, from such texts, from one of them, or from a dict."""
    if isinstance(changes, str):
        return (changes,)
    if isinstance(changes, Mapping):
        settings = []
        for key, value in changes.items():
            written = json.dumps(value, ensure_ascii=False)
            settings.append(f"{key}={written}")
        return tuple(settings)
    return tuple(changes)
