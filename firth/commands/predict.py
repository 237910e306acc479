"""The subcommand predict: what a fine-tuned model says of texts."""

import json
import logging
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from firth.commands.row_options import (
    LabelWords,
    Language,
    Pattern,
    SecondColumn,
    TaskOptions,
    TextColumn,
    check_pattern,
    given,
)
from firth.commands.shown import (
    EngineName,
    ModelFolder,
    Processes,
    check_inputs,
    check_model_first,
    json_line,
    json_row,
    line,
    weights_line,
)
from firth.console import counted
from firth.errors import BadConfig

if TYPE_CHECKING:
    from firth.inference.explaining import Explanation
    from firth.inference.model import Model
    from firth.types import Example, Prediction

log = logging.getLogger(__name__)


def predict(
    model: ModelFolder,
    texts: Annotated[list[str] | None, typer.Argument(help="Texts; a tab parts the two texts of a pair.")] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            help="Plain text, in which every line is an input, blank ones too; or rows like those of the training file."
        ),
    ] = None,
    task: Annotated[str, typer.Option(help="Which task, where the model has several.")] = "",
    text_column: TextColumn = None,
    second_column: SecondColumn = None,
    language: Language = "",
    pattern: Pattern = None,
    label_words: LabelWords = None,
    best: Annotated[int, typer.Option(help="Of a tagger, this many of the likeliest sequences for each text.")] = 1,
    wanted_precision: Annotated[
        float | None,
        typer.Option(
            min=0, max=1, help="Abstain where the held-out rows of fine-tuning say that precision would be lower."
        ),
    ] = None,
    abstain_below: Annotated[
        float | None, typer.Option(min=0, max=1, help="Abstain where the label's probability is below this.")
    ] = None,
    explain: Annotated[bool, typer.Option(help="Show which words speak for the label of a classifier.")] = False,
    explain_by: Annotated[
        str, typer.Option(help="With --explain: gradients (integrated), occlusion (leave out each word), or auto.")
    ] = "auto",
    engine: EngineName = "local",
    processes: Processes = 2,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON lines: one object for each input.")] = False,
) -> None:
    """Ask a fine-tuned model about texts: one line, or one JSON row, for each input, in order."""
    check_model_first(model, texts or ())
    columns = given(text_column=text_column, second_column=second_column)
    check_inputs(texts, file, columns=columns)
    if explain_by != "auto" and not explain:
        raise BadConfig("--explain-by says how words are found that speak for a label; add --explain.")
    if wanted_precision is not None and abstain_below is not None:
        raise BadConfig("--wanted-precision finds what --abstain-below gives; leave out one of the two.")
    _check_prompt(pattern, label_words, engine=engine)
    from firth.inference.model import load  # torch

    loaded = load(model, language=language)
    if label_words:
        loaded = loaded.prompted(words=label_words, pattern=pattern or "")
    examples = _examples(loaded, texts or (), file, task=task, columns=columns)
    if best != 1:
        _show_best_sequences(loaded.k_best(examples, best, task=task), as_json=as_json)
        return
    threshold = abstain_below or 0.0
    if wanted_precision is not None:
        threshold = loaded.abstain_threshold(wanted_precision, task=task)
    predictions = _predictions(loaded, examples, task=task, language=language, engine=engine, processes=processes)
    explanations: Sequence[Explanation | None] = [None] * len(examples)
    if explain:
        explanations = loaded.explain_examples(examples, task=task, by=explain_by)  # type: ignore[arg-type]
    rows = zip(examples, predictions, explanations, strict=True)
    _show_predictions(rows, abstain_below=threshold, as_json=as_json)


def _check_prompt(pattern: str | None, label_words: str | None, *, engine: str) -> None:
    """Raises if a prompt lacks its words, or is to be answered elsewhere."""
    check_pattern(pattern, label_words)
    if label_words and engine != "local":
        raise BadConfig("A prompt (--words) is answered on this machine; leave out --engine.")


def _examples(
    model: "Model", texts: Sequence[str], file: Path | None, *, task: str, columns: TaskOptions
) -> "Sequence[Example]":
    """The inputs: the rows of a file, or texts, in which a tab separates the texts of a pair."""
    if file is not None:
        return model.read_examples(file, task=task, **columns)
    num_blank = sum(not text.strip() for text in texts)
    if num_blank:
        are = "is" if num_blank == 1 else "are"
        log.warning(f"{counted(num_blank, 'text')} {are} blank, answered like the others.")
    inputs = [text.split("\t") if "\t" in text else text for text in texts]
    return model.examples(inputs, task=task)


def _predictions(
    model: "Model", examples: "Sequence[Example]", *, task: str, language: str, engine: str, processes: int
) -> "Sequence[Prediction]":
    """What the model predicts, in this process or by an engine."""
    from firth.engines import open_engine

    with open_engine(engine, workers=processes) as opened:
        if opened is None:
            return model.predict_examples(examples, task=task)
        from firth.inference import on_engine

        return on_engine.predict(opened, model, examples, task=task, language=language)


def _show_predictions(
    rows: "Iterable[tuple[Example, Prediction, Explanation | None]]", *, abstain_below: float, as_json: bool
) -> None:
    """Prints one line or one JSON object for each input, and below a line what speaks for the label."""
    for example, prediction, explanation in rows:
        is_sure = prediction.probability >= abstain_below
        if as_json:
            row = json_row(example, prediction, explanation)
            if abstain_below:
                row["sure"] = is_sure
            print(json_line(row))
            continue
        written = line(prediction)
        typer.echo(written if is_sure else f"(unsure)\t{written}")
        if explanation is not None:
            typer.echo(f"  {weights_line(explanation)}")


def _show_best_sequences(sequences: "list[list[Prediction]]", *, as_json: bool) -> None:
    """Prints the likeliest tag sequences of each input, which are numbered from 1."""
    for number, predictions in enumerate(sequences, 1):
        for prediction in predictions:
            if as_json:
                row = {"input": number, **asdict(prediction)}
                typer.echo(json.dumps(row, ensure_ascii=False))
            else:
                typer.echo(f"{number}\t{prediction.probability:.4f}\t{line(prediction)}")
