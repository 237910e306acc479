"""A whole compression: a model, rows and a method in; a smaller model that was measured, and its card, out.

A method without training writes its candidates to a temporary folder next to OUT; the chosen one is moved to OUT. A
method that trains works in OUT as a run folder: OUT/run.toml holds the numbers, OUT/source.json the files with their
hashes, OUT/strength-K the states and logs of each strength, OUT/results.json the figures, written last.
"""

import logging
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TypedDict

from firth import checkpoint as checkpoints
from firth import compression
from firth.checkpoint import Checkpoint
from firth.compression import table
from firth.compression.gate import Comparison, Gate, Subject
from firth.compression.job_rows import read_rows
from firth.compression.method import CompressionJob, Method, MethodConfig
from firth.compression.method_chain import Chain, FollowUp, read_follow_ups
from firth.compression.request import CompressionRequest, numbers_of, refuse_other_run, source_of
from firth.compression.strength_search import Trial, Wanted, search
from firth.config import override, to_dict
from firth.errors import BadConfig
from firth.files import (
    MANIFEST,
    JsonObject,
    atomic_folder,
    check_can_be_made,
    read_json,
    write_bytes,
    write_json,
    write_manifest,
)
from firth.inference.model import Model
from firth.run_folder import RunFolder
from firth.run_source import RESULTS
from firth.temporary import temporary_folder
from firth.train.parallel import chosen_device, current_world

log = logging.getLogger(__name__)

MODEL = "model"
"""The folder of a saved candidate, in that of its strength."""
CARD = "README.md"


class CompressionSummary(TypedDict):
    """The figures of a compression."""

    method: str
    """Its name, and those of the methods that followed."""
    strength: str
    """The settings that were taken, in a few words."""
    settings: JsonObject
    """Of the first method."""
    reached: bool
    """Whether the model is what was asked for; true if nothing was."""
    verdict: str
    kept: float
    """The score as a share of the original's."""
    speedup: float
    """In batches."""
    metric: str
    rows: int
    original: JsonObject
    compressed: JsonObject
    difference: float
    """Of the scores, compressed minus original."""
    interval: list[float]
    """Of the difference."""
    lines: list[str]
    """The table as text."""
    card: str
    """The same in Markdown."""


@dataclass(frozen=True)
class Candidate:
    """A compressed model that is saved, and how it was made."""

    chain: Chain
    subject: Subject


class Candidates:
    """Compressed models of one original. Each is made and saved once; memory holds only those that are in use."""

    def __init__(
        self,
        method_class: type[Method],
        follow_ups: Sequence[FollowUp],
        job: CompressionJob,
        root: Path,
    ) -> None:
        self.method_class = method_class
        self.follow_ups = follow_ups
        self.job = job
        self.root = root
        self.chains: dict[int, Chain] = {}
        """By the number of the strength; the methods of a chain remember what they have to say about its model."""

    def open(self, number: int, config: MethodConfig) -> Candidate:
        """The model of a strength. One that an earlier process saved is not made again."""
        chain = self.chains.setdefault(number, Chain(self.method_class(config), self.follow_ups))
        folder = self.root / f"strength-{number}"
        saved = folder / MODEL
        if not (saved / MANIFEST).exists():
            with current_world().main_first():
                folder.mkdir(exist_ok=True)
            made = chain.compress(replace(self.job, folder=folder))

            def write() -> None:
                with atomic_folder(saved, replace=True) as temporary:
                    chain.write(temporary, made)

            current_world().on_main(write)
        return Candidate(chain, Subject(chain.open(saved), saved, self.job.task))


def compress(
    request: CompressionRequest,
    out: Path,
    *,
    resume: bool = False,
    device: str | None = None,
) -> CompressionSummary:
    """Compresses, measures and writes; returns the figures."""
    method_class = compression.resolve(request.method)
    follow_ups, changes = read_follow_ups(request.then, request.changes)
    config = override(method_class.Config(), changes)
    if method_class.trains:
        return _train(method_class, config, follow_ups, request, out, resume=resume, device=device)
    if current_world().size > 1:
        raise BadConfig(f"{request.method} has no training that several processes can share; run it without torchrun.")
    if resume:
        raise BadConfig(f"{request.method} has no training that could be continued; leave out `resume=True`.")
    check_can_be_made(out)
    job = _job(method_class, follow_ups, request)
    # Next to OUT, so that the chosen one only has to be renamed.
    with temporary_folder(out) as candidates:
        candidate, summary = _choose(Candidates(method_class, follow_ups, job, candidates), config, request)
        _add_card(candidate, summary, job.original)
        candidate.subject.folder.replace(out)
    return summary


def _train(
    method_class: type[Method],
    config: MethodConfig,
    follow_ups: Sequence[FollowUp],
    request: CompressionRequest,
    out: Path,
    *,
    resume: bool,
    device: str | None,
) -> CompressionSummary:
    """The same for a method that trains, in a run folder."""
    if request.train is None:
        raise BadConfig(f"{request.method} learns from labelled rows; give them with `train=`.")
    with RunFolder(out, command="compress", resume=resume) as run:
        source = source_of(request, config)
        numbers = numbers_of(request, config, follow_ups)
        if run.begun:
            refuse_other_run(run, source, numbers)
        if run.finished:
            run.say_finished()
            return read_summary(out)
        job = replace(_job(method_class, follow_ups, request), device=str(chosen_device(device)), run=run)
        run.begin(source, numbers, leftovers=[RESULTS])
        candidate, summary = _choose(Candidates(method_class, follow_ups, job, out), config, request)
        run.on_main(lambda: _finish(candidate, summary, out, job.original))
    return summary


