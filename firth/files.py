"""Files that are complete or absent: atomic writes, sha256 manifests, and opening compressed text.

A reader never sees half a file: everything is written under a temporary name in the same folder, synced, then renamed.
"""

import gzip
import hashlib
import io
import json
import lzma
import math
import mmap
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import IO, TYPE_CHECKING, Any

from firth import remote
from firth.errors import BadInput, Damaged, absent
from firth.temporary import remove_abandoned, temporary_file, temporary_folder

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

MANIFEST = "manifest.json"
JsonObject = Mapping[str, Any]
"""A JSON object as `read_json` returns it: nothing is known about its values."""
COMPRESSED = (".gz", ".xz", ".zst")
"""Endings of compressed files that `open_binary` reads."""


@contextmanager
def atomic_file(path: Path) -> Iterator[IO[bytes]]:
    """A binary file that appears at `path` only when it is complete and on disk."""
    with temporary_file(path) as temporary:
        with temporary.open("wb") as file:  # its name is the path, for writers that want one
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)  # a temporary file lets nobody else read it
        os.replace(temporary, path)
    _sync_folder(path.parent)


@contextmanager
def atomic_folder(path: Path, *, replace: bool = False, with_manifest: bool = True) -> Iterator[Path]:
    """A folder that appears at `path` only when its files and, unless it brings its own, its manifest are on disk."""
    with temporary_folder(path) as temporary:
        yield temporary
        if with_manifest:
            write_manifest(temporary)
        os.chmod(temporary, 0o755)
        # A rename replaces a file or an empty folder, but not a full one.
        if replace and path.exists():
            shutil.rmtree(path)
        os.replace(temporary, path)
    _sync_folder(path.parent)


def check_can_be_made(path: Path) -> None:
    """Raises if the file or folder that is to be written exists, or cannot be written; called before any other work.

    What an earlier command for the same path left when it was killed is removed.
    """
    if remote.exists(path) if remote.is_remote(path) else path.exists():
        raise BadInput(f"{path} already exists; choose another `out=` or remove it.")
    check_writable(path)
    if not remote.is_remote(path):
        remove_abandoned(path)


def check_writable(path: Path) -> None:
    """Raises if nothing can be written at `path`, or into it if it is a folder. Nothing is left behind."""
    if remote.is_remote(path):
        remote.file_system(path)  # raises if there is no such store
        return
    parents = path.absolute().parents
    folder = path if path.is_dir() else next(parent for parent in parents if parent.exists())
    # Only writing shows for certain whether writing is possible.
    try:
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        about_path = OSError(error.errno, error.strerror, str(path))
        raise BadInput(trouble(about_path)) from None


def trouble(error: OSError) -> str:
    """A sentence about a file that could not be read or written, with what to do."""
    path = Path(error.filename or "A file")
    for parent in path.parents:
        if parent.is_file():
            return f"{parent} is a file, not a folder, so there can be no {path}; choose another place."
    if isinstance(error, IsADirectoryError):
        return f"{path} is a folder; name a file."
    why = error.strerror or error
    return f"{path} could not be read or written ({why}); check the path, its permissions and the free disk space."


def without_model(folder: Path) -> str:
    """Why a folder does not contain a model and what to do; empty if the reason is not known."""
    if (folder / "run.toml").exists() and not (folder / MANIFEST).exists():
        return "does not hold a model: the run is not finished; continue it with `resume=True`"
    if (folder / "shards.json").exists():
        return "does not hold a model: it is prepared text; `firth pretrain` makes a model of it"
    return ""


def forget_pages(array: object) -> None:
    """Releases the pages of a memory-mapped array that were read; they would count as memory of this process."""
    # The memory map is the last of the bases of an array.
    owner: object = array
    while owner is not None and not isinstance(owner, mmap.mmap):
        owner = getattr(owner, "base", None)
    # Not all systems have this call.
    if owner is not None and hasattr(mmap, "MADV_DONTNEED"):
        owner.madvise(mmap.MADV_DONTNEED)


def remove_leftovers(folder: Path, prefix: str) -> None:
    """Deletes the temporary files and folders of a killed process that was writing `folder/prefix*`."""
    for path in folder.glob(f".{prefix}*"):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def write_bytes(path: Path, data: bytes) -> None:
    """Writes a file atomically."""
    with atomic_file(path) as file:
        file.write(data)


def read_files(folder: Path) -> dict[str, bytes]:
    """The contents of all files below a folder, by their names in it."""
    contents: dict[str, bytes] = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            contents[path.relative_to(folder).as_posix()] = path.read_bytes()
    return contents


def write_files(folder: Path, contents: Mapping[str, bytes]) -> None:
    """Writes the files that `read_files` has read."""
    for name, data in contents.items():
        write_bytes(folder / name, data)


def write_json(path: Path, value: object) -> None:
    """Writes a value as indented JSON, atomically; NaN and infinity become null."""
    text = json.dumps(finite(value), indent=2, ensure_ascii=False, allow_nan=False)
    write_bytes(path, f"{text}\n".encode())


