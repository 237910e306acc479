"""Frozen dataclasses <-> JSON and TOML, `a.b=value` overrides, and the tables that map names to classes.

Unknown keys are refused with the nearest known one. The docstring under a field is its help text.
"""

import ast
import inspect
import json
import math
import textwrap
import tomllib
import types
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from itertools import pairwise
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from firth.errors import BadConfig, BadInput

T = TypeVar("T")

_TYPE_NAMES = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}


def resolve(table: Mapping[str, str], name: str, what: str) -> Any:
    """The class that a table has under a name. Its module is imported only now. `what` is for the error message."""
    if name not in table:
        raise BadConfig(f"There is no {what} named '{name}'{_suggestion(name, table)}")
    module_name, _, attribute = table[name].partition(":")
    return getattr(import_module(module_name), attribute)


def to_dict(config: Any) -> Any:
    """A config as plain JSON values."""
    if is_dataclass(config):
        return {field.name: to_dict(getattr(config, field.name)) for field in fields(config)}
    if isinstance(config, Mapping):
        return {name: to_dict(value) for name, value in config.items()}
    if isinstance(config, tuple | list):
        return [to_dict(value) for value in config]
    return config


def from_dict(cls: type[T], values: Mapping[str, object], where: str = "") -> T:
    """A config of type `cls` with these values; other fields have their defaults.

    `where` is the path to the config inside a larger one, with a dot at its end.
    """
    known = {field.name: field for field in fields(cls)}  # type: ignore[arg-type]
    if not isinstance(values, Mapping):
        raise BadConfig(f"'{where[:-1]}' is not a value but has keys of its own: {', '.join(known)}.")
    hints = get_type_hints(cls)
    arguments: dict[str, object] = {}
    for name, value in values.items():
        path = f"{where}{name}"
        if name not in known:
            raise BadConfig(f"'{path}' is not a known key{_suggestion(name, known, where)}")
        table_module = known[name].metadata.get("table")
        if table_module:
            arguments[name] = _parts(table_module, value, path)
        else:
            arguments[name] = _convert(hints[name], value, path)
    try:
        return cls(**arguments)
    except TypeError as error:
        raise BadConfig(f"{cls.__qualname__}: {error}.") from None


def has_field(cls: type, name: str) -> bool:
    """Whether a config class has a field of this name."""
    return any(field.name == name for field in fields(cls))


def override(config: T, changes: Iterable[str], *, unused: Collection[str] = ()) -> T:
    """`config` with `a.b=value` changes applied. Keys of the parts in `unused` are never suggested for a wrong key."""
    values = to_dict(config)
    for change in changes:
        path, equals, text = change.partition("=")
        if not equals:
            raise BadConfig(f"'{change}' is not of the form key=value.")
        names = path.split(".")
        inside = values
        for place, name in enumerate(names):
            if not isinstance(inside, dict) or name not in inside:
                used = {part: value for part, value in values.items() if part not in unused}
                raise BadConfig(f"'{path}' is not a known key{_hint(names, place, inside, used)}")
            if place < len(names) - 1:
                inside = inside[name]
        inside[names[-1]] = read_value(text)
    return from_dict(type(config), values)


def _hint(names: Sequence[str], place: int, inside: object, values: Mapping[str, object]) -> str:
    """The end of a sentence about a path whose name at `place` is not known: the path that was probably meant.

    `inside` is the part of `values` that the names before it lead to.
    """
    prefix = "".join(f"{name}." for name in names[:place])
    rest = "".join(f".{name}" for name in names[place + 1 :])
    elsewhere = _path_to_key(values, names[-1])
    nearest = _nearest(names[place], inside)
    # A misspelt parent comes before the right key in another place; a misspelt key comes after it.
    if rest and nearest and _has_path(values, f"{prefix}{nearest}{rest}"):
        return f"; did you mean '{prefix}{nearest}{rest}'?"
    if elsewhere:
        return f"; did you mean '{elsewhere}'?"
    return _suggestion(names[place], inside, prefix)


