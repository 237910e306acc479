"""What a compression method is: settings, the strengths to search, and a function from a model to a smaller one.

In: a `CompressionJob`, which holds the original and the rows. Out: a `Checkpoint`. The gate opens and measures what
`write` saved, so a figure is always that of the folder on disk.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from firth import checkpoint as checkpoints
from firth.checkpoint import Checkpoint
from firth.errors import Unsupported
from firth.inference.model import Model, load
from firth.run_folder import RunFolder
from firth.tasks.task import Head
from firth.types import Example


@dataclass(frozen=True)
class MethodConfig:
    """The settings of a method. The docstring under a field is its help text."""

    @property
    def input_files(self) -> Mapping[str, Path]:
        """The files that settings name: they must exist, and a resumed run needs the same ones."""
        return {}


@dataclass(frozen=True)
class CompressionJob:
    """What a method works with."""

    model: Path
    """The folder of the original."""
    original: Checkpoint
    task: str = ""
    """The task that the score is of; empty for a model that was not fine-tuned."""
    examples: Mapping[str, Sequence[Example]] = field(default_factory=dict)
    """`train`: rows to learn from. `data`: rows that both models are measured on; no method may look at them."""
    files: Mapping[str, Path] = field(default_factory=dict)
    """The files that the rows are from, by the same names."""
    vocabulary_from: tuple[Path, ...] = ()
    """Text whose tokens are kept, for `vocabulary`."""
    device: str = "cpu"
    seed: int = 1
    folder: Path = Path()
    """Where a method that trains keeps its states and logs; each strength of a search has its own."""
    run: RunFolder | None = None
    """The locked folder of the command, with its `resume` and `interrupts`; None if the method does not train."""

    @property
    def head(self) -> Head:
        """The head of the task; raises for a model that was not fine-tuned."""
        if not self.task:
            raise Unsupported(f"{self.model} is not fine-tuned for a task, which this method needs.")
        return self.original.tasks[self.task]

    @property
    def max_length(self) -> int:
        """The longest sequence, as in fine-tuning."""
        return int(self.original.info.get("max_length", self.original.encoder.max_positions))


class Method:
    """A way to make a model smaller or faster."""

    name: ClassVar[str]
    """Its name in the table."""
    Config: ClassVar[type[MethodConfig]] = MethodConfig
    config: Any
    """Of the class's own `Config`."""
    trains: ClassVar[bool] = False
    """Whether it has a training loop: it then needs `train=` and works in a run folder that can be resumed."""
    needs_rows: ClassVar[bool] = False
    """Whether it looks at labelled rows of the task, such as for gradients."""

    def __init__(self, config: MethodConfig) -> None:
        self.config = config

    @classmethod
    def strengths(cls, original: Checkpoint, config: Any) -> Sequence[MethodConfig]:
        """Configs from mild to strong, for the search; `config` is what the user asked for besides the strength."""
        return [config]

    @property
    def described(self) -> str:
        """Its settings in a few words, for messages and the card."""
        raise NotImplementedError

    @property
    def remarks(self) -> list[str]:
        """Sentences that the card says besides the table, once the model is written."""
        return []

    def compress(self, job: CompressionJob) -> Checkpoint:
        """The smaller model. The original stays as it is."""
        raise NotImplementedError

    def write(self, folder: Path, checkpoint: Checkpoint) -> None:
        """Saves the model; overridden by methods whose folder is not the usual one."""
        checkpoints.save(folder, checkpoint)

    def open(self, folder: Path) -> Model:
        """The saved model as it will be used; overridden if something else than firth runs it."""
        return load(folder)
