"""Search on a CPU: quality on questions with known passages, and speed over many passages.

Quality: the questions of SQuAD (or CMRC 2018) against all passages of the file, by each model and by BM25:

    python -m bench.search_cpu quality dev-v1.1.json en-small en-small:mean MODEL

A model with `:mean` is asked for its mean vectors in place of its own. Speed: lines of text as passages, exact search:

    python -m bench.search_cpu speed TEXT.txt --lines 100000 --model en-small

Prints one JSON object a row.
"""

import argparse
import json
import math
import resource
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np

import firth
from firth import metrics
from firth.data.spoken import words_of
from firth.inference.embedding import unit_vectors
from firth.search.index import SearchIndex, build_index

TOP = 10
K1 = 1.2
B = 0.75
"""The usual constants of BM25 (Robertson & Zaragoza 2009)."""


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
    """Prints recall, MRR and nDCG of BM25 and of each model."""
    questions, owners, passages = questions_of(path, limit)
    facts = {"questions": len(questions), "passages": len(passages)}
    _show("bm25", _bm25(questions, passages), owners, **facts)
    for name in models:
        folder, _, pooling = name.partition(":")
        model = firth.load(folder)
        start = time.perf_counter()
        passages_PD = unit_vectors(model.embed(passages, pooling=pooling or None))
        seconds = time.perf_counter() - start
        questions_QD = unit_vectors(model.embed(questions, pooling=pooling or None))
        ranked = np.argsort(-(questions_QD @ passages_PD.T), axis=1, kind="stable")[:, :100]
        _show(name, ranked, owners, **facts, embed_seconds=round(seconds, 2))


def _show(name: str, ranked: np.ndarray, owners: list[int], **facts: float) -> None:
    relevant = [{owner} for owner in owners]
    figures = {
        "recall@1": metrics.recall_at(ranked, relevant, k=1),
        f"recall@{TOP}": metrics.recall_at(ranked, relevant, k=TOP),
        "mrr": metrics.mean_reciprocal_rank(ranked, relevant),
        f"ndcg@{TOP}": metrics.ndcg(ranked, relevant, k=TOP),
    }
    rounded = {key: round(value, 4) for key, value in figures.items()}
    print(json.dumps({"model": name, **rounded, **facts}), flush=True)


def _bm25(questions: list[str], passages: list[str]) -> np.ndarray:
    """The best 100 passages of each question by BM25 over words."""
    counts = [Counter(words_of(passage.lower())) for passage in passages]
    lengths = np.array([count.total() for count in counts], np.float64)
    mean_length = lengths.mean()
    postings: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for number, count in enumerate(counts):
        for word, times in count.items():
            postings[word].append((number, times))
    ranked = np.empty((len(questions), min(100, len(passages))), np.int64)
    for i, question in enumerate(questions):
        scores = np.zeros(len(passages))
        for word in set(words_of(question.lower())):
            found = postings.get(word, [])
            idf = math.log(1 + (len(passages) - len(found) + 0.5) / (len(found) + 0.5))
            for number, times in found:
                norm = K1 * (1 - B + B * lengths[number] / mean_length)
                scores[number] += idf * times * (K1 + 1) / (times + norm)
        ranked[i] = np.argsort(-scores, kind="stable")[: ranked.shape[1]]
    return ranked


def speed(path: Path, model: str, lines: int, questions: int) -> None:
    """Prints build time, size, latency and how often the index finds what unrounded vectors find."""
    with tempfile.TemporaryDirectory() as temporary:
        text = Path(temporary) / "text.txt"
        kept: list[str] = []
        with path.open(encoding="utf-8") as file:
            for line in file:
                if len(line) > 40:
                    kept.append(line)
                if len(kept) == lines:
                    break
        text.write_text("".join(kept), "utf-8")
        start = time.perf_counter()
        index = build_index([text], Path(temporary) / "index", model=model)
        build_seconds = time.perf_counter() - start
        loaded = index.load_model()
        asked = [index.passage(number).text[:80] for number in range(0, len(index), max(1, len(index) // questions))]
        latencies = []
        for question in asked:
            start = time.perf_counter()
            index.ask(loaded, question, top=TOP)
            latencies.append(time.perf_counter() - start)
        size = sum(file.stat().st_size for file in (Path(temporary) / "index").iterdir())
        row = {
            "passages": len(index),
            "build_seconds": round(build_seconds, 1),
            "megabytes": round(size / 1e6, 1),
            "ask_ms_median": round(1000 * float(np.median(latencies)), 2),
            "ask_ms_p95": round(1000 * float(np.quantile(latencies, 0.95)), 2),
            "recall@10_of_fp32": round(_agreement(index, loaded, asked), 4),
            "max_resident_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3),
        }
        print(json.dumps({"model": model, **row}))


def _agreement(index: SearchIndex, model: firth.Model, asked: list[str]) -> float:
    """The share of the ten nearest by unrounded vectors that the index finds."""
    texts = [index.passage(number).text for number in range(len(index))]
    passages_PD = model.embed(texts, normalise=True)
    questions_QD = model.embed(asked, normalise=True)
    found, _ = index.nearest(questions_QD, top=TOP)
    shares = []
    for vector_D, numbers in zip(questions_QD, found, strict=True):
        best = np.argsort(-(passages_PD @ vector_D), kind="stable")[:TOP]
        shares.append(len(set(best.tolist()) & set(numbers.tolist())) / len(best))
    return float(np.mean(shares))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parts = parser.add_subparsers(dest="part", required=True)
    asked = parts.add_parser("quality")
    asked.add_argument("file", type=Path)
    asked.add_argument("models", nargs="*")
    asked.add_argument("--questions", type=int, default=2000)
    timed = parts.add_parser("speed")
    timed.add_argument("file", type=Path)
    timed.add_argument("--model", default="en-small")
    timed.add_argument("--lines", type=int, default=100_000)
    timed.add_argument("--questions", type=int, default=100)
    given = parser.parse_args()
    if given.part == "quality":
        quality(given.file, given.models, given.questions)
    else:
        speed(given.file, given.model, given.lines, given.questions)


if __name__ == "__main__":
    main()