def finite(value: object) -> object:
    """A JSON value with None in place of NaN and infinity, which JSON does not have."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {name: finite(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [finite(inner) for inner in value]
    return value


def read_json(path: Path) -> Any:
    """The content of a JSON file."""
    try:
        return json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise BadInput(f"{path} does not exist.") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise Damaged(f"{path} is not valid JSON ({error}).") from None


def sha256(path: Path) -> str:
    """The sha256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_manifest(folder: Path, names: Iterable[str] | None = None) -> None:
    """Records size and sha256 of these files, or of all files below `folder`.

    The manifest is written last: a folder that has one is complete.
    """
    rows: dict[str, dict[str, int | str]] = {}
    for path in _sorted_paths(folder, names):
        if path.is_file() and path.name != MANIFEST:
            name = path.relative_to(folder).as_posix()
            rows[name] = {"bytes": path.stat().st_size, "sha256": sha256(path)}
    # The files must be on disk before the manifest says that they are complete.
    for name in rows:
        with (folder / name).open("rb") as file:
            os.fsync(file.fileno())
    write_json(folder / MANIFEST, {"files": rows})


def _sorted_paths(folder: Path, names: Iterable[str] | None) -> list[Path]:
    """The paths of these names, or of all below `folder`."""
    if names is None:
        return sorted(folder.rglob("*"))
    return sorted(folder / name for name in names)


def check_manifest(folder: Path, *, hashes: bool = True, without: Callable[[str], bool] | None = None) -> None:
    """Raises `Damaged` with the name of the first file that is missing, truncated or altered.

    Files whose names are `without` are not looked at.
    """
    if not (folder / MANIFEST).exists():
        raise Damaged(f"{folder} has no {MANIFEST}: it is incomplete; make it again.")
    manifest = read_json(folder / MANIFEST)
    if not isinstance(manifest, dict) or not isinstance(manifest.get("files"), dict):
        raise Damaged(f"{folder / MANIFEST} does not list files; make {folder} again.")
    for name, row in manifest["files"].items():
        if without is not None and without(name):
            continue
        path = folder / name
        if not path.is_file():
            raise Damaged(f"{path} is missing; make {folder} again.")
        size = path.stat().st_size
        if size != row["bytes"]:
            raise Damaged(f"{path} has {size} bytes instead of {row['bytes']}; make {folder} again.")
        if hashes and sha256(path) != row["sha256"]:
            raise Damaged(f"{path} was altered after it was written (its sha256 differs); make {folder} again.")


def ending(path: Path) -> str:
    """The suffix of a name, without that of its compression: `.txt` for `a.txt.gz`."""
    if path.suffix in COMPRESSED:
        return Path(path.stem).suffix
    return path.suffix


def open_binary(path: Path) -> IO[bytes]:
    """Opens a plain, .gz, .xz or .zst file for reading, on this machine or in an object store."""
    file = open_stored(path)
    if path.suffix == ".gz":
        return _Decompressed(gzip.GzipFile(fileobj=file), file)
    if path.suffix == ".xz":
        return _Decompressed(lzma.LZMAFile(file), file)
    if path.suffix == ".zst":
        try:
            import zstandard
        except ImportError:
            file.close()
            raise absent("zstandard", extra="data", user=f"{path}") from None
        return io.BufferedReader(_ZstdReader(file, zstandard), 1 << 17)
    return file


def open_stored(path: Path) -> IO[bytes]:
    """Opens a file for reading as it is stored: compressed files stay compressed."""
    if remote.is_remote(path):
        return remote.open_remote(path)
    if not path.exists():
        raise BadInput(f"{path} does not exist.")
    if not path.is_file():
        raise BadInput(f"{path} is not a file; name one.")
    return path.open("rb")


def stored_bytes(path: Path) -> int:
    """The size of a file, on this machine or in an object store."""
    if remote.is_remote(path):
        return remote.size_of(path)
    return path.stat().st_size


class _Decompressed(io.BufferedReader):
    """A decompressing reader that also closes the file it reads from."""

    def __init__(self, reader: gzip.GzipFile | lzma.LZMAFile, file: IO[bytes]) -> None:
        super().__init__(reader)  # type: ignore[arg-type]
        self.file = file

    def close(self) -> None:
        super().close()
        self.file.close()


class _ZstdReader(io.RawIOBase):
    """Reads .zst frames; unlike `zstandard.open`, it raises when the file ends in the middle of one."""

    def __init__(self, file: IO[bytes], zstandard: ModuleType) -> None:
        self.zstandard = zstandard
        self.file = file
        self.ready = memoryview(b"")
        """Decompressed bytes that were not returned yet."""
        self._begin_frame()

    def _begin_frame(self) -> None:
        self.frame = self.zstandard.ZstdDecompressor().decompressobj()
        self.frame_has_data = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "WriteableBuffer") -> int:
        """Fills the buffer with decompressed bytes; returns how many, 0 at the end of the file."""
        try:
            while not self.ready and self._decompress_some():
                pass
        except self.zstandard.ZstdError as error:
            raise OSError(str(error)) from None
        target = memoryview(buffer).cast("B")
        count = min(len(target), len(self.ready))
        target[:count] = self.ready[:count]
        self.ready = self.ready[count:]
        return count

    def _decompress_some(self) -> bool:
        """Decompresses the next bytes into `ready`; returns False at the end of the file."""
        data = b""
        if self.frame.eof:
            # What follows a frame is the beginning of the next one.
            data = self.frame.unused_data
            self._begin_frame()
        if not data:
            data = self.file.read(1 << 10)  # little, because a few bytes can become megabytes
        if not data:
            if self.frame_has_data:
                raise EOFError("the file ends within a frame")
            return False
        self.frame_has_data = True
        self.ready = memoryview(self.frame.decompress(data))
        return True

    def close(self) -> None:
        self.file.close()
        super().close()


def _sync_folder(folder: Path) -> None:
    """Brings a rename in a folder to disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
