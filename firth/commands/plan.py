"""Subcommand `plan`: what a pre-training run will take, before it is paid for."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from firth import lineage
from firth.commands.shown import Json, show
from firth.errors import BadConfig

if TYPE_CHECKING:
    from firth.planning.estimate import Estimate
    from firth.planning.planned import TableRow


def plan(
    changes: Annotated[list[str] | None, typer.Argument(help="Config changes such as batches.tokens=65536.")] = None,
    text: Annotated[
        list[Path] | None, typer.Option(help="The text, a sample of it (with --text-size), or prepared text.")
    ] = None,
    text_size: Annotated[str | None, typer.Option(help="How much text there is, such as 20GB or 1TB.")] = None,
    recipe: Annotated[str, typer.Option(help="As for `firth pretrain`.")] = "bert",
    size: Annotated[str, typer.Option(help=f"One of {', '.join(lineage.SIZES)}.")] = "base",
    vocab_size: Annotated[int, typer.Option(help="Pieces of the vocabulary.")] = 30_000,
    steps: Annotated[int | None, typer.Option(help="Optimizer steps. [default: the recipe's own]")] = None,
    epochs: Annotated[float | None, typer.Option(help="Passes over the text instead of steps.")] = None,
    gpu: Annotated[str, typer.Option(help="The kind of GPU, such as H200 or A100; cpu for none.")] = "H200",
    gpus: Annotated[int, typer.Option(help="GPUs of each machine.")] = 1,
    machines: Annotated[int, typer.Option(help="Machines of this kind.")] = 1,
    network: Annotated[float, typer.Option(help="Gbit/s of each machine to the others.")] = 100.0,
    price: Annotated[float, typer.Option(help="Price of one GPU for an hour.")] = 0.0,
    probe: Annotated[bool, typer.Option(help="Measure this machine for a minute first, and plan with it.")] = False,
    table: Annotated[bool, typer.Option(help="Also print one pass over 1 GB to 1 TB on 1 to 1,000 GPUs.")] = False,
    as_json: Json = False,
) -> None:
    """Say what a pre-training run will take: hours, memory, disk, price, and what limits it."""
    from firth.planning import planned

    for change in changes or ():
        if Path(change).exists():
            raise BadConfig(f"'{change}' is not a setting; if it is a text, write --text {change}.")
    result = planned.plan(
        text=text or (),
        text_size=text_size,
        recipe=recipe,
        size=size,
        vocab_size=vocab_size,
        steps=steps,
        epochs=epochs,
        gpu=gpu,
        gpus=gpus,
        machines=machines,
        network=network,
        price=price,
        probe=probe,
        changes=changes or (),
    )
    if as_json:
        values = asdict(result.estimate)
        if table:
            values["table"] = [_as_json(row) for row in result.table()]
        show(values, as_json=True)
        return
    for line in _lines(result.estimate):
        typer.echo(line)
    if table:
        typer.echo("")
        for line in _table(result.table()):
            typer.echo(line)


def _lines(estimate: "Estimate") -> list[str]:
    """The plan in words, one figure a line."""
    values: dict[str, str] = {
        "tokens": f"{_count(estimate.tokens)}, read {estimate.epochs:,.3g} times",
        "parameters": _count(estimate.parameters),
        "steps": f"{estimate.steps:,} of {estimate.tokens_per_step:,} tokens",
        "speed": f"{_count(estimate.tokens_per_second)} tokens/s",
        "training": _hours(estimate.hours),
        "preparing the text": f"{_hours(estimate.preparing_hours)} by two processes",
        "device hours": f"{estimate.device_hours:,.2f}",
        "price": f"{estimate.price:,.2f}" if estimate.price is not None else "give --price of an hour",
        "memory a device": f"{_bytes(estimate.memory)}, {'fits' if estimate.fits else 'does not fit'}",
        "parallel mode": estimate.parallel or "one device",
        "disk": _bytes(estimate.disk),
        "sent a step": f"{_bytes(estimate.sent_per_step)} by each device, waiting {estimate.waiting_share:.0%}",
        "bottleneck": estimate.bottleneck,
    }
    lines = [f"{name:<24} {value}" for name, value in values.items()]
    lines += [f"Warning: {warning}" for warning in estimate.warnings]
    lines += [f"Assumed: {assumption}" for assumption in estimate.assumptions]
    return lines


def _as_json(row: "TableRow") -> dict[str, object]:
    return {"bytes": row.num_bytes, "gpus": row.devices, **asdict(row.estimate)}


def _table(rows: "list[TableRow]") -> list[str]:
    """One pass over texts of several sizes: a row for each size and number of GPUs."""
    lines = [f"{'text':>8} {'GPUs':>6} {'mode':>6} {'tokens/s':>10} {'time':>12} {'GPU hours':>10} {'waiting':>8}"]
    for row in rows:
        estimate = row.estimate
        lines.append(
            f"{_bytes(row.num_bytes):>8} {row.devices:>6,} {estimate.parallel or '-':>6} "
            f"{_count(estimate.tokens_per_second):>10} {_hours(estimate.hours):>12} {estimate.device_hours:>10,.1f} "
            f"{estimate.waiting_share:>8.0%}"
        )
    return lines


def _count(number: float) -> str:
    for unit, size in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.3g}{unit}"
    return f"{number:.0f}"


def _bytes(number: float) -> str:
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number / 1e3:.3g} kB"


def _hours(hours: float) -> str:
    if hours < 1:
        return f"{hours * 60:.1f} minutes"
    if hours < 72:
        return f"{hours:.1f} hours"
    return f"{hours / 24:.1f} days"
