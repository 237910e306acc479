"""Files of word vectors -> model folders. Rows are copied in blocks: memory holds the words, not the vectors."""

import logging
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import nn

from firth import checkpoint as checkpoints
from firth.checkpoint import Checkpoint
from firth.convert.fasttext import LABEL, FastText, is_fasttext, read_fasttext
from firth.convert.mapped import TABLE, WORD_ROWS, map_tensor, word_rows, write_rows
from firth.convert.vector_files import VectorFile, open_vectors
from firth.encoders.bag import Bag
from firth.encoders.static import Static
from firth.errors import BadInput, Unsupported
from firth.files import atomic_folder
from firth.nn.tree import TreeHead
from firth.tasks.task import Head
from firth.tokenizers.subwords import Subwords
from firth.tokenizers.vocab import SPECIALS
from firth.tokenizers.word_list import Words

log = logging.getLogger(__name__)

_BLOCK = 1 << 14


def import_file(source: Path, out: Path, *, skip_bad: bool = False) -> Checkpoint:
    """Writes a model folder from a file of word vectors or of the fasttext program; returns the model."""
    if is_fasttext(source):
        return import_fasttext(source, out)
    return import_vectors(source, out, skip_bad=skip_bad)


def import_vectors(source: Path, out: Path, *, skip_bad: bool = False) -> Checkpoint:
    """A file of word vectors as a model whose tokens are the file's words."""
    vectors = open_vectors(source, skip_bad=skip_bad)
    words: list[str] = []
    with atomic_folder(out) as folder:
        num_rows = write_rows(folder / "model.safetensors", TABLE, _rows(vectors, words))
        if not words:
            _refuse_empty(vectors)
        if vectors.skipped:
            log.info(f"{source}: {vectors.skipped:,} rows that could not be used were left out.")
        with torch.device("meta"):  # the weights are already in the file
            encoder = Static(Static.Config(vocab_size=num_rows, width=vectors.width))
        # A text is lower-cased before lookup if all words of the file are.
        is_lowercase = all(word == word.lower() for word in words)
        tokenizer = Words.of(words, Words.Config(min_count=1, lowercase=is_lowercase))
        model = Checkpoint(encoder, {}, tokenizer, info={"imported_from": source.name})
        checkpoints.save(folder, model, weights=False)
    return model


def _refuse_empty(vectors: VectorFile) -> None:
    """Raises because no row of a file could be used."""
    what = f"{vectors.path}: none of its {vectors.skipped:,} rows can be used"
    if vectors.count is None:
        raise BadInput(f"{what}; it is not a file of word vectors.")
    promised = f"the header promises {vectors.count:,} words of width {vectors.width}"
    raise BadInput(f"{what}, though {promised} (line 1); fix the header or the rows.")


def _rows(vectors: VectorFile, words: list[str]) -> Iterator[np.ndarray]:
    """Zeros for the special tokens, then the file's rows; their words are appended to `words`."""
    yield np.zeros((len(SPECIALS), vectors.width), np.float32)
    for block_words, rows_VD in vectors.blocks():
        # A file may list firth's special tokens as words; those rows are dropped.
        is_word = np.array([word not in SPECIALS for word in block_words], bool)
        words += [word for word, kept in zip(block_words, is_word, strict=True) if kept]
        yield rows_VD[is_word]


def import_fasttext(source: Path, out: Path) -> Checkpoint:
    """A `.bin` file as a bag of words and n-grams; a supervised one also classifies, with the same probabilities."""
    fasttext = read_fasttext(source)
    tokenizer = _fasttext_tokenizer(fasttext)
    num_rows = tokenizer.num_rows - len(SPECIALS)  # buckets without n-grams are left out
    with atomic_folder(out) as folder:
        weights = folder / "model.safetensors"
        zeros = np.zeros((len(SPECIALS), fasttext.width), np.float32)
        blocks = _finite_blocks(fasttext.input_VD[:num_rows], source, "input", fasttext.words)
        write_rows(weights, TABLE, chain([zeros], blocks))
        # Computed from the file just written, which is mapped, not read.
        means = word_rows(tokenizer, map_tensor(weights, TABLE))
        write_rows(folder / WORD_ROWS, TABLE, means)
        with torch.device("meta"):  # the weights are already in the file
            encoder = Bag(Bag.Config(vocab_size=tokenizer.num_rows, width=fasttext.width))
        tasks: dict[str, Head] = {}
        if fasttext.model == "supervised":
            tasks["classify"] = _classifier(fasttext, encoder, source)
        model = Checkpoint(encoder, {}, tokenizer, info={"imported_from": source.name}, tasks=tasks)
        checkpoints.save(folder, model, weights=False)
    return model


def _fasttext_tokenizer(fasttext: FastText) -> Subwords:
    """A tokenizer with the words and n-grams of a fastText model."""
    # A supervised model splits at spaces, has n-grams of words, and ends each text with a token.
    is_supervised = fasttext.model == "supervised"
    split: Literal["words", "spaces"] = "spaces" if is_supervised else "words"
    word_ngrams = fasttext.word_ngrams if is_supervised else 1
    config = Subwords.Config(
        min_count=1,
        lowercase=False,
        split=split,
        min_ngram=fasttext.min_ngram,
        max_ngram=fasttext.max_ngram,
        num_buckets=fasttext.num_buckets,
        word_ngrams=word_ngrams,
        ends=is_supervised,
    )
    return Subwords.of(fasttext.words, config, counts=fasttext.word_counts)


def _finite_blocks(rows_VD: np.ndarray, source: Path, matrix: str, names: Sequence[str]) -> Iterator[np.ndarray]:
    """The rows in blocks; raises if a row has NaN or infinity. Only the first rows have names: buckets have none."""
    for start in range(0, len(rows_VD), _BLOCK):
        block_VD = rows_VD[start : start + _BLOCK]
        is_finite = np.isfinite(block_VD).all(1)
        if not is_finite.all():
            row = start + int(np.flatnonzero(~is_finite)[0])
            name = f" ({names[row]!r})" if row < len(names) else ""
            raise BadInput(
                f"{source}: row {row + 1:,} of its {matrix} matrix{name} holds NaN or infinity, and no row of a .bin "
                "file can be left out; fetch or train it again."
            )
        yield block_VD


def _classifier(fasttext: FastText, encoder: Bag, source: Path) -> Head:
    """A task whose head is the output matrix: a row for each label, or for each inner node of a Huffman tree."""
    if len(fasttext.labels) < 2:
        raise Unsupported(
            f"{source} has only the label {', '.join(fasttext.labels)}, so there is nothing to choose from."
        )
    has_tree = fasttext.loss == "hierarchical"
    has_one_label = has_tree or fasttext.loss == "softmax"
    config = {"kind": "one" if has_one_label else "many", "head": "tree" if has_tree else "linear"}
    labels = [label.removeprefix(LABEL) for label in fasttext.labels]
    task = checkpoints.make_head("classify", config, encoder, labels={"label": labels})

    head = task.head
    assert isinstance(head, TreeHead | nn.Linear)
    # The rows of a tree are its inner nodes, which have no names.
    row_names: list[str] = [] if has_tree else fasttext.labels
    blocks = _finite_blocks(fasttext.output_TD[: len(head.weight)], source, "output", row_names)
    rows_TD = np.concatenate(list(blocks))
    with torch.no_grad():
        head.weight.copy_(torch.from_numpy(rows_TD))
        if isinstance(head, TreeHead):
            head.plant(fasttext.label_counts)
        else:
            head.bias.zero_()
    return task
