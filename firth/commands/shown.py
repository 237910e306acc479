"""What subcommands share: options that many of them take, and how results are printed."""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from firth import models
from firth.commands.flags import in_flags
from firth.errors import BadConfig, BadInput
from firth.files import finite

if TYPE_CHECKING:
    from firth.inference.explaining import Explanation
    from firth.types import Example, Prediction, Span

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")]
Device = Annotated[str | None, typer.Option(help="cpu or cuda. [default: cuda where there is one]")]
EngineName = Annotated[
    str, typer.Option("--engine", help="Where the work is done: local, or ray: a cluster, or as many processes here.")
]
Processes = Annotated[int, typer.Option(help="Worker processes of --engine ray.")]
MODEL_HELP = (
    "A model folder (a finished run, or one in Hugging Face's layout), or a name: en-small, zh-small. "
    "A folder of that name comes first."
)
DEFAULT_MODEL = "[default: en-small or zh-small, by the language of the text]"
ModelFolder = Annotated[Path, typer.Argument(help=MODEL_HELP)]
OptionalModel = Annotated[Path | None, typer.Argument(help=f"{MODEL_HELP} {DEFAULT_MODEL}")]
LINE_SEPARATORS = "\x85\u2028\u2029"
SHOWN_WEIGHTS = 8
"""Words of an explanation that a line shows."""
LABEL_WIDTH = 24
"""Characters of a table's first column."""


def show(values: Mapping[str, object], *, as_json: bool) -> None:
    """Prints results as a table, or as one JSON object. Values that are not finite become null in JSON."""
    if as_json:
        print(json.dumps(finite(dict(values)), ensure_ascii=False, default=_as_json))
        return
    for text in _table(values):
        typer.echo(text)


def _as_json(value: object) -> object:
    """A value that json does not know, as one that it knows."""
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return str(value)


def _table(values: Mapping[str, object], indent: str = "") -> Iterator[str]:
    """A line for each value; the parts of a mapping follow below its name, indented."""
    for name, value in values.items():
        label = indent + name.replace("_", " ")
        if isinstance(value, Mapping) and value:
            yield label
            yield from _table(value, f"{indent}  ")
        else:
            yield f"{label:<{LABEL_WIDTH}} {_cell(value)}"


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return _number(value)
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, list | tuple | Mapping):
        cells = [_cell(one) for one in value]
        return ", ".join(cells) or "none"
    return str(value) or "-"


def _number(value: float) -> str:
    """Four decimals, but none for large numbers, and three digits for small ones."""
    size = abs(value)
    if size >= 1000:
        return f"{value:,.0f}"
    if 0 < size < 1e-3:
        return f"{value:.3g}"
    return f"{value + 0.0:,.4f}"  # -0.0 is shown as zero


def echo_messages(lines: Iterable[str]) -> None:
    """Prints sentences of the package, which may name arguments."""
    typer.echo(in_flags("\n".join(lines)))


def split_model(arguments: Sequence[str], *, rest: Sequence[str]) -> tuple[str | None, list[str]]:
    """The model, or None if none is named, and the arguments after it. `rest` are the names of those arguments."""
    wanted = len(rest)
    given = list(arguments)
    if len(given) == wanted:
        return None, given
    if len(given) == wanted + 1:
        check_model_first(given[0], given[1:])
        return given[0], given[1:]
    raise BadConfig(f"Give {' '.join(rest)}, or a model and {' '.join(rest)}; there are {len(given)} arguments.")


def check_model_first(model: str | Path, others: Sequence[str]) -> None:
    """Raises if the model was given after the texts."""
    for other in others:
        if models.is_model(other) and not models.is_model(model):
            raise BadConfig(f"The model comes first: '{other}' is a model, and '{model}' is not; swap the two.")


def check_inputs(texts: Sequence[str] | None, file: Path | None, *, columns: Collection[str] = ()) -> None:
    """Raises unless there are either texts or a file that exists; before a model is loaded, which takes seconds.

    `columns` are those that the user named, which only a file has.
    """
    if bool(texts) == (file is not None):
        raise BadConfig("Give texts or a --file, one of the two.")
    if file is not None and str(file) != "-" and not file.exists():
        raise BadInput(f"{file} does not exist.")
    for text in texts or ():
        if _is_file(text):
            raise BadConfig(f"'{text}' is a file; give it with --file.")
    if columns and file is None:
        raise BadConfig("Columns are those of a --file; leave them out.")


def _is_file(text: str) -> bool:
    """Whether a text is meant as the name of a file: a word such as LICENSE may be a text."""
    try:
        path = Path(text)
        return bool(path.suffix or "/" in text) and path.is_file()
    except (OSError, ValueError):
        # It is too long for a name, or has a NUL.
        return False


def line(prediction: "Prediction") -> str:
    """A prediction as one line: the label, its probability, and where in the text it was found."""
    label = prediction.label
    if prediction.text is not None:  # the text says it all
        if prediction.text:
            return prediction.text
        return "(none)" if label else ""
    if prediction.spans:
        return "\t".join(_span(span) for span in prediction.spans)
    if isinstance(label, float):
        return f"{label:.4f}"
    names = [str(name) for name in label] if isinstance(label, tuple | list) else [str(label)]
    shown = ", ".join(names) or "(none)"
    return f"{shown}\t{prediction.probability:.4f}"


def _span(span: "Span") -> str:
    return f"{span.text} [{span.label} {span.start}-{span.end} {span.probability:.2f}]"


def json_row(example: "Example", prediction: "Prediction", explanation: "Explanation | None") -> dict[str, object]:
    """A prediction with the input that it is about; `text` only where the prediction is a text of its own."""
    row: dict[str, object] = {"input": example.texts[0] if len(example.texts) == 1 else list(example.texts)}
    row |= asdict(prediction)
    if prediction.text is None:
        del row["text"]
    if explanation is not None:
        row["explanation"] = asdict(explanation)
    return row


def json_line(row: dict[str, object]) -> str:
    """One JSON object on one line, whatever characters its texts have."""
    written = json.dumps(finite(row), ensure_ascii=False)
    # JSON lets these stand in a text, but many programs break lines at them.
    for separator in LINE_SEPARATORS:
        written = written.replace(separator, f"\\u{ord(separator):04x}")
    return written


def weights_line(explanation: "Explanation") -> str:
    """The words with the largest weights, for the label (+) or against it (-)."""
    words = [f"{word.word} {round(word.weight, 3) + 0.0:+.3f}" for word in explanation.top(SHOWN_WEIGHTS)]
    return f"{explanation.method}: {', '.join(words) or 'no words'}"