def _has_path(values: object, path: str) -> bool:
    """Whether nested dicts have a key at this path, such as `train.optim.rate`."""
    for name in path.split("."):
        if not isinstance(values, Mapping) or name not in values:
            return False
        values = values[name]
    return True


def check_shares(**values: float) -> None:
    """Raises unless every value is at least 0 and below 1."""
    for name, value in values.items():
        if not 0 <= value < 1:
            raise BadConfig(f"{name} must be at least 0 and below 1; it is {value}.")


def check_rates(**values: float) -> None:
    """Raises unless every value is a probability, from 0 to 1."""
    for name, value in values.items():
        if not 0 <= value <= 1:
            raise BadConfig(f"{name} must be from 0 to 1; it is {value}.")


def check_counts(**values: int) -> None:
    """Raises unless every value is at least 1."""
    for name, value in values.items():
        if value < 1:
            raise BadConfig(f"{name} must be at least 1; it is {value}.")


def check_limits(**values: Any) -> None:
    """Raises unless every argument that is given is a finite number above 0."""
    for name, value in values.items():
        is_limit = isinstance(value, Real) and 0 < float(value) < math.inf
        if value is not None and not is_limit:
            raise BadConfig(f"`{name}=` must be a finite number above 0; it is {value!r}.")


def check_whole(**values: Any) -> None:
    """Raises unless every argument that is given is a whole number of at least 1."""
    for name, value in values.items():
        is_whole = isinstance(value, Integral) and int(value) >= 1
        if value is not None and not is_whole:
            raise BadConfig(f"`{name}=` must be a whole number of at least 1; it is {value!r}.")


