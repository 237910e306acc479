"""What every kind of run says when it is resumed and nothing is left to do: in goes its folder, out comes a line."""

from pathlib import Path

from firth.console import say


def say_finished(out: Path) -> None:
    say(f"{out} is finished, so nothing is left to resume: its figures are given again.")
