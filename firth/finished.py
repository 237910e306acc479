"""What every kind of run says of a folder that is there already: in goes the folder, out comes a sentence."""

from pathlib import Path

from firth.console import say
from firth.errors import BadInput
from firth.files import read_json


def say_finished(out: Path) -> None:
    """Of a run that is resumed though nothing is left to do."""
    say(f"{out} is finished, so nothing is left to resume: its figures are given again.")


def refuse_existing(out: Path, *, resume: bool) -> None:
    """Raises where something is in the way of a new run, or where a run cannot be."""
    if out.is_file():
        raise BadInput(f"{out} is a file, and a run needs a folder; choose another --out.")
    if out.exists() and not resume:
        raise BadInput(f"{out} already exists; continue it with --resume or choose another --out.")


def refuse_other(out: Path, command: str) -> None:
    """Raises where a folder holds a run that another command began and resumes."""
    source = out / "source.json"
    if (out / "run.toml").exists() and source.exists():
        own = "finetune" if "files" in read_json(source) else "pretrain"
        if own != command:
            raise BadInput(f"{out} is a run of `firth {own}`; resume it with that command or choose another --out.")
