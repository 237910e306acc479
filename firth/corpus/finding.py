"""Paths, folders, globs and URLs -> the files that they name, each once and in order."""

import glob
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from firth import remote
from firth.errors import BadInput
from firth.files import COMPRESSED, MANIFEST, ending, stored_bytes

Paths = str | Path | Iterable[str | Path]
ROWS = (".jsonl", ".json")
"""Endings of files with a JSON object on each line."""
TABLES = (".csv", ".tsv")
_OTHER_FOLDERS = {"config.json": "a model", "shards.json": "prepared text", "index.json": "a search index"}
"""What a folder with our manifest is, by a file in it; its text files are not the user's texts."""
_IN_FOLDERS = (".txt", ".jsonl", ".parquet")
"""Endings of the text files of a folder; .json is read when named: in folders it is mostly something else."""


def find_files(paths: Paths, *, tally: Counter[str] | None = None) -> list[Path]:
    """The files that paths, folders and globs name, each once; the tally counts other files of folders as skipped."""
    if tally is None:
        tally = Counter()
    if isinstance(paths, str | Path):
        paths = [paths]
    found: dict[Path, None] = {}  # an ordered set
    for path in paths:
        files = _expand(Path(path), tally)
        found.update(dict.fromkeys(files))
    if not found:
        raise BadInput("No files were given; name a file, a folder or a pattern such as 'texts/*.txt'.")
    return list(found)


def expected_bytes(files: Iterable[Path]) -> int:
    """An estimate of how much text the files hold: compressed text grows about fourfold, Parquet twofold."""
    factors = dict.fromkeys(COMPRESSED, 4)
    factors[".parquet"] = 2
    return sum(stored_bytes(path) * factors.get(path.suffix, 1) for path in files)


def _expand(path: Path, tally: Counter[str]) -> list[Path]:
    """The files that one path, folder or glob names."""
    if remote.is_remote(path):
        return _expand_remote(path, tally)
    if path.is_file():
        return [path]
    if path.is_dir():
        return _files_of_folder(path, tally)
    if glob.has_magic(str(path)):
        matches = [Path(name) for name in sorted(glob.glob(str(path), recursive=True))]
        files = [match for match in matches if match.is_file()]
        if not files:
            raise BadInput(f"{path} matches no file; check the pattern.")
        return files
    raise BadInput(f"{path} does not exist; check the path.")


def _files_of_folder(folder: Path, tally: Counter[str]) -> list[Path]:
    """The text files below `folder`, sorted; hidden files are ignored."""
    _refuse_our_own(folder)
    all_files = []
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not _hidden(path.relative_to(folder)):
            all_files.append(path)
    return _text_files(folder, all_files, tally)


def _refuse_our_own(folder: Path) -> None:
    """Raises if the folder is one that firth writes: its vocabulary or its log would be read as text."""
    if not (folder / MANIFEST).is_file():
        return
    for name, what in _OTHER_FOLDERS.items():
        if (folder / name).is_file():
            raise BadInput(f"{folder} is {what}, not a folder of texts; name the files that the texts are in.")


def _expand_remote(path: Path, tally: Counter[str]) -> list[Path]:
    """The files that a URL of a file, folder or glob names."""
    # A name may have characters that mean something in a glob.
    if remote.is_file(path):
        return [path]
    if remote.is_folder(path):
        depth = len(path.parts)
        all_files = []
        for file in remote.files_below(path):
            inside = Path(*file.parts[depth:])
            if not _hidden(inside):
                all_files.append(file)
        return _text_files(path, all_files, tally)
    if glob.has_magic(str(path)):
        files = remote.matches(path)
        if not files:
            raise BadInput(f"{remote.url_of(path)} matches no file; check the pattern.")
        return files
    raise BadInput(f"{remote.url_of(path)} does not exist; check the path.")


def _text_files(folder: Path, all_files: list[Path], tally: Counter[str]) -> list[Path]:
    """The text files among those of a folder; the others are counted as skipped."""
    files = [path for path in all_files if ending(path) in _IN_FOLDERS]
    tally["skipped_files"] += len(all_files) - len(files)
    if not files:
        raise BadInput(
            f"{folder} holds no {', '.join(_IN_FOLDERS)} files; name the files themselves or another folder."
        )
    return files


def _hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)
