"""Word vectors against gensim and the fasttext program on the same text and the same number of threads, two by default.

    python bench/vectors_cpu.py --words 10_000_000 --kinds sg-ns sg-hs cbow-ns cbow-hs fasttext glove --runs 1

The text is $FIRTH_DATA/en/pretrain, cut to so many words. Every run is a process of its own: it says its seconds of
training (without reading, counting and compiling), its peak of memory in MB (and that of a
run over next to nothing, which is what the libraries take), and MEN and WordSim-353 by Spearman. Peers:
gensim's `corpus_file` mode with two workers, and fasttext's train_unsupervised. `--sizes` trains skip-gram on 1M, 10M
and 40M words to show that the cost grows in a straight line.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

DATA = Path(os.environ.get("FIRTH_DATA", Path(__file__).parents[2] / "shared" / "data"))
WIDTH, WINDOW, THREADS, MIN_COUNT = 100, 5, 2, 5
KINDS = ("sg-ns", "sg-hs", "cbow-ns", "cbow-hs", "fasttext", "glove")
RATES = {"sg-ns": 0.05, "sg-hs": 0.05, "cbow-ns": 0.1, "cbow-hs": 0.05, "fasttext": 0.05}
"""Of the peer's first word. fasttext's falls in a straight line to nothing; each of gensim's workers counts only its
own words, so with two of them its rate falls to half. Ours always falls to nothing, from `first_rate`."""
GOALS = {"sg-ns": "skip_gram", "sg-hs": "skip_gram", "cbow-ns": "cbow", "cbow-hs": "cbow", "fasttext": "subwords"}
SIMILARITY = {"men": "EN-MEN-TR-3k.txt", "wordsim": "EN-WS-353-ALL.txt"}


def prepare(folder: Path, num_words: int) -> None:
    """Shards of whole words, the same words as lines for the peers, and the similarity files."""
    import firth
    from firth import tokenizers
    from firth.corpus.readers import find_files, read_documents

    text, left = folder / "text.txt", num_words
    with text.open("w") as file:
        files = find_files([DATA / "en" / "pretrain" / f"{name}.txt.xz" for name in ("wiki-0", "wiki-1", "books-0")])
        for document in read_documents(files, documents="blank-line", field="text"):
            words = sum(len(line.split()) for line in document.lines)
            file.write("\n".join(document.lines) + "\n\n")
            left -= words
            if left < 0:
                break
    firth.prepare(text, out=folder / "words", tokenizer="words", min_count=MIN_COUNT, processes=2)
    from firth.data.shards import Shards
    from firth.data.stream import Stream
    from firth.objectives.hogwild import Text

    shards, listed = Shards.open(folder / "words"), tokenizers.load(folder / "words" / "tokenizer").vocab
    chunks = Text.of(Stream(shards, np.arange(shards.num_documents)), listed)
    with (folder / "lines.txt").open("w") as file:
        for start, end in zip(chunks.starts_C.tolist(), chunks.ends_C.tolist(), strict=True):
            kept = [listed.tokens[i] for i in shards.ids[start:end] if i not in listed.specials]
            file.write(" ".join(kept) + "\n")
    with tarfile.open(DATA / "en" / "words.tar.xz") as archive:
        for member in archive:
            if Path(member.name).name in SIMILARITY.values():
                member.name = Path(member.name).name
                archive.extract(member, folder, filter="data")


def first_rate(kind: str) -> float:
    """The first rate of ours whose mean over the run is the peer's."""
    return RATES[kind] * (1 if kind == "fasttext" else 2 - 1 / THREADS)


def ours(kind: str, folder: Path, seed: int) -> dict[str, Any]:
    import firth

    recipe = kind if kind in ("fasttext", "glove") else f"word2vec-{kind}"
    epochs, window = (10, 10) if kind == "glove" else (1, WINDOW)
    rate = [f"objectives.{GOALS[kind]}.rate={first_rate(kind)}"] if kind in RATES else []
    empty = warm(folder, recipe)
    with tempfile.TemporaryDirectory(dir=folder) as place:
        out = Path(place) / "run"
        data: Path = folder / "words"
        if kind == "fasttext":
            data = folder / "subwords"
            if not data.exists():
                firth.prepare(folder / "text.txt", out=data, tokenizer="subwords", min_count=MIN_COUNT, processes=2)
        figures = firth.pretrain(
            data, out=out, recipe=recipe, width=WIDTH, window=window, epochs=epochs, threads=THREADS,
            changes=[f"train.seed={seed}", *rate],
        )  # fmt: skip
        memory = peak()
        model = firth.load(out)
        words = model.tokenizer.vocab.tokens[5:]
        vectors = model.embed(list(words), normalise=True) if kind == "fasttext" else _table(model)[5:]
    more = {"pairs_per_second": figures["pairs"] * epochs / figures["seconds"]} if kind == "glove" else {}
    speed = {
        "seconds": figures["seconds"],
        "cpu_seconds": figures["cpu_seconds"],
        "words_per_second": figures["words_per_second"],
        "memory": memory,
        "empty": empty,
    }
    return {**speed, **more} | scores(folder, words, vectors)


def warm(folder: Path, recipe: str) -> float:
    """The memory of a run over next to nothing: torch, numba and the compiled loops."""
    import firth

    with tempfile.TemporaryDirectory(dir=folder) as place:
        text = Path(place) / "text.txt"
        text.write_text("a b c d e f g h\n" * 20)
        few = ["tokenizer.subwords.num_buckets=100"] if recipe == "fasttext" else []
        firth.pretrain(text, out=Path(place) / "run", recipe=recipe, width=WIDTH, epochs=1, threads=1, changes=few)
    return peak()


