"""The life of a run's folder, the same for pre-training, solving without gradients, fine-tuning and compression.

In: a path, the command that works on it, and whether to resume. Out: a `RunFolder` to work in. It decides whether a run
may begin or be resumed there, keeps a second process out, writes RUN/run.toml (every number of the run),
RUN/source.json (what the run is made from) and RUN/report.html, removes what killed writes left behind, and says how to
continue after Ctrl-C and SIGTERM.

A run has begun once its run.toml exists, which is written after source.json. Before that, a folder may hold prepared
text (`data`) or ULMFiT's language model (`lm`); the lock file stays there to say that these are ours. With several
ranks only rank 0 locks the folder and writes. Torch is not imported here.
"""

import logging
import shutil
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Literal

from firth.config import to_dict, to_toml
from firth.errors import BadConfig, BadInput, Damaged, FirthError, Interrupted, LostRank, Resumable
from firth.files import MANIFEST, check_writable, remove_leftovers, write_bytes, write_json
from firth.folder import WRITTEN
from firth.interrupts import Interrupts
from firth.lock import Lock
from firth.run_source import (
    DATA,
    REPORT,
    SOURCE,
    SOURCE_CLASSES,
    AnySource,
    Command,
    PretrainingSource,
    SolvingSource,
    Source,
    SourceFile,
    input_file,
    model_sha256,
    read_source,
    source_class,
)

log = logging.getLogger(__name__)

if TYPE_CHECKING:
    from firth.train.parallel import World

CONFIG = "run.toml"
LOCK = ".run.lock"

RunState = Literal["missing", "stopped", "running", "finished"]
"""`missing`: no run has begun in the folder."""


def is_begun(path: Path) -> bool:
    """Whether there is a run to resume."""
    return (path / CONFIG).exists()


def is_finished(path: Path) -> bool:
    """Whether there is a run of which nothing is left to do."""
    if not is_begun(path) or not (path / SOURCE).exists():
        return False
    last_written = source_class(path / SOURCE).last_written
    return (path / MANIFEST).exists() and (path / last_written).exists()


def _current_world() -> "World | None":
    """The ranks that work on the run. Without torch there is one process, and nothing is imported to find out."""
    if "torch" not in sys.modules:
        return None
    from firth.train.parallel import current_world

    return current_world()