def load_toml(path: Path) -> dict[str, Any]:
    """The content of a TOML file."""
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise BadInput(f"{path} does not exist.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadConfig(f"{path} is not valid TOML ({error}).") from None


def to_toml(values: Mapping[str, object], prefix: str = "") -> str:
    """Nested dicts as TOML; a key whose value is None is left out, so that it has its default when read."""
    lines: list[str] = []
    # TOML wants the plain keys of a table before its subtables.
    for name, value in values.items():
        if value is not None and not isinstance(value, Mapping):
            lines.append(f"{name} = {json.dumps(value, ensure_ascii=False)}")
    for name, value in values.items():
        if isinstance(value, Mapping):
            lines.append("")
            lines.append(f"[{prefix}{name}]")
            lines.append(to_toml(value, f"{prefix}{name}."))
    return "\n".join(lines).strip("\n")


@cache
def describe(cls: type) -> Mapping[str, str]:
    """The docstring under each field of a config class, inherited fields included."""
    descriptions: dict[str, str] = {}
    # Base classes first, so that a subclass can describe a field again.
    for base in reversed(cls.__mro__):
        if is_dataclass(base):
            descriptions.update(_field_docstrings(base))
    return descriptions


def _field_docstrings(cls: type) -> dict[str, str]:
    """The docstrings in the source of one class: Python itself does not keep those of fields."""
    source = textwrap.dedent(inspect.getsource(cls))
    class_definition = ast.parse(source).body[0]
    assert isinstance(class_definition, ast.ClassDef)
    docstrings: dict[str, str] = {}
    for statement, following in pairwise(class_definition.body):
        if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
            continue
        if not isinstance(following, ast.Expr) or not isinstance(following.value, ast.Constant):
            continue
        text = str(following.value.value)
        docstrings[statement.target.id] = " ".join(text.split())
    return docstrings


def part_config(table_module: str, name: str) -> Any:
    """The config class of a part: an encoder, objective, task or tokenizer.

    In: a package with a `TABLE` of classes, and a name in it. Some packages list configs in `CONFIGS`. Those are used
    first, because the part's own module, which may import torch, is then not imported.
    """
    package = import_module(table_module)
    configs = getattr(package, "CONFIGS", {})
    if name in configs:
        return resolve(configs, name, "part")
    return resolve(package.TABLE, name, "part").Config


def _parts(table_module: str, value: object, where: str) -> dict[str, object]:
    """The configs of parts, by name."""
    if not isinstance(value, Mapping):
        first = next(iter(import_module(table_module).TABLE))
        raise BadConfig(f"'{where}' must name its parts, as in {{{first}: {{}}}}.")
    configs: dict[str, object] = {}
    for name, inner in value.items():
        # `classify-2` is a second part of the kind `classify`.
        kind = name.partition("-")[0]
        configs[name] = from_dict(part_config(table_module, kind), inner, f"{where}.{name}.")
    return configs


def _convert(hint: Any, value: object, where: str) -> object:
    """A JSON value as the type of a field; raises if it does not fit."""
    if is_dataclass(hint):
        return from_dict(hint, value, f"{where}.")  # type: ignore[arg-type]
    origin = get_origin(hint)
    arguments = get_args(hint)
    if origin in (Union, types.UnionType):
        return _convert_union(arguments, value, where)
    if origin is Literal:
        if value not in arguments:
            allowed = ", ".join(map(str, arguments))
            raise BadConfig(f"'{where}' must be one of {allowed}; it is {value!r}.")
        return value
    if origin is tuple:
        # A single value is a tuple of one.
        values = value if isinstance(value, list | tuple) else [value]
        return tuple(_convert(arguments[0], one, where) for one in values)
    return _convert_scalar(hint, value, where)


def _convert_union(arguments: tuple[object, ...], value: object, where: str) -> object:
    """The value of an optional field: None, or the first type that is not None."""
    none_type = type(None)
    if value is None and none_type in arguments:
        return None
    types_of_value = [argument for argument in arguments if argument is not none_type]
    return _convert(types_of_value[0], value, where)


def _convert_scalar(hint: type, value: object, where: str) -> object:
    """A number, text or truth value."""
    if hint is str and isinstance(value, int | float):
        return json.dumps(value)  # a name that looks like a number, such as the label 1
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if hint in _TYPE_NAMES and type(value) is not hint:
        raise BadConfig(f"'{where}' must be {_TYPE_NAMES[hint]}; it is {json.dumps(value, ensure_ascii=False)}.")
    if hint is float and isinstance(value, float) and not math.isfinite(value):
        raise BadConfig(f"'{where}' must be a finite number; it is {value}.")
    return value


def read_value(text: str) -> Any:
    """The value in a command line's `key=value`: JSON or one of Python's constants, else the text itself."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        constants = {"True": True, "False": False, "None": None}
        return constants.get(text, text)


def key_names(values: Mapping[str, object]) -> set[str]:
    """All keys of nested dicts, without the paths to them."""
    names = set(values)
    for value in values.values():
        if isinstance(value, Mapping):
            names |= key_names(value)
    return names


def _path_to_key(values: Mapping[str, object], name: str) -> str:
    """The path to a key with this name, wherever it is in nested dicts: the one with the fewest dots, or ""."""
    paths = _paths_to_key(values, name, "")
    return min(paths, key=lambda path: path.count("."), default="")


def _paths_to_key(values: Mapping[str, object], name: str, prefix: str) -> Iterator[str]:
    for key, value in values.items():
        if key == name:
            yield prefix + key
        if isinstance(value, Mapping):
            yield from _paths_to_key(value, name, f"{prefix}{key}.")


def _nearest(name: str, known: object) -> str:
    """The key of a dict that is most like a name, or "" if none is."""
    if not isinstance(known, Mapping):
        return ""
    matches = get_close_matches(name, list(known), n=1)
    return matches[0] if matches else ""


def _suggestion(name: str, known: object, prefix: str = "") -> str:
    """The end of a sentence about an unknown name: the nearest known one after `prefix`, or a list of all of them."""
    nearest = _nearest(name, known)
    if nearest:
        return f"; did you mean '{prefix}{nearest}'?"
    if isinstance(known, Mapping) and known:
        return f" (known: {', '.join(known)})."
    return "."


__all__ = ["describe", "from_dict", "load_toml", "override", "read_value", "replace", "resolve", "to_dict", "to_toml"]
