"""Text for the default models: documents that contain texts of the evaluation sets are dropped.

    PYTHONHASHSEED=0 python bench/clean_text.py en --data $FIRTH_DATA --evaluation UNPACKED --out FOLDER

`UNPACKED` holds the unpacked archives of the evaluation sets. A document is dropped when it shares 13 words in a row
(Chinese: 24 characters) with a development or test text, or contains a whole shorter one of at least 8 words (14
characters). Of a very long document, such as a book, only the paragraphs with a hit are dropped. Case and punctuation
do not count. Prints how much was dropped from each file.
"""

import argparse
import json
import lzma
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

RUN = {"en": 13, "zh": 24}
"""Words (characters) in a row that two texts must share."""
SHORTEST = {"en": 8, "zh": 14}
"""Texts with fewer are too general to look for."""
WORD = {"en": re.compile(r"[a-z0-9]+"), "zh": re.compile(r"[一-鿿]|[a-z0-9]+")}
LONG_DOCUMENT = 200_000
"""Characters from which on only paragraphs are dropped."""
HELD_OUT = re.compile(r"dev|test|valid|val\.|gold")
NO_TEXT = re.compile(r"train\.(tsv|txt|json)|README|readme|instructions|LICENSE|words|goemotions|thucnews")
MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)


def strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for part in value.values():
            yield from strings(part)
    elif isinstance(value, list):
        for part in value:
            yield from strings(part)


def evaluation_texts(path: Path, language: str) -> Iterator[str]:
    """The texts of one file, whatever its form: JSON, columns of tags, segmented lines, or tables."""
    raw = path.read_text("utf-8", "ignore")
    if path.suffix == ".json":
        try:
            yield from strings(json.loads(raw))
        except json.JSONDecodeError:
            for line in raw.splitlines():
                if line.strip():
                    yield from strings(json.loads(line))
    elif any(name in str(path) for name in ("eng.test", "weibo", "msra")):
        for block in re.split(r"\n\s*\n", raw):
            words = [line.split()[0] for line in block.splitlines() if line.split()]
            yield (" " if language == "en" else "").join(words)
    elif any(name in str(path) for name in ("gold", "sxu", "icwb2")):
        for line in raw.splitlines():
            yield line.replace(" ", "")
    else:
        for line in raw.splitlines():
            yield from re.split(r"\t|\|\|", line)


def hashes(words: list[str]) -> np.ndarray:
    return np.fromiter(map(hash, words), np.int64, len(words)).view(np.uint64)


def grams(hashes_N: np.ndarray, size: int) -> np.ndarray:
    """One hash for every run of so many words."""
    count = max(len(hashes_N) - size + 1, 0)
    total = np.zeros(count, np.uint64)
    with np.errstate(over="ignore"):
        for place in range(size):
            total = total * MULTIPLIER + hashes_N[place : place + count]
    return total


class Evaluation:
    """All runs of words to look for, by their length."""

    def __init__(self, folder: Path, language: str) -> None:
        self.word = WORD[language]
        found: dict[int, list[np.ndarray]] = {}
        for path in sorted(folder.rglob("*")):
            name = str(path.relative_to(folder))
            if not path.is_file() or not HELD_OUT.search(name) or NO_TEXT.search(name):
                continue
            for text in evaluation_texts(path, language):
                words = self.word.findall(text.lower())
                if len(words) >= SHORTEST[language]:
                    size = min(RUN[language], len(words))
                    found.setdefault(size, []).append(grams(hashes(words), size))
        self.known = {size: np.unique(np.concatenate(parts)) for size, parts in found.items()}

    def is_in(self, text: str) -> bool:
        hashes_N = hashes(self.word.findall(text.lower()))
        for size, known in self.known.items():
            own = grams(hashes_N, size)
            if len(own):
                place = np.minimum(np.searchsorted(known, own), len(known) - 1)
                if (known[place] == own).any():
                    return True
        return False


def documents(path: Path) -> Iterator[list[str]]:
    lines: list[str] = []
    with lzma.open(path, "rt", encoding="utf-8") as file:
        for line in file:
            if line.strip():
                lines.append(line.rstrip("\n"))
            elif lines:
                yield lines
                lines = []
    if lines:
        yield lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("language", choices=sorted(RUN))
    for name in ("--data", "--evaluation", "--out"):
        parser.add_argument(name, type=Path, required=True)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    evaluation = Evaluation(arguments.evaluation / arguments.language, arguments.language)
    for path in sorted((arguments.data / arguments.language / "pretrain").glob("*.txt.xz")):
        num_documents = num_dropped = num_paragraphs = 0
        with (arguments.out / path.name.removesuffix(".xz")).open("w", encoding="utf-8") as out:
            for lines in documents(path):
                num_documents += 1
                text = "\n".join(lines)
                if evaluation.is_in(text):
                    if len(text) < LONG_DOCUMENT:
                        num_dropped += 1
                        continue
                    kept = [line for line in lines if not evaluation.is_in(line)]
                    num_paragraphs += len(lines) - len(kept)
                    text = "\n".join(kept)
                out.write(text + "\n\n")
        print(f"{path.name}: {num_dropped} of {num_documents} documents dropped, and {num_paragraphs} paragraphs")


if __name__ == "__main__":
    main()
