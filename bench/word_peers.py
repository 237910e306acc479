"""The peers of our word vectors, gensim and the fasttext program: lines of words in, words, vectors and figures out.

The rates of all fall in a straight line from the same first rate to nothing. gensim's workers each count only their own
lines, so they are told of as many as each will see; a lone worker counts words, since lines are of any length.
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from bench.table import peak_memory

WINDOW, NEGATIVES = 5, 5
RATES = {"sg-ns": 0.05, "sg-hs": 0.05, "cbow-ns": 0.1, "cbow-hs": 0.05, "fasttext": 0.05}
GOALS = {"sg-ns": "skip_gram", "sg-hs": "skip_gram", "cbow-ns": "cbow", "cbow-hs": "cbow", "fasttext": "subwords"}
"""The objectives whose rate that is."""

Peer = tuple[list[str], np.ndarray, dict[str, float]]


def write_lines(shards_folder: Path, out: Path) -> None:
    """The chunks that our loops read, one a line; what is on no list is left out."""
    from firth import tokenizers
    from firth.data.shards import Shards
    from firth.data.stream import CorpusView
    from firth.objectives.hogwild import Text

    shards, listed = Shards.open(shards_folder), tokenizers.load(shards_folder / "tokenizer").vocab
    text = Text.of(CorpusView(shards, np.arange(shards.num_documents)), len(listed), listed.specials)
    tokens = np.array(listed.tokens, object)
    with out.open("w") as file:
        for start, end in zip(text.starts_C.tolist(), text.ends_C.tolist(), strict=True):
            row = text.words_V[shards.ids[start:end]]
            file.write(" ".join(tokens[row[row >= 0]]) + "\n")


def keep_loop(data: Path, kind: str, recipe: str, width: int) -> None:
    """Has the loop compiled and kept on disk, as anyone's first run does, by a process that drops nearly all words."""
    with tempfile.TemporaryDirectory() as place:
        same = {"out": f"{place}/run", "recipe": recipe, "width": width, "epochs": 1, "threads": 1}
        changes = [f"objectives.{GOALS[kind]}.sample=1e-12"]
        code = f"import firth; firth.pretrain({str(data)!r}, changes={changes!r}, **{same!r})"
        subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, cwd=Path(__file__).parents[1])


def gensim(lines: Path, kind: str, *, width: int, threads: int, seed: int = 1) -> Peer:
    """Its `corpus_file` mode; `empty` is the memory of the library alone."""
    from gensim.models.word2vec import Word2Vec

    empty, tree = peak_memory(), kind.endswith("hs")
    way = {"sg": int(kind.startswith("sg")), "hs": int(tree), "negative": 0 if tree else NEGATIVES}
    rates = {"alpha": RATES[kind], "min_alpha": 1e-5}
    model = Word2Vec(
        vector_size=width, window=WINDOW, min_count=1, workers=threads, seed=seed, epochs=1, **rates, **way
    )
    model.build_vocab(corpus_file=str(lines))
    size = {"total_words": model.corpus_total_words}
    if threads > 1:
        size["total_examples"] = model.corpus_count // threads
    start, cpu = time.perf_counter(), time.process_time()
    model.train(corpus_file=str(lines), epochs=1, **size)
    return model.wv.index_to_key, model.wv.vectors, _figures(start, cpu) | {"empty": empty}


def program(lines: Path, *, width: int, threads: int) -> tuple[Peer, Any]:
    """The fasttext program, and its vectors of words it never saw; reading and counting, which it does not tell apart,
    are in its seconds."""
    import fasttext

    start, cpu = time.perf_counter(), time.process_time()
    settings = {
        "dim": width,
        "ws": WINDOW,
        "epoch": 1,
        "thread": threads,
        "minCount": 1,
        "neg": NEGATIVES,
        "verbose": 0,
    }
    model = fasttext.train_unsupervised(str(lines), model="skipgram", lr=RATES["fasttext"], **settings)
    figures, words = _figures(start, cpu), model.get_words()
    return (words, np.stack([model.get_word_vector(word) for word in words]), figures), model.get_word_vector


def _figures(start: float, cpu: float) -> dict[str, float]:
    return {"seconds": time.perf_counter() - start, "cpu_seconds": time.process_time() - cpu, "memory": peak_memory()}
