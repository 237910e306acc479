"""Frozen dataclasses <-> JSON and TOML, `a.b=value` overrides, and the tables of the house.

Unknown keys are refused with the nearest known one. The docstring under a field is its help text.
"""

import ast
import inspect
import json
import math
import textwrap
import tomllib
import types
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass, replace
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from firth.errors import BadConfig, BadInput

T = TypeVar("T")

_KINDS = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}


def resolve(table: Mapping[str, str], name: str, what: str) -> Any:
    """The class behind a table's name; the module is imported only now."""
    if name not in table:
        raise BadConfig(f"There is no {what} named '{name}'{_nearest(name, table)}")
    module, _, attribute = table[name].partition(":")
    return getattr(import_module(module), attribute)


def to_dict(config: Any) -> Any:
    """A config as plain JSON values."""
    if is_dataclass(config):
        return {field.name: to_dict(getattr(config, field.name)) for field in fields(config)}
    if isinstance(config, Mapping):
        return {name: to_dict(value) for name, value in config.items()}
    if isinstance(config, tuple | list):
        return [to_dict(value) for value in config]
    return config


def from_dict(cls: type[T], values: Mapping[str, Any], where: str = "") -> T:
    """The config of type `cls` with these values; defaults fill the rest."""
    known = {field.name: field for field in fields(cls)}  # type: ignore[arg-type]
    if not isinstance(values, Mapping):
        raise BadConfig(f"'{where[:-1]}' is not a value but has keys of its own: {', '.join(known)}.")
    hints = get_type_hints(cls)
    built = {}
    for name, value in values.items():
        if name not in known:
            raise BadConfig(f"'{where}{name}' is not a known key{_nearest(name, known)}")
        parts = known[name].metadata.get("table")
        built[name] = (
            _parts(parts, value, f"{where}{name}.") if parts else _convert(hints[name], value, f"{where}{name}")
        )
    try:
        return cls(**built)
    except TypeError as error:
        raise BadConfig(f"{cls.__qualname__}: {error}.") from None


def override(config: T, changes: Iterable[str]) -> T:
    """`config` with `a.b=value` changes applied."""
    values = to_dict(config)
    for change in changes:
        path, equals, text = change.partition("=")
        if not equals:
            raise BadConfig(f"'{change}' is not of the form key=value.")
        place, *_, last = [values, *path.split(".")]
        for name in path.split(".")[:-1]:
            if not isinstance(place, dict) or name not in place:
                raise BadConfig(f"'{path}' is not a known key{_nearest(name, place, _elsewhere(values, last))}")
            place = place[name]
        if not isinstance(place, dict) or last not in place:
            raise BadConfig(f"'{path}' is not a known key{_nearest(last, place, _elsewhere(values, last))}")
        place[last] = read_value(text)
    return from_dict(type(config), values)


def check_shares(**values: float) -> None:
    """Shares that leave something over."""
    for name, value in values.items():
        if not 0 <= value < 1:
            raise BadConfig(f"{name} must be at least 0 and below 1; it is {value}.")


def check_rates(**values: float) -> None:
    """How often something happens, always included."""
    for name, value in values.items():
        if not 0 <= value <= 1:
            raise BadConfig(f"{name} must be from 0 to 1; it is {value}.")


def check_counts(**values: int) -> None:
    for name, value in values.items():
        if value < 1:
            raise BadConfig(f"{name} must be at least 1; it is {value}.")


def load_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise BadInput(f"{path} does not exist.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadConfig(f"{path} is not valid TOML ({error}).") from None


def to_toml(values: Mapping[str, Any], prefix: str = "") -> str:
    """TOML of nested dicts; a key whose value is None is left out (its default stands)."""
    lines = [f"{k} = {json.dumps(v, ensure_ascii=False)}" for k, v in values.items() if _is_leaf(v)]
    for name, value in values.items():
        if isinstance(value, Mapping):
            lines += ["", f"[{prefix}{name}]", to_toml(value, f"{prefix}{name}.")]
    return "\n".join(lines).strip("\n")


@cache
def describe(cls: type) -> Mapping[str, str]:
    """The sentence under each field of a config class, inherited ones included."""
    found: dict[str, str] = {}
    for one in reversed([one for one in cls.__mro__ if is_dataclass(one)]):
        body = ast.parse(textwrap.dedent(inspect.getsource(one))).body[0].body  # type: ignore[attr-defined]
        found |= {
            field.target.id: " ".join(str(text.value.value).split())
            for field, text in pairwise(body)
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
            if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
        }
    return found


def part_config(table_module: str, name: str) -> Any:
    """A row's config class; from the room's `CONFIGS` if it stands there, so that the row's module is not imported."""
    room = import_module(table_module)
    apart = getattr(room, "CONFIGS", {})
    return resolve(apart, name, "part") if name in apart else resolve(room.TABLE, name, "part").Config


def _parts(table_module: str, value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        first = next(iter(import_module(table_module).TABLE))
        raise BadConfig(f"'{where[:-1]}' must name its parts, as in {{{first}: {{}}}}.")
    return {
        # `classify-2` is a second part of the kind `classify`.
        name: from_dict(part_config(table_module, name.partition("-")[0]), inner, f"{where}{name}.")
        for name, inner in value.items()
    }


def _convert(hint: Any, value: Any, where: str) -> Any:
    if is_dataclass(hint):
        return from_dict(hint, value, f"{where}.")  # type: ignore[arg-type]
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        if value is None and type(None) in arguments:
            return None
        return _convert(next(a for a in arguments if a is not type(None)), value, where)
    if origin is Literal:
        if value not in arguments:
            raise BadConfig(f"'{where}' must be one of {', '.join(map(str, arguments))}; it is {value!r}.")
        return value
    if origin is tuple:
        values = value if isinstance(value, list | tuple) else [value]
        return tuple(_convert(arguments[0], one, where) for one in values)
    if hint is str and isinstance(value, int | float):
        return json.dumps(value)  # a name that looks like a number, such as the label 1
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if hint in _KINDS and type(value) is not hint:
        raise BadConfig(f"'{where}' must be {_KINDS[hint]}; it is {json.dumps(value, ensure_ascii=False)}.")
    if hint is float and not math.isfinite(value):
        raise BadConfig(f"'{where}' must be a finite number; it is {value}.")
    return value


def read_value(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return {"True": True, "False": False, "None": None}.get(text, text)


def _is_leaf(value: Any) -> bool:
    return value is not None and not isinstance(value, Mapping)


def _elsewhere(values: Mapping[str, Any], name: str) -> str:
    """The shortest path to a key of this name, wherever it stands."""

    def places(inside: Mapping[str, Any], before: str) -> Iterable[str]:
        for key, value in inside.items():
            if key == name:
                yield before + key
            if isinstance(value, Mapping):
                yield from places(value, f"{before}{key}.")

    return min(places(values, ""), key=lambda path: path.count("."), default="")


def _nearest(name: str, known: Any, elsewhere: str = "") -> str:
    names = list(known) if isinstance(known, Mapping) else []
    close = [*get_close_matches(name, names, n=1), *filter(None, [elsewhere])]
    return f"; did you mean '{close[0]}'?" if close else f" (known: {', '.join(names)})." if names else "."


__all__ = ["describe", "from_dict", "load_toml", "override", "read_value", "replace", "resolve", "to_dict", "to_toml"]
