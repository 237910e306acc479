"""The precision that a model is served in, chosen once and saved in its folder.

In: a model. Out: the same weights, and in `firth.json` the precision with the choice for this machine: which layers run
in 8-bit integers. `firth.load`, `serve` and `predict` then use it without measuring again.
"""

from dataclasses import dataclass, replace
from typing import Literal

from firth.checkpoint import Checkpoint
from firth.compression.method import CompressionJob, Method, MethodConfig
from firth.compression.structure import block_encoder
from firth.inference.model import Model
from firth.inference.saved_precision import KEY


class ServeInt8(Method):
    """The precision for serving is measured once and saved in the folder."""

    name = "int8"

    @dataclass(frozen=True)
    class Config(MethodConfig):
        precision: Literal["int8", "bf16", "auto"] = "int8"
        """What the model computes in; auto is the fastest on this machine."""

    config: Config

    @property
    def described(self) -> str:
        return f"served in {self.config.precision}"

    def compress(self, job: CompressionJob) -> Checkpoint:
        block_encoder(job.original)
        model = Model(job.original, precision=self.config.precision)
        choices = dict(model.embedder.measure_precision())
        precision = {"name": self.config.precision, "choices": choices}
        return replace(job.original, info={**job.original.info, KEY: precision})
