"""The life of a run's folder, the same for pre-training, solving without gradients and fine-tuning.

In: a path, the command that works on it, and whether to resume. Out: a `RunFolder` to work in. It decides whether a run
may begin or be resumed there, keeps a second process out, writes RUN/run.toml (every number of the run) and
RUN/source.json (what the run is made from), removes what killed writes left behind, and says how to continue after
Ctrl-C and SIGTERM.

A run has begun once its run.toml exists, which is written after source.json. Before that, a folder may hold prepared
text (`data`) or ULMFiT's language model (`lm`); the lock file stays there to say that these are ours. No torch here.
"""

import logging
import shutil
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, TypeVar

from firth.config import from_dict, to_dict, to_toml
from firth.errors import BadConfig, BadInput, Damaged, FirthError, Interrupted
from firth.files import MANIFEST, read_json, remove_leftovers, sha256, write_bytes, write_json
from firth.folder import WRITTEN
from firth.interrupts import Interrupts
from firth.lock import Lock

log = logging.getLogger(__name__)

CONFIG = "run.toml"
SOURCE = "source.json"
LOCK = ".run.lock"
REPORT = "report.html"
RESULTS = "results.json"
DATA = "data"
"""Text that was prepared for this run."""
BEFORE_BEGIN = (SOURCE, DATA, "lm", "text.txt")
"""What a folder may hold before its run has begun; `lm` and `text.txt` are of ULMFiT's second stage."""

Command = Literal["pretrain", "finetune"]


# What a run is made from


@dataclass(frozen=True)
class SourceFile:
    """A file as it was when the run began."""

    path: str
    sha256: str


@dataclass(frozen=True)
class PretrainingSource:
    data: str
    """The folder of prepared text."""
    sha256: str
    """Of its manifest."""
    start_from: str = ""
    """The folder of the model whose weights the run starts from; empty for random weights."""
    start_sha256: str = ""
    """Of its manifest; empty where it has none."""
    kind: Literal["pretraining"] = "pretraining"


@dataclass(frozen=True)
class SolvingSource:
    data: str
    """The folder of prepared text."""
    sha256: str
    """Of its manifest."""
    min_count: int | None = None
    """Words that occur less often were left out; None leaves it to the prepared text."""
    threads: int | None = None
    text: str = ""
    """The plain text that was prepared for this run; empty where it was prepared before."""
    kind: Literal["solving"] = "solving"


@dataclass(frozen=True)
class FinetuningSource:
    model: str
    """The folder of the model; empty where there is none."""
    random: bool
    """Whether the run starts from random weights."""
    seeds: int
    skip_bad: bool
    files: Mapping[str, Mapping[str, SourceFile]]
    """By task and part: train, dev, test."""
    model_sha256: str = ""
    """Of the model's manifest; empty where it has none."""
    kind: Literal["finetuning"] = "finetuning"


Source = PretrainingSource | SolvingSource | FinetuningSource
AnySource = TypeVar("AnySource", PretrainingSource, SolvingSource, FinetuningSource)

_SOURCES: Mapping[str, type[Source]] = {
    "pretraining": PretrainingSource,
    "solving": SolvingSource,
    "finetuning": FinetuningSource,
}
_COMMANDS: Mapping[str, Command] = {"pretraining": "pretrain", "solving": "pretrain", "finetuning": "finetune"}


def read_source(run: Path) -> Source:
    """What a run is made from, as it was written when the run began."""
    path = run / SOURCE
    values = _source_values(path)
    try:
        source = from_dict(_SOURCES[values["kind"]], values)
        if isinstance(source, FinetuningSource):
            source = replace(source, files=_files(source.files))
    except (BadConfig, AttributeError) as error:
        why = str(error).rstrip(".")
        raise Damaged(f"{path} does not say what the run is made from ({why}); begin the run again.") from None
    return source


def _source_values(path: Path) -> dict[str, Any]:
    """The record as it is in the file; the first versions of firth did not write its kind."""
    values = read_json(path)
    if not isinstance(values, dict):
        raise Damaged(f"{path} does not say what the run is made from; begin the run again.")
    if "files" in values:
        usual = "finetuning"
    elif "threads" in values:
        usual = "solving"
    else:
        usual = "pretraining"
    kind = values.setdefault("kind", usual)
    if kind not in _SOURCES:
        raise Damaged(f"{path} is of a kind of run that this version does not know ('{kind}'); use a newer one.")
    return values


def _files(values: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, SourceFile]]:
    files: dict[str, dict[str, SourceFile]] = {}
    for task, parts in values.items():
        files[task] = {part: from_dict(SourceFile, row) for part, row in parts.items()}
    return files


def model_sha256(model: str | Path) -> str:
    """The sha256 of a model's manifest, which holds those of its files; empty where there is none."""
    manifest = Path(model) / MANIFEST
    return sha256(manifest) if model and manifest.exists() else ""


# The folder


def is_begun(path: Path) -> bool:
    """Whether there is a run to resume."""
    return (path / CONFIG).exists()


