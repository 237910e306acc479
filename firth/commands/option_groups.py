"""A dataclass of options as one parameter of a command: typer sees an option for each of its fields."""

import inspect
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from functools import wraps
from inspect import Parameter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def with_groups(command: Callable[..., None]) -> Callable[..., None]:
    """The command as typer needs it: in place of a parameter that is a dataclass, a parameter for each field."""
    signature = inspect.signature(command)
    groups: dict[str, type[DataclassInstance]] = {}
    parameters: list[Parameter] = []
    for parameter in signature.parameters.values():
        kind = parameter.annotation
        if isinstance(kind, type) and is_dataclass(kind):
            groups[parameter.name] = kind
            parameters += _options(kind)
        else:
            parameters.append(parameter)
    if not groups:
        return command

    @wraps(command)
    def grouped(**options: object) -> None:
        for name, group in groups.items():
            values = {field.name: options.pop(field.name) for field in fields(group)}
            options[name] = group(**values)
        command(**options)

    # typer reads both.
    grouped.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    grouped.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return grouped


def _options(group: "type[DataclassInstance]") -> Iterator[Parameter]:
    """A keyword-only parameter for each field of a dataclass."""
    for field in fields(group):
        yield Parameter(field.name, Parameter.KEYWORD_ONLY, default=field.default, annotation=field.type)
