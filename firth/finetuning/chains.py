"""Taggers that start from nothing but labelled sentences: over features written by hand, or over vectors of units.

In: labelled sentences. Out: what such a run starts from (templates and an empty bag, or a list of units and their
vectors), and the bag and tagger with their weights found without a training loop: HMM by counting, MEMM and CRF by
L-BFGS. Counting: Rabiner 1989; L-BFGS for CRFs: Sha & Pereira 2003.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

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
from firth.tasks.conll import Sentence
from firth.tasks.tag import TagConfig, TagHead
from firth.tasks.task import Head
from firth.tasks.words import units_of
from firth.tensors import Encoder
from firth.tokenizers.templates import Templates
from firth.tokenizers.units import normal
from firth.tokenizers.word_list import Words
from firth.train.lbfgs import minimise

log = logging.getLogger(__name__)

MOST_PAIRS = 1 << 24
"""Pairs of feature and tag up to which all of them get a weight: 20 vectors of L-BFGS are 1.3 GB then."""


def in_the_loop(config: Any) -> Any:
    """A tagger's config where gradients find its weights; others as they are."""
    if not isinstance(config, TagConfig):
        return config
    if config.tagger == "hmm" or config.solver in ("lbfgs", "counts"):
        raise BadConfig("An hmm, and the solvers lbfgs and counts, need features to count: add `encoder='bag'`.")
    return replace(config, solver="loop")


def over_vectors(config: Any) -> Any:
    """A tagger's config over new vectors of words or characters."""
    _refuse_others(config, "static")
    return in_the_loop(config)


def over_features(config: Any) -> Any:
    """A tagger's config over features written by hand."""
    _refuse_others(config, "bag")
    usual: Any = "counts" if config.tagger == "hmm" else "lbfgs"
    if config.solver != "auto" and (config.tagger == "hmm") != (config.solver == "counts"):
        raise BadConfig("solver=counts and tagger=hmm go together; the others learn by lbfgs or in the loop.")
    return replace(config, head="none", dropout=0.0, solver=usual if config.solver == "auto" else config.solver)


def _refuse_others(config: Any, encoder: str) -> None:
    if not isinstance(config, TagConfig):
        raise BadConfig(f"`encoder='{encoder}'` reads the words of sentences for taggers; use it with `task='tag'`.")


def begin(data: Mapping[str, Labelled], templates: Templates.Config) -> Start:
    """Templates that know the training rows' units and features, and an empty bag over them."""
    (part,) = data.values()
    (tags,) = part.labels.values()
    assert isinstance(part.config, TagConfig)
    unit: Any = "character" if part.config.unit == "character" else "word"
    # An HMM emits each unit once: no other features.
    config = replace(templates, unit=unit, templates=() if part.config.tagger == "hmm" else templates.templates)
    known: dict[str, str] = {}
    rows = [row for row in part.examples["train"] if isinstance(row, Sentence)]
    tokenizer = Templates.learn([units_of(row, known) for row in rows], config)
    log.info(
        f"{len(tokenizer.vocab):,} units, {len(tokenizer.keys_F):,} features of {len(tokenizer.templates)} templates."
    )
    shape = Bag.Config(vocab_size=tokenizer.num_rows, width=len(tags), combine="sum", init_std=0.0)
    return Start("bag", shape, tokenizer)


def begin_vectors(data: Mapping[str, Labelled], shape: StaticConfig) -> Start:
    """A list of the training rows' units (characters or words), and random vectors for them."""
    texts = [" ".join(map(normal, _units(row))) for part in data.values() for row in part.examples["train"]]
    tokenizer = Words.train(texts, Words.Config(min_count=2, lowercase=False, split="spaces"))
    log.info(f"{len(tokenizer.vocab):,} units get vectors of {shape.width}.")
    return Start("static", replace(shape, vocab_size=len(tokenizer.vocab)), tokenizer)


def with_head(config: Any, start: Start, transfer: TransferConfig) -> Any:
    """A tagger's config with the head that an encoder of such depth needs; others as they are."""
    if not isinstance(config, TagConfig) or config.head != "auto":
        return config
    sees_neighbours = start.shape.num_layers > 0 or (transfer.mode == "features" and transfer.features.lstm_width > 0)
    return replace(config, head="linear" if sees_neighbours else "lstm")


def solves(task: Head) -> bool:
    return isinstance(task, TagHead) and task.config.solver in ("lbfgs", "counts")


