"""Files that are whole or absent: atomic writes, sha256 manifests, and opening compressed text.

A reader never meets half a file: everything is written beside its final name, synced, then renamed.
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
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from firth.errors import BadInput, Damaged, Unsupported

MANIFEST = "manifest.json"


@contextmanager
def atomic_file(path: Path) -> Iterator[IO[bytes]]:
    """A binary file that appears under `path` only once it is complete and on disk."""
    with _naming(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


@contextmanager
def atomic_folder(path: Path, *, replace: bool = False) -> Iterator[Path]:
    """A folder that appears under `path` only once its files and its manifest are on disk."""
    with _naming(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}."))
    try:
        yield temporary
        write_manifest(temporary)
        os.chmod(temporary, 0o755)
        if replace and path.exists():
            shutil.rmtree(path)
        os.replace(temporary, path)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    _sync_folder(path.parent)


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """What goes wrong beside `path` is told of `path`, the name that a person knows."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None


def check_writable(path: Path) -> None:
    """Raises if nothing can be written at `path`; its folder need not exist, and nothing is left."""
    folder = next(place for place in path.absolute().parents if place.exists())
    try:
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise BadInput(trouble(OSError(error.errno, error.strerror, str(path)))) from None


def trouble(error: OSError) -> str:
    """A sentence about a file that could not be read or written, with what to do."""
    path = Path(error.filename or "A file")
    blocking = next((place for place in path.parents if place.is_file()), None)
    if blocking:
        return f"{blocking} is a file, not a folder, so there can be no {path}; choose another place."
    if isinstance(error, IsADirectoryError):
        return f"{path} is a folder; name a file."
    why = error.strerror or error
    return f"{path} could not be read or written ({why}); check the path, its permissions and the room on the disk."


def without_model(folder: Path) -> str:
    """Why a folder that has no model's files has none, and what to do; empty where nothing is known of it."""
    if (folder / "run.toml").exists() and not (folder / MANIFEST).exists():
        return "does not hold a model: the run is not finished; continue it with `--resume`"
    prepared = "does not hold a model: it is prepared text; `firth pretrain` makes a model of it"
    return prepared if (folder / "shards.json").exists() else ""


def forget_pages(array: Any) -> None:
    """Lets go of the pages of a mapped file that were read: they would count as this process's memory."""
    while array is not None and not isinstance(array, mmap.mmap):
        array = getattr(array, "base", None)
    if array is not None and hasattr(mmap, "MADV_DONTNEED"):
        array.madvise(mmap.MADV_DONTNEED)


def remove_leftovers(folder: Path, prefix: str) -> None:
    """Deletes what a killed process left of an atomic write of `folder/prefix*`."""
    for path in folder.glob(f".{prefix}*"):
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def write_bytes(path: Path, data: bytes) -> None:
    with atomic_file(path) as file:
        file.write(data)


def write_json(path: Path, value: Any) -> None:
    write_bytes(path, (json.dumps(finite(value), indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode())


def finite(value: Any) -> Any:
    """JSON has no NaN: what is undefined is null."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {name: finite(inner) for name, inner in value.items()}
    return [finite(inner) for inner in value] if isinstance(value, list | tuple) else value


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise BadInput(f"{path} does not exist.") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise Damaged(f"{path} is not valid JSON ({error}).") from None


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_manifest(folder: Path, names: Iterable[str] | None = None) -> None:
    """Records size and sha256 of these files, or of all below `folder`; written last: its presence says "complete"."""
    paths = folder.rglob("*") if names is None else (folder / name for name in names)
    rows = {
        path.relative_to(folder).as_posix(): {"bytes": path.stat().st_size, "sha256": sha256(path)}
        for path in sorted(paths)
        if path.is_file() and path.name != MANIFEST
    }
    for name in rows:
        with (folder / name).open("rb") as file:
            os.fsync(file.fileno())
    write_json(folder / MANIFEST, {"files": rows})


def check_manifest(folder: Path, *, hashes: bool = True) -> None:
    """Raises `Damaged`, naming the first file that is missing, cut short or altered."""
    if not (folder / MANIFEST).exists():
        raise Damaged(f"{folder} has no {MANIFEST}: it is incomplete; make it again.")
    manifest = read_json(folder / MANIFEST)
    if not isinstance(manifest, dict) or not isinstance(manifest.get("files"), dict):
        raise Damaged(f"{folder / MANIFEST} does not list files; make {folder} again.")
    for name, row in manifest["files"].items():
        path = folder / name
        if not path.is_file():
            raise Damaged(f"{path} is missing; make {folder} again.")
        if path.stat().st_size != row["bytes"]:
            raise Damaged(f"{path} has {path.stat().st_size} bytes instead of {row['bytes']}; make {folder} again.")
        if hashes and sha256(path) != row["sha256"]:
            raise Damaged(f"{path} was altered after it was written (its sha256 differs); make {folder} again.")


COMPRESSED = (".gz", ".xz", ".zst")


def ending(path: Path) -> str:
    """A name's ending without that of its compression."""
    return Path(path.stem).suffix if path.suffix in COMPRESSED else path.suffix


def open_binary(path: Path) -> IO[bytes]:
    """Opens a plain, .gz, .xz or .zst file for reading."""
    if not path.is_file():
        raise BadInput(f"{path} does not exist." if not path.exists() else f"{path} is not a file; name one.")
    if path.suffix == ".gz":
        return gzip.open(path, "rb")  # type: ignore[return-value]
    if path.suffix == ".xz":
        return lzma.open(path, "rb")
    if path.suffix == ".zst":
        try:
            import zstandard
        except ImportError:
            raise Unsupported(f"{path} needs zstandard: pip install 'firth[data]'.") from None
        return io.BufferedReader(_Zstd(path, zstandard), 1 << 17)
    return path.open("rb")


class _Zstd(io.RawIOBase):
    """Reads .zst frames; unlike `zstandard.open`, it says so when the file ends in the middle of one."""

    def __init__(self, path: Path, zstandard: Any) -> None:
        self.zstandard, self.file = zstandard, path.open("rb")
        self.frame = zstandard.ZstdDecompressor().decompressobj()
        self.fed, self.ready = False, memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            while not self.ready and self._feed():
                pass
        except self.zstandard.ZstdError as error:
            raise OSError(str(error)) from None
        count = min(len(buffer), len(self.ready))
        buffer[:count], self.ready = self.ready[:count], self.ready[count:]
        return count

    def _feed(self) -> bool:
        data = self.frame.unused_data if self.frame.eof else b""
        if self.frame.eof:
            self.frame, self.fed = self.zstandard.ZstdDecompressor().decompressobj(), False
        data = data or self.file.read(1 << 10)  # little, because a few bytes can stand for megabytes
        if not data and self.fed:
            raise EOFError("the file ends within a frame")
        self.fed = self.fed or bool(data)
        self.ready = memoryview(self.frame.decompress(data) if data else b"")
        return bool(data)

    def close(self) -> None:
        self.file.close()
        super().close()


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
