"""Taggers trained on labelled sentences alone: over hand-written features, or over new vectors of units.

In: labelled sentences. Out: what such a run starts from (templates and an empty bag, or a list of units and their
vectors), and the bag and tagger with their weights found without a training loop: HMM by counting, MEMM and CRF by
L-BFGS. Counting: Rabiner 1989; L-BFGS for CRFs: Sha & Pereira 2003.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from torch import nn

from firth.console import bar
from firth.data.items import Item
from firth.encoders.bag import Bag
from firth.encoders.tables import StaticConfig
from firth.errors import BadConfig
from firth.finetuning.labelled import Labelled
from firth.finetuning.start import Start
from firth.finetuning.transfer import TransferConfig
from firth.nn import chain as chains
from firth.nn import hmm
from firth.ragged import bounds_of
from firth.tasks.conll import Sentence
from firth.tasks.tag import TagConfig, TagHead
from firth.tasks.task import Head, TaskConfig, index_of
from firth.tasks.word_windows import units_of
from firth.tensors import Encoder
from firth.tokenizers import Tokenizer
from firth.tokenizers.templates import Templates
from firth.tokenizers.units import normal
from firth.tokenizers.word_list import Words
from firth.train.lbfgs import minimise
from firth.types import Example

if TYPE_CHECKING:
    from firth.nn.loglinear import FeatureWeights

log = logging.getLogger(__name__)

MOST_PAIRS = 1 << 24
"""Pairs of feature and tag up to which all of them get a weight: 20 vectors of L-BFGS are 1.3 GB then."""


def solved_in_loop(config: TaskConfig) -> TaskConfig:
    """A tagger's config if gradients find its weights; the configs of other tasks unchanged."""
    if not isinstance(config, TagConfig):
        return config
    if config.tagger == "hmm" or config.solver in ("lbfgs", "counts"):
        raise BadConfig("An hmm, and the solvers lbfgs and counts, need features to count: add `encoder='bag'`.")
    return replace(config, solver="loop")


def over_vectors(config: TaskConfig) -> TaskConfig:
    """A tagger's config over new vectors of words or characters."""
    return solved_in_loop(_tagger_config(config, "static"))


def over_features(config: TaskConfig) -> TaskConfig:
    """A tagger's config over features written by hand."""
    config = _tagger_config(config, "bag")
    is_hmm = config.tagger == "hmm"
    solver = config.solver
    if solver == "auto":
        solver = "counts" if is_hmm else "lbfgs"
    if is_hmm != (solver == "counts"):
        raise BadConfig("solver=counts and tagger=hmm go together; the others learn by lbfgs or in the loop.")
    # A feature has one weight for each tag, so the sum of a token's rows is its scores: no head is needed.
    return replace(config, head="none", dropout=0.0, solver=solver)


def _tagger_config(config: TaskConfig, encoder: str) -> TagConfig:
    if not isinstance(config, TagConfig):
        raise BadConfig(f"`encoder='{encoder}'` reads the words of sentences for taggers; use it with `task='tag'`.")
    return config


def start_from_features(data: Mapping[str, Labelled], templates: Templates.Config) -> Start:
    """Templates that know the training rows' units and features, and an empty bag over them."""
    (part,) = data.values()
    (tags,) = part.labels.values()
    assert isinstance(part.config, TagConfig)
    unit: Literal["character", "word"] = "character" if part.config.unit == "character" else "word"
    config = replace(templates, unit=unit)
    if part.config.tagger == "hmm":
        # An HMM emits each unit once and has no other features.
        config = replace(config, templates=())
    # Equal words are one string: a million copies take 80 MB.
    known: dict[str, str] = {}
    sentences = [units_of(row, known) for row in part.examples["train"] if isinstance(row, Sentence)]
    tokenizer = Templates.learn(sentences, config)
    log.info(
        f"{len(tokenizer.vocab):,} units, {len(tokenizer.keys_F):,} features of {len(tokenizer.templates)} templates."
    )
    # The bag starts at zero, and its width is one score for each tag.
    bag = Bag.Config(vocab_size=tokenizer.num_rows, width=len(tags), combine="sum", init_std=0.0)
    return Start("bag", bag, tokenizer)


