"""Messages name Python arguments (`out=`); the command line names its options (--out) in their place."""

import ast
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import firth
from firth import tasks
from firth.commands.flags import ARGUMENT, flags, in_flags
from firth.errors import BadConfig, BadInput
from firth.search.pairs import read_pairs

PACKAGE = Path(firth.__file__).parent
OF_THE_COMMAND_LINE = {"cli.py", *(f"commands/{path.name}" for path in (PACKAGE / "commands").glob("*.py"))}
NOT_MESSAGES = {"report/style.py", "report/pretraining.py", "serving/api_reference.py"}
"""Files with CSS variables, and with examples for curl."""
SHELL = {" --runs ", " --limit ", " --index ", " --data $FIRTH_DATA"}
"""Parts of a command that a message or a page spells out for the shell."""


def strings(tree: ast.AST) -> Iterator[str]:
    """All string literals but docstrings; the values of f-strings become `…`."""
    skipped: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            skipped.add(id(node.value))
        if isinstance(node, ast.JoinedStr):
            skipped.update(id(part) for part in node.values)
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in skipped:
            yield node.value


def all_strings() -> Iterator[tuple[str, str]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        if name not in OF_THE_COMMAND_LINE | NOT_MESSAGES:
            for text in strings(ast.parse(path.read_text("utf-8"))):
                yield name, text


NAMING = [(name, text) for name, text in all_strings() if re.search(r"`\w+=", text)]
"""Messages that name an argument."""


def arguments() -> set[str]:
    """The arguments of all public functions and methods, and the settings of tasks that `finetune` takes."""
    names = set(inspect.signature(read_pairs).parameters)
    for name in firth.__all__:
        public = getattr(firth, name)
        functions = (
            [public]
            if inspect.isfunction(public)
            else [method for _, method in inspect.getmembers(public, inspect.isfunction)]
        )
        for function in functions:
            names |= set(inspect.signature(function).parameters)
    for task in tasks.TABLE:
        names |= {field.name for field in fields(tasks.resolve(task).Config)}
    return names


def test_no_message_names_a_flag() -> None:
    for name, text in all_strings():
        found = re.search(r"(?<![\w-])--[a-z…]", text)
        assert not found or any(part in text for part in SHELL), f"{name}: {text}"


def test_many_messages_name_arguments() -> None:
    assert len(NAMING) > 60


@pytest.mark.parametrize(("name", "text"), NAMING, ids=[f"{name}: {text[:40]}" for name, text in NAMING])
def test_every_argument_exists_and_has_a_flag(name: str, text: str) -> None:
    known = {argument for table in flags().values() for argument in table}
    found = re.findall(r"`(\w+)=", text)
    for argument in found:
        assert argument in arguments(), f"{name} names `{argument}=`, which no function has"
        assert argument in known, f"{name} names `{argument}=`, which no command has"
    assert len(ARGUMENT.findall(text)) >= len(found), "an argument stands in backticks: `out=` or `seeds=5`"
    shown = in_flags(text)
    assert not re.search(r"`\w+=", shown)
    assert shown.count("--") >= len(found)


@pytest.mark.parametrize(
    ("command", "text", "shown"),
    [
        ("prepare", "choose another `out=` or", "choose another --out or"),
        ("pretrain", "use `resume=True`.", "use --resume."),
        ("finetune", "`seeds=5` would tell", "--seeds 5 would tell"),
        ("finetune", "add `encoder='bag'`", "add --encoder bag"),
        ("finetune", "with `label_columns=`, or", "with --label-column, or"),
        ("finetune", "say `kind='pairs'`", "say --kind pairs"),
        ("export", "another `kind=`", "another --to"),
        ("pretrain", "leave out `start_from=`", "leave out --from"),
        ("pretrain", "again with `tokenizer='a b/run'`", 'again with --tokenizer "a b/run"'),
        ("import", "`cased=True` or `cased=False`", "--cased or --uncased"),
        ("import", "leave out `cased=`", "leave out --cased/--uncased"),
        ("prepare", "leave out `repair=`", "leave out --repair"),
        ("", "`limits=` and `unheard_of=3`", "--limit and `unheard_of=3`"),
        ("fill", "`firth prepare` and queued=100", "`firth prepare` and queued=100"),
    ],
)
def test_arguments_become_flags(command: str, text: str, shown: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["firth", command] if command else ["firth"])
    assert in_flags(text) == shown


def test_python_and_the_command_line_each_read_their_own_names(
    data: Path, tmp_path: Path, command: Callable[..., Any], messages: Callable[[], str]
) -> None:
    with pytest.raises(BadConfig, match=r"^Give one of `steps=`, `epochs=` and `minutes=`, not several\.$"):
        firth.pretrain(data, out=tmp_path / "run", steps=1, epochs=1)
    refused = command("pretrain", data, "--out", tmp_path / "run", "--steps", 1, "--epochs", 1)
    assert refused.err == "firth: Give one of --steps, --epochs and --minutes, not several.\n"
    with pytest.raises(BadConfig, match=r"^`threads=` is for recipes that are solved without gradients"):
        firth.pretrain(data, out=tmp_path / "run", threads=2)
    assert command("pretrain", data, "--out", tmp_path / "run", "--threads", 2).err.startswith("firth: --threads is")
    (tmp_path / "rows.tsv").write_text("text\tlabel\n" + "a good day\tyes\na bad day\tno\n" * 20)
    asked = {"task": "classify", "train": tmp_path / "rows.tsv", "dev": [tmp_path / "rows.tsv"] * 2}
    with pytest.raises(BadConfig, match=r"^There are 1 `task=` but 2 `dev=`; give one for each task\.$"):
        firth.finetune(out=tmp_path / "tuned", **asked)
    with pytest.raises(BadInput, match=rf"^{tmp_path} exists and holds no run; choose another `out=`\.$"):
        firth.finetune(out=tmp_path, **asked)
    rows = tmp_path / "rows.tsv"
    options = ["--task", "classify", "--train", rows, "--dev", rows, "--dev", rows, "--out", tmp_path / "tuned"]
    refused = command("finetune", *options)
    assert refused.err == "firth: There are 1 --task but 2 --dev; give one for each task.\n"
    messages()
    firth.pretrain(data, out=tmp_path / "lsa", recipe="tf-idf", size="mini")
    assert "`size='mini'` changes nothing in tf-idf." in messages()
    shown = command("pretrain", data, "--out", tmp_path / "lsa-2", "--recipe", "tf-idf", "--size", "mini").err
    assert "\n--size mini changes nothing in tf-idf.\n" in f"\n{shown}"
