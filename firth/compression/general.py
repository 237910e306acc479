"""Distillation on plain text: a pre-trained model and text in, a pre-trained student out.

The run is `firth.pretraining` by masked LM with a lesson in the place of the objective. FOLDER/data holds the prepared
text, FOLDER/student the model that the run starts from, FOLDER/run the run.
"""

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from firth import checkpoint as checkpoints
from firth.checkpoint import Checkpoint
from firth.compression.distil import StudentMethod
from firth.compression.lesson import Lesson, Term
from firth.compression.method import CompressionJob
from firth.compression.relations import check_relations
from firth.compression.teacher import Teacher
from firth.data import prepare as preparation
from firth.data.shards import Shards
from firth.errors import BadConfig
from firth.objectives.objective import Objective
from firth.pretraining import training as pretraining
from firth.pretraining.planning import MASKED_LM, PretrainRequest
from firth.run_folder import RunFolder, is_begun
from firth.run_source import DATA
from firth.tensors import Encoder, Goal
from firth.train.parallel import current_world

EPOCHS = 3.0
"""Passes over the text if the user does not say."""
LENGTH = 128
"""Tokens of the longest sequence."""
SEQUENCES = 32
"""Sequences of a step, if the text is large enough."""
STATE_EVERY = 200
"""Steps after which a state is saved."""
FEWEST_STEPS = 50
"""Steps of a pass over a small text, if a step can be so small."""


class GeneralMethod(StudentMethod):
    """A method that also, or only, learns from plain text."""

    def text_terms(self, goal: Objective, encoder: Encoder, teacher: Teacher) -> Sequence[Term]:
        """What is compared on plain text."""
        raise NotImplementedError

    @property
    def text_label_weight(self) -> float:
        """The weight of masked LM itself."""
        return 0.0

    def compress(self, job: CompressionJob) -> Checkpoint:
        if job.task:
            return super().compress(job)
        return self._compress_on_text(job)

    def _compress_on_text(self, job: CompressionJob) -> Checkpoint:
        if "train" not in job.files:
            raise BadConfig(f"`by='{self.name}'` trains, so it needs text: give a `train=` file.")
        self.check_text(job)
        teacher = Teacher.of(job.model, job.original)
        start = self._start(job)
        run = self.run_path(job)
        data = self._prepared(job)

        def extend(goal: Objective, encoder: Encoder) -> Goal:
            terms = self.text_terms(goal, encoder, teacher)
            return Lesson(goal, terms, teacher=teacher, label_weight=self.text_label_weight)

        with RunFolder(run, command="pretrain", resume=is_begun(run)) as folder:
            pretraining.pretrain(
                data,
                folder,
                request=self._text_request(job, Shards.open(data), is_new=not folder.begun),
                start_from=start,
                device=job.device,
                extend=extend,
            )
        teacher.to("cpu")  # where the gate measures it
        trained = checkpoints.load(run)
        if "masked_lm" not in job.original.goals:
            # Its head was only there to cut the text into sequences.
            trained = replace(trained, goals={})
        return self.finished(replace(trained, embedding=job.original.embedding), job)

    def check_text(self, job: CompressionJob) -> None:
        check_relations(job.original.encoder, job.model)

    def _prepared(self, job: CompressionJob) -> Path:
        """The text as the model's tokenizer reads it; each line is a document."""
        data = job.folder / DATA
        if is_begun(self.run_path(job)):
            return data

        def write() -> None:
            shutil.rmtree(data, ignore_errors=True)
            job.folder.mkdir(parents=True, exist_ok=True)
            text = [job.files["train"]]
            preparation.prepare(text, data, tokenizer=job.original.tokenizer, documents="line", processes=0)

        current_world().on_main(write)
        return data

    def _text_request(self, job: CompressionJob, shards: Shards, *, is_new: bool) -> PretrainRequest:
        """The request; a resumed run keeps its numbers."""
        if not is_new:
            return PretrainRequest()
        config = self.config
        longest = min(LENGTH, job.original.encoder.max_positions)
        length = min(config.max_length or longest, job.original.encoder.max_positions)
        tokens = max(length, min(SEQUENCES * length, shards.num_tokens // FEWEST_STEPS))
        # bf16 was measured on CPUs only. The teacher computes in what its student computes in.
        precision = config.precision if job.device == "cpu" else "fp32"
        changes = [
            f"batches.max_length={length}",
            f"batches.tokens={tokens}",
            f"train.seed={job.seed}",
            f"train.checkpoint_every={STATE_EVERY}",
            "train.log_every=10",
            # A teacher runs in every step, with shapes that torch.compile would not know.
            "train.compile=no",
            f"train.precision={precision}",
        ]
        if config.rate:
            changes.append(f"train.optim.rate={config.rate}")
        return PretrainRequest(MASKED_LM, epochs=config.epochs or EPOCHS, changes=tuple(changes))
