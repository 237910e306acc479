"""Prepared text on disk: token ids with sentence, document and word borders, memory-mapped.

A folder holds one little-endian file per channel, `shards.json` (format, sizes, health), the tokenizer that made the
ids, and a sha256 manifest:

    ids.bin        uint16, or uint32 if the vocabulary needs it   N tokens, no special ones
    sentences.bin  int64    S+1 token offsets                     sentence s is ids[sentences[s] : sentences[s+1]]
    documents.bin  int64    D+1 sentence offsets                  document d is sentences documents[d] : documents[d+1]
    words.bin      bits     bit i (lowest first) says that token i starts a word
    counts.bin     int64    how often each id occurs
    languages.bin  uint8    the language of each sentence, as its number among the `languages` of `shards.json`; only if
                            the texts were given with languages. A document in two languages is a text and its
                            translation

No sentence and no document is empty.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, NotRequired, TypedDict, cast

import numpy as np

from firth import remote
from firth.data import remote_shards
from firth.data.block_cache import BlockArray
from firth.data.health import Health
from firth.errors import BadInput, Damaged
from firth.files import MANIFEST, atomic_folder, check_can_be_made, check_manifest, read_json, write_json
from firth.ragged import bounds_of
from firth.tokenizers import Tokenizer

FORMAT = 1
INFO = "shards.json"
TOKENIZER = "tokenizer"
LANGUAGES = "languages"
_CHANNELS = {"ids", "sentences", "documents", "words", "counts"}


class _Channel(TypedDict):
    """What `shards.json` says of a file."""

    dtype: str
    size: int
    """Number of values."""


class ShardsInfo(TypedDict):
    """The contents of `shards.json`."""

    format: int
    channels: dict[str, _Channel]
    tokens: int
    sentences: int
    documents: int
    vocab_size: int
    tokenizer_fingerprint: str
    languages: NotRequired[list[str]]
    """Their names, in the order of their numbers."""
    health: Health
    documents_by: str
    """What ends a document."""
    repair: bool


def id_dtype(vocab_size: int) -> np.dtype[np.unsignedinteger]:
    """The smaller of uint16 and uint32 that holds every id."""
    if vocab_size <= 1 << 16:
        return np.dtype("<u2")
    return np.dtype("<u4")


@dataclass(frozen=True, slots=True, eq=False)
class Shards:
    """Opened shards; the arrays are memory-mapped and read-only, or those of an object store, read in blocks."""

    folder: Path
    """Of shards in an object store: the local copy of all but their tokens."""
    info: ShardsInfo
    ids: np.ndarray
    sentences: np.ndarray
    documents: np.ndarray
    words: np.ndarray
    counts: np.ndarray
    languages: np.ndarray | None = None
    """The number of each sentence's language; None if the texts had none."""

    @classmethod
    def open(cls, folder: Path | str, *, verify: bool = True) -> "Shards":
        """Opens a folder; `verify` compares every byte with the manifest, otherwise only sizes are compared.

        A folder in an object store (`s3://...`) is read in blocks, and the bytes of its tokens are never compared.
        """
        if remote.is_remote(folder):
            folder = remote_shards.local_copy(folder)
        folder = Path(folder)
        origin = folder / remote_shards.ORIGIN
        url = origin.read_text() if origin.exists() else ""
        if not _may_be_shards(folder):
            raise BadInput(f"{folder} is not a folder of prepared text; make one with 'firth prepare'.")
        skipped = remote_shards.is_blockwise if url else None
        check_manifest(folder, hashes=verify, without=skipped)
        info = _read_info(folder)
        arrays = {}
        for name, channel in info["channels"].items():
            if url and name in remote_shards.BLOCKWISE:
                dtype = np.dtype(channel["dtype"])
                # It takes the indices that this package uses.
                arrays[name] = cast(np.ndarray, remote_shards.map_blocks(url, name, dtype, channel["size"]))
            else:
                arrays[name] = _map_channel(folder, name, channel)
        shards = cls(folder, info, **arrays)
        tokens_end = shards.sentences[-1]
        sentences_end = shards.documents[-1]
        if tokens_end != shards.num_tokens or sentences_end != shards.num_sentences:
            raise Damaged(f"{folder}: the borders do not end where the tokens do; prepare the text again.")
        if shards.languages is not None and len(shards.languages) != shards.num_sentences:
            raise Damaged(f"{folder}: not every sentence has a language; prepare the text again.")
        return shards

    @property
    def language_names(self) -> tuple[str, ...]:
        """The names of the languages, in the order of their numbers."""
        return tuple(self.info.get("languages", ()))

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

    def prefetch(self, starts: np.ndarray, ends: np.ndarray) -> None:
        """Says which ranges of tokens will be read soon; does nothing for files on this machine."""
        if isinstance(self.ids, BlockArray):
            self.ids.prefetch(starts, ends)
        if isinstance(self.words, BlockArray):
            self.words.prefetch(starts >> 3, (ends + 7) >> 3)

    @property
    def is_remote(self) -> bool:
        """Whether the tokens are in an object store."""
        return isinstance(self.ids, BlockArray)

    def word_starts(self, index: np.ndarray) -> np.ndarray:
        """For each token number: does it start a word?"""
        index = np.asarray(index)
        # Token i is bit i % 8 of byte i // 8.
        bit = (index & 7).astype(np.uint8)
        return np.asarray(self.words[index >> 3] >> bit & 1, bool)

    def sentence_starts(self, index: np.ndarray) -> np.ndarray:
        """For each token number: does it start a sentence?"""
        next_sentence = np.searchsorted(self.sentences, index)
        return np.asarray(self.sentences[next_sentence] == index)

    def token_languages(self, index: np.ndarray) -> np.ndarray:
        """For each token number: the number of its language; 0 if the texts had none."""
        if self.languages is None:
            return np.zeros(len(index), np.int64)
        sentence = np.searchsorted(self.sentences, index, side="right") - 1
        return np.asarray(self.languages[sentence], np.int64)

    def __reduce__(self) -> tuple[Callable[[Path], "Shards"], tuple[Path]]:
        # Another process maps the same files instead of receiving a copy.
        return _reopen, (self.folder,)


