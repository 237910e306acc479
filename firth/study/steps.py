"""The steps that a run may be: each gets a folder and its arguments, and returns figures by name.

The first figure is the one that the run is judged by.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from firth import pipeline, preparing
from firth.errors import BadConfig
from firth.run_folder import is_begun

if TYPE_CHECKING:
    from firth.inference.model import Model

Figures = Mapping[str, float]


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
        model,
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
    figures = {found["main"]: spreads[found["main"]]["mean"]}
    for name, spread in spreads.items():
        if isinstance(spread, dict):
            figures[name] = spread["mean"]
    figures["majority"] = found["baseline"]["test"][found["main"]] or 0.0
    return {name: float(value) for name, value in figures.items() if value is not None}


SIMHASH = "simhash"


def similarity(
    out: Path,
    *,
    pairs: Sequence[Path],
    way: str,
    model: Path | str | None = None,
    weights: Sequence[Path] = (),
    sample: Sequence[Path] = (),
) -> Figures:
    """Pairs of texts with scores -> the rank correlation of cosines with them, without any training on labels.

    Every file of `pairs` has a figure of its own, `spearman_1` for the first one.
    `way` is a pooling (mean, cls, first-last), with `+centred` or `+whitened` for vectors that are changed by what the
    texts of `sample` show, or simhash, which needs no model.
    """
    del out, weights
    from firth.metrics import spearman

    rows_of_files = [_read_pairs(path) for path in pairs]
    rows = [row for rows_of_file in rows_of_files for row in rows_of_file]
    gold = np.array([score for _, _, score in rows])
    texts = [text for first, second, _ in rows for text in (first, second)]
    if way == SIMHASH:
        cosines = _simhash_similarity(texts)
    else:
        if model is None:
            raise BadConfig(f"The way {way} needs a model.")
        pooling, _, change = way.partition("+")
        # The change is learned from other texts than those compared, where there are some.
        vectors = _vectors(model, texts, pooling)
        if change:
            others = sample[0].read_text("utf-8").splitlines() if sample else texts
            learned_from = _vectors(model, [text for text in others if text.strip()], pooling)
            vectors = _changed(vectors, learned_from, change)
        cosines = _cosines(vectors)
    figures = {"spearman": float(spearman(cosines, gold))}
    start = 0
    for number, rows_of_file in enumerate(rows_of_files, start=1):
        end = start + len(rows_of_file)
        figures[f"spearman_{number}"] = float(spearman(cosines[start:end], gold[start:end]))
        start = end
    for percent in (5, 50, 95):
        figures[f"cosine_{percent:02d}"] = float(np.percentile(cosines, percent))
    return figures


def _read_pairs(path: Path) -> list[tuple[str, str, float]]:
    """Rows of first, second and score; a first line without a number is a header."""
    rows = []
    for line in path.read_text("utf-8").splitlines():
        first, second, score = line.split("\t")[:3]
        try:
            rows.append((first, second, float(score)))
        except ValueError:
            continue
    return rows


def _vectors(folder: Path | str, texts: Sequence[str], pooling: str) -> np.ndarray:
    """One vector a text; `first-last` is the mean over the tokens of the first and the last layer's states."""
    import firth

    model = firth.load(folder)
    if pooling != "first-last":
        return np.asarray(model.embed(texts, pooling=pooling, normalise=False))
    return np.stack([_first_and_last(model, text) for text in texts])


def _first_and_last(model: "Model", text: str) -> np.ndarray:
    import torch

    from firth.data.packing import pack_tokens

    ids = model.tokenizer.vocab.frame.join(model.tokenizer.encode(text).ids)
    batch = pack_tokens([ids[: model.encoder.max_positions]])
    with torch.inference_mode():
        layers = model.encoder(batch, layers=True).layers
    # Layer 0 is the embeddings, so the first block's output is layer 1.
    both_ND = (layers[1] + layers[-1]) / 2
    pooled: np.ndarray = both_ND.mean(0).numpy()
    return pooled


def _changed(vectors: np.ndarray, sample: np.ndarray, change: str) -> np.ndarray:
    """The vectors without the mean of the sample's, and for `whitened` with the same variance in all directions."""
    mean = sample.mean(0)
    centred: np.ndarray = vectors - mean
    if change == "centred":
        return centred
    if change != "whitened":
        raise BadConfig(f"Vectors cannot be '{change}' (known: centred, whitened).")
    covariance = np.cov((sample - mean).T)
    values, directions = np.linalg.eigh(covariance)
    # Directions that the sample does not vary in are left out, or noise would be scaled up.
    kept = values > values.max() * 1e-3
    whitened: np.ndarray = centred @ directions[:, kept] / np.sqrt(values[kept])
    return whitened


def _cosines(vectors: np.ndarray) -> np.ndarray:
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit = vectors / np.maximum(lengths, 1e-12)
    cosines: np.ndarray = (unit[0::2] * unit[1::2]).sum(1)
    return cosines


def _simhash_similarity(texts: Sequence[str]) -> np.ndarray:
    """The share of equal bits of two texts' fingerprints."""
    from firth.data.simhash import BITS, fingerprint

    prints = [fingerprint(text, shingle=1) for text in texts]
    shares = []
    for first, second in zip(prints[0::2], prints[1::2], strict=True):
        differing = (first ^ second).bit_count()
        shares.append(1 - differing / BITS)
    return np.array(shares)


TABLE: dict[str, Callable[..., Figures]] = {
    "prepare": prepare,
    "pretrain": pretrain,
    "finetune": finetune,
    "similarity": similarity,
}
"""The steps by name."""
