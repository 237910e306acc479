"""Search on a CPU: quality on questions with known passages, and speed over many passages.

Quality: the questions of SQuAD (or CMRC 2018) against all passages of the file, by words (BM25), by each model's
vectors and by both:

    python -m bench.search_cpu quality dev-v1.1.json en-small en-small:mean MODEL

A model with `:mean` is asked for its mean vectors in place of its own. Speed: lines of text as passages, with a graph
and without, beside sentence-transformers and faiss with the same vectors, each in a process of its own:

    python -m bench.search_cpu speed TEXT.txt --lines 120000 --model en-small

Encoding alone, ours beside sentence-transformers, for a model that both open:

    python -m bench.search_cpu encode TEXT.txt --lines 2000 --model all-MiniLM-L6-v2

Prints one JSON object a row.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import firth
from bench.table import peak_memory
from firth import metrics
from firth.inference.embedding import unit_vectors
from firth.search import index as index_module
from firth.search.graph import BUILD_BREADTH, NEIGHBOURS, SEARCH_BREADTH
from firth.search.index import WORDS_SHARE, SearchIndex, build_index
from firth.search.words import WordIndex, write_words

TOP = 10
WAYS = ("graph", "exact", "peer")


def questions_of(path: Path, limit: int) -> tuple[list[str], list[int], list[str]]:
    """Questions, the number of each one's passage, and the passages of a SQuAD file."""
    passages: list[str] = []
    questions: list[str] = []
    owners: list[int] = []
    for article in json.loads(path.read_text("utf-8"))["data"]:
        for paragraph in article["paragraphs"]:
            for row in paragraph["qas"]:
                questions.append(row["question"])
                owners.append(len(passages))
            passages.append(paragraph["context"])
    step = max(1, len(questions) // limit)
    return questions[::step], owners[::step], passages


def quality(path: Path, models: list[str], limit: int) -> None:
    """Prints recall, MRR and nDCG by words, and of each model by meaning and by both."""
    questions, owners, passages = questions_of(path, limit)
    facts = {"questions": len(questions), "passages": len(passages)}
    with tempfile.TemporaryDirectory() as temporary:
        write_words(Path(temporary), passages)
        words = WordIndex(Path(temporary))
        words_QP = np.stack([words.scores(question) for question in questions])
    _show("words", words_QP, owners, **facts)
    for name in models:
        folder, _, pooling = name.partition(":")
        model = firth.load(folder)
        start = time.perf_counter()
        passages_PD = unit_vectors(model.embed(passages, pooling=pooling or None))
        seconds = time.perf_counter() - start
        questions_QD = unit_vectors(model.embed(questions, pooling=pooling or None))
        cosines_QP = questions_QD @ passages_PD.T
        _show(name, cosines_QP, owners, **facts, embed_seconds=round(seconds, 2))
        _show(f"{name} and words", WORDS_SHARE * words_QP + (1 - WORDS_SHARE) * cosines_QP, owners, **facts)


def _show(name: str, scores_QP: np.ndarray, owners: list[int], **facts: float) -> None:
    ranked = np.argsort(-scores_QP, axis=1, kind="stable")[:, :100]
    relevant = [{owner} for owner in owners]
    figures = {
        "recall@1": metrics.recall_at(ranked, relevant, k=1),
        f"recall@{TOP}": metrics.recall_at(ranked, relevant, k=TOP),
        "mrr": metrics.mean_reciprocal_rank(ranked, relevant),
        f"ndcg@{TOP}": metrics.ndcg(ranked, relevant, k=TOP),
    }
    rounded = {key: round(value, 4) for key, value in figures.items()}
    print(json.dumps({"model": name, **rounded, **facts}), flush=True)


def lines_of(path: Path, limit: int) -> list[str]:
    """The first lines of a text that are long enough to be passages."""
    kept: list[str] = []
    with path.open(encoding="utf-8") as file:
        for line in file:
            if len(line) > 40:
                kept.append(line.strip())
            if len(kept) == limit:
                break
    return kept


def speed(path: Path, model: str, lines: int, questions: int) -> None:
    """Runs each way in a process of its own, so that its memory is its own."""
    given = ["--model", model, "--lines", str(lines), "--questions", str(questions)]
    for way in WAYS:
        subprocess.run([sys.executable, "-m", "bench.search_cpu", "speed", str(path), *given, "--way", way], check=True)


def speed_of(way: str, path: Path, model: str, lines: int, questions: int) -> None:
    """Prints build time, latency, memory and how often a way finds what unrounded vectors find."""
    with tempfile.TemporaryDirectory() as temporary:
        text = Path(temporary) / "text.txt"
        text.write_text("\n".join(lines_of(path, lines)), "utf-8")
        # Both cut and read the same passages.
        passages = [passage.text for passage in index_module.read_passages([text])]
        asked = [passage[:80] for passage in passages[:: max(1, len(passages) // questions)]]
        start = time.perf_counter()
        if way == "peer":
            find, facts = _peer(passages, model)
        else:
            index_module.GRAPH_FROM = 0 if way == "graph" else len(passages)
            index = build_index([text], Path(temporary) / "index", model=model)
            size = sum(file.stat().st_size for file in (Path(temporary) / "index").iterdir())
            find, facts = _ours(index), {"megabytes": round(size / 1e6, 1)}
        build_seconds = time.perf_counter() - start
        latencies = []
        found = []
        for question in asked:
            start = time.perf_counter()
            found.append(find(question))
            latencies.append(time.perf_counter() - start)
        row = {
            "passages": len(passages),
            "build_seconds": round(build_seconds, 1),
            **facts,
            "ask_ms_median": round(1000 * float(np.median(latencies)), 2),
            "ask_ms_p95": round(1000 * float(np.quantile(latencies, 0.95)), 2),
            "max_resident_mb": peak_memory(),
            f"recall@{TOP}_of_fp32": round(_agreement(passages, model, asked, found), 4),
        }
        print(json.dumps({"model": model, "way": way, **row}), flush=True)


Finder = Callable[[str], np.ndarray]
"""A question -> the numbers of the nearest passages."""


def _ours(index: SearchIndex) -> Finder:
    model = index.load_model()
    return lambda question: index.nearest(model.embed([question], normalise=True), top=TOP)[0][0]


def _peer(passages: list[str], name: str) -> tuple[Finder, dict[str, Any]]:
    """sentence-transformers over the same rows of tokens, and faiss."""
    import faiss
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import StaticEmbedding
    from tokenizers import Tokenizer

    ours = firth.load(name)
    assert ours.folder is not None
    rows_VD = ours.embedder.token_rows_VD
    assert rows_VD is not None, "the model needs a vector head"
    tokenizer = Tokenizer.from_file(str(ours.folder / "tokenizer.json"))
    peer = SentenceTransformer(modules=[StaticEmbedding(tokenizer, embedding_weights=rows_VD)], device="cpu")
    start = time.perf_counter()
    vectors_PD = peer.encode(passages, normalize_embeddings=True)
    encode_seconds = time.perf_counter() - start
    graph = faiss.IndexHNSWFlat(vectors_PD.shape[1], NEIGHBOURS)
    graph.hnsw.efConstruction = BUILD_BREADTH
    graph.hnsw.efSearch = SEARCH_BREADTH
    graph.add(vectors_PD)

    def find(question: str) -> np.ndarray:
        return graph.search(peer.encode([question], normalize_embeddings=True), TOP)[1][0]

    return find, {"encode_seconds": round(encode_seconds, 1)}


def _agreement(passages: list[str], name: str, asked: list[str], found: list[np.ndarray]) -> float:
    """The share of the ten nearest by unrounded vectors that was found."""
    model = firth.load(name)
    passages_PD = model.embed(passages, normalise=True)
    questions_QD = model.embed(asked, normalise=True)
    shares = []
    for vector_D, numbers in zip(questions_QD, found, strict=True):
        best = np.argsort(-(passages_PD @ vector_D), kind="stable")[:TOP]
        shares.append(len(set(best.tolist()) & set(numbers.tolist())) / len(best))
    return float(np.mean(shares))


def encode(path: Path, model: str, lines: int) -> None:
    """Prints texts a second of both, after a warm-up."""
    from sentence_transformers import SentenceTransformer

    texts = lines_of(path, lines)
    ours = firth.load(model)
    peer = SentenceTransformer(model, device="cpu")
    ways = {"firth": lambda some: ours.embed(some, normalise=True), "sentence-transformers": peer.encode}
    for name, way in ways.items():
        way(texts[:32])
        start = time.perf_counter()
        way(texts)
        rate = len(texts) / (time.perf_counter() - start)
        print(json.dumps({"model": Path(model).name, "way": name, "texts": len(texts), "texts_s": round(rate, 1)}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parts = parser.add_subparsers(dest="part", required=True)
    asked = parts.add_parser("quality")
    asked.add_argument("file", type=Path)
    asked.add_argument("models", nargs="*")
    asked.add_argument("--questions", type=int, default=2000)
    timed = parts.add_parser("speed")
    encoded = parts.add_parser("encode")
    for part in (timed, encoded):
        part.add_argument("file", type=Path)
        part.add_argument("--model", default="en-small")
        part.add_argument("--lines", type=int, default=100_000)
    timed.add_argument("--questions", type=int, default=200)
    timed.add_argument("--way", choices=WAYS)
    given = parser.parse_args()
    if given.part == "quality":
        quality(given.file, given.models, given.questions)
    elif given.part == "encode":
        encode(given.file, given.model, given.lines)
    elif given.way:
        speed_of(given.way, given.file, given.model, given.lines, given.questions)
    else:
        speed(given.file, given.model, given.lines, given.questions)


if __name__ == "__main__":
    main()
