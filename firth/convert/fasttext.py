"""fastText's `.bin` files (format 12; Bojanowski et al. 2017, Joulin et al. 2017).

In: a file of the fasttext program, unsupervised or supervised. Out: its settings, words, labels and both matrices,
which stay memory-mapped. All numbers are little-endian. The file contains:

1. a magic number and the version;
2. twelve int32 settings and one float64;
3. the dictionary: its sizes, then every word or label with its count and kind;
4. the input and the output matrix, each with a flag for quantisation, its shape and its float32 rows.

The rows of the input matrix are the words, then the buckets of hashed n-grams.
"""

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from firth.errors import BadInput, Unsupported

MAGIC = 793712314
VERSION = 12
LABEL = "__label__"
"""The prefix of labels in the program's files."""
LOSSES = {1: "hierarchical", 2: "negative", 3: "softmax", 4: "ova"}
MODELS = {1: "cbow", 2: "skip-gram", 3: "supervised"}
_START = struct.Struct("<2i")
_SETTINGS = struct.Struct("<12id")
_SETTING_NAMES = (
    "width",
    "window",
    "epochs",
    "min_count",
    "num_negatives",
    "word_ngrams",
    "loss",
    "model",
    "num_buckets",
    "min_ngram",
    "max_ngram",
    "lr_update_rate",
    "sampling_threshold",
)
_SIZES = struct.Struct("<3i2q")
_ENTRY = struct.Struct("<qb")
_QUANTISED = struct.Struct("<?")
_SHAPE = struct.Struct("<2q")


@dataclass(frozen=True)
class FastText:
    """The content of a file."""

    model: str
    loss: str
    width: int
    window: int
    epochs: int
    min_count: int
    num_negatives: int
    word_ngrams: int
    num_buckets: int
    min_ngram: int
    max_ngram: int
    words: list[str]
    word_counts: np.ndarray
    labels: list[str]
    label_counts: np.ndarray
    input_VD: np.ndarray
    """A row for each word, then one for each bucket."""
    output_TD: np.ndarray
    """A row for each word or label, or for each inner node of a Huffman tree."""


@dataclass(frozen=True)
class _Dictionary:
    """The words of a file, then its labels."""

    entries: list[str]
    counts: np.ndarray
    is_label: np.ndarray


def is_fasttext(path: Path) -> bool:
    """Whether a file begins with fastText's magic number."""
    with path.open("rb") as file:
        return file.read(4) == MAGIC.to_bytes(4, "little")


def read_fasttext(path: Path) -> FastText:
    """The content of a `.bin` file; raises if it is damaged, quantised or of another format."""
    # The parts have no offsets, so they must be read in this order.
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        reader = _Reader(path, data)
        version = _read_version(reader)
        settings = _read_settings(reader)
        dictionary = _read_dictionary(reader)
        input_VD = _map_matrix(reader, settings["width"], "input")
        output_TD = _map_matrix(reader, settings["width"], "output")
    model = MODELS[settings["model"]]
    num_buckets = settings["num_buckets"]
    max_ngram = settings["max_ngram"]
    if version == 11 and model == "supervised":
        max_ngram = 0  # files of this version have no character n-grams, whatever the settings say

    num_words = len(dictionary.entries) - int(dictionary.is_label.sum())
    words_come_first = not dictionary.is_label[:num_words].any()
    if not words_come_first or len(input_VD) != num_words + num_buckets:
        raise BadInput(
            f"{path} is damaged: {num_words:,} words, {num_buckets:,} buckets and {len(input_VD):,} rows differ."
        )
    return FastText(
        model=model,
        loss=LOSSES[settings["loss"]],
        width=settings["width"],
        window=settings["window"],
        epochs=settings["epochs"],
        min_count=settings["min_count"],
        num_negatives=settings["num_negatives"],
        word_ngrams=settings["word_ngrams"],
        num_buckets=num_buckets,
        min_ngram=settings["min_ngram"],
        max_ngram=max_ngram,
        words=dictionary.entries[:num_words],
        word_counts=dictionary.counts[:num_words],
        labels=dictionary.entries[num_words:],
        label_counts=dictionary.counts[num_words:],
        input_VD=input_VD,
        output_TD=output_TD,
    )


