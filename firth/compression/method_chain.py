"""Methods that follow each other: each one takes the model that the method before it made.

The first method may train, and its strength is searched. The others do not train and have fixed settings, such as
`int8` and `weights` after a distillation.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from firth import compression
from firth.checkpoint import Checkpoint
from firth.compression.method import CompressionJob, Method, MethodConfig
from firth.config import override, to_dict
from firth.errors import BadConfig
from firth.files import JsonObject
from firth.inference.model import Model


@dataclass(frozen=True)
class FollowUp:
    """A method that comes after the first one, with its settings."""

    method_class: type[Method]
    config: MethodConfig

    @property
    def note(self) -> JsonObject:
        """What a run folder keeps of it."""
        return {"method": self.method_class.name, "settings": to_dict(self.config)}


def read_follow_ups(names: Sequence[str], changes: Sequence[str]) -> tuple[list[FollowUp], list[str]]:
    """The methods that follow, and the changes that are for the first method.

    A change such as `weights.bits=4` is for the method `weights`; one without the name of a method is for the first.
    """
    if len(set(names)) < len(names):
        raise BadConfig("`then=` names a method twice; each can follow once.")
    follow_ups = []
    for name in names:
        method_class = compression.resolve(name)
        if method_class.trains:
            raise BadConfig(
                f"{name} trains, so it cannot follow another method; compress by it first, or give it as `by='{name}'`."
            )
        prefix = f"{name}."
        own = [change.removeprefix(prefix) for change in changes if change.startswith(prefix)]
        config = override(method_class.Config(), own)
        follow_ups.append(FollowUp(method_class, config))
    prefixes = tuple(f"{name}." for name in names)
    first = [change for change in changes if not change.startswith(prefixes)]
    return follow_ups, first


class Chain:
    """The first method at one strength, and what follows it. Methods remember what they have to say of their model."""

    def __init__(self, first: Method, follow_ups: Sequence[FollowUp]) -> None:
        self.first = first
        self.methods = [first, *(follow_up.method_class(follow_up.config) for follow_up in follow_ups)]

    @property
    def name(self) -> str:
        return ", ".join(method.name for method in self.methods)

    @property
    def described(self) -> str:
        """The settings of all methods in a few words."""
        return ", ".join(method.described for method in self.methods)

    @property
    def remarks(self) -> list[str]:
        """What the card says besides the table."""
        sentences = []
        for method in self.methods:
            sentences += method.remarks
        return sentences

    def compress(self, job: CompressionJob) -> Checkpoint:
        """The model after the last method, with a note of each."""
        made = job.original
        for method in self.methods:
            before = made
            made = method.compress(replace(job, original=before))
            if made.encoder is not before.encoder:
                made = _without_context(made)
            made = _with_note(made, method, source=job.model)
        return made

    def write(self, folder: Path, checkpoint: Checkpoint) -> None:
        """Saves the model as the last method that has a format of its own does."""
        self._writer.write(folder, checkpoint)

    def open(self, folder: Path) -> Model:
        return self._writer.open(folder)

    @property
    def _writer(self) -> Method:
        with_format = [method for method in self.methods if type(method).write is not Method.write]
        return with_format[-1] if with_format else self.first


def _without_context(made: Checkpoint) -> Checkpoint:
    """The model without what its vector head projects of the states: they were those of another encoder."""
    if made.vector_head is None:
        return made
    return replace(made, vector_head=replace(made.vector_head, context=None))


def _with_note(made: Checkpoint, method: Method, *, source: Path) -> Checkpoint:
    """The model whose notes say what it is a compressed form of."""
    note = {"from": source.resolve().name, "method": method.name, "settings": to_dict(method.config)}
    # A model may be compressed several times.
    before = list(made.info.get("compressed", ()))
    info = {**made.info, "compressed": [*before, note]}
    if "held_out" in info:
        info["held_out_before_compression"] = info.pop("held_out")
    return replace(made, info=info)
