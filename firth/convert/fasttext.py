"""fastText's `.bin` files (format 12; Bojanowski et al. 2017, Joulin et al. 2017).

In: a file of the fasttext program, unsupervised or supervised. Out: its settings, words, labels and both matrices,
which stay memory-mapped. The file holds, little-endian: a magic number and the version; twelve int32 settings and one
float64; the dictionary (sizes, then every word with its count and kind); then two matrices, each with a flag that says
whether it is quantised, its shape and its float32 rows. The rows of the first are the words, then the hashed n-grams.
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
"""What labels begin with in the program's files."""
LOSSES = {1: "hierarchical", 2: "negative", 3: "softmax", 4: "ova"}
MODELS = {1: "cbow", 2: "skip-gram", 3: "supervised"}
_SETTINGS = struct.Struct("<12id")
_SIZES = struct.Struct("<3i2q")
_ENTRY = struct.Struct("<qb")


@dataclass(frozen=True)
class FastText:
    """What a file holds."""

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
    output_TD: np.ndarray


def is_fasttext(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == MAGIC.to_bytes(4, "little")


def read_fasttext(path: Path) -> FastText:
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        at = _Place(path, data)
        magic, version = at.take(struct.Struct("<2i"))
        if magic != MAGIC:
            raise BadInput(f"{path} is not a fastText model: it does not begin with fastText's number.")
        if not 11 <= version <= VERSION:
            raise Unsupported(f"{path} is of fastText's format {version}; firth reads 11 and {VERSION}.")
        settings = at.take(_SETTINGS)
        width, window, epochs, min_count, negatives, word_ngrams, loss, model, buckets, least, most, _, _ = settings
        if loss not in LOSSES or model not in MODELS or width < 1:
            raise BadInput(f"{path} is damaged: it names loss {loss}, model {model} and width {width}.")
        words, counts, kinds = _dictionary(at)
        input_VD, output_TD = _matrix(at, width, "input"), _matrix(at, width, "output")
    if version == 11 and MODELS[model] == "supervised":
        most = 0  # such files have no character n-grams, whatever they say
    num_words = len(kinds) - int(kinds.sum())
    if kinds[:num_words].any() or len(input_VD) != num_words + buckets:
        raise BadInput(
            f"{path} is damaged: {num_words:,} words, {buckets:,} buckets and {len(input_VD):,} rows differ."
        )
    return FastText(
        MODELS[model], LOSSES[loss], width, window, epochs, min_count, negatives, word_ngrams, buckets, least, most,
        words[:num_words], counts[:num_words], words[num_words:], counts[num_words:], input_VD, output_TD,
    )  # fmt: skip


class _Place:
    """Where reading stands; it says at which byte a file ends too soon."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path, self.data, self.at = path, data, 0

    def take(self, form: struct.Struct, what: str = "its settings") -> tuple[int, ...]:
        self.expect(form.size, what)
        values = form.unpack_from(self.data, self.at)
        self.at += form.size
        return values

    def expect(self, size: int, what: str) -> None:
        if self.at + size > len(self.data):
            raise BadInput(f"{self.path} ends at byte {len(self.data):,}, within {what}; fetch it again.")


def _dictionary(at: _Place) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Words and labels with their counts, and for each whether it is a label."""
    size, num_words, num_labels, _, pruned = at.take(_SIZES, "its dictionary")
    if pruned >= 0:
        raise Unsupported(f"{at.path} was pruned and quantised; firth reads the .bin file that it was made from.")
    if size != num_words + num_labels or size < 0:
        raise BadInput(f"{at.path} is damaged: {size} entries are not {num_words} words and {num_labels} labels.")
    words: list[str] = []
    counts, kinds = np.empty(size, np.int64), np.empty(size, bool)
    for i in range(size):
        end = at.data.find(b"\0", at.at)
        at.expect(end - at.at if end >= 0 else len(at.data), "its dictionary")
        # Bytes that are no UTF-8 stay readable; such a word keeps its row but cannot be asked for.
        words.append(at.data[at.at : end].decode(errors="backslashreplace"))
        at.at = end + 1
        counts[i], kinds[i] = at.take(_ENTRY, "its dictionary")
    return words, counts, kinds


def _matrix(at: _Place, width: int, name: str) -> np.ndarray:
    what = f"its {name} matrix"
    [quantised] = at.take(struct.Struct("<?"), what)
    if quantised:
        raise Unsupported(f"{at.path} is quantised; firth reads the .bin file that it was made from.")
    rows, columns = at.take(struct.Struct("<2q"), what)
    if columns != width or rows < 0:
        raise BadInput(f"{at.path} is damaged: {what} has {rows} rows of {columns}, its settings a width of {width}.")
    at.expect(4 * rows * columns, what)
    start = at.at
    at.at += 4 * rows * columns
    shape = (rows, columns)
    return np.memmap(at.path, "<f4", "r", start, shape) if rows else np.empty(shape, np.float32)
