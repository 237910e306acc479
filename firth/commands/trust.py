"""Subcommands about trust: drift; and what `evaluate` says about two models and about weak slices."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from firth.commands.shown import DEFAULT_MODEL, MODEL_HELP, Json, show
from firth.errors import BadConfig

if TYPE_CHECKING:
    from firth.trust.drift import Side


def evaluate_rows(
    model: Path,
    data: Path | None,
    *,
    against: Path | None,
    task: str,
    columns: Mapping[str, object],
    skip_bad: bool,
    as_json: bool,
) -> None:
    """Compares two models on labelled rows, or shows where one is weak."""
    if data is None:
        raise BadConfig("Give labelled rows with --data.")
    if against is not None:
        from firth.trust.comparing import compare_models

        compared = compare_models(model, against, data=data, task=task, columns=columns, skip_bad=skip_bad)
        show(compared, as_json=as_json)
        return
    from firth.trust.slices import describe, find_weak_slices

    findings = find_weak_slices(model, data=data, task=task, columns=columns, skip_bad=skip_bad)
    if as_json:
        show(findings, as_json=True)
        return
    for text in describe(findings):
        typer.echo(text)


def drift(
    old: Annotated[Path, typer.Argument(help="Texts that a model was trained on: a labelled file, or one a line.")],
    new: Annotated[Path, typer.Argument(help="New texts, likewise.")],
    model: Annotated[
        Path | None,
        typer.Option(help=f"{MODEL_HELP} A classifier's labels are compared, too. {DEFAULT_MODEL}"),
    ] = None,
    text_column: Annotated[str | None, typer.Option(help="Column of the text, in tables.")] = None,
    as_json: Json = False,
) -> None:
    """Show whether new texts differ from those a model was trained on, and how."""
    from firth.trust.drift import find_drift

    columns = {"text_column": text_column} if text_column else {}
    findings = find_drift(old, new, model=model, columns=columns)
    if as_json:
        show(findings, as_json=True)
        return
    verdict = "the new texts differ from the old ones" if findings["drifted"] else "no drift is seen"
    typer.echo(
        f"{verdict}: old and new are told apart with AUC {findings['auc']:.3f} ± {findings['standard_error']:.3f} "
        "(0.5: not at all)"
    )
    for name, side in (("old", findings["old"]), ("new", findings["new"])):
        typer.echo(f"{name}: {_side_line(side)}")
    if not findings["drifted"]:
        return
    for name, words in (("more", findings["more_frequent"]), ("less", findings["less_frequent"])):
        typer.echo(f"{name} frequent: " + ", ".join(f"{word} ({score:+.1f})" for word, score in words))
    for text in findings["most_unlike"]:
        typer.echo(f"unlike: {' '.join(text.split())[:120]}")


def _side_line(side: "Side") -> str:
    """What one set of texts is like, on one line."""
    parts = [
        f"{side['texts']:,} texts",
        f"{side['mean_words']:.1f} words each",
        f"{side['unknown_share']:.1%} unknown tokens",
    ]
    if side["labels"]:
        parts.append("labels " + ", ".join(f"{name} {share:.0%}" for name, share in side["labels"].items()))
    if side["confidence"] is not None:
        parts.append(f"mean confidence {side['confidence']:.2f}")
    return ", ".join(parts)
