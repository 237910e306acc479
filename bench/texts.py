"""Ragged English texts for the benches: paragraphs of Wikipedia, as they come."""

import lzma
import os
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
