"""The READMEs: both tell the same, every command in them parses, links lead somewhere, and the walk runs for real."""

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer

import firth
from firth import cli, samples

ROOT = Path(__file__).parents[2]
READMES = {"en": ROOT / "README.md", "zh": ROOT / "README.zh.md"}
PAGES = [*READMES.values(), ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
COMMANDS = typer.main.get_command(cli.commands()).commands  # type: ignore[attr-defined]
SMALLER = {
    "--minutes 3": "--steps 20",
    "--vocab-size 6000": "--vocab-size 800",
    "--vocab-size 8000": "--vocab-size 800",
    "--seeds 3": "--seeds 2",
    "epochs=10": "epochs=1",
    "vocab_size=6000": "vocab_size=800",
    "steps=1000": "steps=20",
}
"""What the test changes in the READMEs' lines: the same walk, in seconds."""


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def commands(text: str) -> list[list[str]]:
    """The `firth ...` lines of the shell blocks, in words."""
    lines = "".join(blocks(text, "sh")).replace("\\\n", " ").splitlines()
    return [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("firth ")]


def smaller(text: str) -> str:
    for large, small in SMALLER.items():
        text = text.replace(large, small)
    return text


def walk(text: str) -> str:
    return text.split("<!-- walk: begin -->")[1].split("<!-- walk: end -->")[0]


def heading_levels(text: str) -> list[str]:
    return re.findall(r"^(#+) ", re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL), re.MULTILINE)


ALL = [(name, words) for name, path in READMES.items() for words in commands(path.read_text("utf-8"))]


@pytest.mark.parametrize(("language", "words"), ALL, ids=lambda value: value if isinstance(value, str) else value[0])
def test_every_command_of_the_readmes_parses(language: str, words: list[str]) -> None:
    name, *arguments = words
    assert name in COMMANDS
    assert COMMANDS[name].make_context(name, arguments).params


def test_both_readmes_tell_the_same() -> None:
    english, chinese = (path.read_text("utf-8") for path in READMES.values())
    shapes = [
        [[name, *(word for word in words if word.startswith("--"))] for name, *words in commands(text)]
        for text in (english, chinese)
    ]
    assert shapes[0] == shapes[1]
    assert heading_levels(english) == heading_levels(chinese)
    assert [len(blocks(text, "python")) for text in (english, chinese)] == [2, 2]


@pytest.mark.parametrize("language", READMES)
def test_the_table_lists_every_command(language: str) -> None:
    rows = re.findall(r"^\| `firth (\w+)` \|", READMES[language].read_text("utf-8"), re.MULTILINE)
    assert sorted(rows) == sorted(COMMANDS)


@pytest.mark.parametrize("language", READMES)
def test_the_tree_names_what_is_there(language: str) -> None:
    tree = next(block for block in blocks(READMES[language].read_text("utf-8"), "text") if block.startswith("firth/\n"))
    named = {line.split()[0].rstrip("/") for line in tree.splitlines()[1:] if line.startswith("  ")}
    there = {path.name for path in (ROOT / "firth").iterdir() if not path.name.startswith("_")}
    assert named == there


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_and_pictures_exist(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)|src=\"([^\"]+)\"", page.read_text("utf-8")):
        link = "".join(target).partition("#")[0]
        assert not link or re.match(r"https?://", link) or (page.parent / link).exists(), link


def read_by(name: str, params: dict[str, Any]) -> list[str]:
    """The files and folders that a command reads, as it was called."""
    keys = ["data", "model", "run", "file", "train", "config", "start_from", "arguments"]
    keys += ["texts"] * (name == "prepare")  # elsewhere they are what a model is asked about
    given = [params.get(key) or () for key in keys]
    flat = [str(one) for value in given for one in (value if isinstance(value, list | tuple) else [value])]
    return [one for one in flat if "=" not in one]


@pytest.mark.parametrize("language", READMES)
def test_what_a_command_reads_is_there_or_was_made_before(language: str) -> None:
    """In order, from a fresh clone: in the folder `walk`, where the text's own line makes `my-texts`."""
    text, made = READMES[language].read_text("utf-8"), {"my-texts"}
    assert "samples.corpus(Path('my-texts'))" in text
    for name, *words in commands(text):
        params = COMMANDS[name].make_context(name, words).params
        for place in map(Path, read_by(name, params)):
            there = place.parts[0] == ".." and (ROOT / "walk" / place).resolve().exists()
            assert there or place.parts[0] in made, f"{name} {place}"
        made.add(str(params.get("out")))
    shown = [line for block in blocks(text, "text") for line in block.splitlines() if line.startswith("firth ")]
    assert shown == []


@pytest.mark.parametrize("language", READMES)
def test_the_walk_runs(
    language: str,
    command: Callable[..., Any],
    tiny: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "walk").mkdir()
    monkeypatch.chdir(tmp_path / "walk")
    Path("my-texts").mkdir()
    for name in samples.LANGUAGES:
        Path(f"my-texts/{name}.txt").write_bytes(samples.prose(name).read_bytes())
    Path("../firth").symlink_to(ROOT / "firth")
    for name, *words in commands(smaller(walk(READMES[language].read_text("utf-8")))):
        done = command(name, *words, *(tiny if name == "pretrain" else ()))
        assert done.code == 0, done.err
        assert done.out or done.err, name
    for made in ("data/manifest.json", "run/model.safetensors", "vectors.npy", "reviews/report.html"):
        assert Path(made).is_file(), made


@pytest.mark.parametrize("language", READMES)
def test_the_python_of_the_readmes_runs(
    language: str,
    run: Path,
    tiny: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my-texts").mkdir()
    for name in samples.LANGUAGES:
        Path(f"my-texts/{name}.txt").write_bytes(samples.prose(name).read_bytes())
    Path("run").symlink_to(run)
    ours, theirs = blocks(smaller(READMES[language].read_text("utf-8")), "python")
    ours = ours.replace("changes=small", f"changes={list(tiny)!r}")
    ours = ours.replace('"../firth/', f'"{ROOT}/firth/')
    names: dict[str, Any] = {}
    exec(compile(ours, "README", "exec"), names)
    assert names["vectors"].shape == (2, 32)
    assert isinstance(names["model"], firth.Model)
    exec(compile(theirs, "README", "exec"), names)
    assert names["model"].config.hidden_size == 32
    assert len(names["tokenizer"]) == 1200
