"""Is this corpus fit to train on? In go the measures taken while it was prepared, out comes a dict and readable lines.

The entropy is that of the token counts, in nats: the loss of a model that knows frequencies and no context.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

SEQUENCE = 128
_ROOM = SEQUENCE - 2  # [CLS] and [SEP]
_EDGES = 1 << np.arange(32)


class Measures:
    """What is added up while text goes by: lengths and how full sequences of 128 would be."""

    def __init__(self) -> None:
        self.characters = self.long_sentences = 0
        self.sentence_lengths = np.zeros(len(_EDGES) + 1, np.int64)
        self.document_lengths = np.zeros(len(_EDGES) + 1, np.int64)
        self.sentence_positions = self.sequences = 0

    def add(self, sentences: np.ndarray, documents: np.ndarray, *, characters: int) -> None:
        """Lengths in tokens of some sentences and of the documents that ended meanwhile."""
        self.characters += characters
        self.sentence_lengths += _histogram(sentences)
        self.document_lengths += _histogram(documents)
        self.long_sentences += int((sentences > _ROOM).sum())
        self.sentence_positions += int((np.minimum(sentences, _ROOM) + 2).sum())
        self.sequences += int((-(-documents // _ROOM)).sum())


def health(
    measures: Measures, counts: np.ndarray, *, unknown: int, tally: Counter[str], fresh: bool = False
) -> dict[str, Any]:
    """Everything worth knowing about a prepared corpus, as plain JSON values; `warnings` says what is off.

    `fresh` says that the vocabulary was trained on this very text.
    """
    tokens, sentences = int(counts.sum()), int(measures.sentence_lengths.sum())
    result: dict[str, Any] = {
        "documents": int(measures.document_lengths.sum()),
        "sentences": sentences,
        "tokens": tokens,
        "bytes_read": tally["bytes"],
        "characters": measures.characters,
        "characters_per_token": measures.characters / max(tokens, 1),
        "unknown_rate": int(counts[unknown]) / max(tokens, 1),
        "entropy_nats": entropy(counts),
        "vocab_size": len(counts),
        "vocab_used": int((counts > 0).sum()),
        **{name: tally[name] for name in _COUNTED},
        "sentence_lengths": _as_dict(measures.sentence_lengths),
        "document_lengths": _as_dict(measures.document_lengths),
        "long_sentences": measures.long_sentences,
        "filled_by_documents": (tokens + 2 * measures.sequences) / max(SEQUENCE * measures.sequences, 1),
        "filled_by_sentences": measures.sentence_positions / max(SEQUENCE * sentences, 1),
    }
    return {**result, "warnings": warnings(result, fresh=fresh)}


_COUNTED = (
    "documents_read",
    "lines_read",
    "duplicate_documents",
    "duplicate_lines",
    "near_duplicate_documents",
    "emptied_documents",
    "cut_documents",
    "cut_lines",
    "skipped_files",
)


def entropy(counts: np.ndarray) -> float:
    shares = counts[counts > 0] / max(counts.sum(), 1)
    return float(-(shares * np.log(shares)).sum())


def warnings(h: Mapping[str, Any], *, fresh: bool = False) -> list[str]:
    """One plain sentence for each thing that is off."""
    lines_rate = h["duplicate_lines"] / max(h["lines_read"], 1)
    documents_rate = h["duplicate_documents"] / max(h["documents_read"], 1)
    used = h["vocab_used"] / max(h["vocab_size"], 1)
    long = h["long_sentences"] / max(h["sentences"], 1)
    larger = "a lower --min-count or a larger --vocab-size lets more into the vocabulary"
    remedy = larger if fresh else "train the vocabulary on this text, or on more of it"
    checks = [
        (h["unknown_rate"] > 0.01, f"{h['unknown_rate']:.1%} of the tokens are unknown: {remedy}."),
        (lines_rate > 0.1, f"{lines_rate:.0%} of the lines repeated earlier ones and were dropped: is it boilerplate?"),
        (documents_rate > 0.1, f"{documents_rate:.0%} of the documents repeated earlier ones and were dropped."),
        (h["documents"] < 2, "There are fewer than two documents, and next-sentence pairs need two: "
         "separate documents by blank lines, or let every line or file be one."),
        (h["documents"] >= 2 and h["sentences"] < 1.5 * h["documents"], "Most documents are a single sentence: "
         "next-sentence pairs need documents of several."),
        (h["tokens"] < 100_000, f"Only {h['tokens']:,} tokens: enough to try things out, too few to learn much from."),
        (used < 0.5, f"Only {used:.0%} of the vocabulary occurs: a smaller one would do, or more text."),
        (long > 0.05, f"{long:.0%} of the sentences are longer than {_ROOM} tokens: sequences of {SEQUENCE} cut them."),
        (h["cut_documents"], f"Very long documents were cut in {h['cut_documents']:,} places: "
         "are blank lines missing between documents?"),
        (h["cut_lines"], f"Very long lines were cut in {h['cut_lines']:,} places: are line breaks missing?"),
        (h["skipped_files"], f"{h['skipped_files']:,} files in the folders were left out: "
         "only .txt, .jsonl and .parquet are read there."),
    ]  # fmt: skip
    return [sentence for off, sentence in checks if off]


def describe(h: Mapping[str, Any]) -> list[str]:
    """The report as lines to print; what it warns of stands in `warnings`."""
    dropped = [f"{h[f'duplicate_{unit}']:,} of {h[f'{unit}_read']:,} {unit}" for unit in ("documents", "lines")]
    dropped += [f"{near:,} near-duplicates" for near in [h.get("near_duplicate_documents", 0)] if near]
    rows = [
        ("documents", f"{h['documents']:,}"),
        ("sentences", f"{h['sentences']:,}"),
        ("tokens", f"{h['tokens']:,}, {h['characters_per_token']:.2f} characters each"),
        ("unknown", f"{h['unknown_rate']:.3%} of the tokens"),
        ("vocabulary", f"{h['vocab_used']:,} of {h['vocab_size']:,} ids occur"),
        ("entropy", f"{h['entropy_nats']:.3f} nats: the loss of a model without context"),
        ("duplicates dropped", ", ".join(dropped)),
        ("sentence lengths", _render(h["sentence_lengths"])),
        ("document lengths", _render(h["document_lengths"])),
        (f"filled of {SEQUENCE}", f"{h['filled_by_documents']:.0%} if documents are cut into sequences, "
         f"{h['filled_by_sentences']:.0%} with one sentence a sequence"),
    ]  # fmt: skip
    return [f"{name:<20}{value}" for name, value in rows]


def _histogram(lengths: np.ndarray) -> np.ndarray:
    return np.bincount(np.searchsorted(_EDGES, lengths), minlength=len(_EDGES) + 1)


def _as_dict(histogram: np.ndarray) -> dict[str, int]:
    """Upper edge -> how many lengths lie above the edge before it (half of this one) and not above this one."""
    return {str(1 << i): int(count) for i, count in enumerate(histogram) if count}


def _render(histogram: Mapping[str, int]) -> str:
    total = max(sum(histogram.values()), 1)
    return ", ".join(f"≤{edge}: {count / total:.1%}" for edge, count in histogram.items()) + " (tokens)"
