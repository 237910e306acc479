"""How much text there is: a size, a sample, files or prepared text in; bytes and tokens out."""

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from firth import models, remote, tokenizers
from firth.corpus.readers import ROWS, expected_bytes, find_files, read_documents
from firth.corpus.text_lines import FilePart, decoded_lines
from firth.data.shards import INFO, Shards
from firth.errors import BadConfig, BadInput
from firth.files import ending

BYTES_PER_TOKEN = 4.5
"""English with a vocabulary of 24,000 pieces: 534 MB are 117.8M tokens."""
FIELD = "text"
"""The field of a row of JSON that is the text."""
LONGEST_ROW = 1 << 24
SAMPLE_BYTES = 2_000_000
"""As much of a sample is tokenised."""
UNITS = {"": 1, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)B?", re.IGNORECASE)


@dataclass(frozen=True)
class TextSize:
    """How much text is trained on."""

    num_bytes: float
    tokens: float
    counted: str
    """How the tokens were found."""


def parse_size(text: str | None) -> float | None:
    """Bytes of `20GB`, `1.5 TB`, `300M`; None if no size is given."""
    if text is None:
        return None
    found = SIZE.fullmatch(text.strip())
    if found is None or float(found[1]) == 0:
        raise BadConfig(f"'{text}' is not a size of a text; write it as 500MB, 20GB or 1TB.")
    return float(found[1]) * UNITS[found[2].upper()]


def measure(paths: Sequence[Path], size: float | None) -> TextSize:
    """The text of a plan: `size` bytes of what the files are a sample of, or the files themselves."""
    if len(paths) == 1 and _is_prepared(paths[0]):
        return _of_prepared(Shards.open(paths[0], verify=False), size)
    if not paths:
        if size is None:
            raise BadConfig("Give a text or a sample of it by `text=`, or `text_size='20GB'`.")
        return TextSize(size, size / BYTES_PER_TOKEN, f"{BYTES_PER_TOKEN} bytes a token, as English text has; assumed")
    files = find_files(list(paths))
    per_token = _bytes_per_token(files)
    total = size or float(expected_bytes(files))
    return TextSize(total, total / per_token, f"{per_token:.2f} bytes a token, counted in the sample")


def _is_prepared(path: Path) -> bool:
    """Whether a folder, here or in an object store, holds prepared text."""
    if remote.is_remote(path):
        return remote.is_file(path / INFO)
    return (path / INFO).exists()


def _of_prepared(shards: Shards, size: float | None) -> TextSize:
    """The size of prepared text; with `size`, of as many bytes of text like that."""
    num_bytes = float(shards.info["health"]["bytes_read"])
    total = size or num_bytes
    return TextSize(total, total * shards.num_tokens / num_bytes, "counted in the prepared text")


def _growth_in_file(file: Path, sampled: int) -> float:
    """How many bytes of a file a byte of text takes: rows of JSON have other fields and escapes, too.

    `sampled` bytes of its text were read, so the rows that hold them are known to be good.
    """
    if ending(file) not in ROWS:
        return 1.0
    num_bytes = 0
    of_text = 0
    for _, line in decoded_lines(FilePart(file), LONGEST_ROW, Counter()):
        if of_text >= sampled:
            break
        num_bytes += len(line.encode()) + 1
        if line.strip():
            of_text += len(json.loads(line)[FIELD].encode("utf-8", "replace")) + 1
    return num_bytes / max(1, of_text)


def _bytes_per_token(files: Sequence[Path]) -> float:
    """Bytes of a token, with the tokenizer of the model for the sample's language."""
    lines: list[str] = []
    num_bytes = 0.0
    for file in files:
        of_file = 0
        for document in read_documents([file]):
            for line in document.lines:
                # A row of JSON may hold half of a surrogate pair, which is not text.
                encoded = line.encode("utf-8", "replace")
                lines.append(encoded.decode())
                of_file += len(encoded) + 1
            if num_bytes + of_file > SAMPLE_BYTES:
                break
        num_bytes += of_file * _growth_in_file(file, of_file)
        if num_bytes > SAMPLE_BYTES:
            break
    if not lines:
        raise BadInput(f"{files[0]} has no text to plan with.")
    tokenizer = tokenizers.load(models.suiting(lines, remedy="give `text_size=` without a sample"))
    num_tokens = sum(len(encoding) for encoding in tokenizer.encode_batch(lines))
    return num_bytes / max(1, num_tokens)
