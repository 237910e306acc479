"""A model that only reads becomes the start of one that writes (Rothe et al. 2020).

In: BERT or a model of its kind, as a start. Out: an encoder-decoder of BART's shape as a start. Its encoder half is the
model, exactly: the segment embedding of a first text is added to the positions. Its decoder begins with the same
embeddings, self-attention and feed-forward layers. Cross-attention is new.
"""

from collections.abc import Mapping
from dataclasses import fields, replace

from torch import Tensor

from firth.encoders.albert import Albert
from firth.encoders.bart import Bart
from firth.encoders.bert import Bert
from firth.errors import Unsupported
from firth.finetuning.start import Start
from firth.nn.transformer import TransformerConfig
from firth.tasks.rewrite import RewriteConfig
from firth.tasks.task import TaskConfig
from firth.tensors import Encoder, Goal

UNILM = "unilm"
"""The objective whose models write as they are, with source and target in one sequence."""
READERS = {"bert": Bert, "albert": Albert}
"""The encoders that an encoder half can begin as: those of BERT's, RoBERTa's, ELECTRA's and ALBERT's folders."""


def with_way(config: TaskConfig, goals: Mapping[str, Goal] | None) -> TaskConfig:
    """The config of a task that rewrites, with how a model of these pre-training heads writes; others unchanged."""
    if not isinstance(config, RewriteConfig) or config.way:
        return config
    return replace(config, way="prefix" if UNILM in (goals or {}) else "source")


def needs_source(config: TaskConfig) -> bool:
    """Whether a task needs an encoder-decoder."""
    return isinstance(config, RewriteConfig) and config.way == "source"


def as_writer(start: Start, *, decoder_layers: int = 0) -> Start:
    """The same start if it writes already; otherwise an encoder-decoder that begins with the model's weights.

    The decoder has `decoder_layers` blocks, taken from the model at even distances; 0 has as many as the model.
    """
    if start.shape.reads_source:
        return start
    if start.encoder_name not in READERS:
        known = ", ".join(READERS)
        name = start.encoder_name
        raise Unsupported(
            f"An encoder-decoder cannot begin with the weights of a {name}; it can with those of: {known}."
        )
    config = _writer_config(start, decoder_layers)
    writer = None
    new_tensors: frozenset[str] = frozenset()
    if start.trained is not None:
        writer = Bart(config)
        new_tensors = _copy_weights(start.trained, writer)
    return replace(
        start,
        encoder_name="bart",
        encoder_config=config,
        trained=writer,
        goals={},
        layout="",
        new_tensors=new_tensors,
    )


def _writer_config(start: Start, decoder_layers: int) -> Bart.Config:
    config = start.encoder_config
    assert isinstance(config, Bert.Config | Albert.Config)
    common = {each.name: getattr(config, each.name) for each in fields(TransformerConfig)}
    # A BERT whose embedding is as wide as its states has no projection; an ALBERT always has one.
    is_projected = isinstance(config, Albert.Config) or config.embedding_width not in (0, config.width)
    return Bart.Config(
        **common,
        decoder_layers=0 if decoder_layers == config.num_layers else decoder_layers,
        embedding_width=config.embedding_width if is_projected else 0,
        start_token=start.tokenizer.vocab.cls,
    )


def _copy_weights(reader: Encoder, writer: Bart) -> frozenset[str]:
    """Copies the reader's weights; the names of those that are new: cross-attention, and what narrows states."""
    theirs = reader.state_dict()
    ours = writer.state_dict()
    copied = {"tokens.weight": theirs["embeddings.tokens.weight"]}
    for half in ("encoder", "decoder"):
        copied.update(_embedding_weights(theirs, f"{half}.embed."))
    num_blocks = len(reader.blocks)  # type: ignore[arg-type]
    num_layers = writer.num_layers
    for layer in range(num_layers):
        copied.update(_block_weights(theirs, min(layer, num_blocks - 1), f"encoder.blocks.{layer}."))
    for layer in range(writer.num_decoder_layers):
        chosen = min(_evenly(layer, writer.num_decoder_layers, num_layers), num_blocks - 1)
        prefix = f"decoder.blocks.{layer}."
        copied.update(_block_weights(theirs, chosen, prefix))
        # With cross-attention at zero, x -> norm(x) -> scaled norm(x) is the model's one norm.
        for name in ("weight", "bias"):
            copied[f"{prefix}cross_norm.{name}"] = copied[f"{prefix}attention_norm.{name}"]
            copied[f"{prefix}attention_norm.{name}"] = ours[f"{prefix}attention_norm.{name}"]  # 1 and 0
    writer.load_state_dict({**ours, **copied})
    return frozenset(ours.keys() - copied.keys())


def _embedding_weights(theirs: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    positions_LE = theirs["embeddings.positions.weight"]
    if "embeddings.segments.weight" in theirs:
        first_segment_E = theirs["embeddings.segments.weight"][0]
        positions_LE = positions_LE + first_segment_E
    weights = {f"{prefix}positions.weight": positions_LE}
    for part, their_parts in {"norm": ("embeddings.norm",), "project": ("embeddings.project", "widen")}.items():
        for their_part in their_parts:
            for name in ("weight", "bias"):
                if f"{their_part}.{name}" in theirs:
                    weights[f"{prefix}{part}.{name}"] = theirs[f"{their_part}.{name}"]
    return weights


def _block_weights(theirs: dict[str, Tensor], block: int, prefix: str) -> dict[str, Tensor]:
    their_prefix = f"blocks.{block}."
    return {
        prefix + name.removeprefix(their_prefix): tensor
        for name, tensor in theirs.items()
        if name.startswith(their_prefix)
    }


def _evenly(layer: int, count: int, num_layers: int) -> int:
    """Which of `num_layers` blocks is the layer-th of `count`: the first is the first, the last is the last."""
    if count == 1:
        return num_layers - 1
    return round(layer * (num_layers - 1) / (count - 1))