def start_from_vectors(data: Mapping[str, Labelled], config: StaticConfig) -> Start:
    """A list of the training rows' units (characters or words), and random vectors for them."""
    texts: list[str] = []
    for part in data.values():
        for row in part.examples["train"]:
            units = [normal(unit) for unit in _units(row)]
            texts.append(" ".join(units))
    # The units are joined by spaces and split there again, so each becomes one word of the list.
    tokenizer = Words.train(texts, Words.Config(min_count=2, lowercase=False, split="spaces"))
    log.info(f"{len(tokenizer.vocab):,} units get vectors of {config.width}.")
    return Start("static", replace(config, vocab_size=len(tokenizer.vocab)), tokenizer)


def _units(example: Example) -> list[str]:
    assert isinstance(example, Sentence)
    text = example.texts[0]
    return [text[start:end] for start, end in example.words]


def with_head(config: TaskConfig, start: Start, transfer: TransferConfig) -> TaskConfig:
    """A tagger's config with the head that suits the encoder; the configs of other tasks unchanged.

    A tagger must see a token's neighbours: in the encoder's layers, in the features' LSTM, or in its own.
    """
    if not isinstance(config, TagConfig) or config.head != "auto":
        return config
    has_layers = start.shape.num_layers > 0
    has_lstm = transfer.mode == "features" and transfer.features.lstm_width > 0
    return replace(config, head="linear" if has_layers or has_lstm else "lstm")


def is_solved(head: Head) -> bool:
    """Whether a head's weights are found without the loop."""
    return isinstance(head, TagHead) and head.config.solver in ("lbfgs", "counts")


@dataclass(frozen=True)
class _TaggedTokens:
    """All sentences, end to end."""

    parts_M: np.ndarray
    """The features of all tokens."""
    part_bounds_N1: np.ndarray
    tags_N: np.ndarray
    bounds_B1: np.ndarray


def solve(head: Head, encoder: Encoder, items: Sequence[Item], tokenizer: Tokenizer) -> None:
    """Finds the weights of the bag and of the tagger, in place."""
    assert isinstance(head, TagHead)
    assert isinstance(encoder, Bag)
    tokens = _tagged_tokens(head, items)
    if head.config.solver == "counts":
        assert isinstance(tokenizer, Templates)
        _count(head, encoder, tokens, tokenizer)
    else:
        _minimise(head, encoder, tokens)


def _tagged_tokens(head: TagHead, items: Sequence[Item]) -> _TaggedTokens:
    parts: list[np.ndarray] = []
    part_sizes = [np.empty(0, np.int64)]
    tags: list[int] = []
    lengths: list[int] = []
    index = index_of(head.tags)
    for item in items:
        for window in item.windows:
            if window.parts is not None and window.part_sizes is not None:
                parts.append(window.parts)
                part_sizes.append(window.part_sizes)
        tags += [index[tag] for tag in item.example.gold]
        lengths.append(len(item.example.gold))
    # M features, N tokens and B sentences in all.
    return _TaggedTokens(
        parts_M=_end_to_end(parts),
        part_bounds_N1=bounds_of(np.concatenate(part_sizes)),
        tags_N=np.array(tags, np.int64),
        bounds_B1=bounds_of(lengths),
    )


