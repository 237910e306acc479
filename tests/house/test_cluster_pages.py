"""The pages about several GPUs and machines: one for each kind of place, in two languages, with commands that parse."""

import re
import shlex
from pathlib import Path

import pytest
import typer

from firth import cli

GUIDES = Path(__file__).parents[2] / "docs/guides"
NAMES = ("several-gpus", "several-machines", "slurm", "ray", "plan")
COMMANDS = typer.main.get_command(cli.commands()).commands  # type: ignore[attr-defined]
CALL = re.compile(r"(?:^|\s)firth ([a-z]+ .*)")
"""What comes after `firth`, however it is started: alone, by torchrun, by srun, with variables before it."""


def shell(page: Path) -> list[str]:
    """The lines of a page's shell blocks; a line that goes on is one."""
    blocks = re.findall(r"^```sh\n(.*?)^```$", page.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    return "".join(blocks).replace("\\\n", " ").splitlines()


def calls(page: Path) -> list[list[str]]:
    """The commands of firth on a page, in words."""
    found = []
    for line in shell(page):
        match = CALL.search(line)
        if match is not None:
            command = match[1].partition("||")[0].replace("$resume", "--resume")
            found.append(shlex.split(command, comments=True))
    return found


@pytest.mark.parametrize("name", NAMES)
def test_both_languages_have_the_same_commands(name: str) -> None:
    english = calls(GUIDES / f"{name}.md")
    assert english
    assert calls(GUIDES / f"{name}.zh.md") == english


@pytest.mark.parametrize("name", NAMES)
def test_every_command_parses(name: str) -> None:
    for command, *arguments in calls(GUIDES / f"{name}.md"):
        assert COMMANDS[command].make_context(command, arguments).params


def test_torchrun_starts_only_what_ranks_share() -> None:
    launched = [line for name in NAMES for line in shell(GUIDES / f"{name}.md") if "torchrun" in line]
    assert launched
    for line in launched:
        match = CALL.search(line)
        assert match is not None
        assert match[1].split()[0] in cli.OVER_RANKS
