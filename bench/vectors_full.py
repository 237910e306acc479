"""Word vectors of the whole English and the whole Chinese text, ours beside gensim's and the fasttext program's.

    python bench/vectors_full.py FOLDER                          # prepares, trains and judges whatever has no row yet
    python bench/vectors_full.py FOLDER --table                  # the rows as tables

The text is $FIRTH_DATA/en/pretrain (about 42M words) and $FIRTH_DATA/zh/pretrain. 100 dimensions, window 5, 5 negatives
or a Huffman tree, min-count 5, one pass, the same rates on both sides; GloVe takes window 10 and 12 passes. Every row
is a process of its own on one core with one thread, and one line of FOLDER/rows.jsonl: words a second of training (by
the clock and by the CPU seconds of the process, which others on the machine disturb less), peak memory in MB up to the
end of training, and the figures of `firth evaluate --words`. Rows that are there are not made again. `--words N` cuts
the text for a trial.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.table import peak_memory
from bench.word_peers import GOALS, RATES, WINDOW, gensim, keep_loop, program, write_lines

DATA = Path(os.environ.get("FIRTH_DATA", Path(__file__).parents[2] / "shared" / "data"))
WIDTH, MIN_COUNT, PASSES = 100, 5, 12
TEXTS = {"en": ("wiki-0", "wiki-1", "books-0"), "zh": ("zh-0",)}
TITLES = {
    "EN-WS-353-ALL.txt": "WordSim-353",
    "EN-SIMLEX-999.txt": "SimLex-999",
    "EN-MEN-TR-3k.txt": "MEN",
    "questions-words.txt": "Google analogies",
    "240.txt": "wordsim-240",
    "297.txt": "wordsim-297",
    "semantic.txt": "CA8 semantic",
    "morphological.txt": "CA8 morphological",
}
TESTS = {"en": tuple(TITLES)[:4], "zh": tuple(TITLES)[4:]}
PEERS = {"sg-ns": "gensim", "cbow-ns": "gensim", "fasttext": "program", "sg-hs": "gensim", "cbow-hs": "gensim"}
KINDS = (*PEERS, "lsa", "glove")


def prepare(folder: Path, language: str, num_words: int | None) -> None:
    """Shards of whole words and of words with parts, and the same words as lines for the peers."""
    import firth

    sources = [DATA / language / "pretrain" / f"{name}.txt.xz" for name in TEXTS[language]]
    if num_words:
        sources = [_cut(sources[0], folder / f"{language}.txt", num_words)]
    for tokenizer in ("words", "subwords"):
        out = folder / f"{language}-{tokenizer}"
        if not out.exists():
            firth.prepare(sources, out=out, tokenizer=tokenizer, min_count=MIN_COUNT, processes=1)
    if not (folder / f"{language}.lines").exists():
        write_lines(folder / f"{language}-words", folder / f"{language}.lines")
    for archive in ("en/words", "zh/ca8", "zh/cwe_eval"):
        with tarfile.open(DATA / f"{archive}.tar.xz") as file:
            for member in file:
                if Path(member.name).name in (*TESTS["en"], *TESTS["zh"]):
                    member.name = Path(member.name).name
                    file.extract(member, folder, filter="data")


def _cut(source: Path, out: Path, num_words: int) -> Path:
    from firth.files import open_binary

    with out.open("w") as file, open_binary(source) as lines:
        for line in map(bytes.decode, lines):
            file.write(line)
            num_words -= len(line.split()) or len(line) // 2
            if num_words < 0:
                return out
    return out


def ours(folder: Path, language: str, kind: str) -> dict[str, Any]:
    import firth

    recipe = kind if kind in ("fasttext", "glove", "lsa") else f"word2vec-{kind}"
    data = folder / f"{language}-{'subwords' if kind == 'fasttext' else 'words'}"
    settings: dict[str, Any] = {"lsa": {}, "glove": {"epochs": PASSES, "window": 10}}.get(kind, {})
    if kind in RATES:
        settings = {"epochs": 1, "window": WINDOW, "changes": [f"objectives.{GOALS[kind]}.rate={RATES[kind]}"]}
    out = folder / f"{language}-{kind}"
    if kind in RATES:
        keep_loop(data, kind, recipe, WIDTH)
    shutil.rmtree(out, ignore_errors=True)  # of a process that was ended before its row was there
    figures = firth.pretrain(data, out=out, recipe=recipe, width=WIDTH, threads=1, **settings)
    row = {"memory": peak_memory(), "seconds": figures["seconds"], "cpu_seconds": figures["cpu_seconds"]}
    if kind == "glove":
        row |= {name: figures[name] for name in ("pairs", "counting_seconds", "loss")}
        row["pairs_per_second"] = figures["pairs"] * PASSES / figures["cpu_seconds"]
    if kind == "lsa":
        row |= {"share_of_variation": figures["share_of_variation"]}
    started = time.perf_counter()
    tests = firth.evaluate(out, words=[folder / name for name in TESTS[language]])
    return row | {"tests": tests, "test_seconds": time.perf_counter() - started}


def peer(folder: Path, language: str, kind: str) -> dict[str, Any]:
    lines, how = folder / f"{language}.lines", {}
    if kind == "fasttext":
        (words, vectors, figures), how["compose"] = program(lines, width=WIDTH, threads=1)
    else:
        words, vectors, figures = gensim(lines, kind, width=WIDTH, threads=1)
    return figures | {"tests": judged(folder, language, words, vectors, **how)}


def judged(folder: Path, language: str, words: Sequence[str], vectors: np.ndarray, **how: Any) -> dict[str, Any]:
    from firth.inference.lexicon import Lexicon
    from firth.inference.word_benchmarks import evaluate_word_file

    lexicon = Lexicon({word: i for i, word in enumerate(words)}, vectors, lowercase=True, **how)
    return {Path(name).stem: asdict(evaluate_word_file(lexicon, folder / name)) for name in TESTS[language]}


def one(folder: Path, language: str, kind: str, who: str) -> None:
    """One row, added to the file when all of it is there."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    row = (ours if who == "ours" else peer)(folder, language, kind)
    tokens = json.loads((folder / f"{language}-words" / "shards.json").read_text())["channels"]["ids"]["size"]
    passes = PASSES if kind == "glove" else 1
    row |= {"tokens": tokens, "words_per_second": passes * tokens / row["seconds"]}
    row["words_per_cpu_second"] = passes * tokens / row["cpu_seconds"]
    for test in row["tests"].values():
        test.pop("sections", None)
    with (folder / "rows.jsonl").open("a") as file:
        file.write(json.dumps({"language": language, "kind": kind, "who": who} | row) + "\n")


