"""A CRF over features against python-crfsuite, on the very same features, and the speed of an HMM segmenter; one run.

    python -m bench.chain_cpu TRAIN TEST --drop-tags [--lines 3000] [--iterations 50] [--no-memory]

TRAIN and TEST are segmented text, a sentence a line (word/tag with --drop-tags). crfsuite gets our features as strings,
so both learn from the same facts; its own default leaves out weights of (feature, tag) pairs it never saw.
"""

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch

import firth
from bench.table import Row
from bench.texts import unpacked
from firth import metrics
from firth.nn.loglinear import FeatureWeights, LogLinear
from firth.nn.schemes import legal_transitions
from firth.nn.taggers import CRFTagger
from firth.tasks.conll import Sentence, read_words
from firth.tasks.segmenting import words_of
from firth.tokenizers.templates import Templates
from firth.train.lbfgs import minimise

TAGS = ("B", "E", "M", "S")
L2 = 0.1
FASTER = {
    "seconds of L-BFGS": -1,
    "seconds until crfsuite's last loss": -1,
    "seconds from text to model": -1,
    "characters/s, features given": 1,
    "characters/s from text": 1,
}
"""Figures whose ratio is shown; -1 where less is better."""


def main() -> None:
    arguments = _arguments()
    train, test = (
        list(read_words(path, [], drop_tags=arguments.drop_tags)) for path in (arguments.train, arguments.test)
    )
    train = train[: arguments.lines or None]
    print(f"{len(train):,} lines, {sum(len(row.gold) for row in train):,} characters; test: {len(test):,} lines")
    ours, course = _firth(train, test, arguments.iterations)
    theirs = _crfsuite(train, test, arguments.iterations)
    early = next((seconds for seconds, loss in course if loss <= theirs["loss at the end"]), float("nan"))
    ours["seconds until crfsuite's last loss"] = early
    theirs["seconds until crfsuite's last loss"] = theirs["seconds of L-BFGS"]
    for name in ours:
        ratio = f"  ratio {_ratio(name, ours[name], theirs[name]):.2f}" if name in FASTER else ""
        print(f"{name:<44} firth {ours[name]:>14,.4f}   crfsuite {theirs[name]:>14,.4f}{ratio}")
    _hmm(arguments)
    if not arguments.no_memory:
        _memory(arguments)