def _finish(candidate: Candidate, summary: CompressionSummary, out: Path, original: Checkpoint) -> None:
    """Writes the model and its figures into the run's folder."""
    _add_card(candidate, summary, original)
    _copy_model(candidate.subject.folder, out)
    write_json(out / RESULTS, summary)
    # OUT has the model now; logs of all strengths stay.
    for folder in out.glob("strength-*"):
        shutil.rmtree(folder / MODEL, ignore_errors=True)


def read_summary(out: Path) -> CompressionSummary:
    """The figures of a finished compression that trained."""
    summary: CompressionSummary = read_json(out / RESULTS)
    return summary


def _job(method_class: type[Method], follow_ups: Sequence[FollowUp], request: CompressionRequest) -> CompressionJob:
    """What the methods work with: the original and its rows."""
    original = checkpoints.load(request.model)
    if request.vocabulary_from and "vocabulary" not in (request.method, *request.then):
        raise BadConfig(
            f"`vocabulary_from=` is for `by='vocabulary'` or `then=['vocabulary']`; {request.method} does not read it."
        )
    method_classes = [method_class, *(follow_up.method_class for follow_up in follow_ups)]
    rows = read_rows(
        original,
        request.model,
        data=request.data,
        train=request.train,
        task=request.task,
        skip_bad=request.skip_bad,
        learns=any(each.needs_rows or each.trains for each in method_classes),
        seed=request.seed,
    )
    return CompressionJob(
        model=request.model,
        original=original,
        task=rows.task,
        examples=rows.examples,
        files=rows.files,
        vocabulary_from=request.vocabulary_from,
        seed=request.seed,
    )


def _choose(
    candidates: Candidates,
    config: MethodConfig,
    request: CompressionRequest,
) -> tuple[Candidate, CompressionSummary]:
    """The compressed model, found by a search if something is wanted of it, and its figures."""
    job = candidates.job
    original = Subject(Model(job.original), job.model, job.task)
    gate = Gate(original, job.examples["data"])
    if request.wanted.is_searched:
        return _search(candidates, config, gate, request.wanted)
    candidate = candidates.open(0, config)
    comparison = _compare(gate, candidate)
    return candidate, _summary(candidate.chain, comparison, reached=True, sentence="")


def _search(
    candidates: Candidates, config: MethodConfig, gate: Gate, wanted: Wanted
) -> tuple[Candidate, CompressionSummary]:
    """The strength that gives what is wanted, or the one nearest to it."""
    strengths = candidates.method_class.strengths(candidates.job.original, config)

    def measure(number: int) -> Trial:
        candidate = candidates.open(number, strengths[number])
        # The clocks of ranks differ, and the search must not.
        trial = current_world().from_main(gate.try_out(candidate.subject))
        log.info(f"{candidate.chain.described}: {trial.kept:.4f} of the score, {trial.speedup:.2f} times the speed.")
        return trial

    chosen = search(len(strengths), measure, wanted)
    candidate = candidates.open(chosen.number, strengths[chosen.number])
    comparison = _compare(gate, candidate)
    # The last measurement is the one that is shown, so its score decides. Speeds vary from one measurement to the
    # next: one that is fast enough will do.
    trial = comparison.trial
    reached = trial.keeps_score(wanted) and (chosen.reached or trial.is_fast(wanted))
    sentence = table.searched_sentence(wanted, reached=reached)
    return candidate, _summary(candidate.chain, comparison, reached=reached, sentence=sentence)


def _compare(gate: Gate, candidate: Candidate) -> Comparison:
    """The candidate beside the original, as rank 0 measured them."""
    return current_world().from_main(gate.compare(candidate.subject, candidate.chain.name))


def _summary(chain: Chain, comparison: Comparison, *, reached: bool, sentence: str) -> CompressionSummary:
    sentences = chain.remarks
    if sentence:
        sentences.append(sentence)
    return CompressionSummary(
        method=chain.name,
        strength=chain.described,
        settings=to_dict(chain.first.config),
        reached=reached,
        verdict=comparison.verdict,
        kept=comparison.trial.kept,
        speedup=comparison.trial.speedup,
        metric=comparison.metric,
        rows=comparison.rows,
        original=asdict(comparison.original),
        compressed=asdict(comparison.compressed),
        difference=comparison.difference,
        interval=[comparison.low, comparison.high],
        lines=[*table.lines(comparison), *sentences],
        card=table.section(comparison, title=f"{chain.name}: {chain.described}", sentences=sentences),
    )


def _add_card(candidate: Candidate, summary: CompressionSummary, original: Checkpoint) -> None:
    """Writes the table at the top of the saved model's card, and what is known of the original below it."""
    folder = candidate.subject.folder
    path = folder / CARD
    card = table.whole_card(path.read_text("utf-8"), section=summary["card"], original=original.text)
    write_bytes(path, card.encode())
    write_manifest(folder)


def _copy_model(folder: Path, out: Path) -> None:
    """Copies the files of a model; the manifest comes last."""
    (out / MANIFEST).unlink(missing_ok=True)
    names = []
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name != MANIFEST:
            name = path.relative_to(folder).as_posix()
            write_bytes(out / name, path.read_bytes())
            names.append(name)
    write_manifest(out, names)
