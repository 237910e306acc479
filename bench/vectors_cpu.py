"""Word vectors against gensim and the fasttext program on the same text, the same rates and the same number of threads.

    python bench/vectors_cpu.py --words 10_000_000 --kinds sg-ns sg-hs cbow-ns cbow-hs fasttext glove --runs 1

The text is $FIRTH_DATA/en/pretrain, cut to so many words. Every run is a process of its own: it says its seconds of
training (without reading, counting and compiling), its peak of memory in MB (with a loop that an earlier run compiled
and kept on disk), and MEN and WordSim-353 by Spearman. Peers: gensim's `corpus_file` mode, whose `empty` is the memory
of its libraries alone, and the fasttext program. `--sizes` trains skip-gram on 1M, 10M and 40M words to show that the
cost grows in a straight line.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.table import peak_memory
from bench.word_peers import GOALS, RATES, WINDOW, gensim, keep_loop, program, write_lines

DATA = Path(os.environ.get("FIRTH_DATA", Path(__file__).parents[2] / "shared" / "data"))
KINDS = (*RATES, "glove")
SIMILARITY = {"men": "EN-MEN-TR-3k.txt", "wordsim": "EN-WS-353-ALL.txt"}


@dataclass(frozen=True)
class Setting:
    """What all runs of a table have in common."""

    folder: str
    threads: int = 2
    width: int = 100
    min_count: int = 5

    @property
    def place(self) -> Path:
        return Path(self.folder)

    @property
    def num_tokens(self) -> int:
        return int(json.loads((self.place / "words" / "shards.json").read_text())["channels"]["ids"]["size"])


def prepare(setting: Setting, num_words: int) -> None:
    """Shards of whole words, the same words as lines for the peers, and the similarity files."""
    import firth
    from firth.corpus.readers import find_files, read_documents

    folder, left = setting.place, num_words
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "text.txt").open("w") as file:
        files = find_files([DATA / "en" / "pretrain" / f"{name}.txt.xz" for name in ("wiki-0", "wiki-1", "books-0")])
        for document in read_documents(files, documents="blank-line", field="text"):
            file.write("\n".join(document.lines) + "\n\n")
            left -= sum(len(line.split()) for line in document.lines)
            if left < 0:
                break
    same = {"min_count": setting.min_count, "processes": 2}
    firth.prepare(folder / "text.txt", out=folder / "words", tokenizer="words", **same)
    firth.prepare(folder / "text.txt", out=folder / "subwords", tokenizer="subwords", **same)
    with tarfile.open(DATA / "en" / "words.tar.xz") as archive:
        for member in archive:
            if Path(member.name).name in SIMILARITY.values():
                member.name = Path(member.name).name
                archive.extract(member, folder, filter="data")
    write_lines(folder / "words", folder / "lines.txt")  # last: it says that all is there


def ours(setting: Setting, kind: str, seed: int) -> dict[str, Any]:
    import firth

    recipe = kind if kind in ("fasttext", "glove") else f"word2vec-{kind}"
    epochs, window = (10, 10) if kind == "glove" else (1, WINDOW)
    rate = [f"objectives.{GOALS[kind]}.rate={RATES[kind]}"] if kind in RATES else []
    data = setting.place / ("subwords" if kind == "fasttext" else "words")
    if kind in RATES:
        keep_loop(data, kind, recipe, setting.width)
    with tempfile.TemporaryDirectory(dir=setting.place) as place:
        figures = firth.pretrain(
            data, out=Path(place) / "run", recipe=recipe, width=setting.width, window=window, epochs=epochs,
            threads=setting.threads,
            changes=[f"train.seed={seed}", *rate],
        )  # fmt: skip
        memory, model = peak_memory(), firth.load(Path(place) / "run")
        words = model.tokenizer.vocab.tokens[5:]
        vectors = model.embed(list(words), normalise=True) if kind == "fasttext" else _table(model)[5:]
    speed = {name: figures[name] for name in ("seconds", "cpu_seconds", "words_per_second")}
    more = {"pairs_per_second": figures["pairs"] * epochs / figures["seconds"]} if kind == "glove" else {}
    return {**speed, "memory": memory, **more} | scores(setting, words, vectors)


def _table(model: Any) -> np.ndarray:
    return np.asarray(model.encoder.table.weight.detach().numpy())


def peer(setting: Setting, kind: str, seed: int) -> dict[str, Any]:
    lines, same = setting.place / "lines.txt", {"width": setting.width, "threads": setting.threads}
    found = program(lines, **same)[0] if kind == "fasttext" else gensim(lines, kind, seed=seed, **same)
    words, vectors, figures = found
    speed = {"words_per_second": setting.num_tokens / figures["seconds"]}
    return figures | speed | scores(setting, words, vectors)


def scores(setting: Setting, words: Any, vectors: np.ndarray) -> dict[str, float]:
    from firth.metrics import spearman

    index = {word: i for i, word in enumerate(words)}
    unit = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)
    found = {}
    for name, file in SIMILARITY.items():
        rows = [line.lower().split() for line in (setting.place / file).read_text().splitlines()]
        rows = [row for row in rows if row[0] in index and row[1] in index]
        near = [float(unit[index[a]] @ unit[index[b]]) for a, b, _ in rows]
        found[name] = spearman([float(row[2]) for row in rows], near)
    return found


RUNS = {"peer": peer, "ours": ours}


def measure(setting: Setting, who: str, kind: str, seed: int) -> dict[str, Any]:
    """One run in its own process."""
    call = [sys.executable, __file__, "--one", json.dumps(asdict(setting)), who, kind, str(seed)]
    answer = subprocess.run(call, check=True, capture_output=True, text=True)
    return dict(json.loads(answer.stdout.splitlines()[-1]))


def rows() -> list[Any]:
    """What `make bench` shows: skip-gram over a million words, twice."""
    import gensim as installed  # noqa: F401  # raises where it is missing

    from bench.table import Row

    with tempfile.TemporaryDirectory() as folder:
        setting = Setting(folder)
        prepare(setting, 1_000_000)
        runs = {who: [measure(setting, who, "sg-ns", seed) for seed in (1, 2)] for who in RUNS}
    speeds = {who: [run["words_per_second"] for run in found] for who, found in runs.items()}
    return [Row("word2vec skip-gram, 1M words", "words/s", speeds["ours"], "gensim", speeds["peer"])]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--words", type=lambda text: int(text.replace("_", "")), default=10_000_000)
    parser.add_argument("--kinds", nargs="+", default=KINDS, choices=KINDS)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--sizes", nargs="*", type=int, default=[], help="millions of words for the straight line")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--width", type=int, default=100)
    parser.add_argument("--min-count", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="keep the prepared text here")
    parser.add_argument("--one", nargs=4, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        setting, who, kind, seed = given.one
        print(json.dumps(RUNS[who](Setting(**json.loads(setting)), kind, int(seed))))
        return
    with tempfile.TemporaryDirectory() as place:
        for millions in given.sizes or [given.words / 1e6]:
            name = f"{millions:g}M" + (f"-{given.min_count}" if given.min_count != 5 else "")
            folder = (given.folder or Path(place)) / name
            setting = Setting(str(folder), given.threads, given.width, given.min_count)
            if not (folder / "lines.txt").exists():
                prepare(setting, int(millions * 1e6))
            table(setting, ["sg-ns"] if given.sizes else given.kinds, given.runs, alone=bool(given.sizes))


def table(setting: Setting, kinds: Any, runs: int, *, alone: bool) -> None:
    print(f"{setting.place.name} words: {setting.num_tokens:,} tokens")
    for kind in kinds:
        names = ("ours",) if alone or kind == "glove" else tuple(RUNS)
        # In turn: a machine that is slow for a while is so for both.
        rows = [(who, measure(setting, who, kind, seed)) for seed in range(1, runs + 1) for who in names]
        for who in names:
            found = [row for name, row in rows if name == who]
            means = {name: statistics.mean(row[name] for row in found) for name in found[0]}
            print(
                f"{kind:<9} {who:<5} " + "  ".join(f"{name} {value:,.4g}" for name, value in means.items()), flush=True
            )


if __name__ == "__main__":
    main()
