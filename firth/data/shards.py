"""Prepared text on disk: token ids with sentence, document and word borders, memory-mapped.

A folder holds one little-endian file a channel, `shards.json` (format, sizes, health), the tokenizer that made the ids,
and a sha256 manifest:

    ids.bin        uint16, or uint32 if the vocabulary needs it   N tokens, no special ones
    sentences.bin  int64    S+1 token offsets                     sentence s is ids[sentences[s] : sentences[s+1]]
    documents.bin  int64    D+1 sentence offsets                  document d is sentences documents[d] : documents[d+1]
    words.bin      bits     bit i (lowest first) says that token i starts a word
    counts.bin     int64    how often each id occurs

No sentence and no document is empty.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from firth.errors import BadInput, Damaged
from firth.files import MANIFEST, atomic_folder, check_manifest, read_json, write_json

FORMAT = 1
INFO = "shards.json"
TOKENIZER = "tokenizer"
_CHANNELS = {"ids", "sentences", "documents", "words", "counts"}


def id_dtype(vocab_size: int) -> np.dtype[Any]:
    return np.dtype("<u2" if vocab_size <= 1 << 16 else "<u4")


@dataclass(frozen=True, slots=True, eq=False)
class Shards:
    """Opened shards; the arrays are memory-mapped and read-only."""

    folder: Path
    info: Mapping[str, Any]
    ids: np.ndarray
    sentences: np.ndarray
    documents: np.ndarray
    words: np.ndarray
    counts: np.ndarray

    @classmethod
    def open(cls, folder: Path | str, *, verify: bool = True) -> "Shards":
        """Opens a folder; `verify` compares every byte with the manifest, otherwise only sizes are."""
        folder = Path(folder)
        ours = any((folder / name).exists() for name in ("shards.json", MANIFEST))
        if not folder.is_dir() or (any(folder.iterdir()) and not ours):
            raise BadInput(f"{folder} is not a folder of prepared text; make one with 'firth prepare'.")
        check_manifest(folder, hashes=verify)
        info = _read_info(folder)
        arrays = {name: _map(folder, name, row) for name, row in info["channels"].items()}
        shards = cls(folder, info, **arrays)
        if shards.sentences[-1] != len(shards.ids) or shards.documents[-1] != len(shards.sentences) - 1:
            raise Damaged(f"{folder}: the borders do not end where the tokens do; prepare the text again.")
        return shards

    @property
    def num_tokens(self) -> int:
        return len(self.ids)

    @property
    def num_sentences(self) -> int:
        return len(self.sentences) - 1

    @property
    def num_documents(self) -> int:
        return len(self.documents) - 1

    @property
    def tokenizer_folder(self) -> Path:
        return self.folder / TOKENIZER

    def word_starts(self, index: np.ndarray) -> np.ndarray:
        """For each token number: does it start a word?"""
        index = np.asarray(index)
        return np.asarray(self.words[index >> 3] >> (index & 7).astype(np.uint8) & 1, bool)

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (self.folder,)  # a process that is handed shards maps the same files instead of copying them


def _reopen(folder: Path) -> Shards:
    return Shards.open(folder, verify=False)


def _read_info(folder: Path) -> dict[str, Any]:
    if not (folder / INFO).is_file():
        raise Damaged(f"{folder / INFO} is missing; prepare the text again.")
    info = read_json(folder / INFO)
    if not isinstance(info, dict) or info.get("format") != FORMAT:
        found = info.get("format") if isinstance(info, dict) else None
        raise Damaged(f"{folder / INFO} has format {found}, this version reads {FORMAT}; prepare the text again.")
    if set(info.get("channels", ())) != _CHANNELS:
        raise Damaged(f"{folder / INFO} does not describe {', '.join(sorted(_CHANNELS))}; prepare the text again.")
    return info


def _map(folder: Path, name: str, row: Mapping[str, Any]) -> np.ndarray:
    path, dtype = folder / f"{name}.bin", np.dtype(row["dtype"])
    if not path.is_file():
        raise Damaged(f"{path} is missing; prepare the text again.")
    found, wanted = path.stat().st_size, row["size"] * dtype.itemsize
    if found != wanted:
        raise Damaged(f"{path} has {found} bytes instead of {wanted}; prepare the text again.")
    return np.asarray(np.memmap(path, dtype, "r"))


@contextmanager
def write_shards(folder: Path, tokenizer: Any, *, replace: bool = False) -> Iterator["ShardWriter"]:
    """A writer for a folder that appears, complete, when the block ends without an error."""
    if folder.exists() and not replace and (not folder.is_dir() or any(folder.iterdir())):
        raise BadInput(f"{folder} already exists; choose another name or ask to replace it.")
    with atomic_folder(folder, replace=replace) as temporary:
        tokenizer.save(temporary / TOKENIZER)
        with ExitStack() as files:
            writer = ShardWriter(temporary, tokenizer, files)
            yield writer
            writer.finish()


class ShardWriter:
    """Appends tokens as they come; a document may arrive in several parts."""

    def __init__(self, folder: Path, tokenizer: Any, files: ExitStack) -> None:
        self.folder, self.tokenizer = folder, tokenizer
        self.dtypes: dict[str, np.dtype[Any]] = dict.fromkeys(sorted(_CHANNELS), np.dtype("<i8"))
        self.dtypes |= {"ids": id_dtype(len(tokenizer.vocab)), "words": np.dtype("u1")}
        self.files = {name: files.enter_context((folder / f"{name}.bin").open("wb")) for name in self.dtypes}
        self.sizes = dict.fromkeys(self.dtypes, 0)
        self.counts = np.zeros(len(tokenizer.vocab), np.int64)
        self.num_tokens = self.num_sentences = self.num_documents = 0
        self.document_start = self.sentence_start = 0  # the token and the sentence where the open document begins
        self.bits = np.zeros(0, bool)  # word starts that do not fill a byte yet
        self.info: dict[str, Any] = {}
        self._write("sentences", np.zeros(1))
        self._write("documents", np.zeros(1))

    def append(self, ids: np.ndarray, starts: np.ndarray, *, lengths: np.ndarray, ends: np.ndarray) -> np.ndarray:
        """Adds sentences of these lengths (none 0); `ends` are the numbers of them after which a document ends.

        Gives the lengths in tokens of the documents that are now complete.
        """
        offsets = self.num_tokens + np.concatenate([[0], np.cumsum(lengths)])
        ends = np.unique(ends)  # a document without sentences would end where another does
        ends = ends[ends > self.sentence_start - self.num_sentences]
        bounds = np.concatenate([[self.document_start], offsets[ends]])
        self._write("ids", ids)
        self._write("sentences", offsets[1:])
        self._write("documents", ends + self.num_sentences)
        self._write_bits(starts)
        self.counts += np.bincount(ids, minlength=len(self.counts))
        if len(ends):
            self.document_start, self.sentence_start = int(bounds[-1]), self.num_sentences + int(ends[-1])
        self.num_tokens += len(ids)
        self.num_sentences += len(lengths)
        self.num_documents += len(ends)
        return np.diff(bounds)

    def finish(self) -> None:
        if self.sentence_start != self.num_sentences:
            raise ValueError("the last document was not ended")
        self._write("words", np.packbits(self.bits, bitorder="little"))
        self._write("counts", self.counts)
        for file in self.files.values():
            file.flush()
        channels = {name: {"dtype": dtype.str, "size": self.sizes[name]} for name, dtype in self.dtypes.items()}
        totals = {"tokens": self.num_tokens, "sentences": self.num_sentences, "documents": self.num_documents}
        vocabulary = {"vocab_size": len(self.counts), "tokenizer_fingerprint": self.tokenizer.fingerprint}
        info = {"format": FORMAT, "channels": channels, **totals, **vocabulary, **self.info}
        write_json(self.folder / INFO, info)

    def _write(self, name: str, values: np.ndarray) -> None:
        self.files[name].write(values.astype(self.dtypes[name], copy=False).tobytes())
        self.sizes[name] += len(values)

    def _write_bits(self, starts: np.ndarray) -> None:
        bits = np.concatenate([self.bits, starts])
        whole = len(bits) & ~7
        self._write("words", np.packbits(bits[:whole], bitorder="little"))
        self.bits = bits[whole:]
