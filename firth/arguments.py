"""A decorator for the public functions: an argument of a wrong kind raises one sentence, before any work.

In: a function whose arguments are annotated. Out: the same function. Paths, texts and lists of them are looked at;
numbers are checked by the functions themselves, which know their bounds.
"""

import inspect
import os
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, Union, get_args, get_origin

from firth.errors import BadConfig, BadInput

P = ParamSpec("P")
Result = TypeVar("Result")

LISTS = (Sequence, Iterable)


def checked(function: Callable[P, Result]) -> Callable[P, Result]:
    """The function, which first looks at its arguments."""
    signature = inspect.signature(function)

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> Result:
        try:
            given = signature.bind(*args, **kwargs).arguments
        except TypeError:
            given = {}  # the call itself says which argument is missing or unknown
        for name, value in given.items():
            _check(name, value, signature.parameters[name].annotation)
        return function(*args, **kwargs)

    return call


def _check(name: str, value: object, annotation: Any) -> None:
    kinds = _kinds(annotation)
    if not {str, Path} & set(kinds) or _fits(value, kinds):
        return
    if name == "out":
        raise BadConfig(f"`out=` is the folder to write; it is {value!r:.60}.")
    what = "a path" if Path in kinds else "a text"
    if any(get_origin(kind) in LISTS for kind in kinds):
        what += " or a list of them"
    raise BadInput(f"`{name}=` takes {what}; it is {value!r:.60}.")


def _kinds(annotation: Any) -> tuple[Any, ...]:
    """The types of a union, or the only type."""
    if get_origin(annotation) in (Union, types.UnionType):
        return get_args(annotation)
    return (annotation,)


def _fits(value: object, kinds: Iterable[Any]) -> bool:
    return any(_is_of(value, kind) for kind in kinds)


def _is_of(value: object, kind: Any) -> bool:
    """Whether a value is of one of the types that the annotations use."""
    if kind is None or kind is type(None):
        return value is None
    if kind is Path:
        return isinstance(value, os.PathLike)
    origin = get_origin(kind)
    if origin is Mapping:
        return isinstance(value, Mapping)
    if origin in LISTS:
        return _is_list_of(value, _kinds(get_args(kind)[0]))
    return isinstance(value, kind) if isinstance(kind, type) else True


def _is_list_of(value: object, kinds: tuple[Any, ...]) -> bool:
    """Whether a value is a list of these types; what another iterable holds is not looked at."""
    if isinstance(value, list | tuple):
        # Rows that Python wrote are no files; the functions that read rows say so.
        return all(isinstance(one, Mapping) or _fits(one, kinds) for one in value)
    return isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping)