class _Reader:
    """A position in a mapped file; says at which byte a file ends too soon."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path = path
        self.data = data
        self.position = 0

    def take(self, form: struct.Struct, what: str) -> tuple[int, ...]:
        """The next numbers; `what` names the part of the file for the error message."""
        self.expect(form.size, what)
        values = form.unpack_from(self.data, self.position)
        self.position += form.size
        return values

    def expect(self, size: int, what: str) -> None:
        """Raises if the file has fewer than `size` bytes left."""
        if self.position + size > len(self.data):
            raise BadInput(f"{self.path} ends at byte {len(self.data):,}, within {what}; fetch it again.")


def _read_version(reader: _Reader) -> int:
    magic, version = reader.take(_START, "its settings")
    if magic != MAGIC:
        raise BadInput(f"{reader.path} is not a fastText model: it does not begin with fastText's number.")
    if not 11 <= version <= VERSION:
        raise Unsupported(f"{reader.path} is of fastText's format {version}; firth reads 11 and {VERSION}.")
    return version


def _read_settings(reader: _Reader) -> dict[str, int]:
    values = reader.take(_SETTINGS, "its settings")
    settings = dict(zip(_SETTING_NAMES, values, strict=True))
    loss = settings["loss"]
    model = settings["model"]
    width = settings["width"]
    if loss not in LOSSES or model not in MODELS or width < 1:
        raise BadInput(f"{reader.path} is damaged: it names loss {loss}, model {model} and width {width}.")
    return settings


def _read_dictionary(reader: _Reader) -> _Dictionary:
    what = "its dictionary"
    size, num_words, num_labels, _, pruned = reader.take(_SIZES, what)
    if pruned >= 0:  # -1 for a full dictionary
        raise Unsupported(f"{reader.path} was pruned and quantised; firth reads the .bin file that it was made from.")
    if size != num_words + num_labels or size < 0:
        raise BadInput(f"{reader.path} is damaged: {size} entries are not {num_words} words and {num_labels} labels.")
    entries: list[str] = []
    counts = np.empty(size, np.int64)
    is_label = np.empty(size, bool)
    for i in range(size):
        # A word ends with a zero byte.
        end = reader.data.find(b"\0", reader.position)
        length = end - reader.position if end >= 0 else len(reader.data)
        reader.expect(length, what)
        # Bytes that are not UTF-8 stay readable. Such a word keeps its row but cannot be looked up.
        entries.append(reader.data[reader.position : end].decode(errors="backslashreplace"))
        reader.position = end + 1
        count, kind = reader.take(_ENTRY, what)
        counts[i] = count
        is_label[i] = kind
    return _Dictionary(entries, counts, is_label)


def _map_matrix(reader: _Reader, width: int, name: str) -> np.ndarray:
    """The next matrix of the file, memory-mapped."""
    what = f"its {name} matrix"
    [quantised] = reader.take(_QUANTISED, what)
    if quantised:
        raise Unsupported(f"{reader.path} is quantised; firth reads the .bin file that it was made from.")
    rows, columns = reader.take(_SHAPE, what)
    if columns != width or rows < 0:
        raise BadInput(
            f"{reader.path} is damaged: {what} has {rows} rows of {columns}, its settings a width of {width}."
        )
    size = 4 * rows * columns
    reader.expect(size, what)
    start = reader.position
    reader.position += size
    shape = (rows, columns)
    if not rows:
        return np.empty(shape, np.float32)  # numpy cannot map zero bytes
    return np.memmap(reader.path, "<f4", "r", start, shape)