def _end_to_end(pieces: Sequence[np.ndarray]) -> np.ndarray:
    """All pieces in one array: without a copy if they are neighbouring views, as those of `feature_items` are."""
    whole = pieces[0].base
    size = sum(len(piece) for piece in pieces)
    if whole is None or any(piece.base is not whole for piece in pieces) or len(whole) < size:
        return np.concatenate(pieces)
    # Views of one array are neighbours if each begins where the one before it ends.
    filled = [piece for piece in pieces if len(piece)]
    if not filled:
        return np.concatenate(pieces)
    addresses = np.array([piece.ctypes.data for piece in filled])
    ends = addresses + np.array([piece.nbytes for piece in filled])
    starts_whole = addresses[0] == whole.ctypes.data
    has_no_gap = (addresses[1:] == ends[:-1]).all()
    if not starts_whole or not has_no_gap:
        return np.concatenate(pieces)
    return np.asarray(whole[:size])


@torch.no_grad()
def _count(head: TagHead, encoder: Bag, tokens: _TaggedTokens, templates: Templates) -> None:
    """An HMM from how often each unit has each tag.

    The tags of rare units also count for their class, by which unknown units are tagged.
    """
    num_tags = len(head.tags)
    # Without templates a token's only feature is its unit: V units, T tags.
    counts = np.bincount(tokens.parts_M * num_tags + tokens.tags_N, minlength=encoder.vocab_size * num_tags)
    counts_VT = counts.reshape(encoder.vocab_size, -1).astype(float)
    for unit in range(templates.first_class):
        if 0 < counts_VT[unit].sum() <= templates.config.min_count:
            unit_class = templates.class_part(templates.vocab.tokens[unit])
            counts_VT[unit_class] += counts_VT[unit]
    legal = head.tagger.legal
    model = hmm.count(
        torch.from_numpy(counts_VT),
        torch.from_numpy(tokens.tags_N),
        bounds_B1=torch.from_numpy(tokens.bounds_B1),
        allowed=(legal.start_T, legal.transitions_TT),
        smoothing=head.config.smoothing,
    )
    _fill(encoder.table.weight, model.emissions_VT)
    _fill_tagger(head.tagger, model)


def _minimise(head: TagHead, encoder: Bag, tokens: _TaggedTokens) -> None:
    """A MEMM or CRF by L-BFGS."""
    from firth.nn.loglinear import FeatureWeights, LogLinear

    config = head.config
    # An HMM is counted.
    assert config.tagger != "hmm"
    legal = head.tagger.legal
    num_tags = len(head.tags)
    # A pair of feature and tag that never occurs can still get a weight, a negative one.
    are_few = encoder.vocab_size * num_tags <= MOST_PAIRS
    function = LogLinear(
        tokens.parts_M,
        tokens.part_bounds_N1,
        tokens.tags_N,
        tokens.bounds_B1,
        num_rows=encoder.vocab_size,
        kind=config.tagger,
        legal=(legal.start_T.numpy(), legal.transitions_TT.numpy(), legal.end_T.numpy()),
        l2=config.l2,
        all_pairs=config.pairs == "all" or (config.pairs == "auto" and are_few),
        threads=torch.get_num_threads(),
    )
    num_tokens = len(tokens.tags_N)
    with bar("L-BFGS", config.iterations, unit="iterations") as advance:
        found = minimise(
            function,
            np.zeros(function.num_weights, np.float32),
            l1=config.l1,
            iterations=config.iterations,
            scale=function.scale,
            report=lambda iteration, value: advance(iteration, f"loss {value / num_tokens:.4f}"),
        )
    # The weights of pairs are the rows of the bag, the others the tagger's.
    weights = FeatureWeights.of(found, num_tags=num_tags)
    function.pairs.fill(weights.pairs_P, encoder.table.weight.detach().numpy())
    _fill_tagger(head.tagger, weights)


def _fill_tagger(tagger: nn.Module, found: "hmm.HMM | FeatureWeights") -> None:
    """Fills the scores of starts, transitions and ends, as far as the tagger has them."""
    for name, parameter in tagger.named_parameters():
        _fill(parameter, getattr(found, name))


@torch.no_grad()
def _fill(parameter: torch.Tensor, values: torch.Tensor | np.ndarray) -> None:
    # Minus infinity times zero would be NaN.
    parameter.copy_(torch.as_tensor(values).clamp(min=chains.ILLEGAL))
