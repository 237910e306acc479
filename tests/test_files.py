"""Files that are whole or absent."""

import gzip
import json
import lzma
from contextlib import suppress
from pathlib import Path

import pytest

from firth.errors import BadInput, Damaged
from firth.files import (
    atomic_file,
    atomic_folder,
    check_manifest,
    open_binary,
    read_json,
    remove_leftovers,
    write_bytes,
    write_json,
    write_manifest,
)


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file"
    with atomic_file(path) as file:
        file.write(b"half")
        assert not path.exists()
        file.write(b" and half")
    assert path.read_bytes() == b"half and half"
    with suppress(KeyboardInterrupt), atomic_file(path) as file:
        file.write(b"other")
        raise KeyboardInterrupt
    assert path.read_bytes() == b"half and half"
    assert list(path.parent.iterdir()) == [path]


def test_a_folder_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "folder"
    with atomic_folder(path) as temporary:
        (temporary / "a").write_bytes(b"1")
        assert not path.exists()
    check_manifest(path)
    with suppress(KeyboardInterrupt), atomic_folder(path, replace=True) as temporary:
        (temporary / "b").write_bytes(b"2")
        raise KeyboardInterrupt
    assert sorted(p.name for p in path.iterdir()) == ["a", "manifest.json"]
    with atomic_folder(path, replace=True) as temporary:
        (temporary / "c").write_bytes(b"3")
    assert sorted(p.name for p in path.iterdir()) == ["c", "manifest.json"]
    assert [p.name for p in tmp_path.iterdir()] == ["folder"]


def test_leftovers_of_killed_writes_are_removed_and_nothing_else(tmp_path: Path) -> None:
    for name in (".step-3.x1", ".step-4.x2", ".other.x3", "step-2"):
        (tmp_path / name).mkdir()
    (tmp_path / ".step-3.x1" / "file").write_bytes(b"")
    (tmp_path / ".step-file").write_bytes(b"")
    remove_leftovers(tmp_path, "step-")
    assert sorted(p.name for p in tmp_path.iterdir()) == [".other.x3", "step-2"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "deep").mkdir()
    write_bytes(tmp_path / "a.bin", b"0123456789")
    write_json(tmp_path / "deep" / "b.json", {"é": "中"})
    write_manifest(tmp_path)
    return tmp_path


def test_a_manifest_passes_what_is_sound(folder: Path) -> None:
    check_manifest(folder)
    assert set(json.loads((folder / "manifest.json").read_text())["files"]) == {"a.bin", "deep/b.json"}


@pytest.mark.parametrize(
    ("content", "says"),
    [(b"0123456788", "was altered"), (b"012345678", "has 9 bytes instead of 10"), (None, "is missing")],
)
def test_a_manifest_names_what_is_damaged(folder: Path, content: bytes | None, says: str) -> None:
    path = folder / "a.bin"
    path.unlink() if content is None else path.write_bytes(content)
    with pytest.raises(Damaged, match=says) as raised:
        check_manifest(folder)
    assert str(path) in str(raised.value)
    if content and len(content) == 10:
        check_manifest(folder, hashes=False)


def test_a_folder_without_manifest_is_incomplete(folder: Path) -> None:
    (folder / "manifest.json").unlink()
    with pytest.raises(Damaged, match="incomplete"):
        check_manifest(folder)


def test_json_mistakes(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="does not exist"):
        read_json(tmp_path / "x.json")
    (tmp_path / "x.json").write_bytes(b'{"a": ')
    with pytest.raises(Damaged, match=r"x\.json is not valid JSON"):
        read_json(tmp_path / "x.json")
    (tmp_path / "x.json").write_bytes(b"\xff\xfe")
    with pytest.raises(Damaged, match=r"x\.json is not valid JSON"):
        read_json(tmp_path / "x.json")


def test_compressed_files_are_opened_by_their_suffix(tmp_path: Path) -> None:
    zstandard = pytest.importorskip("zstandard")
    text = b"text\n" * 5000
    makers = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress, ".zst": zstandard.ZstdCompressor().compress}
    for suffix, compress in makers.items():
        path = tmp_path / f"a.txt{suffix}"
        path.write_bytes(compress(text))
        with open_binary(path) as file:
            assert file.read() == text
    whole = (tmp_path / "a.txt.zst").read_bytes()
    (tmp_path / "two.zst").write_bytes(whole + whole)
    with open_binary(tmp_path / "two.zst") as file:
        assert file.read() == text * 2
    (tmp_path / "cut.zst").write_bytes(whole[:-3])
    with open_binary(tmp_path / "cut.zst") as file, pytest.raises(EOFError):
        file.read()
    with pytest.raises(BadInput, match="does not exist"):
        open_binary(tmp_path / "none.txt")
    with pytest.raises(BadInput, match="is not a file"):
        open_binary(tmp_path)
