"""A search for the settings of fine-tuning: a model and labelled rows in, the best settings and their model out.

OUT/trials/N-R is trial N on rung R: trial.json holds its figure. Only the best trial's run is kept, as OUT/best; in the
end OUT itself is its model. The test file is never read: there is no option for one.
"""

import logging
import shutil
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TypedDict

from firth.config import check_limits, from_dict, load_toml, to_dict
from firth.console import counted
from firth.errors import BadConfig, FirthError, Resumable
from firth.files import MANIFEST, read_json, write_bytes, write_json, write_manifest
from firth.finetuning import running
from firth.finetuning.figures import format_spread
from firth.finetuning.job_config import FinetuneRequest
from firth.finetuning.jobs import resolve_job
from firth.finetuning.quiet import quiet
from firth.finetuning.settings import FinetuneConfig
from firth.finetuning.start import Start
from firth.finetuning.transfer import own_blocks
from firth.finetuning.tuning.halving import RUNGS, UNDEFINED, TuningTrial, search, share_of, written_figure
from firth.finetuning.tuning.space import FIELD_KEYS, TrialSettings, UsualSettings, draw
from firth.nn.blocks import Block
from firth.run_folder import CONFIG, RunFolder, is_begun
from firth.run_source import RESULTS, FinetuningSource, TuningSource

log = logging.getLogger(__name__)

TRIALS = "trials"
TRIAL = "trial.json"
BEST = "best"


@dataclass(frozen=True)
class TuneConfig:
    """A search as numbers."""

    minutes: float = 10.0
    """How long all trials together may take."""
    seed: int = 1
    """Decides which settings are drawn; the runs' own seed is train.seed."""
    changes: tuple[str, ...] = ()
    """Settings of all trials."""

    def __post_init__(self) -> None:
        check_limits(minutes=self.minutes)


class TrialRow(TypedDict):
    """A `TuningTrial` as plain JSON values."""

    number: int
    rung: int
    settings: dict[str, object]
    epochs: float
    figure: float
    seconds: float


class TuningSummary(TypedDict):
    """What results.json holds."""

    task: str
    metric: str
    picked_on: str
    trials: list[TrialRow]
    best: TrialRow
    changes: list[str]
    """The best settings as `key=value`, for `firth finetune`."""
    seconds: float


@dataclass(frozen=True)
class Tuner:
    """What all trials of a search share."""

    folder: Path
    request: FinetuneRequest
    config: TuneConfig
    usual: UsualSettings
    device: str | None

    def attempt(self, number: int, rung: int) -> TuningTrial:
        """A trial, or what an earlier process found about it."""
        folder = self.folder / TRIALS / f"{number}-{rung}"
        if (folder / TRIAL).exists():
            return _read_trial(folder)
        settings = self.settings(number)
        # The user's own number of epochs is that of every rung.
        epochs = settings.epochs
        if "epochs" not in self.fixed:
            epochs = round(settings.epochs * share_of(rung), 3)
        changes = _without([*settings.changes(), f"epochs={epochs}"], self.fixed)
        request = replace(self.request, changes=(*changes, *self.config.changes))
        label = f"Trial {number}, {share_of(rung):.0%} of its epochs"
        run = folder / "run"
        began = time.perf_counter()
        try:
            figure = self._figure(run, request, label)
        except Resumable:
            raise
        except FirthError as error:
            # What fails with the usual settings fails with all.
            if number == 0:
                raise
            log.warning(f"{label}: {error}")
            figure = UNDEFINED
        trial = TuningTrial(number, rung, to_dict(settings), epochs, figure, time.perf_counter() - began)
        self._keep_if_best(trial, run)
        write_json(folder / TRIAL, asdict(trial))
        return trial

    def _figure(self, run: Path, request: FinetuneRequest, label: str) -> float:
        """Starts or resumes a run; logs its main figure on the rows for picking after the label, and returns it."""
        with quiet(), RunFolder(run, command="finetune", resume=is_begun(run)) as run_folder:
            summary = running.finetune(run_folder, request, device=self.device)
        (task,) = summary["tasks"].values()
        found = task["figures"]["dev"][task["main"]]
        log.info(f"{label}: {task['main']} {format_spread(found)}")
        return UNDEFINED if found["mean"] is None else found["mean"]

    @property
    def fixed(self) -> dict[str, str]:
        """The user's own settings, which are not searched."""
        return fixed_settings(self.config.changes)

    def settings(self, number: int) -> TrialSettings:
        return draw(number, self.usual, seed=self.config.seed, fixed=self.fixed)

    def _keep_if_best(self, trial: TuningTrial, run: Path) -> None:
        """Moves a run to OUT/best if it is better than all before, and deletes it otherwise."""
        others = [_read_trial(path.parent) for path in (self.folder / TRIALS).glob(f"*/{TRIAL}")]
        if all(trial.rank > other.rank for other in others):
            shutil.rmtree(self.folder / BEST, ignore_errors=True)
            run.replace(self.folder / BEST)
        else:
            # A trial that failed early has no run.
            shutil.rmtree(run, ignore_errors=True)


