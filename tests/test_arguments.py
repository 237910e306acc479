"""Public functions called with arguments of a wrong kind: one sentence, and no traceback from deep inside."""

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import firth
from firth.arguments import checked
from firth.errors import BadConfig, BadInput, FirthError

WRONG = (None, 3, ["x"], {"a": 1}, b"x")
OTHERS = ("demo", "load", "plan", "serve")
"""Functions that need no argument, or check it themselves."""
FUNCTIONS = [name for name in firth.__all__ if inspect.isfunction(getattr(firth, name)) and name not in OTHERS]


def wrong_calls(function: Callable[..., Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Calls with one wrong value each, for the parameters that must be given."""
    needed = [one.name for one in inspect.signature(function).parameters.values() if one.default is one.empty]
    named = [name for name in needed if name not in ("options", "add")]
    for wrong in named:
        for value in WRONG:
            if value == ["x"] and wrong in ("texts", "text"):
                continue
            arguments: dict[str, Any] = dict.fromkeys(needed, "there")
            arguments.pop("options", None)
            yield wrong, {**arguments, wrong: value}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_wrong_kind_of_argument_is_one_sentence(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    function = getattr(firth, name)
    for wrong, arguments in wrong_calls(function):
        with pytest.raises(FirthError, match=f"^`{wrong}=` (takes|is the folder)"):
            function(**arguments)
    assert not list(tmp_path.iterdir())


def test_lists_paths_and_what_may_be_left_out_pass() -> None:
    @checked
    def gather(texts: str | Path | list[str], *, out: str | Path = "", then: str | None = None) -> list[Any]:
        return [texts, out, then]

    assert gather("a", out=Path("b")) == ["a", Path("b"), None]
    with pytest.raises(BadInput, match=r"^`then=` takes a text; it is 3\.$"):
        gather("a", then=3)  # type: ignore[arg-type]
    with pytest.raises(BadConfig, match=r"^`out=` is the folder to write; it is None\.$"):
        gather("a", out=None)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'texts'"):
        gather()  # type: ignore[call-arg]


def test_a_list_may_be_any_iterable_and_its_elements_are_looked_at(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("One line. Another line.\n\nA third one.\n" * 5)
    firth.prepare((path for path in [tmp_path / "a.txt"]), out=tmp_path / "data", vocab_size=20, processes=0)  # type: ignore[arg-type]
    assert (tmp_path / "data").is_dir()
    with pytest.raises(BadInput, match=r"^`texts=` takes a path or a list of them; it is \['a.txt', None\]\.$"):
        firth.prepare(["a.txt", None], out=tmp_path / "other")  # type: ignore[list-item]