def _reopen(folder: Path) -> Shards:
    return Shards.open(folder, verify=False)


def _may_be_shards(folder: Path) -> bool:
    """True for a folder with shards, also an incomplete one; the manifest says more about it."""
    if not folder.is_dir():
        return False
    has_our_files = (folder / INFO).exists() or (folder / MANIFEST).exists()
    is_empty = not any(folder.iterdir())
    return has_our_files or is_empty


def _read_info(folder: Path) -> ShardsInfo:
    """The contents of `shards.json`, after a check that this version can read the folder."""
    path = folder / INFO
    if not path.is_file():
        if (folder / "config.json").exists():
            raise BadInput(
                f"{folder} is a model folder, not prepared text; `firth prepare` makes that from text files."
            )
        raise Damaged(f"{path} is missing; prepare the text again.")
    info = read_json(path)
    found = info.get("format") if isinstance(info, dict) else None
    if not isinstance(info, dict) or found != FORMAT:
        raise Damaged(f"{path} has format {found}, this version reads {FORMAT}; prepare the text again.")
    if set(info.get("channels", ())) - {LANGUAGES} != _CHANNELS:
        raise Damaged(f"{path} does not describe {', '.join(sorted(_CHANNELS))}; prepare the text again.")
    return cast(ShardsInfo, info)


def _map_channel(folder: Path, name: str, channel: _Channel) -> np.ndarray:
    """The array of a channel's file, memory-mapped."""
    path = folder / f"{name}.bin"
    dtype = np.dtype(channel["dtype"])
    if not path.is_file():
        raise Damaged(f"{path} is missing; prepare the text again.")
    found_bytes = path.stat().st_size
    wanted_bytes = channel["size"] * dtype.itemsize
    if found_bytes != wanted_bytes:
        raise Damaged(f"{path} has {found_bytes} bytes instead of {wanted_bytes}; prepare the text again.")
    return np.asarray(np.memmap(path, dtype, "r"))


@contextmanager
def write_shards(
    folder: Path,
    tokenizer: Tokenizer,
    *,
    replace: bool = False,
    languages: Sequence[str] = (),
) -> Iterator["ShardWriter"]:
    """A writer for a folder that appears, complete, when the block ends without an error.

    A folder in an object store is first written on this machine; its manifest is copied last.
    """
    if remote.is_remote(folder):
        if not replace:
            check_can_be_made(folder)
        with TemporaryDirectory() as temporary:
            local = Path(temporary) / "shards"
            with write_shards(local, tokenizer, languages=languages) as writer:
                yield writer
            remote.upload_folder(local, folder, last=MANIFEST)
        return
    is_taken = folder.exists() and (not folder.is_dir() or any(folder.iterdir()))
    if is_taken and not replace:
        raise BadInput(f"{folder} already exists; choose another name or ask to replace it.")
    with atomic_folder(folder, replace=replace) as temporary:
        tokenizer.save(temporary / TOKENIZER)
        with ExitStack() as files:
            writer = ShardWriter(temporary, tokenizer, files, languages=languages)
            yield writer
            writer.finish()


