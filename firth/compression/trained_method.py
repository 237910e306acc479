"""Methods that train: what they share. A model and labelled rows in, a fine-tuned run in the job's folder out.

The run is `firth.finetuning` with an `Extension`, so states, resuming, signals and picking are those of fine-tuning.
FOLDER/student holds the model that the run starts from, FOLDER/teacher what teachers said about the rows, FOLDER/run
the run.
"""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from firth import checkpoint as checkpoints
from firth.checkpoint import Checkpoint
from firth.compression.method import CompressionJob, Method, MethodConfig
from firth.compression.teacher import Teacher
from firth.config import to_dict
from firth.errors import BadConfig, BadInput
from firth.files import JsonObject, atomic_folder
from firth.finetuning import running
from firth.finetuning.extension import Extension
from firth.finetuning.job_config import FinetuneRequest
from firth.finetuning.labelled import Labelled
from firth.run_folder import RunFolder, is_begun
from firth.run_source import model_sha256
from firth.tasks.task import Head, Labels
from firth.tensors import Encoder, Goal
from firth.train.parallel import current_world

STUDENT = "student"
TEACHER = "teacher"
RUN = "run"


@dataclass(frozen=True)
class TrainingConfig(MethodConfig):
    """The settings that all methods with a training loop have."""

    epochs: float = 0.0
    """Passes over the training rows; 0: as many as fine-tuning makes."""
    rate: float = 0.0
    """Learning rate; 0: that of fine-tuning a model of this width."""
    batch_size: int = 32
    """Rows of a batch."""
    max_length: int = 0
    """Longest sequence, special tokens included; 0: the model's own."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """Arithmetic of training; auto is bf16 on a GPU and on a CPU with units for it, else fp32."""

    def __post_init__(self) -> None:
        if self.epochs < 0 or self.rate < 0 or self.batch_size < 1 or self.max_length < 0:
            raise BadConfig("epochs, rate and max_length must be at least 0, and batch_size at least 1.")


class TrainingExtension(Extension):
    """What a method does in a run: the base for all of them."""

    def __init__(self, method: "TrainedMethod", job: CompressionJob, name: str) -> None:
        self.method = method
        self.job = job
        self.name = name

    def record(self) -> Mapping[str, object]:
        facts: dict[str, object] = {"method": self.name, "model": model_sha256(self.job.model)}
        facts.update(to_dict(self.method.config))
        return facts

    def check_rows(self, name: str, rows: Labelled) -> None:
        known = self.job.head.labels
        if dict(rows.labels) != dict(known):
            raise BadInput(
                f"{self.job.model} chooses from {_listed(known)}, but the training rows have {_listed(rows.labels)}."
            )

    def goal(self, head: Head, encoder: Encoder) -> Goal:
        self.start_head(head)
        return head

    def start_head(self, head: Head) -> None:
        """Gives a head the weights of the original's, if it has the same shape."""
        trained = self.job.head.state_dict()
        shapes = {name: tensor.shape for name, tensor in head.state_dict().items()}
        if shapes == {name: tensor.shape for name, tensor in trained.items()}:
            head.load_state_dict(trained)


class TrainedMethod(Method):
    """A method with a training loop over labelled rows."""

    Config: ClassVar[type[MethodConfig]] = TrainingConfig
    trains = True
    needs_rows = True
    keeps_last: ClassVar[bool] = False
    """Whether the last weights are taken and not the best ones: those before have not reached the strength."""

    @property
    def described(self) -> str:
        return self.name

    def student(self, job: CompressionJob) -> Checkpoint | None:
        """What the run starts from; None for the original itself."""
        return None

    def extension(self, job: CompressionJob) -> TrainingExtension:
        return TrainingExtension(self, job, self.name)

    def check(self, job: CompressionJob) -> None:
        """Raises for models that the method does not know, before anything is written."""

    def compress(self, job: CompressionJob) -> Checkpoint:
        if "train" not in job.files:
            raise BadConfig(f"`by='{self.name}'` trains, so it needs labelled rows: give a `train=` file.")
        if job.original.adapter_width or job.original.prefix_length or job.original.feature_encoder:
            raise BadConfig(f"{job.model} has adapters or frozen features, which `by='{self.name}'` does not know.")
        self.check(job)
        extension = self.extension(job)
        start = self._start(job)
        run = self.run_path(job)
        with RunFolder(run, command="finetune", resume=is_begun(run)) as folder:
            running.finetune(folder, self._request(job, start, extension), device=job.device)
        # A teacher was moved to where its student was trained; the gate measures it on the CPU.
        Teacher.of(job.model, job.original).to("cpu")
        return self.finished(checkpoints.load(run), job)

    def run_path(self, job: CompressionJob) -> Path:
        """The folder of the run; overridden if all strengths share one."""
        return job.folder / RUN

    def is_run_begun(self, job: CompressionJob) -> bool:
        return is_begun(self.run_path(job))

    def finished(self, trained: Checkpoint, job: CompressionJob) -> Checkpoint:
        """The result, from what the run left."""
        return trained

    def _start(self, job: CompressionJob) -> Path:
        """The folder of the model that the run starts from. It is written once: a resumed run needs the same one."""
        folder = job.folder / STUDENT
        if folder.exists() and self.is_run_begun(job):
            return folder
        student = self.student(job)
        if student is None:
            return job.model

        def write() -> None:
            shutil.rmtree(folder, ignore_errors=True)
            with atomic_folder(folder) as temporary:
                checkpoints.save(temporary, student)

        current_world().on_main(write)
        return folder

    def _request(self, job: CompressionJob, start: Path, extension: Extension) -> FinetuneRequest:
        return FinetuneRequest(
            model=str(start),
            tasks=(job.task.partition("-")[0],),
            files={"train": [str(job.files["train"])]},
            options=self.head_options(job),
            skip_bad=True,  # bad rows were refused when the job was made, unless the user wants them left out
            changes=tuple(self.changes(job)),
            extension=extension,
        )

    def head_options(self, job: CompressionJob) -> JsonObject:
        """The task's settings: rows are read as the original's training rows were."""
        options: JsonObject = to_dict(job.head.config)
        return options

    def changes(self, job: CompressionJob) -> Sequence[str]:
        """The run's settings as `key=value`."""
        config = self.config
        changes = [
            f"train.seed={job.seed}",
            f"batch_size={config.batch_size}",
            f"max_length={config.max_length or job.max_length}",
            f"train.precision={config.precision}",
        ]
        if config.epochs:
            changes.append(f"epochs={config.epochs}")
        if config.rate:
            changes.append(f"train.optim.rate={config.rate}")
        if self.keeps_last:
            changes.append("pick=last")
        return changes


def _listed(labels: Labels) -> str:
    """The names of all groups."""
    groups = [", ".join(names) for names in labels.values()]
    return "; ".join(groups)