def tune(
    folder: RunFolder, request: FinetuneRequest, config: TuneConfig, *, device: str | None = None
) -> TuningSummary:
    """Searches and writes; returns what `results.json` holds."""
    _check(request, config)
    # The usual settings, resolved as for a run that is never started.
    usual_run = RunFolder(folder.path / TRIALS / "usual", command="finetune", resume=False)
    job = resolve_job(usual_run, replace(request, changes=config.changes), device=device)
    source = _source(job.source)
    if folder.begun and (folder.read_source(TuningSource) != source or _saved(folder) != config):
        raise folder.refuse_other_numbers("give the same model, files and options again")
    if folder.finished:
        folder.say_finished()
        return read_summary(folder.path)
    folder.begin(source, config, leftovers=[RESULTS])
    # The model that suits the texts was found with the job.
    request = replace(request, model=job.source.model)
    tuner = Tuner(folder.path, request, config, _usual(job.config, job.start), device)
    trials = search(tuner.attempt, 60 * config.minutes)
    best = max(trials, key=lambda trial: trial.rank)
    (name,) = job.data
    kept = running.read_summary(folder.path / BEST)["tasks"][name]
    settings = tuner.settings(best.number)
    found = _without([*settings.changes(), f"epochs={settings.epochs:g}"], tuner.fixed)
    summary = TuningSummary(
        task=name,
        metric=kept["main"],
        picked_on=kept["picked_on"],
        trials=[_row(trial) for trial in trials],
        best=_row(best),
        changes=[*found, *config.changes],
        seconds=sum(trial.seconds for trial in trials),
    )
    _copy_model(folder.path / BEST, folder.path)
    write_json(folder.path / RESULTS, summary)
    return summary


def _row(trial: TuningTrial) -> TrialRow:
    return TrialRow(
        number=trial.number,
        rung=trial.rung,
        settings=dict(trial.settings),
        epochs=trial.epochs,
        figure=trial.figure,
        seconds=trial.seconds,
    )


def read_summary(out: Path) -> TuningSummary:
    """The summary of a finished search."""
    summary: TuningSummary = read_json(out / RESULTS)
    return summary


def headlines(summary: TuningSummary) -> list[str]:
    """What the command prints at the end."""
    usual = [trial for trial in summary["trials"] if trial["number"] == 0]
    last_usual = max(usual, key=lambda trial: trial["rung"])
    best = summary["best"]
    trials = counted(len(summary["trials"]), "trial")
    lines = [
        f"{trials} in {summary['seconds'] / 60:.1f} minutes, picked on {summary['picked_on']}.",
        f"Best: {summary['metric']} {written_figure(best['figure'])} (trial {best['number']}, {best['epochs']:g} "
        f"epochs); the usual settings: {written_figure(last_usual['figure'])} ({last_usual['epochs']:g} epochs).",
        f"Settings: {' '.join(summary['changes'])}",
    ]
    if best["rung"] < RUNGS - 1:
        lines.append("No setting was tried with all its epochs: there was too little time; raise `minutes=`.")
    return lines


def fixed_settings(changes: Iterable[str]) -> dict[str, str]:
    """The user's settings by their keys."""
    found = {}
    for change in changes:
        key, _, value = change.partition("=")
        found[key] = value
    return found


def _without(changes: Iterable[str], fixed: dict[str, str]) -> list[str]:
    """The changes without those whose keys the user has set."""
    return [change for change in changes if change.partition("=")[0] not in fixed]


def _check(request: FinetuneRequest, config: TuneConfig) -> None:
    if len(request.tasks) != 1:
        raise BadConfig("A search is about one task; give one `task=`.")
    if request.files.get("test"):
        raise BadConfig("A search never reads a test file; measure its model with `firth evaluate` afterwards.")
    if all(key in fixed_settings(config.changes) for key in FIELD_KEYS.values()):
        raise BadConfig("All settings are given, so nothing is left to search.")


def _usual(config: FinetuneConfig, start: Start) -> UsualSettings:
    blocks = own_blocks(start.shape)
    return UsualSettings(
        rate=config.train.optim.rate,
        epochs=config.epochs,
        batch_size=config.batch_size,
        layer_decay=config.transfer.layer_decay,
        warmup_rate=config.train.optim.warmup_rate,
        num_layers=0 if blocks is None else len(blocks),
        reinit_layers=config.transfer.reinit_layers,
        has_blocks=any(isinstance(part, Block) for part in start.shape.modules()),
    )


def _source(source: FinetuningSource) -> TuningSource:
    ((_, files),) = source.files.items()
    return TuningSource(model=source.model, model_sha256=source.model_sha256, random=source.random, files=files)


def _saved(folder: RunFolder) -> TuneConfig:
    return from_dict(TuneConfig, load_toml(folder.path / CONFIG))


def _read_trial(folder: Path) -> TuningTrial:
    return from_dict(TuningTrial, read_json(folder / TRIAL))


def _copy_model(folder: Path, out: Path) -> None:
    """Copies the files of a model; the manifest comes last."""
    (out / MANIFEST).unlink(missing_ok=True)
    names = list(read_json(folder / MANIFEST)["files"])
    for name in names:
        write_bytes(out / name, (folder / name).read_bytes())
    write_manifest(out, names)
