"""The table of compression: speeds on this CPU beside the sizes and scores that `bench.compress_gpu` measured.

    python -m bench.compress_cpu table OUT [OUT ...]
    python -m bench.compress_cpu search OUT [--methods ffn layers]

`table` measures each shape of OUT/shapes.tar.xz against the original's, in turns, on the texts of the set's test rows;
int8 and onnx are made here of OUT/original-SET.NN. Speeds are kept in OUT/speed.jsonl, so a stopped run goes on. Then
it prints one table a data set: means over the seeds, and for each distillation its difference to the same student
without a teacher, with a 95 % interval (seeds and test rows are drawn with replacement, the same ones for both).

`search` runs `firth compress --keep --faster` on the originals: twice as fast at 0.99 of the score, four times at 0.97,
and the strongest setting at 0.99. Strengths are chosen on rows of the training file that nothing learned from, and
what is shown is measured on the test rows. It appends to OUT/searched.jsonl. The data sets are found by $FIRTH_DATA.
"""

import argparse
import hashlib
import json
import tarfile
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import firth
from bench.compress_gpu import ROWS, SHAPES, slug
from bench.compression_plans import ON_CPU, ORIGINAL, PLANS, Plan, write_rows
from bench.compression_table import lines
from bench.model_shapes import restore
from bench.table import say
from firth import compression
from firth.checkpoint import load
from firth.compression.gate import ROUNDS, Gate, Subject, time_both
from firth.compression.job_rows import read_rows
from firth.errors import FirthError
from firth.types import Example

TARGETS = ((2.0, 0.99), (4.0, 0.97), (None, 0.99))
"""Speed and share of the score that `search` asks for."""
SPEEDS = "speed.jsonl"
SEARCHED = "searched.jsonl"

Row = dict[str, Any]


def main() -> None:
    arguments = _arguments()
    for out in arguments.outs:
        with TemporaryDirectory() as name:
            bench = Bench(out, Path(name))
            if arguments.stage == "search":
                bench.search(arguments.methods)
            else:
                bench.measure_speeds()
    rows: list[Row] = []
    speeds: list[Row] = []
    for out in arguments.outs:
        rows += read_lines(out / ROWS)
        speeds += read_lines(out / SPEEDS)
    for line in lines(rows, speeds):
        print(line)


