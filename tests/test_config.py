"""Configs to JSON and TOML and back, changes by key, and mistakes named."""

import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest

from firth import lineage
from firth.config import describe, from_dict, load_toml, override, resolve, to_dict, to_toml
from firth.errors import BadConfig, BadInput
from firth.lineage import Recipe


@dataclass(frozen=True)
class Inner:
    rate: float = 0.1
    """How fast."""
    kind: Literal["a", "b"] = "a"
    """Which one
    of two."""


@dataclass(frozen=True)
class Outer:
    name: str = "x"
    """What it is called."""
    count: int = 3
    """How many."""
    on: bool = False
    """Whether."""
    sizes: tuple[int, ...] = (1, 2)
    """How large."""
    perhaps: int | None = None
    """Maybe."""
    inner: Inner = field(default_factory=Inner)
    """More."""


def test_round_trips() -> None:
    config = Outer('quote " and 中文\n', 5, True, (4, 5), 7, Inner(1e-12, "b"))
    assert from_dict(Outer, to_dict(config)) == config
    assert from_dict(Outer, tomllib.loads(to_toml(to_dict(config)))) == config
    assert from_dict(Outer, tomllib.loads(to_toml(to_dict(Outer())))) == Outer()
    assert from_dict(Outer, {}) == Outer()


def test_changes() -> None:
    changes = ["count=9", "inner.rate=2", "inner.kind=b", "on=True", "name=5x", "sizes=[7]", "perhaps=4"]
    assert override(Outer(), changes) == Outer("5x", 9, True, (7,), 4, Inner(2.0, "b"))
    assert override(Outer(perhaps=3), ["perhaps=null", "on=false"]) == Outer()
    assert override(Outer(), ["name=a=b"]).name == "a=b"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("coutn=1", "'coutn' is not a known key; did you mean 'count'?"),
        ("inner.rat=1", "'inner.rat' is not a known key; did you mean 'inner.rate'?"),
        ("iner.rate=1", "'iner.rate' is not a known key; did you mean 'inner.rate'?"),
        ("inner.count=1", "'inner.count' is not a known key; did you mean 'count'?"),
        ("name.kind=a", "'name.kind' is not a known key; did you mean 'inner.kind'?"),
        ("inner.rate.x=1", "'inner.rate.x' is not a known key."),
        ("zzz=1", "'zzz' is not a known key (known: name, count, on, sizes, perhaps, inner)."),
        ("count", "'count' is not of the form key=value."),
        ("count=many", "'count' must be a whole number; it is \"many\"."),
        ("count=1.5", "'count' must be a whole number; it is 1.5."),
        ("count=true", "'count' must be a whole number; it is true."),
        ("on=1", "'on' must be true or false; it is 1."),
        ("inner.kind=c", "'inner.kind' must be one of a, b; it is 'c'."),
        ("inner=5", "'inner' is not a value but has keys of its own: rate, kind."),
    ],
)
def test_mistakes_are_named(change: str, says: str) -> None:
    with pytest.raises(BadConfig) as raised:
        override(Outer(), [change])
    assert str(raised.value) == says


def test_parts_by_table() -> None:
    recipe = lineage.make("bert", "tiny")
    changed = override(recipe, ["encoder.bert.width=256", 'objectives={"masked_lm": {}}'])
    assert changed.encoder["bert"].width == 256
    assert list(changed.objectives) == ["masked_lm"]
    with pytest.raises(BadConfig, match=r"'encoder\.bert\.widht' is not .*; did you mean 'encoder\.bert\.width'"):
        override(recipe, ["encoder.bert.widht=256"])
    with pytest.raises(BadConfig, match="no part named 'masked'; did you mean 'masked_lm'"):
        from_dict(Recipe, {"objectives": {"masked": {}}})
    with pytest.raises(BadConfig, match="must name its parts"):
        from_dict(Recipe, {"objectives": "masked_lm"})
    with pytest.raises(BadConfig, match="keys of its own"):
        from_dict(Recipe, {"objectives": {"masked_lm": 3}})


def test_tables() -> None:
    assert resolve({"outer": "collections:OrderedDict"}, "outer", "thing").__name__ == "OrderedDict"
    with pytest.raises(BadConfig, match=r"There is no thing named 'outr'; did you mean 'outer'\?"):
        resolve({"outer": "collections:OrderedDict"}, "outr", "thing")


def test_files(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="does not exist"):
        load_toml(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("a = = 1")
    with pytest.raises(BadConfig, match=r"bad\.toml is not valid TOML"):
        load_toml(tmp_path / "bad.toml")


def test_the_sentence_under_a_field_describes_it() -> None:
    assert describe(Inner) == {"rate": "How fast.", "kind": "Which one of two."}