class RunFolder:
    """A run's folder while a command works on it; a context manager."""

    def __init__(self, path: Path, *, command: Command, resume: bool) -> None:
        self.path = path
        self.command = command
        self.resume = resume
        self.interrupts = Interrupts()
        self._lock = Lock(path / LOCK)
        self._accepted = False
        """Whether a run may be here, so that what is found or written here is ours."""
        self._made_here = False

    @property
    def config_path(self) -> Path:
        return self.path / CONFIG

    @property
    def begun(self) -> bool:
        return is_begun(self.path)

    @property
    def finished(self) -> bool:
        """Whether nothing is left to do; the results of a fine-tuning are written after its model."""
        if not self.begun or not (self.path / MANIFEST).exists():
            return False
        return self.command != "finetune" or (self.path / RESULTS).exists()

    def __enter__(self) -> "RunFolder":
        self.interrupts.__enter__()
        try:
            if self.path.is_dir():
                self._lock.acquire()
            self._check()
        except BaseException as error:
            self._leave(error)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave(error)

    def read_source(self, cls: type[AnySource]) -> AnySource:
        source = read_source(self.path)
        if not isinstance(source, cls):
            raise Damaged(f"{self.path / SOURCE} is of another kind of run than {self.config_path}.")
        return source

    def claim(self) -> None:
        """Makes the folder and locks it; called before the first write. Another process may have been quicker."""
        if self._lock.held:
            return
        self._made_here = not self.path.exists()
        self.path.mkdir(parents=True, exist_ok=True)
        self._lock.acquire()
        self._check()

    def begin(self, source: Source, config: Any, *, leftovers: Iterable[str] = ()) -> None:
        """Writes what the run is made from and its numbers, after removing what killed writes left.

        `leftovers` are names of files that this kind of run writes besides a model's.
        """
        self.claim()
        self.remove_leftovers((*WRITTEN, CONFIG, SOURCE, REPORT, DATA, *leftovers))
        if not self.begun:
            self._remove_text_of_others(source)
        write_json(self.path / SOURCE, to_dict(source))
        write_bytes(self.config_path, (to_toml(to_dict(config)) + "\n").encode())

    def _remove_text_of_others(self, source: Source) -> None:
        """A run that was stopped before it began may have prepared text that this one is not made from."""
        prepared = self.path / DATA
        is_own = not isinstance(source, FinetuningSource) and Path(source.data) == prepared.resolve()
        if prepared.exists() and not is_own:
            shutil.rmtree(prepared)

    def remove_leftovers(self, names: Sequence[str], *, below: str = "") -> None:
        """Deletes halves of these files that killed writes left here, or in the folders that match `below`."""
        folders = list(self.path.glob(below)) if below else [self.path]
        for folder in folders:
            for name in names:
                remove_leftovers(folder, f"{name}.")

    def refuse_other_numbers(self, remedy: str = "leave out options that differ from it") -> BadConfig:
        """The error for a resumed run that was asked for other numbers than its own."""
        return BadConfig(f"`resume=True` continues the run as {self.config_path} says; {remedy}.")

    def refuse_changed_model(self, model: str, digest: str) -> None:
        """Raises where the model that the run started from is another one now; `digest` is that of the record."""
        if digest and digest != model_sha256(model):
            raise BadInput(f"{model} is not as it was when {self.path} began; resume needs the same model.")

    def say_finished(self) -> None:
        log.info(f"{self.path} is finished, so nothing is left to resume: its figures are given again.")

    @contextmanager
    def undone_if_refused(self, names: Iterable[str], *, keep: Callable[[], bool]) -> Iterator[None]:
        """Where a run is refused, deletes those of the files and folders that it wrote, unless `keep` says not to.

        They would stand in the way of the next one.
        """
        new = [path for name in names if not (path := self.path / name).exists()]
        try:
            yield
        except FirthError as error:
            if not isinstance(error, Interrupted) and not keep():
                for path in new:
                    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
            raise

    def _check(self) -> None:
        """Raises where a run may be neither begun nor resumed as asked."""
        if self.path.is_file():
            raise BadInput(f"{self.path} is a file, and a run needs a folder; choose another `out=`.")
        if self.begun:
            self._check_existing()
        elif self._holds_other_things():
            raise BadInput(f"{self.path} exists and holds no run; choose another `out=`.")
        elif self.resume:
            raise BadInput(f"{self.path} holds no run to resume; give all options without `resume=True` to begin one.")
        self._accepted = True

    def _check_existing(self) -> None:
        source = self.path / SOURCE
        if not source.exists():
            raise BadInput(f"{self.path} has a {CONFIG} but no {SOURCE}, so it holds no run; choose another `out=`.")
        own = _COMMANDS[_source_values(source)["kind"]]
        if own != self.command:
            raise BadInput(
                f"{self.path} is a run of `firth {own}`; resume it with that command or choose another `out=`."
            )
        if not self.resume:
            raise BadInput(f"{self.path} already exists; continue it with `resume=True` or choose another `out=`.")

    def _holds_other_things(self) -> bool:
        """Whether there is anything that no run of ours put there."""
        if not self.path.is_dir():
            return False
        visible = {entry.name for entry in self.path.iterdir() if not entry.name.startswith(".")}
        ours = self._lock.found_here or (self.path / SOURCE).exists()
        return bool(visible - set(BEFORE_BEGIN)) or (bool(visible) and not ours)

    def _leave(self, error: BaseException | None) -> None:
        """Gives the folder back; whoever was stopped hears how to continue."""
        self.interrupts.__exit__()
        ours = self._accepted or self._lock.found_here
        self._lock.release(keep_file=ours and not self.begun and self._holds_leftovers())
        if self._made_here and self.path.is_dir() and not any(self.path.iterdir()):
            self.path.rmdir()
        if isinstance(error, Interrupted):
            error.remedy = self._remedy()
        elif isinstance(error, KeyboardInterrupt):
            number = self.interrupts.requested or signal.SIGINT
            if not self._remedy() and number == signal.SIGINT:
                return  # nothing is left behind, so this is an ordinary Ctrl-C
            raise Interrupted("Stopped.", number=number, remedy=self._remedy()) from None

    def _holds_leftovers(self) -> bool:
        return self.path.is_dir() and any(entry.name != LOCK for entry in self.path.iterdir())

    def _remedy(self) -> str:
        if self.begun:
            return "Continue with `resume=True`."
        return "Give the same command again to continue." if (self.path / LOCK).exists() else ""