class Bench:
    """The files that came back from one run of `bench.compress_gpu`, unpacked in `folder`."""

    def __init__(self, out: Path, folder: Path) -> None:
        self.out = out
        self.folder = folder
        self.sets = sorted({row["set"] for row in read_lines(out / ROWS)})
        self.model = next(row["model"] for row in read_lines(out / ROWS))
        with tarfile.open(out / f"{SHAPES}.tar.xz") as archive:
            archive.extractall(folder, filter="data")
        for name in self.sets:
            parts = sorted(out.glob(f"original-{name}.*"))
            with tarfile.open(fileobj=BytesIO(b"".join(part.read_bytes() for part in parts))) as archive:
                archive.extractall(folder, filter="data")
        self.files = {name: write_rows(name, folder / "rows" / name) for name in self.sets}

    def measure_speeds(self) -> None:
        """Adds to speed.jsonl what is not there yet; models of one shape are measured once."""
        known = {(row["set"], row["shape"]): row for row in read_lines(self.out / SPEEDS)}
        for name in self.sets:
            original = restore(self.folder / SHAPES / name / ORIGINAL, self.folder / f"{name}-original")
            examples = self._test_rows(name, original)
            for plan in (*PLANS.values(), *ON_CPU):
                stripped = self.folder / SHAPES / name / slug(plan.name)
                if plan not in ON_CPU and not stripped.exists():
                    continue
                shape = plan.name if plan in ON_CPU else shape_of(stripped)
                if (name, shape) not in known:
                    say(f"{name}: {plan.name} ...")
                    measured = self._on_cpu(name, plan) if plan in ON_CPU else self._speed(original, stripped, examples)
                    known[name, shape] = {"set": name, "model": self.model, "shape": shape, **measured}
                    append(self.out / SPEEDS, known[name, shape])
                row = {**known[name, shape], "plan": plan.name}
                if row not in read_lines(self.out / SPEEDS):
                    append(self.out / SPEEDS, row)

    def _test_rows(self, name: str, model: Path) -> Sequence[Example]:
        test = self.files[name]["test"]
        rows = read_rows(load(model), model, data=test, train=None, task="", skip_bad=True, learns=False, seed=1)
        return rows.examples["data"]

    def _speed(self, original: Path, stripped: Path, examples: Sequence[Example]) -> Row:
        with TemporaryDirectory(dir=self.folder) as name:
            small = restore(stripped, Path(name) / "small")
            (task,) = load(small).tasks
            before = Subject(firth.load(original), original, task)
            after = Subject(firth.load(small), small, task)
            timed = time_both(before, after, examples, rounds=ROUNDS)
        return {"speedup": timed.ratio.batches, "single": timed.ratio.single, "texts_per_second": timed.other.batches}

    def _on_cpu(self, name: str, plan: Plan) -> Row:
        """int8 and onnx: made of the original, with its score."""
        (step,) = plan.steps
        files = self.files[name]
        return self._compressed(name, step.by, {"data": files["test"]}, changes=step.changes)

    def _compressed(self, name: str, by: str, options: Mapping[str, Any], *, changes: Sequence[str] = ()) -> Row:
        """The figures of `firth compress` on the test rows; the reason where it refuses."""
        original = self.folder / "original" / name
        with TemporaryDirectory(dir=self.folder) as folder:
            out = Path(folder) / "small"
            try:
                summary = firth.compress(original, by=by, out=out, changes=changes, **options)
            except FirthError as error:
                return {"refused": str(error)}
            method = compression.resolve(by)
            gate = Gate(Subject(firth.load(original), original, "classify"), self._test_rows(name, original))
            found = gate.compare(Subject(method(method.Config()).open(out), out, "classify"), by)
        return {
            "strength": summary["strength"],
            "reached": summary["reached"],
            "speedup": found.speedup.batches,
            "single": found.speedup.single,
            "bytes": found.compressed.disk_bytes,
            "parameters": found.compressed.parameters,
            "metric": found.metric,
            "score": found.compressed.score,
            "original_score": found.original.score,
            "kept": found.trial.kept,
        }

    def search(self, methods: Sequence[str]) -> None:
        """Lets methods that do not train search their strength."""
        done = read_lines(self.out / SEARCHED)
        for name in self.sets:
            files = self.files[name]
            for by in compression.TABLE:
                method = compression.resolve(by)
                is_searched = "strengths" in vars(method) and not method.trains
                if not is_searched or (methods and by not in methods):
                    continue
                for faster, keep in TARGETS:
                    key = {"set": name, "model": self.model, "by": by, "faster": faster, "keep": keep}
                    if any(key.items() <= row.items() for row in done):
                        continue
                    options = {"data": files["picked"], "train": files["train"], "keep": keep, "faster": faster}
                    if by == "vocabulary":
                        options["vocabulary_from"] = files["text"]
                    row = key | self._compressed(name, by, options)
                    say(json.dumps(row))
                    append(self.out / SEARCHED, row)


def shape_of(stripped: Path) -> str:
    """What the speed depends on: the config, and the shapes of all matrices."""
    digest = hashlib.sha256()
    for path in (stripped / "config.json", *sorted(stripped.rglob("*.shapes.json"))):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def read_lines(path: Path) -> list[Row]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def append(path: Path, row: Row) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row, ensure_ascii=False) + "\n")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", choices=("table", "search"))
    parser.add_argument("outs", nargs="+", type=Path, help="what bench.compress_gpu wrote")
    parser.add_argument("--methods", nargs="*", default=[], help="only these, for search")
    return parser.parse_args()


if __name__ == "__main__":
    main()
