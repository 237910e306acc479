"""The worker of `bench.compress_gpu`: one job a line on stdin, one row a line on stdout, both JSON.

A job fine-tunes an original, or makes a plan's model of it, and measures it on the test rows.
"""

import argparse
import json
import shutil
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from bench.compress_gpu import BITS, SHAPES, Job, slug
from bench.compression_plans import FINETUNE, ORIGINAL, ORIGINAL_EPOCHS, PLANS, SETS, UNLABELLED, Plan, Step
from bench.model_shapes import strip
from firth import checkpoint as checkpoints
from firth import compression
from firth.checkpoint import only_task
from firth.compression import distil
from firth.compression.gate import Subject
from firth.compression.job_rows import read_rows
from firth.compression.method import CompressionJob
from firth.config import override
from firth.errors import FirthError
from firth.finetuning import running
from firth.finetuning.jobs import FinetuneRequest
from firth.inference.model import Model
from firth.run_folder import RunFolder
from firth.tasks import scorer_of
from firth.tasks.predicting import predict
from firth.types import Example

MODEL = "model"


def main() -> None:
    arguments = _arguments()
    answers = sys.stdout
    sys.stdout = sys.stderr  # whatever prints, prints to the log
    for line in sys.stdin:
        job = Job(**json.loads(line))
        print(f"== {job}", file=sys.stderr, flush=True)
        try:
            row = made(job, arguments)
        except FirthError as error:
            row = {"refused": str(error)}
        except Exception:
            traceback.print_exc()
            row = {"failed": traceback.format_exc()[-600:]}
        if arguments.device.startswith("cuda"):
            torch.cuda.empty_cache()
        print(json.dumps(row), file=answers, flush=True)


def made(job: Job, arguments: argparse.Namespace) -> dict[str, Any]:
    """Makes the model of a job, keeps what is needed of it, and returns its figures."""
    folder = arguments.work / job.folder
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    maker = Maker(job, arguments, folder)
    described = ""
    if job.plan == ORIGINAL:
        maker.finetune(arguments.model, folder / MODEL, epochs=ORIGINAL_EPOCHS * SETS[job.set].epochs)
        model = folder / MODEL
    else:
        model, described = maker.make(PLANS[job.plan])
    row = {"strength": described, **maker.figures(model)}
    if job.seed == 1:
        strip(model, arguments.work / SHAPES / job.set / slug(job.plan))
        if job.plan == ORIGINAL:
            checkpoints.save(arguments.work / "packed" / job.set, checkpoints.load(model), bits=BITS)
    if job.plan != ORIGINAL:
        shutil.rmtree(folder)
    return row


