"""Prepared text in an object store: what is small is copied to this machine, the tokens are read in blocks.

In: the URL of a folder that `firth prepare` wrote. Out: a local folder with everything but the tokens (`shards.json`,
the tokenizer, the borders of sentences and documents), and two arrays that fetch their blocks. FIRTH_CACHE names the
folder for both, FIRTH_CACHE_GB limits the blocks.
"""

import json
import os
import shutil
from hashlib import sha256
from pathlib import Path

import numpy as np

from firth import remote
from firth.data.block_cache import BLOCK_BYTES, BlockArray
from firth.errors import BadConfig, BadInput, Damaged
from firth.files import MANIFEST, atomic_folder, check_manifest

FOLDER = "FIRTH_CACHE"
LIMIT = "FIRTH_CACHE_GB"
DEFAULT_GB = 4.0
BLOCKWISE = ("ids", "words")
"""The channels that grow with the number of tokens."""
ORIGIN = "origin.txt"
"""The file of a local copy that says where the rest is."""


def cache_folder() -> Path:
    """Where copies and blocks lie."""
    usual = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "firth"
    return Path(os.environ.get(FOLDER) or usual)


def cache_bytes() -> int:
    """How many bytes of tokens may be on this machine, for each process."""
    text = os.environ.get(LIMIT) or str(DEFAULT_GB)
    try:
        return int(float(text) * 1e9)
    except (ValueError, OverflowError):  # OverflowError: of inf
        raise BadConfig(f"{LIMIT} is '{text}', which is not a number of gigabytes.") from None


def local_copy(url: str | Path) -> Path:
    """A local folder with the small files of the folder at `url`; made once for each manifest."""
    url = remote.url_of(url)
    if not remote.is_file(f"{url}/{MANIFEST}"):
        raise BadInput(f"{url} is not a folder of prepared text; make one with 'firth prepare'.")
    with remote.open_remote(f"{url}/{MANIFEST}") as file:
        manifest = file.read()
    key = sha256(url.encode() + manifest).hexdigest()[:16]
    folder = cache_folder() / key
    if _is_whole(folder):
        return folder
    # What is left of a copy whose files someone has removed.
    shutil.rmtree(folder, ignore_errors=True)
    try:
        _copy(url, manifest, folder)
    except OSError:
        # Another process may have made the same copy meanwhile, and two folders cannot have one name.
        if not _is_whole(folder):
            raise
    return folder


def _is_whole(folder: Path) -> bool:
    """Whether a copy is there with all its files."""
    try:
        check_manifest(folder, hashes=False, without=is_blockwise)
    except Damaged:
        return False
    return True


def _copy(url: str, manifest: bytes, folder: Path) -> None:
    """Copies the small files of the folder at `url`, and compares them with its manifest."""
    with atomic_folder(folder, with_manifest=False) as temporary:
        (temporary / MANIFEST).write_bytes(manifest)
        for name in _names(url, manifest):
            if not is_blockwise(name):
                remote.download(f"{url}/{name}", temporary / name)
        try:
            check_manifest(temporary, without=is_blockwise)
        except Damaged:
            raise Damaged(f"The files of {url} are not those of its {MANIFEST}; prepare the text again.") from None
        (temporary / ORIGIN).write_text(url)


def _names(url: str, manifest: bytes) -> list[str]:
    """The files that a manifest lists."""
    try:
        names = list(json.loads(manifest)["files"])
    except (ValueError, KeyError, TypeError):
        raise Damaged(f"{url}/{MANIFEST} does not list files; prepare the text again.") from None
    for name in names:
        is_inside = not Path(name).is_absolute() and ".." not in Path(name).parts
        if not is_inside:
            raise Damaged(f"{url}/{MANIFEST} lists {name}, which is not a file of this folder; prepare the text again.")
    return names


def is_blockwise(name: str) -> bool:
    """Whether a file of a folder is read in blocks."""
    return name in {f"{channel}.bin" for channel in BLOCKWISE}


def map_blocks(url: str, name: str, dtype: np.dtype[np.generic], size: int) -> BlockArray:
    """A channel of a folder in an object store; each gets its share of the cache by its bytes."""
    path = f"{url}/{name}.bin"
    wanted_bytes = size * dtype.itemsize
    found_bytes = remote.size_of(path)
    if found_bytes != wanted_bytes:
        raise Damaged(f"{path} has {found_bytes} bytes instead of {wanted_bytes}; prepare the text again.")
    # A token has 16 bits (or 32) in one file and one bit in the other, and so have blocks and caches.
    block_bytes = BLOCK_BYTES
    limit_bytes = cache_bytes() * 16 // 17
    if name == "words":
        block_bytes //= 16
        limit_bytes //= 16
    folder = cache_folder()
    return BlockArray(path, dtype, size, folder=folder, limit_bytes=limit_bytes, block_bytes=block_bytes)
