"""What subcommands share: options that many take, and figures as lines or as one JSON object."""

import json
import math
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")]
ModelFolder = Annotated[Path, typer.Argument(help="A model folder: a finished run, or a Hugging Face BERT folder.")]


def show(values: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(_finite(values), ensure_ascii=False, default=_plain))
        return
    for name, value in values.items():
        typer.echo(
            f"{name.replace('_', ' '):<24} {value:,.4f}"
            if isinstance(value, float)
            else f"{name.replace('_', ' '):<24} {value}"
        )


def line(prediction: Any) -> str:
    """A prediction for reading: what, how sure, and where in the text."""
    if prediction.text is not None:
        return str(prediction.text)
    if prediction.spans:
        return "\t".join(f"{s.text} [{s.label} {s.start}-{s.end} {s.probability:.2f}]" for s in prediction.spans)
    label = prediction.label
    if isinstance(label, float):
        return f"{label:.4f}"
    shown = ", ".join(map(str, label)) if isinstance(label, tuple | list) else str(label)
    return f"{shown or '(none)'}\t{prediction.probability:.4f}"


def _finite(value: Any) -> Any:
    """JSON has no NaN: what is undefined is null."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {name: _finite(inner) for name, inner in value.items()}
    return [_finite(inner) for inner in value] if isinstance(value, list | tuple) else value


def _plain(value: Any) -> Any:
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else str(value)
