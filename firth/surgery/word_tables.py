"""Files of word vectors <-> model folders. Rows go from one to the other in blocks: memory holds words, not vectors."""

from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch

from firth import checkpoint as checkpoints
from firth.checkpoint import Checkpoint
from firth.console import say
from firth.convert.fasttext import LABEL, FastText, is_fasttext, read_fasttext
from firth.convert.mapped import TABLE, WORD_ROWS, map_tensor, word_rows, write_rows
from firth.convert.vectors import VectorFile, open_vectors
from firth.encoders.bag import Bag
from firth.encoders.static import Static
from firth.errors import BadInput, Unsupported
from firth.files import atomic_folder
from firth.tensors import Task
from firth.tokenizers.subwords import Subwords
from firth.tokenizers.vocab import SPECIALS
from firth.tokenizers.word_list import Words

_BLOCK = 1 << 14


def import_file(source: Path, out: Path, *, skip_bad: bool = False) -> Checkpoint:
    """A file of word vectors, or a model of the fasttext program, as a model of ours."""
    return import_fasttext(source, out) if is_fasttext(source) else import_vectors(source, out, skip_bad=skip_bad)


def import_vectors(source: Path, out: Path, *, skip_bad: bool = False) -> Checkpoint:
    """A file of word vectors as a model whose tokens are its words."""
    opened, words = open_vectors(source, skip_bad=skip_bad), list[str]()
    with atomic_folder(out) as folder:
        rows = write_rows(folder / "model.safetensors", TABLE, _rows(opened, words))
        if not words:
            _refuse_nothing(opened)
        if opened.skipped:
            say(f"{source}: {opened.skipped:,} rows that could not be used were left out.")
        with torch.device("meta"):  # the weights are in the file already
            encoder = Static(Static.Config(vocab_size=rows, width=opened.width))
        config = Words.Config(min_count=1, lowercase=all(word == word.lower() for word in words))
        made = Checkpoint(encoder, {}, Words.of(words, config), info={"imported_from": source.name})
        checkpoints.save(folder, made, weights=False)
    return made


def _refuse_nothing(opened: VectorFile) -> None:
    what = f"{opened.path}: none of its {opened.skipped:,} rows can be used"
    if opened.count is None:
        raise BadInput(f"{what}; it is no file of word vectors.")
    promised = f"the header promises {opened.count:,} words of width {opened.width}"
    raise BadInput(f"{what}, though {promised} (line 1); mend the header or the rows.")


def _rows(opened: VectorFile, words: list[str]) -> Iterator[np.ndarray]:
    """Zeros for the special tokens, then the file's rows; their words are added to `words`."""
    yield np.zeros((len(SPECIALS), opened.width), np.float32)
    for some, rows in opened.blocks():
        ordinary = np.array([word not in SPECIALS for word in some], bool)
        words += [word for word, kept in zip(some, ordinary, strict=True) if kept]
        yield rows[ordinary]


def import_fasttext(source: Path, out: Path) -> Checkpoint:
    """A `.bin` file as a bag of words and n-grams; a supervised one also classifies, with the same probabilities."""
    read = read_fasttext(source)
    supervised = read.model == "supervised"
    config = Subwords.Config(
        min_count=1,
        lowercase=False,
        split="spaces" if supervised else "words",
        min_ngram=read.min_ngram,
        max_ngram=read.max_ngram,
        num_buckets=read.num_buckets,
        word_ngrams=read.word_ngrams if supervised else 1,
        ends=supervised,
    )
    tokenizer = Subwords.of(read.words, config, counts=read.word_counts)
    rows = tokenizer.num_rows - len(SPECIALS)  # buckets that nothing is hashed into are left out
    with atomic_folder(out) as folder:
        blocks = _finite(read.input_VD[:rows], source, "input", read.words)
        zeros = np.zeros((len(SPECIALS), read.width), np.float32)
        write_rows(folder / "model.safetensors", TABLE, chain([zeros], blocks))
        means = word_rows(tokenizer, map_tensor(folder / "model.safetensors", TABLE))
        write_rows(folder / WORD_ROWS, TABLE, means)
        with torch.device("meta"):
            encoder = Bag(Bag.Config(vocab_size=tokenizer.num_rows, width=read.width))
        tasks = {"classify": _classifier(read, encoder, source)} if supervised else {}
        made = Checkpoint(encoder, {}, tokenizer, info={"imported_from": source.name}, tasks=tasks)
        checkpoints.save(folder, made, weights=False)
    return made


def _finite(rows_VD: np.ndarray, source: Path, matrix: str, names: Sequence[str]) -> Iterator[np.ndarray]:
    """The rows in blocks; one that is no vector is told by its name or, a bucket of n-grams, by its number."""
    for start in range(0, len(rows_VD), _BLOCK):
        block = rows_VD[start : start + _BLOCK]
        bad = np.flatnonzero(~np.isfinite(block).all(1))
        if len(bad):
            row = start + int(bad[0])
            name = f" ({names[row]!r})" if row < len(names) else ""
            raise BadInput(
                f"{source}: row {row + 1:,} of its {matrix} matrix{name} holds NaN or infinity, and no row of a .bin "
                "file can be left out; fetch or train it again."
            )
        yield block


def _classifier(read: FastText, encoder: Bag, source: Path) -> Task:
    """The labels and the output matrix as a head: a row for each label, or for each inner node of the tree."""
    if len(read.labels) < 2:
        raise Unsupported(
            f"{source} knows only the label {', '.join(read.labels)}, so there is nothing to choose from."
        )
    names = [label.removeprefix(LABEL) for label in read.labels]
    tree = read.loss == "hierarchical"
    config = {"kind": "one" if tree or read.loss == "softmax" else "many", "head": "tree" if tree else "linear"}
    task = checkpoints.make_task("classify", config, encoder, labels={"label": names})
    head: Any = task.head
    names = [] if tree else read.labels  # of a tree the rows are inner nodes
    with torch.no_grad():
        rows = np.concatenate([*_finite(read.output_TD[: len(head.weight)], source, "output", names)])
        head.weight.copy_(torch.from_numpy(rows))
        head.plant(read.label_counts) if tree else head.bias.zero_()
    return task
