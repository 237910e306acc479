"""The command line: light, complete, explained; and every config field has its sentence."""

import io
import json
import logging
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import fields, is_dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
import typer

import firth
from firth import __version__, cli, console, encoders, lineage, objectives, samples, tasks, tokenizers
from firth.config import describe, part_config, resolve
from firth.finetuning.backbones import BACKBONES
from firth.finetuning.settings import FinetuneConfig
from firth.lineage import Recipe
from firth.nn import taggers

COMMANDS = typer.main.get_command(cli.commands()).commands  # type: ignore[attr-defined]


def test_help_lists_every_command(tmp_path: Path) -> None:
    firth_command = Path(sys.executable).with_name("firth")
    done = subprocess.run([firth_command, "--help"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert {"prepare", "pretrain", "fill", "embed", "evaluate", "info", "demo"} <= set(COMMANDS)
    for name in COMMANDS:
        assert f" {name} " in done.stdout


@pytest.mark.parametrize(
    ("command", "option", "names"),
    [
        ("prepare", "tokenizer", [name for name in tokenizers.TABLE if name != "templates"]),
        ("pretrain", "recipe", lineage.TABLE),
        ("pretrain", "size", lineage.SIZES),
        ("check", "task", tasks.TABLE),
        ("finetune", "task", tasks.TABLE),
        ("finetune", "tagger", taggers.TABLE),
    ],
)
def test_help_names_every_row_of_a_table(command: str, option: str, names: Iterable[str]) -> None:
    [found] = [parameter for parameter in COMMANDS[command].params if parameter.name == option]
    assert set(names) <= set(re.findall(r"[\w-]+(?:\.\w+)*", found.help))


def test_help_and_the_package_bring_in_nothing_heavy() -> None:
    heavy = ("torch", "numpy", "tokenizers", "transformers", "safetensors", "rich.progress")
    script = (
        "import sys, firth, firth.cli, firth.pipeline\n"
        "sys.argv = ['firth', '--help']\n"
        "try: firth.cli.main()\n"
        "except SystemExit: pass\n"
        f"print([name for name in {heavy!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


VECTORS = "firth.pretrain('text.txt', out='run', min_count=1, width=10, epochs=1, threads=1, recipe="


@pytest.mark.parametrize(
    "step",
    [
        "firth.prepare('text.txt', out='data', vocab_size=30, processes=0)",
        f"{VECTORS}'word2vec-sg-ns')",
        f"{VECTORS}'word2vec-cbow-hs', device='cpu')",
        f"{VECTORS}'fasttext', changes=['tokenizer.subwords.num_buckets=500'])",
        f"{VECTORS}'glove')",
    ],
)
def test_preparation_and_word_vectors_do_not_load_torch(step: str, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("the quick brown fox jumps over the lazy dog\n" * 3)
    script = f"import sys, firth\n{step}\nprint('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_has_a_sentence(name: str) -> None:
    command = COMMANDS[name]
    assert command.help, name
    for parameter in command.params:
        assert getattr(parameter, "help", None), f"{name} {parameter.name}"


@pytest.mark.parametrize("name", COMMANDS)
def test_reporting_commands_speak_json(name: str) -> None:
    options = {option for parameter in COMMANDS[name].params for option in parameter.opts}
    assert "--json" in options or name in {"demo", "serve"}


def test_version(command: Callable[..., Any]) -> None:
    assert command("--version") == (0, f"{__version__}\n", "")


def test_info_and_fill_through_the_command(command: Callable[..., Any], run: Path, tmp_path: Path) -> None:
    assert json.loads(command("info", run, "--json").out)["encoder"]["width"] == 32
    assert "parameters" in command("info", run).out
    rows = json.loads(command("fill", run, "The [MASK] and the [MASK].", "--top", 2, "--json").out)["fills"]
    assert [row.keys() for row in rows] == [{"token", "probability", "text"}] * 4
    assert len(command("fill", run, "The [MASK].").out.splitlines()) == 5
    (tmp_path / "lines.txt").write_text("one\n\nthree\n")
    shown = json.loads(
        command("embed", run, "--file", tmp_path / "lines.txt", "--out", tmp_path / "v.npy", "--json").out
    )
    assert (shown["texts"], shown["width"]) == (3, 32)


def test_results_stand_on_standard_output_and_nothing_else_does(command: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("the quick brown fox jumps over the lazy dog\n" * 3)
    plain = command("prepare", tmp_path / "text.txt", "--out", tmp_path / "one", "--vocab-size", 30, "--processes", 1)
    assert plain.out.startswith("documents           1\n")
    assert "Warning: " in plain.err
    assert "documents           1" not in plain.err
    told = command(
        "prepare", tmp_path / "text.txt", "--out", tmp_path / "two", "--vocab-size", 30, "--processes", 1, "--json"
    )
    assert json.loads(told.out)["documents"] == 1


def test_a_python_program_sees_messages_only_if_it_asks(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("the quick brown fox jumps over the lazy dog\n" * 3)
    call = "import firth, firth.console, logging\n{}\nfirth.prepare('text.txt', out='{}', vocab_size=30, processes=0)"

    def said(out: str, setup: str = "") -> str:
        script = call.format(setup, out)
        done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
        assert done.stdout == ""
        return done.stderr

    assert said("one") == ""
    warnings = said("two", "logging.basicConfig()").splitlines()
    assert warnings
    assert all(line.startswith("WARNING:firth.preparing:") for line in warnings)
    everything = said("three", "logging.basicConfig(level='INFO')")
    assert "INFO:firth.data.vocabulary:Training a vocabulary of up to 30 pieces ..." in everything
    shown = said("four", "shown = firth.console.shown(); shown.__enter__()").splitlines()
    assert shown[0] == "Training a vocabulary of up to 30 pieces ..."
    assert [f"WARNING:firth.preparing:{line.removeprefix('Warning: ')}" for line in shown[1:]] == warnings


def test_messages_are_shown_while_a_command_runs_only(command: Callable[..., Any], run: Path) -> None:
    logger = logging.getLogger("firth")
    handlers, level = list(logger.handlers), logger.level
    command("info", run)
    assert (logger.handlers, logger.level) == (handlers, level)


def test_info_is_a_table(command: Callable[..., Any], run: Path) -> None:
    lines = command("info", run).out.splitlines()
    assert not [line for line in lines if set("{}[]'") & set(line)]
    assert "encoder" in lines
    assert f"{'  width':<24} 32" in lines
    assert f"{'heads':<24} next_sentence, masked_lm" in lines or f"{'heads':<24} masked_lm, next_sentence" in lines


def test_every_line_of_plain_text_is_an_input(command: Callable[..., Any], run: Path, tmp_path: Path) -> None:
    lines, tuned = tmp_path / "lines.txt", tmp_path / "tuned"
    lines.write_text("\n你好。\n\n\u2028 one\x0c line\n\n")
    source = samples.labelled("classify", "en")
    command("finetune", run, "--task", "classify", "--train", source, "--out", tuned, "epochs=1", "--device", "cpu")
    assert len(command("predict", tuned, "--file", lines, "--json").out.splitlines()) == 5
    told = json.loads(command("embed", tuned, "--file", lines, "--out", tmp_path / "v.npy", "--json").out)
    assert told["texts"] == 5
    lines.write_text("a text\none\ttwo\tthree\n")
    refused = command("predict", tuned, "--file", lines).err
    assert f"{lines}, line 2: An input must be a text or a pair of texts" in refused
    assert ".tsv or .csv" in refused


def configs(cls: Any) -> set[Any]:
    """A config and those within it."""
    inner = [hint for hint in get_type_hints(cls).values() if is_dataclass(hint)]
    return {cls}.union(*map(configs, inner))


ALL = configs(Recipe).union(
    *(
        configs(resolve(table, name, "part").Config)
        for table in (encoders.TABLE, objectives.TABLE, tokenizers.TABLE)
        for name in table
    )
)


@pytest.mark.parametrize("cls", sorted(ALL, key=lambda cls: cls.__qualname__), ids=lambda cls: cls.__qualname__)
def test_every_config_field_has_a_sentence(cls: type) -> None:
    told = describe(cls)
    for field in fields(cls):  # type: ignore[arg-type]
        assert told.get(field.name, "").endswith((".", ")", "?")), f"{cls.__qualname__}.{field.name}"


@pytest.mark.parametrize("room", ["encoders", "objectives", "tokenizers", "lineage"])
def test_every_row_of_a_table_resolves(room: str) -> None:
    table = import_module(f"firth.{room}").TABLE
    assert table
    for name in table:
        assert resolve(table, name, "part")


def test_configs_that_stand_apart_are_their_encoders_own() -> None:
    assert encoders.CONFIGS
    for name in encoders.CONFIGS:
        assert part_config("firth.encoders", name) is encoders.resolve(name).Config


def test_whatever_may_read_rows_can_be_asked_for() -> None:
    assert get_args(get_type_hints(FinetuneConfig)["encoder"]) == tuple(BACKBONES)


def test_a_blank_text_is_answered_with_a_warning(tmp_path: Path, command: Callable[..., Any]) -> None:
    rows = tmp_path / "rows.tsv"
    lines = [f"{word} day {number}\t{word}" for number in range(10) for word in ("good", "bad")]
    rows.write_text("\n".join(["text\tlabel", *lines]) + "\n")
    model = tmp_path / "model"
    firth.finetune(recipe="fasttext", task="classify", train=rows, dev=rows, out=model)
    shown = command("predict", model, "", "good day")
    assert len(shown.out.splitlines()) == 2
    assert "Warning: 1 text is blank, answered like the others." in shown.err
    assert "blank" not in command("predict", model, "good day").err


class Terminal(io.StringIO):
    """What a window of 80 characters shows."""

    def isatty(self) -> bool:
        return True


def test_a_progress_bar_cuts_the_note_and_not_the_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(console, "PATIENCE", -1.0)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    with console.shown(), console.bar("pre-training", 1000, unit="steps") as advance:
        for done in range(1, 4):
            advance(done, "masked_lm 6.537 next_sentence 0.697 rate 1.5e-04")
            time.sleep(0.1)
    without_colours = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", terminal.getvalue())
    last_line = re.split(r"[\r\n]+", without_colours.strip())[-1]
    assert re.search(r"pre-training ━+ +[\d.]+ steps/s (\d|-):(\d\d|--):(\d\d|--) masked_lm 6\.537.*…$", last_line)
    assert len(last_line) <= 80