def rows() -> list[Row]:
    """What `make bench` shows: the first lines of People's Daily, few iterations, twice."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        files = ("zh/pd199801.tar.xz", "pd199801/199801.txt"), ("zh/icwb2.tar.xz", "icwb2/gold/pku_test_gold.utf8")
        train, test = (list(read_words(unpacked(*file, Path(folder)), [], drop_tags=True)) for file in files)
    runs = [(_firth(train[:1500], test, 20)[0], _crfsuite(train[:1500], test, 20)) for _ in range(2)]
    shown = {
        "CRF, 20 iterations of L-BFGS": ("seconds of L-BFGS", "runs/min", "≥ 0.33"),
        "CRF, tagging from text": ("characters/s from text", "characters/s", "≥ 1"),
    }
    return [
        Row(
            what,
            unit,
            [60 / ours[name] if "min" in unit else ours[name] for ours, _ in runs],
            "crfsuite",
            [60 / theirs[name] if "min" in unit else theirs[name] for _, theirs in runs],
            bar,
        )
        for what, (name, unit, bar) in shown.items()
    ]


def _ratio(name: str, ours: float, theirs: float) -> float:
    """Above 1 where firth is faster."""
    return (ours / theirs) ** FASTER[name]


def _firth(
    train: list[Sentence], test: list[Sentence], iterations: int
) -> tuple[dict[str, float], list[tuple[float, float]]]:
    """Figures, and the loss after so many seconds."""
    began = time.perf_counter()
    templates = Templates.learn([row.texts[0] for row in train], Templates.Config())
    parts, part_bounds = templates.parts([row.texts[0] for row in train])
    index = {tag: i for i, tag in enumerate(TAGS)}
    tags = np.array([index[tag] for row in train for tag in row.gold])
    legal = legal_transitions(TAGS)
    function = LogLinear(
        parts, part_bounds, tags, _bounds(train), templates.num_rows, "crf",
        tuple(part.numpy() for part in vars(legal).values()), L2, all_pairs=True,
    )  # fmt: skip
    function(np.zeros(function.num_weights, np.float32))  # compiles
    course: list[tuple[float, float]] = []
    middle = time.perf_counter()
    found = minimise(
        function,
        np.zeros(function.num_weights, np.float32),
        iterations=iterations,
        tolerance=0,
        scale=function.scale,
        report=lambda _, v: course.append((time.perf_counter() - middle, v)),
    )
    ended = time.perf_counter()
    weights = FeatureWeights.of(found, num_tags=len(TAGS))
    tagger = CRFTagger(len(TAGS), legal, linear=False)
    with torch.no_grad():
        for name, parameter in tagger.named_parameters():
            parameter.copy_(torch.from_numpy(getattr(weights, name)))
    for _ in range(2):  # the first warms up
        start = time.perf_counter()
        given = templates.parts([row.texts[0] for row in test])
        made = time.perf_counter()
        best = tagger.best(torch.from_numpy(function.unary(weights, *given)), torch.from_numpy(_bounds(test)))
        done = time.perf_counter()
    names = [TAGS[i] for i in best.tolist()]
    guessed = [names[a:b] for a, b in pairwise(_bounds(test).tolist())]
    characters = len(names)
    figures = {
        "features x tags": float(function.num_weights),
        "loss at the end": course[-1][1],
        "seconds of L-BFGS": ended - middle,
        "seconds from text to model": ended - began,
        "characters/s, features given": characters / (done - made),
        "characters/s from text": characters / (done - start),
        "F": _f(train, test, guessed),
    }
    return figures, course


def _crfsuite(train: list[Sentence], test: list[Sentence], iterations: int) -> dict[str, float]:
    import pycrfsuite

    began = time.perf_counter()
    templates = Templates.learn([row.texts[0] for row in train], Templates.Config())
    trainer = pycrfsuite.Trainer(verbose=False)
    for row, features in zip(train, _strings(templates, train), strict=True):
        trainer.append(features, list(row.gold))
    trainer.select("lbfgs")
    trainer.set_params({"c2": L2, "max_iterations": iterations, "delta": 0.0, "epsilon": 0.0})
    with tempfile.NamedTemporaryFile(suffix=".crfsuite") as model:
        middle = time.perf_counter()
        trainer.train(model.name)
        ended = time.perf_counter()
        tagger = pycrfsuite.Tagger()
        tagger.open(model.name)
        start = time.perf_counter()
        given = [pycrfsuite.ItemSequence(features) for features in _strings(templates, test)]
        made = time.perf_counter()
        guessed = [tagger.tag(sequence) for sequence in given]
        done = time.perf_counter()
    characters = sum(map(len, guessed))
    last = trainer.logparser.last_iteration
    return {
        "features x tags": float(last.get("active_features", 0) or 0),
        "loss at the end": float(last["loss"]),
        "seconds of L-BFGS": ended - middle,
        "seconds from text to model": ended - began,
        "characters/s, features given": characters / (done - made),
        "characters/s from text": characters / (done - start),
        "F": _f(train, test, guessed),
    }


def _strings(templates: Templates, rows: list[Sentence]) -> Iterator[list[list[str]]]:
    """Our features as crfsuite wants them: each a string."""
    parts, bounds = templates.parts([row.texts[0] for row in rows])
    names = [str(i) for i in range(templates.num_rows)]
    for first, last in pairwise(_bounds(rows).tolist()):
        yield [[names[i] for i in parts[bounds[n] : bounds[n + 1]].tolist()] for n in range(first, last)]


def _hmm(arguments: argparse.Namespace) -> None:
    """The segmenter as a person uses it: text in, words out, on one core."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        firth.finetune(
            task="tag", tagger="hmm", encoder="bag", format="words", train=arguments.train, out=Path(folder) / "run",
            changes=[f"tasks.tag.drop_tags={str(arguments.drop_tags).lower()}"],
        )  # fmt: skip
        model = firth.load(Path(folder) / "run")
    texts = [row.texts[0] for row in read_words(arguments.test, [], drop_tags=arguments.drop_tags)]
    texts *= max(1, 1_000_000 // sum(map(len, texts)))
    model.segment(texts[:100])
    speeds = []
    for _ in range(3):
        began = time.perf_counter()
        model.segment(texts)
        speeds.append(sum(map(len, texts)) / (time.perf_counter() - began))
    shown = ", ".join(f"{speed:,.0f}" for speed in speeds)
    print(f"HMM segmentation, one core: {max(speeds):,.0f} characters/s (three times: {shown})")


def _memory(arguments: argparse.Namespace) -> None:
    """The largest resident memory of a whole CRF run."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "firth", "finetune", "--task", "tag", "--tagger", "crf", "--encoder", "bag"]
        command += ["--format", "words", "--train", str(arguments.train), "--out", f"{folder}/run"]
        command += ["tasks.tag.iterations=10", f"tasks.tag.drop_tags={str(arguments.drop_tags).lower()}"]
        subprocess.run(command, check=True)
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e6
    print(f"CRF run over all of {arguments.train.name}: {peak:.2f} GB at most")


def _bounds(rows: list[Sentence]) -> np.ndarray:
    return np.cumsum([0, *(len(row.gold) for row in rows)])


def _f(train: list[Sentence], test: list[Sentence], guessed: list[list[str]]) -> float:
    known = {word for row in train for word in words_of(row, row.gold)}
    gold = [words_of(row, row.gold) for row in test]
    found = [words_of(row, tags) for row, tags in zip(test, guessed, strict=True)]
    return metrics.segmentation(gold, found, vocabulary=known).words.f1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("train", type=Path)
    parser.add_argument("test", type=Path)
    parser.add_argument("--drop-tags", action="store_true")
    parser.add_argument("--lines", type=int, default=3000, help="0 takes all; HMM and memory always take all")
    parser.add_argument("--iterations", type=int, default=50)
    parser.add_argument("--no-memory", action="store_true", help="leaves out the run that measures memory")
    return parser.parse_args()


if __name__ == "__main__":
    main()
