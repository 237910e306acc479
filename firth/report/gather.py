"""A finished run's folder and some questions in; what the page of a pre-training run shows out."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from firth.data.shards import Shards
from firth.files import read_json
from firth.report.pretraining import PretrainingReport, Ranked
from firth.run_source import DATA, PretrainingSource, SolvingSource, read_source
from firth.train.journal import read_rows

if TYPE_CHECKING:
    from firth.inference.model import Model


def gather(
    run: Path,
    *,
    data: Path | None = None,
    fills: Sequence[str] = (),
    sentences: Sequence[str] = (),
    attention: str = "",
) -> PretrainingReport:
    """What the page of a run shows. Word vectors are shown without torch, and nothing is computed with them.

    `data` is the prepared text, if it may have been moved since the run began.
    """
    source = read_source(run)
    assert isinstance(source, PretrainingSource | SolvingSource)
    if data is not None:
        prepared = data
    elif (run / DATA).exists():
        prepared = run / DATA
    else:
        prepared = Path(source.data)
    health = Shards.open(prepared, verify=False).info["health"]
    if isinstance(source, SolvingSource):
        return _of_word_vectors(run, health)
    return _of_network(run, health, fills=fills, sentences=sentences, attention=attention)


def _of_network(
    run: Path,
    health: Mapping[str, object],
    *,
    fills: Sequence[str],
    sentences: Sequence[str],
    attention: str,
) -> PretrainingReport:
    """Loads the model of `run` and computes everything the page shows.

    `fills` are texts with [MASK], `sentences` are compared with each other, and the attention is shown on one sentence.
    """
    from firth.inference.model import load

    model = load(run)
    trained = model.checkpoint.info
    neighbours = nearest(model, sentences) if sentences else ()
    maps = model.attention(attention) if attention else None
    return PretrainingReport(
        title=f"Pre-trained: {trained['recipe']} {trained['size']}",
        facts=_facts(model, run),
        metrics=read_rows(run / "metrics.jsonl"),
        unigram_floor=trained["unigram_floor"],
        health=health,
        fills=_filled(model, fills),
        neighbours=neighbours,
        attention=maps,
    )


def _facts(model: "Model", run: Path) -> dict[str, object]:
    """The key facts at the top of the page."""
    trained = model.checkpoint.info
    seconds = sum(row["seconds"] for row in read_rows(run / "timing.jsonl"))
    # A run that was stopped before its first record has no timing.
    speed = 0
    if seconds:
        speed = round(trained["tokens"] / seconds)
    return {
        "Recipe": f"{trained['recipe']} {trained['size']}",
        "Parameters": model.num_parameters,
        "Steps": trained["steps"],
        "Tokens seen": trained["tokens"],
        "Minutes": round(seconds / 60, 1),
        "Tokens a second": speed,
    }


def _filled(model: "Model", texts: Sequence[str]) -> Ranked:
    """For each text with [MASK] the most likely tokens and their probabilities."""
    filled = []
    for text in texts:
        candidates = [(row.token, row.probability) for row in model.fill(text)]
        filled.append((text, candidates))
    return filled


def _of_word_vectors(run: Path, health: Mapping[str, object]) -> PretrainingReport:
    notes = read_json(run / "firth.json")
    shape = read_json(run / "config.json")["config"]
    timing = read_rows(run / "timing.jsonl")
    seconds = sum(row["seconds"] for row in timing)
    facts = {
        "Recipe": notes["recipe"],
        "Rows": shape["vocab_size"],
        "Width": shape.get("width"),
        "Passes": notes["epochs"],
        "Threads": notes.get("threads"),
        "Minutes": round(seconds / 60, 1),
        "Words a second": round(timing[-1]["words_per_second"]) if timing else None,
    }
    known = {name: value for name, value in facts.items() if value is not None}
    return PretrainingReport(f"Pre-trained: {notes['recipe']}", known, health=health, has_losses=False)


def nearest(model: "Model", sentences: Sequence[str], *, top: int = 3) -> Ranked:
    """For each sentence the others most like it, by the cosine of their centred vectors.

    Raw vectors of a young model all point in nearly the same direction. That common part says nothing about a
    sentence, so the mean is subtracted first.
    """
    from firth.metrics.cosines import unit_vectors

    vectors = model.embed(sentences)
    units = unit_vectors(vectors - vectors.mean(0))
    # Sentences x sentences.
    cosines = units @ units.T
    # A sentence is not its own neighbour: it comes last, and is cut off.
    np.fill_diagonal(cosines, -np.inf)
    num_neighbours = min(top, len(sentences) - 1)
    ranks = np.argsort(-cosines, axis=1, kind="stable")[:, :num_neighbours]
    found = []
    for i, text in enumerate(sentences):
        neighbours = []
        for j in ranks[i]:
            neighbours.append((sentences[j], float(cosines[i, j])))
        found.append((text, neighbours))
    return found
