"""What a student starts as: a teacher without some of its layers, another model, or random weights.

In: a teacher and what is asked for. Out: a checkpoint to fine-tune.
"""

from dataclasses import fields, replace
from pathlib import Path

from firth import checkpoint as checkpoints
from firth.checkpoint import Checkpoint, make_head, make_objective
from firth.compression.structure import blocks_of
from firth.errors import BadConfig, Unsupported
from firth.nn.blocks import Block
from firth.tensors import Encoder
from firth.train.parallel import reseed


def layers_of(encoder: Encoder, model: str | Path) -> list[Block]:
    """The layers of an encoder; raises if they do not have weights of their own."""
    blocks = blocks_of(encoder)
    if not blocks or len(blocks) != encoder.num_layers:
        raise Unsupported(f"{model} has no layers with weights of their own, as BERT and GPT have.")
    return blocks


def random_weights(original: Checkpoint, *, width: int, seed: int) -> Checkpoint:
    """A model of the same kind with new weights, and of another width if one is given."""
    config = original.encoder.config
    if width:
        config = _narrower(config, width)
    reseed(seed, "student")
    encoder: Encoder = type(original.encoder)(config)
    goals = {}
    for name, goal in original.goals.items():
        goals[name] = make_objective(name, goal.config, encoder, original.tokenizer)
    tasks = {}
    for name, head in original.tasks.items():
        tasks[name] = make_head(name, head.config, encoder, labels=head.labels)
    return replace(original, encoder=encoder.eval(), goals=goals, tasks=tasks, text="")


def _narrower(config: object, width: int) -> object:
    """The config with another width, and a feed-forward layer in proportion; the number of heads stays."""
    names = {field.name for field in fields(config)}  # type: ignore[arg-type]
    if not {"width", "ffn_width", "num_heads"} <= names:
        raise Unsupported("Only Transformers can have another width; leave out width.")
    old_width: int = config.width  # type: ignore[attr-defined]
    num_heads: int = config.num_heads  # type: ignore[attr-defined]
    if width < 1 or width % num_heads:
        raise BadConfig(f"The student's width must be a multiple of its {num_heads} heads; it is {width}.")
    ffn_width = max(1, round(config.ffn_width * width / old_width))  # type: ignore[attr-defined]
    changes: dict[str, int] = {"width": width, "ffn_width": ffn_width}
    if "embedding_width" in names:
        changes["embedding_width"] = min(config.embedding_width, width)  # type: ignore[attr-defined]
    return replace(config, **changes)  # type: ignore[type-var,no-any-return]


def other_model(folder: str) -> Checkpoint:
    """Another model folder as the student, without heads of its own tasks."""
    loaded = checkpoints.load(Path(folder))
    if loaded.adapter_width or loaded.prefix_length or loaded.feature_encoder:
        raise BadConfig(f"{folder} has adapters or frozen features, so it cannot be a student.")
    return replace(loaded, tasks={}, text="")
