"""The kinds of runs: each step gets a folder and its arguments, and returns figures by name.

The first figure is the main one.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from firth import model_files, pipeline, preparing
from firth.compression import resolve as method_class
from firth.run_folder import is_begun
from firth.study.probing import heads, probe, senses
from firth.study.sets import find_model
from firth.study.similarities import similarity

Figures = Mapping[str, float | None]
"""By name; None where a figure is undefined."""


def prepare(
    out: Path, *, texts: Sequence[Path], tokenizer: str = "wordpiece", vocab_size: int = 0, cased: bool = False
) -> Figures:
    """Text files -> shards."""
    health = preparing.prepare(
        list(texts), out=out, tokenizer=tokenizer, vocab_size=vocab_size or None, cased=cased, processes=1
    )
    return {"tokens": float(health["tokens"])}


def pretrain(
    out: Path,
    *,
    recipe: str,
    data: Path | None = None,
    texts: Sequence[Path] = (),
    size: str | None = None,
    steps: int = 0,
    epochs: int = 0,
    width: int = 0,
    min_count: int = 0,
    changes: tuple[str, ...] = (),
    device: str | None = None,
) -> Figures:
    """Shards, or text files for the recipes without gradients -> a model."""
    source = data
    if source is None:
        source = _joined(texts, out)
    figures = pipeline.pretrain(
        source,
        out=out,
        recipe=recipe,
        size=size,
        steps=steps or None,
        epochs=epochs or None,
        width=width or None,
        min_count=min_count or None,
        # Threads that share word vectors without locks would give other figures each time.
        threads=1 if data is None else None,
        changes=changes,
        device=device,
        resume=is_begun(out),
    )
    return {name: float(value) for name, value in figures.items() if isinstance(value, (int, float))}


def _joined(texts: Sequence[Path], out: Path) -> Path:
    """The one file of a text, or all files in one, next to the model's folder."""
    if len(texts) == 1:
        return texts[0]
    path = out.with_name("text.txt")
    parts = [text.read_text("utf-8").rstrip("\n") for text in texts]
    path.write_text("\n\n".join(parts) + "\n", "utf-8")
    return path


def finetune(
    out: Path,
    *,
    task: str,
    train: Sequence[Path],
    test: Sequence[Path],
    seed: int,
    model: Path | str | None = None,
    weights: Sequence[Path] = (),
    encoder: str | None = None,
    random: bool = False,
    changes: tuple[str, ...] = (),
    device: str | None = None,
) -> Figures:
    """A model and labelled rows -> its scores on the test rows.

    `weights` are those of a model that comes with firth, so that the run's key depends on them.
    """
    del weights
    summary = pipeline.finetune(
        None if model is None else find_model(model),
        encoder=encoder,
        task=task,
        train=list(train),
        test=list(test),
        out=out,
        random=random,
        changes=(*changes, f"train.seed={seed}", "train.checkpoint_every=1000000"),
        device=device,
        resume=is_begun(out),
    )
    found = summary["tasks"][task]
    spreads = found["figures"]["test"]
    # The main figure is the first.
    figures = {found["main"]: spreads[found["main"]]["mean"]}
    for name, spread in spreads.items():
        figures[name] = spread["mean"]
    figures["majority"] = found["baseline"]["test"][found["main"]] or 0.0
    return figures


def evaluate(out: Path, *, model: Path, data: Sequence[Path]) -> Figures:
    """A fine-tuned model and labelled rows -> its scores on them."""
    del out
    figures = pipeline.evaluate(model, data=data[0])
    return {name: float(value) for name, value in figures.items() if name != "rows"}


def compress(
    out: Path,
    *,
    model: Path,
    by: str,
    train: Sequence[Path],
    data: Sequence[Path],
    changes: tuple[str, ...] = (),
) -> Figures:
    """A fine-tuned model -> the scores and speeds of a compressed one and of the original, measured in turns."""
    learns = method_class(by).needs_rows
    summary = model_files.compress(
        model, by=by, data=data[0], train=train[0] if learns else None, out=out, changes=changes
    )
    return {
        summary["metric"]: float(summary["compressed"]["score"]),
        "speedup": summary["speedup"],
        "bytes": float(summary["compressed"]["disk_bytes"]) / float(summary["original"]["disk_bytes"]),
    }


TABLE: dict[str, Callable[..., Figures]] = {
    "prepare": prepare,
    "pretrain": pretrain,
    "finetune": finetune,
    "similarity": similarity,
    "probe": probe,
    "heads": heads,
    "senses": senses,
    "evaluate": evaluate,
    "compress": compress,
}
"""The steps by name."""