def rows(folder: Path) -> dict[tuple[str, str, str], dict[str, Any]]:
    path = folder / "rows.jsonl"
    found = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return {(row["language"], row["kind"], row["who"]): row for row in found}


def table(folder: Path) -> None:
    """The rows as two tables of results.md and performance.md."""
    for language, tests in TESTS.items():
        mine = [row for row in rows(folder).values() if row["language"] == language]
        print("\n| model |", " | ".join(TITLES[name] for name in tests), "|\n" + "|---" * (len(tests) + 1) + "|")
        for row in mine:
            figures = [row["tests"][Path(name).stem] for name in tests]
            shown = [f"{f['spearman']:.3f}" if "spearman" in f else f"{f['accuracy']:.1%}" for f in figures]
            shown = [f"{text} ({f['coverage']:.0%})" for text, f in zip(shown, figures, strict=True)]
            print("|", " | ".join([f"{row['kind']}, {row['who']}", *shown]), "|")
        print(f"\n| {language} | words/CPU s | by the clock | MB |\n|---|---|---|---|")
        for row in mine:
            speeds = f"{row['words_per_cpu_second'] / 1e3:,.0f}k | {row['words_per_second'] / 1e3:,.0f}k"
            print(f"| {row['kind']}, {row['who']} | {speeds} | {row['memory']:,.0f} |")
            if "pairs" in row:
                print(f"{row['pairs']:,.0f} pairs, {row['pairs_per_second']:,.0f} pairs/CPU s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--languages", nargs="+", default=["en", "zh"], choices=TEXTS)
    parser.add_argument("--kinds", nargs="+", default=KINDS, choices=KINDS)
    parser.add_argument("--words", type=int, help="only so many words, for a trial")
    parser.add_argument("--minutes", type=float, default=1e9, help="begin no row after so many")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    given, begun = parser.parse_args(), time.monotonic()
    if given.table:
        return table(given.folder)
    if given.one:
        language, kind, who = given.one
        return prepare(given.folder, language, given.words) if kind == "text" else one(given.folder, *given.one)
    given.folder.mkdir(parents=True, exist_ok=True)
    call = [sys.executable, __file__, str(given.folder)]
    for language in given.languages:
        words = ["--words", str(given.words)] if given.words else []
        subprocess.run([*call, *words, "--one", language, "text", "-"], check=True)
        for kind in given.kinds:
            for who in ("ours", PEERS.get(kind)):
                late = time.monotonic() - begun > 60 * given.minutes
                if who and not late and (language, kind, who) not in rows(given.folder):
                    done = subprocess.run([*call, "--one", language, kind, who])
                    print(language, kind, who, "failed" if done.returncode else "done", flush=True)


if __name__ == "__main__":
    main()
