"""A finished run -> a model that comes with firth: `python -m bench.ship_model RUN en-small`.

Writes `firth/models/NAME`, with weights of 6 bits unless `--bits` says otherwise, and a card that names the text and
its licences. A model that is there already is replaced. The name begins with the language of the text. The run's vector
head is kept: make it with `firth vectors RUN --text TEXT --out RUN-WITH-HEAD` first, and ship that.
"""

import argparse
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

from firth import checkpoint as checkpoints
from firth import models
from firth.surgery.exporting import export_folder

HOME = Path(models.__file__).parent
BITS = 6
MOST_BYTES = 14_000_000
SOURCES = {
    "en": [
        "English Wikipedia of 2015: CC BY-SA",
        "Project Gutenberg, books in English: public domain in the USA",
        "Web text (textbooks of OpenStax, reviews, transcripts, blogs, documentation, news, court arguments): "
        "CC BY, CC BY-SA, CC BY-NC-SA, public domain, some not stated",
    ],
    "zh": [
        "Chinese news, technical articles, law and modern translations of classics: licences mixed, some not stated",
        "Technical books, documentation, blogs, essays, medical questions and reviews in Chinese: licences mixed, "
        "some not stated",
    ],
}
"""The text by language, and the licence of each part."""


def ship(run: Path, name: str, *, bits: int = BITS) -> Path:
    """Writes the model folder and returns it."""
    language = name.partition("-")[0]
    with tempfile.TemporaryDirectory() as temporary:
        exported = Path(temporary) / "exported"
        export_folder(run, exported, bits=bits)
        rounded = checkpoints.load(exported)
        notes = {"language": language, "sources": SOURCES[language]}
        documented = replace(rounded, info={**rounded.info, **notes})
        folder = Path(temporary) / name
        checkpoints.save(folder, documented, bits=bits)
        size = sum(file.stat().st_size for file in folder.iterdir())
        assert size <= MOST_BYTES, f"{name} has {size:,} bytes, more than {MOST_BYTES:,}"
        out = HOME / name
        if out.exists():
            shutil.rmtree(out)
        shutil.move(folder, out)
    print(f"{out}: {size:,} bytes")
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("run", type=Path, help="a finished run, or a model folder exported from one")
    parser.add_argument("name", help="such as en-small or zh-small")
    parser.add_argument("--bits", type=int, default=BITS, help="bits of each weight")
    given = parser.parse_args()
    ship(given.run, given.name, bits=given.bits)


if __name__ == "__main__":
    main()
