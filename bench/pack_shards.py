"""Prepared text in small compressed files and back: for a machine that takes only small uploads.

    python bench/pack_shards.py pack DATA OUT --shares 0.45 0.45 0.1
    python bench/pack_shards.py unpack OUT/A OUT/B --out DATA

`pack` deals whole documents at random into folders A, B, ... with these shares of the tokens. Any of them that are
unpacked together, A among them, make one folder of prepared text. A token takes about 1.1 bytes.
"""

import argparse
import json
import lzma
import shutil
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from firth import rng, tokenizers
from firth.data.shards import Shards, write_shards
from firth.data.stream import ranges
from firth.errors import BadInput

FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 4, "lc": 0, "lp": 1, "pb": 1}]
FILE_TOKENS = 2_500_000
WORD_START = 1 << 15
"""The highest bit of a token says that it starts a word, which leaves room for 32,768 ids."""


def compress(data: Path, task: tuple[Path, np.ndarray]) -> None:
    path, documents = task
    shards = Shards.open(data, verify=False)
    sentences = ranges(shards.documents[documents], shards.documents[documents + 1])
    starts = shards.sentences[sentences]
    ends = shards.sentences[sentences + 1]
    tokens = ranges(starts, ends)
    ids = shards.ids[tokens].astype("<u2")
    ids[shards.word_starts(tokens)] |= WORD_START
    lengths = (ends - starts).astype("<u2")
    document_ends = np.cumsum(shards.documents[documents + 1] - shards.documents[documents]).astype("<u4")
    sizes = np.array([len(ids), len(lengths), len(document_ends)], "<u4")
    raw = b"".join(array.tobytes() for array in (sizes, ids, lengths, document_ends))
    path.write_bytes(lzma.compress(raw, format=lzma.FORMAT_XZ, filters=FILTERS))


def pack(data: Path, out: Path, shares: list[float]) -> None:
    shards = Shards.open(data)
    if shards.info["vocab_size"] > WORD_START:
        raise BadInput(f"{data} has more than {WORD_START} ids, too many to pack.")
    order = rng.permutation(rng.key("pack"), shards.num_documents)
    bounds = shards.sentences[shards.documents]
    sizes = np.diff(bounds)[order]
    done = np.cumsum(sizes) / sizes.sum()
    tasks = []
    first = 0.0
    for number, share in enumerate(shares):
        folder = out / "ABCDEFGH"[number]
        folder.mkdir(parents=True)
        chosen = order[(done > first) & (done <= first + share + 1e-9)]
        first += share
        num_files = max(1, int(sizes.sum() * share / FILE_TOKENS))
        for place, documents in enumerate(np.array_split(chosen, num_files)):
            tasks.append((folder / f"{place:03d}.xz", documents))
    shutil.copytree(shards.tokenizer_folder, out / "A" / "tokenizer")
    (out / "A" / "health.json").write_text(json.dumps(shards.info["health"]))
    with ProcessPoolExecutor() as pool:
        list(pool.map(partial(compress, data), tasks))


def decompress(path: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    raw = lzma.decompress(path.read_bytes())
    num_ids, num_sentences, num_documents = np.frombuffer(raw, "<u4", 3)
    ids = np.frombuffer(raw, "<u2", num_ids, 12)
    lengths = np.frombuffer(raw, "<u2", num_sentences, 12 + 2 * num_ids)
    ends = np.frombuffer(raw, "<u4", num_documents, 12 + 2 * num_ids + 2 * num_sentences)
    return ids, lengths, ends


def unpack(folders: list[Path], out: Path) -> None:
    tokenizer = tokenizers.load(folders[0] / "tokenizer")
    paths = [path for folder in folders for path in sorted(folder.glob("*.xz"))]
    with ProcessPoolExecutor() as pool, write_shards(out, tokenizer) as writer:
        for ids, lengths, ends in pool.map(decompress, paths):
            writer.append(
                (ids & (WORD_START - 1)).astype(np.int64),
                ids >= WORD_START,
                lengths=lengths.astype(np.int64),
                ends=ends.astype(np.int64),
            )
        health = json.loads((folders[0] / "health.json").read_text())
        writer.info = {"documents_by": "blank-line", "health": health}
    print(f"{out}: {writer.num_tokens:,} tokens")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", choices=("pack", "unpack"))
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--shares", nargs="+", type=float, default=[1.0])
    arguments = parser.parse_args()
    if arguments.stage == "pack":
        pack(arguments.folders[0], arguments.folders[1], arguments.shares)
    else:
        unpack(arguments.folders, arguments.out)


if __name__ == "__main__":
    main()
