"""The program `firth`: runs a subcommand. A user's mistake prints one sentence and ends with exit code 2."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import TYPE_CHECKING, NoReturn

from firth import console
from firth.errors import BadConfig, FirthError
from firth.interrupts import Interrupts
from firth.train import launch

if TYPE_CHECKING:
    from typer import Typer


STOPPED = 130
"""The exit code that shells give a command that Ctrl-C ended."""
OUT_OF_MEMORY = "There is not enough memory for this; take a smaller model, smaller batches or fewer texts at once."
OVER_RANKS = ("pretrain", "finetune", "compress", "evaluate")
"""The subcommands that torchrun may start several times, to work together."""


def commands() -> "Typer":
    """All subcommands. They are imported here, so that Ctrl-C meanwhile prints one line, too."""
    from firth.commands.app import make_app

    return make_app()


def main() -> None:
    """Runs the command; what a user can put right is one sentence on standard error."""
    try:
        # SIGTERM ends a command at once; a run, which has something to save, handles it by itself.
        with Interrupts(signals=[signal.SIGINT]), _voice():
            _refuse_several_processes()
            commands()()
    except FirthError as error:
        if launch.speaks_first():
            print(f"firth: {_in_flags(str(error))}", file=sys.stderr)
        sys.exit(error.exit_code)
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        from firth.files import trouble

        print(f"firth: {trouble(error)}", file=sys.stderr)
        sys.exit(2)
    except (MemoryError, RuntimeError) as error:
        if not _is_out_of_memory(error):
            raise
        if launch.speaks_first():
            print(f"firth: {OUT_OF_MEMORY}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        _stopped()
    except SystemExit as end:
        if end.code == STOPPED:  # typer turns Ctrl-C into this
            _stopped()
        raise


@contextmanager
def _voice() -> Iterator[None]:
    """Inside, messages and figures appear; of several processes that torchrun started, those of the first only."""
    if launch.launched_rank() == 0:
        with console.shown(_in_flags):
            yield
        return
    with open(os.devnull, "w") as nothing, redirect_stdout(nothing):
        yield


def _refuse_several_processes() -> None:
    command = sys.argv[1] if len(sys.argv) > 1 else ""
    if launch.launched_size() > 1 and command not in OVER_RANKS:
        raise BadConfig(f"torchrun can start {', '.join(OVER_RANKS)}; run `firth {command}` without it.")


def _in_flags(text: str) -> str:
    """A message of the package in the terms of the command line."""
    from firth.commands.flags import in_flags

    return in_flags(text)


def _is_out_of_memory(error: MemoryError | RuntimeError) -> bool:
    """Whether memory ran out, as Python, PyTorch on a CPU or PyTorch on a GPU say it."""
    said = str(error)
    is_of_gpu = type(error).__name__ == "OutOfMemoryError"
    return isinstance(error, MemoryError) or is_of_gpu or "can't allocate memory" in said


def _stopped() -> NoReturn:
    if launch.speaks_first():
        print("firth: Stopped.", file=sys.stderr)
    sys.exit(STOPPED)