def peak() -> float:
    """The most memory this process had, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _table(model: Any) -> np.ndarray:
    return np.asarray(model.encoder.table.weight.detach().numpy())


def gensim(kind: str, folder: Path, seed: int) -> dict[str, Any]:
    from gensim.models.word2vec import Word2Vec

    empty = peak()
    lines = str(folder / "lines.txt")
    way = {
        "sg": int(kind.startswith("sg")),
        "hs": int(kind.endswith("hs")),
        "negative": 0 if kind.endswith("hs") else 5,
    }
    rates = {"alpha": RATES[kind], "min_alpha": 1e-5}
    model = Word2Vec(
        vector_size=WIDTH, window=WINDOW, min_count=1, workers=THREADS, seed=seed, epochs=1, **rates, **way
    )
    model.build_vocab(corpus_file=lines)
    start, cpu = time.perf_counter(), time.process_time()
    model.train(corpus_file=lines, total_words=model.corpus_total_words, total_examples=model.corpus_count, epochs=1)
    seconds = time.perf_counter() - start
    memory = {"cpu_seconds": time.process_time() - cpu, "memory": peak(), "empty": empty}
    return {"seconds": seconds, "words_per_second": _raw(folder) / seconds, **memory} | scores(
        folder, model.wv.index_to_key, model.wv.vectors
    )


def program(kind: str, folder: Path, seed: int) -> dict[str, Any]:
    import fasttext

    start = time.perf_counter()
    settings = {"dim": WIDTH, "ws": WINDOW, "epoch": 1, "thread": THREADS, "minCount": 1, "neg": 5, "verbose": 0}
    model = fasttext.train_unsupervised(str(folder / "lines.txt"), model="skipgram", lr=RATES[kind], **settings)
    seconds = time.perf_counter() - start  # reading and counting included: the program does not tell them apart
    words = model.get_words()
    return {"seconds": seconds, "words_per_second": _raw(folder) / seconds} | scores(
        folder, words, np.stack([model.get_word_vector(word) for word in words])
    )


def _raw(folder: Path) -> int:
    return int(json.loads((folder / "words" / "shards.json").read_text())["channels"]["ids"]["size"])


def scores(folder: Path, words: Any, vectors: np.ndarray) -> dict[str, float]:
    from firth.metrics import spearman

    index = {word: i for i, word in enumerate(words)}
    unit = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)
    found = {}
    for name, file in SIMILARITY.items():
        rows = [line.lower().split() for line in (folder / file).read_text().splitlines()]
        rows = [row for row in rows if row[0] in index and row[1] in index]
        near = [float(unit[index[a]] @ unit[index[b]]) for a, b, _ in rows]
        found[name] = spearman([float(row[2]) for row in rows], near)
    return found


PEERS = {"gensim": gensim, "program": program, "ours": ours}


def measure(who: str, kind: str, folder: Path, seed: int) -> dict[str, Any]:
    """One run in its own process; `memory` is its peak in MB."""
    call = [sys.executable, __file__, "--threads", str(THREADS), "--one", who, kind, str(folder), str(seed)]
    answer = subprocess.run(call, check=True, capture_output=True, text=True)
    return dict(json.loads(answer.stdout.splitlines()[-1]))


def rows() -> list[Any]:
    """What `make bench` shows: skip-gram over a million words, twice."""
    import gensim as installed  # noqa: F401  # raises where it is missing

    from bench.table import Row

    with tempfile.TemporaryDirectory() as folder:
        prepare(Path(folder), 1_000_000)
        runs = {who: [measure(who, "sg-ns", Path(folder), seed) for seed in (1, 2)] for who in ("gensim", "ours")}
    speeds = {who: [run["words_per_second"] for run in found] for who, found in runs.items()}
    return [Row("word2vec skip-gram, 1M words", "words/s", speeds["ours"], "gensim", speeds["gensim"])]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--words", type=lambda text: int(text.replace("_", "")), default=10_000_000)
    parser.add_argument("--kinds", nargs="+", default=KINDS, choices=KINDS)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--sizes", nargs="*", type=int, default=[], help="millions of words for the straight line")
    parser.add_argument("--threads", type=int, default=THREADS)
    parser.add_argument("--one", nargs=4, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help="keep the prepared text here")
    given = parser.parse_args()
    globals()["THREADS"] = given.threads
    if given.one:
        who, kind, folder, seed = given.one
        row = PEERS[who](kind, Path(folder), int(seed))
        row.setdefault("memory", peak())
        print(json.dumps(row))
        return
    with tempfile.TemporaryDirectory() as place:
        for millions in given.sizes or [given.words / 1e6]:
            folder = (given.folder or Path(place)) / f"{millions:g}M"
            if not (folder / "lines.txt").exists():
                folder.mkdir(parents=True, exist_ok=True)
                prepare(folder, int(millions * 1e6))
            table(folder, ["sg-ns"] if given.sizes else given.kinds, given.runs, alone=bool(given.sizes))


def table(folder: Path, kinds: Any, runs: int, *, alone: bool) -> None:
    print(f"{folder.name} words: {_raw(folder):,} tokens")
    for kind in kinds:
        peers = {"fasttext": ["program"], "glove": []}.get(kind, ["gensim"])
        found = {
            who: [measure(who, kind, folder, seed) for seed in range(1, runs + 1)]
            for who in ([] if alone else peers) + ["ours"]
        }
        for who, rows in found.items():
            means = {name: statistics.mean(row[name] for row in rows) for name in rows[0]}
            print(
                f"{kind:<9} {who:<8} " + "  ".join(f"{name} {value:,.4g}" for name, value in means.items()), flush=True
            )


if __name__ == "__main__":
    main()