class Maker:
    """The steps of one job."""

    def __init__(self, job: Job, arguments: argparse.Namespace, folder: Path) -> None:
        self.job = job
        self.arguments = arguments
        self.folder = folder
        self.data = SETS[job.set]
        self.epochs = arguments.epochs or self.data.epochs
        rows = arguments.work / job.set
        self.train = rows / "train.tsv"
        self.test = rows / "test.tsv"
        self.text = rows / "text.txt"
        self.general = rows / "general.txt"
        self.unlabelled = rows / "unlabelled.txt"

    def make(self, plan: Plan) -> tuple[Path, str]:
        """The folder of a plan's model, and its settings in a few words."""
        start = self.original(self.job.seed) if plan.start == "tuned" else self.arguments.model
        model = start
        described = []
        for number, step in enumerate(plan.steps):
            out = self.folder / f"step-{number}"
            uses_before = any("{before}" in change for change in step.changes)
            changes = [self._filled(change, before=model) for change in step.changes]
            if step.by == FINETUNE:
                more = 1.0 if "epochs+1" in changes else 0.0
                self.finetune(model, out, epochs=self.epochs + more)
            else:
                described.append(self.compress(start if uses_before else model, step, changes, out))
            model = out
        return model, "; ".join(described)

    def original(self, seed: int) -> Path:
        work: Path = self.arguments.work
        return work / Job(self.job.set, ORIGINAL, seed).folder / MODEL

    def _filled(self, change: str, *, before: Path) -> str:
        others = [str(self.original(seed)) for seed in range(1, self.arguments.seeds + 1) if seed != self.job.seed]
        known = {
            "{before}": str(before),
            "{others}": json.dumps(others),
            "{unlabelled}": str(self.unlabelled),
            "{long}": str((1 + UNLABELLED) * self.epochs),
        }
        for name, value in known.items():
            change = change.replace(name, value)
        return change

    def finetune(self, model: Path, out: Path, *, epochs: float) -> None:
        changes = (
            f"train.seed={self.job.seed}",
            f"epochs={epochs}",
            f"batch_size={self.data.batch_size}",
            f"max_length={self.data.max_length}",
            f"train.precision={self.arguments.precision}",
            "train.checkpoint_every=1000000",
        )
        request = FinetuneRequest(
            model=str(model),
            tasks=("classify",),
            files={"train": [str(self.train)]},
            options={"preset": self.data.preset} if self.data.preset else {},
            changes=changes,
        )
        with RunFolder(out, command="finetune", resume=False) as folder:
            running.finetune(folder, request, device=self.arguments.device)

    def compress(self, model: Path, step: Step, changes: Sequence[str], out: Path) -> str:
        """One method; the model is saved in `out`."""
        method_class = compression.resolve(step.by)
        method = method_class(override(method_class.Config(), [*self._budget(step, changes), *changes]))
        job = self._compression_job(model, out)
        # The teacher is the same for all plans of a seed, except for ensembles.
        scores = self.arguments.work / self.job.set / f"{distil.UNLABELLED}-{self.job.seed}"
        own_scores = job.folder / distil.UNLABELLED
        if scores.exists() and step.by != "ensemble":
            shutil.copytree(scores, own_scores)
        made = method.compress(job)
        if own_scores.exists() and not scores.exists() and step.by != "ensemble":
            shutil.copytree(own_scores, scores)
        method.write(out, made)
        return method.described

    def _budget(self, step: Step, changes: Sequence[str]) -> list[str]:
        """The settings that all methods with training share."""
        if not compression.resolve(step.by).trains:
            return []
        budget = {
            "epochs": self.epochs,
            "batch_size": self.data.batch_size,
            "max_length": self.data.max_length,
            "precision": self.arguments.precision,
        }
        return [f"{name}={value}" for name, value in budget.items()]

    def _compression_job(self, model: Path, out: Path) -> CompressionJob:
        original = checkpoints.load(model)
        files: Mapping[str, Path] = {"train": self.general}
        task = ""
        examples: Mapping[str, Sequence[Example]] = {}
        if original.tasks:
            rows = read_rows(
                original, model, data=self.test, train=self.train, task="", skip_bad=True, learns=True, seed=1
            )
            task = rows.task
            files = {"train": self.train}
            examples = {"train": rows.examples["train"]}
        return CompressionJob(
            model=model,
            original=original,
            task=task,
            examples=examples,
            files=files,
            vocabulary_from=(self.text,),
            device=self.arguments.device,
            seed=self.job.seed,
            folder=out.with_name(f"{out.name}-run"),
        )

    def figures(self, model: Path) -> dict[str, Any]:
        """Size, score and answers on the test rows."""
        checkpoint = checkpoints.load(model)
        task, head = only_task(checkpoint, model)
        rows = read_rows(checkpoint, model, data=self.test, train=None, task="", skip_bad=True, learns=False, seed=1)
        examples = rows.examples["data"]
        subject = Subject(Model(checkpoint), model, task)
        row: dict[str, Any] = {"parameters": subject.parameters, "bytes": subject.disk_bytes}
        max_length = int(checkpoint.info.get("max_length", checkpoint.encoder.max_positions))
        items = head.encode(examples, checkpoint.tokenizer, max_length=max_length, training=False)
        predictions = predict(checkpoint.encoder.to(self.arguments.device), head.to(self.arguments.device), items)
        scorer = scorer_of(head)
        names = list(head.labels["label"])
        row["metric"] = scorer.main_metric
        row["score"] = scorer.score(predictions, examples)[scorer.main_metric]
        row["labels"] = names
        row["answers"] = "".join(str(names.index(prediction.label)) for prediction in predictions)
        if self.job.plan == ORIGINAL:
            row["gold"] = "".join(str(names.index(str(example.gold))) for example in examples)
        return row


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="+", choices=SETS)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=float, default=0.0)
    return parser.parse_args()


if __name__ == "__main__":
    main()