def solve(task: Head, encoder: Encoder, items: Sequence[Item], tokenizer: Any) -> None:
    """Finds the weights of the bag and of the tagger."""
    assert isinstance(task, TagHead)
    assert isinstance(encoder, Bag)
    windows = [window for item in items for window in item.windows]
    parts = _end_to_end([window.parts for window in windows if window.parts is not None])
    sizes = np.concatenate([[0], *(window.part_sizes for window in windows if window.part_sizes is not None)])
    index = {tag: i for i, tag in enumerate(task.tags)}
    tags = np.fromiter((index[tag] for item in items for tag in item.example.gold), np.int64)
    bounds = np.cumsum([0, *(len(item.example.gold) for item in items)])
    if task.config.solver == "counts":
        _count(task, encoder, parts=parts, tags=tags, bounds=bounds, templates=tokenizer)
    else:
        _minimise(task, encoder, parts=parts, part_bounds=np.cumsum(sizes), tags=tags, bounds=bounds)


def _end_to_end(pieces: Sequence[np.ndarray]) -> np.ndarray:
    """All pieces in one array: without a copy where they are neighbouring views, as those of `feature_items` are."""
    whole = pieces[0].base
    size = sum(map(len, pieces))
    if whole is None or any(piece.base is not whole for piece in pieces) or len(whole) < size:
        return np.concatenate(pieces)
    filled = [piece for piece in pieces if len(piece)]
    places = np.array([piece.ctypes.data for piece in filled])
    lengths = np.array([piece.nbytes for piece in filled])
    in_order = len(filled) > 0 and places[0] == whole.ctypes.data and (places[1:] == (places + lengths)[:-1]).all()
    return np.asarray(whole[:size]) if in_order else np.concatenate(pieces)


@torch.no_grad()
def _count(task: TagHead, encoder: Bag, *, parts: Any, tags: Any, bounds: Any, templates: Templates) -> None:
    """Each unit's tags; those of units that are rare also count for their class, which stands for the unknown ones."""
    counts_VT = np.bincount(parts * len(task.tags) + tags, minlength=encoder.vocab_size * len(task.tags))
    counts_VT = counts_VT.reshape(encoder.vocab_size, -1).astype(float)
    known = range(templates.first_class)
    for unit in (i for i in known if 0 < counts_VT[i].sum() <= templates.config.min_count):
        counts_VT[templates.class_part(templates.vocab.tokens[unit])] += counts_VT[unit]
    legal = task.tagger.legal
    model = hmm.count(
        torch.from_numpy(counts_VT),
        torch.from_numpy(tags),
        bounds_B1=torch.from_numpy(bounds),
        allowed=(legal.start_T, legal.transitions_TT),
        smoothing=task.config.smoothing,
    )
    _fill(encoder.table.weight, model.emissions_VT)
    _fill_tagger(task.tagger, model)


def _minimise(task: TagHead, encoder: Bag, *, parts: Any, part_bounds: Any, tags: Any, bounds: Any) -> None:
    from firth.nn.loglinear import LogLinear, Weights

    config, legal = task.config, task.tagger.legal
    assert config.tagger != "hmm"  # an HMM is counted
    are_few = encoder.vocab_size * len(task.tags) <= MOST_PAIRS
    function = LogLinear(
        parts,
        part_bounds,
        tags,
        bounds,
        num_rows=encoder.vocab_size,
        kind=config.tagger,
        legal=(legal.start_T.numpy(), legal.transitions_TT.numpy(), legal.end_T.numpy()),
        l2=config.l2,
        all_pairs=config.pairs == "all" or (config.pairs == "auto" and are_few),
        threads=torch.get_num_threads(),
    )
    with bar("L-BFGS", config.iterations, unit="iterations") as advance:
        found = minimise(
            function,
            np.zeros(function.num_weights, np.float32),
            l1=config.l1,
            iterations=config.iterations,
            scale=function.scale,
            report=lambda iteration, value: advance(iteration, f"loss {value / len(tags):.4f}"),
        )
    weights = Weights.of(found, num_tags=len(task.tags))
    function.pairs.fill(weights.pairs_P, encoder.table.weight.detach().numpy())
    _fill_tagger(task.tagger, weights)


def _fill_tagger(tagger: nn.Module, found: Any) -> None:
    """Starts, transitions and ends, as far as the tagger has them."""
    for name, parameter in tagger.named_parameters():
        _fill(parameter, getattr(found, name))


@torch.no_grad()
def _fill(parameter: torch.Tensor, values: Any) -> None:
    parameter.copy_(torch.as_tensor(values).clamp(min=chains.ILLEGAL))  # -inf times zero would be no number


def _units(example: Any) -> list[str]:
    assert isinstance(example, Sentence)
    return [example.texts[0][start:end] for start, end in example.words]
