"""What subcommands share: options that many take, and figures as lines or as one JSON object."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from firth.files import finite

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")]
ModelFolder = Annotated[
    Path, typer.Argument(help="A model folder: a finished run, or a folder in Hugging Face's layout.")
]


def show(values: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(finite(values), ensure_ascii=False, default=_plain))
        return
    for text in _table(values):
        typer.echo(text)


def _table(values: Mapping[str, Any], indent: str = "") -> Iterator[str]:
    """A line for each value; what has parts stands above them."""
    for name, value in values.items():
        label = indent + name.replace("_", " ")
        if isinstance(value, Mapping) and value:
            yield label
            yield from _table(value, f"{indent}  ")
        else:
            yield f"{label:<24} {_cell(value)}"


def _cell(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "-"}[value]
    if isinstance(value, float):
        if abs(value) >= 1000:
            return f"{value:,.0f}"
        return f"{value:,.4f}" if not value or abs(value) >= 1e-3 else f"{value:.3g}"
    if isinstance(value, list | tuple | Mapping):
        return ", ".join(map(_cell, value)) or "none"
    return f"{value:,}" if isinstance(value, int) else str(value) or "-"


def line(prediction: Any) -> str:
    """A prediction for reading: what, how sure, and where in the text."""
    if prediction.text is not None:
        return prediction.text or ("(none)" if prediction.label else "")
    if prediction.spans:
        return "\t".join(f"{s.text} [{s.label} {s.start}-{s.end} {s.probability:.2f}]" for s in prediction.spans)
    label = prediction.label
    if isinstance(label, float):
        return f"{label:.4f}"
    shown = ", ".join(map(str, label)) if isinstance(label, tuple | list) else str(label)
    return f"{shown or '(none)'}\t{prediction.probability:.4f}"


def _plain(value: Any) -> Any:
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else str(value)
