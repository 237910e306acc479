"""Files in object stores: `s3://bucket/key`, `gs://...`, `memory://...` or any other URL that fsspec knows.

The package passes files around as `Path`, which keeps one slash of `s3://`. This module accepts both spellings and
opens, lists and writes what they name. fsspec is imported here only, and only for such a path.
"""

import io
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

from firth.errors import BadInput, Unsupported, absent

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer
    from fsspec import AbstractFileSystem

_URL = re.compile(r"([a-z][a-z0-9+.-]+):/+(.*)", re.DOTALL)
_LOCAL = ("file", "local")
BLOCK_BYTES = 1 << 22
"""Bytes of one request to a store while a file is read from beginning to end."""
BUFFER_BYTES = 1 << 17
"""Bytes that are taken at once from those of a request, where a reader asks for fewer."""


def is_remote(path: str | Path) -> bool:
    """Whether a path is a URL."""
    return _URL.fullmatch(str(path)) is not None


def url_of(path: str | Path) -> str:
    """The URL with both its slashes."""
    found = _URL.fullmatch(str(path))
    if found is None:
        raise BadInput(f"{path} is not a URL such as s3://bucket/key.")
    root = "/" if found[1] in _LOCAL else ""
    return f"{found[1]}://{root}{found[2]}"


def file_system(path: str | Path) -> "tuple[AbstractFileSystem, str]":
    """The store that a URL names, and the name of the file in it."""
    url = url_of(path)
    try:
        import fsspec
    except ImportError:
        raise absent("fsspec", extra="ray", user=url) from None
    try:
        store, name = fsspec.core.url_to_fs(url)
    except ImportError as error:
        # fsspec says which package the protocol needs.
        raise Unsupported(f"{url}: {error}.") from None
    except ValueError as error:
        raise BadInput(f"{url}: {error}.") from None
    except Exception as error:
        raise _unreachable(path, error) from None
    return store, name


@contextmanager
def _errors_about(path: str | Path) -> Iterator[None]:
    """What a store raises inside becomes one sentence. Each store has classes of its own for lost networks and keys."""
    try:
        yield
    except FileNotFoundError:
        raise BadInput(f"{url_of(path)} does not exist.") from None
    except Exception as error:
        raise _unreachable(path, error) from None


def _unreachable(path: str | Path, error: Exception) -> BadInput:
    reason = str(error).partition("\n")[0] or type(error).__name__
    return BadInput(
        f"{url_of(path)} could not be read or written ({reason}); check the address, the credentials and the network."
    )


def exists(path: str | Path) -> bool:
    store, name = file_system(path)
    with _errors_about(path):
        return bool(store.exists(name))


def is_file(path: str | Path) -> bool:
    store, name = file_system(path)
    with _errors_about(path):
        return bool(store.isfile(name))


def is_folder(path: str | Path) -> bool:
    store, name = file_system(path)
    with _errors_about(path):
        return bool(store.isdir(name))


def size_of(path: str | Path) -> int:
    """The number of bytes of a file."""
    store, name = file_system(path)
    with _errors_about(path):
        return int(store.info(name)["size"])


def open_remote(path: str | Path) -> IO[bytes]:
    """Opens a file for reading; requests are for `BLOCK_BYTES` at least."""
    store, name = file_system(path)
    with _errors_about(path):
        opened: IO[bytes] = store.open(name, "rb", block_size=BLOCK_BYTES)
    return io.BufferedReader(_StoreFile(path, opened), BUFFER_BYTES)


class _StoreFile(io.RawIOBase):
    """An open file of a store. A network may also be lost while the file is read: that is one sentence, too."""

    def __init__(self, path: str | Path, file: IO[bytes]) -> None:
        self.path = path
        self.file = file

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return self.file.seekable()

    def readinto(self, buffer: "WriteableBuffer") -> int:
        """Fills the buffer; returns how many bytes were read, 0 at the end of the file."""
        target = memoryview(buffer).cast("B")
        with _errors_about(self.path):
            data = self.file.read(len(target))
        target[: len(data)] = data
        return len(data)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        with _errors_about(self.path):
            return self.file.seek(offset, whence)

    def tell(self) -> int:
        return self.file.tell()

    def close(self) -> None:
        self.file.close()
        super().close()


def read_range(path: str | Path, start: int, end: int) -> bytes:
    """The bytes from `start` to `end`, in one request."""
    store, name = file_system(path)
    with _errors_about(path):
        # By name: their places differ between stores.
        return bytes(store.cat_file(name, start=start, end=end))


def files_below(folder: str | Path) -> list[Path]:
    """All files below a folder, sorted. Its name may have characters that mean something in a glob."""
    store, name = file_system(folder)
    with _errors_about(folder):
        names: list[str] = store.find(name)
    return _as_paths(folder, names)


def matches(pattern: str | Path) -> list[Path]:
    """The files that a glob names, sorted."""
    store, name = file_system(pattern)
    with _errors_about(pattern):
        found: dict[str, dict[str, object]] = store.glob(name, detail=True)
    names = [file for file, row in found.items() if row["type"] == "file"]
    return _as_paths(pattern, names)


def _as_paths(path: str | Path, names: Iterable[str]) -> list[Path]:
    """The names of files in the store of `path` as paths of the package, sorted."""
    scheme = url_of(path).partition("://")[0]
    paths = []
    for name in sorted(names):
        # The names of some stores are URLs already.
        is_url = name.startswith(f"{scheme}://")
        if not is_url:
            name = f"{scheme}:/{name.lstrip('/')}"
        paths.append(Path(name))
    return paths


def upload_folder(folder: Path, target: str | Path, *, last: str) -> None:
    """Copies all files of a folder to a store; the file named `last` comes last, so that its presence means all.

    One that is there already is removed first, so that nobody takes its files and new ones for a whole.
    """
    store, name = file_system(target)
    root = name.rstrip("/")
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    # Files of this name in subfolders are like any others.
    files.sort(key=lambda path: path == folder / last)
    with _errors_about(target):
        if store.exists(f"{root}/{last}"):
            store.rm_file(f"{root}/{last}")
        for path in files:
            remote_name = f"{root}/{path.relative_to(folder).as_posix()}"
            store.makedirs(remote_name.rpartition("/")[0], exist_ok=True)
            store.put_file(str(path), remote_name)


def download(path: str | Path, target: Path) -> None:
    """Copies a file to a local path."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with open_remote(path) as source, target.open("wb") as file:
        shutil.copyfileobj(source, file, BLOCK_BYTES)