class ShardWriter:
    """Appends tokens as they come; a document may arrive in several parts.

    `info` takes what else `shards.json` should hold, such as the health of the text.
    """

    def __init__(self, folder: Path, tokenizer: Tokenizer, files: ExitStack, *, languages: Sequence[str] = ()) -> None:
        self.folder = folder
        self.tokenizer = tokenizer
        self.languages = list(languages)
        self.language_tokens = np.zeros(len(languages), np.int64)
        self.info: dict[str, object] = {}
        self.num_tokens = 0
        self.num_sentences = 0
        self.num_documents = 0
        self.counts = np.zeros(len(tokenizer.vocab), np.int64)
        # The token and the sentence where the open document begins.
        self.document_start = 0
        self.sentence_start = 0
        # Word starts that do not fill a byte yet.
        self.bits = np.zeros(0, bool)

        self.dtypes: dict[str, np.dtype[np.integer]] = {}
        self.files: dict[str, IO[bytes]] = {}
        self.sizes: dict[str, int] = {}
        special_dtypes: dict[str, np.dtype[np.integer]] = {
            "ids": id_dtype(len(tokenizer.vocab)),
            "words": np.dtype("u1"),
            LANGUAGES: np.dtype("u1"),
        }
        channels = _CHANNELS | {LANGUAGES} if languages else _CHANNELS
        for name in sorted(channels):
            self.dtypes[name] = special_dtypes.get(name, np.dtype("<i8"))
            self.files[name] = files.enter_context((folder / f"{name}.bin").open("wb"))
            self.sizes[name] = 0
        self._write("sentences", np.zeros(1))
        self._write("documents", np.zeros(1))

    def append(
        self,
        ids: np.ndarray,
        starts: np.ndarray,
        *,
        lengths: np.ndarray,
        ends: np.ndarray,
        languages: np.ndarray | None = None,
    ) -> np.ndarray:
        """Adds sentences of these lengths (none 0); a document ends after each number of sentences in `ends`.

        `starts` says for each token whether it starts a word, and `languages` the language of each sentence, where the
        texts have any. Returns the lengths in tokens of the documents that are now complete.
        """
        offsets = self.num_tokens + bounds_of(lengths)
        # A document without sentences ends where another one does: it is none.
        ends = np.unique(ends)
        ends = ends[ends > self.sentence_start - self.num_sentences]
        bounds = np.concatenate([[self.document_start], offsets[ends]])
        self._write("ids", ids)
        self._write("sentences", offsets[1:])
        self._write("documents", ends + self.num_sentences)
        if self.languages:
            assert languages is not None
            self._write(LANGUAGES, languages)
            num_languages = len(self.languages)
            self.language_tokens += np.bincount(languages, lengths, num_languages).astype(np.int64)
        self._write_bits(starts)
        self.counts += np.bincount(ids, minlength=len(self.counts))
        if len(ends):
            self.document_start = int(bounds[-1])
            self.sentence_start = self.num_sentences + int(ends[-1])
        self.num_tokens += len(ids)
        self.num_sentences += len(lengths)
        self.num_documents += len(ends)
        return np.diff(bounds)

    def finish(self) -> None:
        """Writes what is still open, and `shards.json`."""
        if self.sentence_start != self.num_sentences:
            raise ValueError("the last document was not ended")
        self._write("words", np.packbits(self.bits, bitorder="little"))
        self._write("counts", self.counts)
        for file in self.files.values():
            file.flush()
        channels: dict[str, _Channel] = {}
        for name, dtype in self.dtypes.items():
            channels[name] = {"dtype": dtype.str, "size": self.sizes[name]}
        info: dict[str, object] = {
            "format": FORMAT,
            "channels": channels,
            "tokens": self.num_tokens,
            "sentences": self.num_sentences,
            "documents": self.num_documents,
            "vocab_size": len(self.counts),
            "tokenizer_fingerprint": self.tokenizer.fingerprint,
        }
        if self.languages:
            info[LANGUAGES] = self.languages
        write_json(self.folder / INFO, info | self.info)

    def _write(self, name: str, values: np.ndarray) -> None:
        data = values.astype(self.dtypes[name], copy=False)
        self.files[name].write(data.tobytes())
        self.sizes[name] += len(values)

    def _write_bits(self, starts: np.ndarray) -> None:
        bits = np.concatenate([self.bits, starts])
        num_whole = len(bits) & ~7  # rounded down to whole bytes
        self._write("words", np.packbits(bits[:num_whole], bitorder="little"))
        self.bits = bits[num_whole:]