class RunFolder:
    """A run's folder while a command works on it; a context manager."""

    def __init__(self, path: Path, *, command: Command, resume: bool) -> None:
        self.path = path
        self.command = command
        self.resume = resume
        self.interrupts = Interrupts()
        self._world = _current_world()
        self._lock = Lock(path / LOCK)
        self._accepted = False
        """Whether a run may be here, so that what is found or written here is ours."""
        self._made_here = False
        """Whether this process created the folder."""
        self._was_finished = False
        """Whether nothing was left to do when the command came."""

    @property
    def is_main(self) -> bool:
        """Whether this process writes files: the only one, or rank 0."""
        return self._world is None or self._world.is_main

    def on_main(self, work: Callable[[], object]) -> None:
        """Rank 0 does the work, and the other ranks wait for it; if it fails, all ranks raise its error."""
        if self._world is None:
            work()
        else:
            self._world.on_main(work)

    def wait_for_ranks(self) -> None:
        """Returns once all ranks have come here; at once if there is only one."""
        if self._world is not None:
            self._world.wait()

    @property
    def config_path(self) -> Path:
        return self.path / CONFIG

    @property
    def begun(self) -> bool:
        return is_begun(self.path)

    @property
    def finished(self) -> bool:
        return is_finished(self.path)

    @staticmethod
    def state(path: Path) -> RunState:
        """How far the run in a folder is; it is running while a process holds its lock."""
        if is_finished(path):
            return "finished"
        if Lock.is_held(path / LOCK):
            return "running"
        return "stopped" if is_begun(path) else "missing"

    def __enter__(self) -> "RunFolder":
        self.interrupts.__enter__()
        try:
            # Rank 0 decides: only it holds the lock, which shows whether what it finds here is ours.
            self.on_main(self._lock_and_check)
            self._accepted = True
            self._was_finished = self.finished
            self._check_shared_disk()
            self.wait_for_ranks()  # so that all ranks find the folder as it is before rank 0 writes
        except BaseException as error:
            self._leave(error)
            raise
        return self

    def _check_shared_disk(self) -> None:
        """Raises if this rank finds another folder than rank 0 does."""
        if self._world is None or self._world.from_main(self.begun) == self.begun:
            return
        raise BadInput(
            f"Rank {self._world.rank} does not see {self.path} as rank 0 does; choose an `out=` on a disk that all "
            "machines share."
        )

    def _lock_and_check(self) -> None:
        if self.path.is_dir():
            self._lock.acquire()
        self._check()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._leave(error)

    def read_source(self, cls: type[AnySource]) -> AnySource:
        """What the run is made from; raises if it is another kind of run."""
        source = read_source(self.path)
        if not isinstance(source, cls):
            raise Damaged(f"{self.path / SOURCE} is of another kind of run than {self.config_path}.")
        return source

    def claim(self) -> None:
        """Creates the folder and locks it; called before the first write."""
        if self._lock.held or not self.is_main:
            return
        self._made_here = not self.path.exists()
        self.path.mkdir(parents=True, exist_ok=True)
        self._lock.acquire()
        self._check()  # again, because another process may have been faster

    def begin(self, source: Source, config: object, *, leftovers: Iterable[str] = ()) -> None:
        """Writes what the run is made from and its numbers, after removing what killed writes left.

        `config` is a dataclass; `leftovers` are names of files that this kind of run writes besides a model's.
        """
        self.wait_for_ranks()  # so that no rank takes this beginning for an earlier one
        self.on_main(lambda: self._write_beginning(source, config, leftovers))

    def _write_beginning(self, source: Source, config: object, leftovers: Iterable[str]) -> None:
        self.claim()
        self.remove_leftovers((*WRITTEN, CONFIG, SOURCE, REPORT, DATA, *leftovers))
        if not self.begun:
            self._remove_other_text(source)
        # The config comes last: a run has begun once it exists.
        write_json(self.path / SOURCE, to_dict(source))
        text = to_toml(to_dict(config))
        write_bytes(self.config_path, f"{text}\n".encode())

    def _remove_other_text(self, source: Source) -> None:
        """Deletes prepared text of a run that was stopped before it began, if this one is not made from it."""
        prepared = self.path / DATA
        is_own = isinstance(source, PretrainingSource | SolvingSource) and Path(source.data) == prepared.resolve()
        if prepared.exists() and not is_own:
            shutil.rmtree(prepared)

    def remove_leftovers(self, names: Sequence[str], *, below: str = "") -> None:
        """Deletes halves of these files that killed writes left here, or in the folders that match `below`."""
        if not self.is_main:
            return
        folders = [self.path]
        if below:
            folders = list(self.path.glob(below))
        for folder in folders:
            for name in names:
                remove_leftovers(folder, f"{name}.")

    def refuse_other_numbers(self, remedy: str = "leave out options that differ from it") -> BadConfig:
        """The error for a resumed run that is given other numbers than its own."""
        return BadConfig(f"`resume=True` continues the run as {self.config_path} says; {remedy}.")

    def refuse_changed_model(self, model: str, digest: str) -> None:
        """Raises if the model that the run started from has changed; `digest` is its sha256 in the record."""
        if digest and digest != model_sha256(model):
            raise BadInput(f"{model} is not as it was when {self.path} began; resume needs the same model.")

    def refuse_changed_inputs(self, inputs: Mapping[str, SourceFile]) -> None:
        """Raises if a file that a setting of the run names has changed."""
        for name, file in inputs.items():
            if not Path(file.path).exists() or input_file(file.path) != file:
                raise BadInput(f"{file.path} ({name}) is not as it was when {self.path} began; resume needs the same.")

    def write_report(self, render: Callable[[], str]) -> None:
        """Writes report.html, unless the run was finished before this command came and has its report."""
        page = self.path / REPORT
        if self._was_finished and page.exists():
            return
        self.on_main(lambda: write_bytes(page, render().encode()))
        if self.is_main:
            log.info(f"The model and its card are in {self.path}; {page} shows the run.")

    def say_finished(self) -> None:
        log.info(f"{self.path} is finished, so nothing is left to resume: its figures are given again.")

    @contextmanager
    def undone_if_refused(self, names: Iterable[str], *, keep: Callable[[], bool]) -> Iterator[None]:
        """If a run is refused, deletes those of the files and folders that it wrote, unless `keep` says not to.

        The next run would be refused because of them.
        """
        paths = [self.path / name for name in names]
        new_paths = [path for path in paths if not path.exists()]
        try:
            yield
        except FirthError as error:
            is_refused = not isinstance(error, Resumable)
            if is_refused and self.is_main and not keep():
                _delete(new_paths)
            raise

    def _check(self) -> None:
        """Raises if the run can neither begin nor be resumed as asked."""
        if self.path.is_file():
            raise BadInput(f"{self.path} is a file, and a run needs a folder; choose another `out=`.")
        if self.begun:
            self._check_existing()
        elif self._holds_other_things():
            raise BadInput(f"{self.path} exists and holds no run; choose another `out=`.")
        elif self.resume:
            raise BadInput(f"{self.path} holds no run to resume; give all options without `resume=True` to begin one.")
        else:
            check_writable(self.path)
        self._accepted = True

    def _check_existing(self) -> None:
        """Raises if the run that is here is not to be resumed, or not by this command."""
        source = self.path / SOURCE
        if not source.exists():
            raise BadInput(f"{self.path} has a {CONFIG} but no {SOURCE}, so it holds no run; choose another `out=`.")
        own = source_class(source).command
        if own != self.command:
            raise BadInput(
                f"{self.path} is a run of `firth {own}`; resume it with that command or choose another `out=`."
            )
        if not self.resume:
            raise BadInput(f"{self.path} already exists; continue it with `resume=True` or choose another `out=`.")

    def _holds_other_things(self) -> bool:
        """Whether the folder holds anything that was not written by a run."""
        if not self.path.is_dir():
            return False
        visible = {entry.name for entry in self.path.iterdir() if not entry.name.startswith(".")}
        before_begin = {SOURCE}
        for kind in SOURCE_CLASSES.values():
            before_begin.update(kind.before_begin)
        if visible - before_begin:
            return True
        # The lock file or a record of the source shows that these names are ours.
        is_ours = self._lock.found_here or (self.path / SOURCE).exists()
        return bool(visible) and not is_ours

    def _leave(self, error: BaseException | None) -> None:
        """Unlocks the folder; an error about an interruption says how to continue."""
        self.interrupts.__exit__()
        is_ours = self._accepted or self._lock.found_here
        self._lock.release(keep_file=is_ours and not self.begun and self._holds_leftovers())
        if self._made_here and self.path.is_dir() and not any(self.path.iterdir()):
            self.path.rmdir()
        if isinstance(error, Resumable):
            error.remedy = self._remedy()
        elif self._has_lost_rank(error):
            raise LostRank("A process of the run was lost.", remedy=self._remedy()) from None
        elif isinstance(error, KeyboardInterrupt):
            number = self.interrupts.requested or signal.SIGINT
            if not self._remedy() and number == signal.SIGINT:
                return  # nothing is left behind, so this is an ordinary Ctrl-C
            raise Interrupted("Stopped.", number=number, remedy=self._remedy()) from None

    def _has_lost_rank(self, error: BaseException | None) -> bool:
        """Whether an error came from a rank that died."""
        if self._world is None or self._world.size == 1:
            return False
        from firth.train.parallel import is_lost_rank

        return is_lost_rank(error)

    def _holds_leftovers(self) -> bool:
        """Whether the folder holds anything besides the lock file."""
        return self.path.is_dir() and any(entry.name != LOCK for entry in self.path.iterdir())

    def _remedy(self) -> str:
        """How an interrupted run is continued; empty if nothing of it is left."""
        if self.begun:
            return "Continue with `resume=True`."
        if (self.path / LOCK).exists():
            return "Give the same command again to continue."
        return ""


def _delete(paths: Iterable[Path]) -> None:
    """Deletes files and whole folders."""
    for path in paths:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
