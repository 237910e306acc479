"""Is this corpus fit to train on? In go the measures taken while it was prepared, out come a dict and readable lines.

The entropy is that of the token counts, in nats: the loss of a model that knows frequencies and no context.
"""

from collections import Counter
from collections.abc import Mapping
from typing import NotRequired, TypedDict

import numpy as np

SEQUENCE = 128
"""The sequence length for which the report estimates how full sequences would be."""
_ROOM = SEQUENCE - 2
"""What [CLS] and [SEP] leave of a sequence."""
_EDGES = 1 << np.arange(32)
"""Upper edges of the histogram bins: powers of two."""


class Health(TypedDict):
    """Everything worth knowing about a prepared corpus, as plain JSON values."""

    documents: int
    sentences: int
    tokens: int
    bytes_read: int
    characters: int
    characters_per_token: float
    unknown_rate: float
    entropy_nats: float
    vocab_size: int
    vocab_used: int
    documents_read: int
    lines_read: int
    duplicate_documents: int
    duplicate_lines: int
    near_duplicate_documents: NotRequired[int]
    """Older folders do not have it."""
    emptied_documents: int
    cut_documents: int
    cut_lines: int
    skipped_files: int
    sentence_lengths: dict[str, int]
    document_lengths: dict[str, int]
    long_sentences: int
    filled_by_documents: float
    filled_by_sentences: float
    warnings: list[str]
    language_tokens: NotRequired[dict[str, int]]
    """The tokens of each language, if the texts were given with languages."""


class Measures:
    """Sums over the text while it is encoded: lengths, and how full sequences of 128 would be."""

    def __init__(self) -> None:
        num_bins = len(_EDGES) + 1
        self.characters = 0
        self.long_sentences = 0
        self.sentence_lengths = np.zeros(num_bins, np.int64)
        self.document_lengths = np.zeros(num_bins, np.int64)
        self.sentence_positions = 0
        """Positions taken up if every sentence had its own sequence."""
        self.sequences = 0
        """Sequences needed if documents are cut into full ones."""

    def add(self, sentences: np.ndarray, documents: np.ndarray, *, characters: int) -> None:
        """Adds the lengths in tokens of some sentences, and of the documents that ended meanwhile."""
        self.characters += characters
        self.sentence_lengths += _histogram(sentences)
        self.document_lengths += _histogram(documents)
        self.long_sentences += int((sentences > _ROOM).sum())
        # With [CLS] and [SEP]; a longer sentence is cut.
        positions = np.minimum(sentences, _ROOM) + 2
        self.sentence_positions += int(positions.sum())
        sequences = -(-documents // _ROOM)  # rounded up
        self.sequences += int(sequences.sum())


def health(measures: Measures, counts: np.ndarray, *, unknown: int, tally: Counter[str], fresh: bool = False) -> Health:
    """The report on a prepared corpus; `warnings` says what is off.

    `counts` says how often each id occurs, `unknown` is the id of the unknown token, `tally` counts what was read and
    dropped. `fresh` says that the vocabulary was trained on this very text.
    """
    # Plain ints: numpy's cannot be written as JSON.
    tokens = int(counts.sum())
    sentences = int(measures.sentence_lengths.sum())
    # In sequences cut from documents, every sequence has two special tokens.
    document_positions = tokens + 2 * measures.sequences
    report = Health(
        documents=int(measures.document_lengths.sum()),
        sentences=sentences,
        tokens=tokens,
        bytes_read=tally["bytes"],
        characters=measures.characters,
        characters_per_token=measures.characters / max(tokens, 1),
        unknown_rate=int(counts[unknown]) / max(tokens, 1),
        entropy_nats=entropy(counts),
        vocab_size=len(counts),
        vocab_used=int((counts > 0).sum()),
        documents_read=tally["documents_read"],
        lines_read=tally["lines_read"],
        duplicate_documents=tally["duplicate_documents"],
        duplicate_lines=tally["duplicate_lines"],
        near_duplicate_documents=tally["near_duplicate_documents"],
        emptied_documents=tally["emptied_documents"],
        cut_documents=tally["cut_documents"],
        cut_lines=tally["cut_lines"],
        skipped_files=tally["skipped_files"],
        sentence_lengths=_as_dict(measures.sentence_lengths),
        document_lengths=_as_dict(measures.document_lengths),
        long_sentences=measures.long_sentences,
        filled_by_documents=document_positions / max(SEQUENCE * measures.sequences, 1),
        filled_by_sentences=measures.sentence_positions / max(SEQUENCE * sentences, 1),
        warnings=[],
    )
    report["warnings"] = warnings(report, fresh=fresh)
    return report


def entropy(counts: np.ndarray) -> float:
    """Entropy in nats of the distribution with these counts."""
    # Ids that never occur add nothing: p log p goes to 0.
    shares = counts[counts > 0] / max(counts.sum(), 1)
    return float(-(shares * np.log(shares)).sum())


def warnings(h: Health, *, fresh: bool = False) -> list[str]:
    """One plain sentence for each thing that is off; `fresh`: the vocabulary was trained on this very text."""
    return [
        *_quality_warnings(h, fresh=fresh),
        *_document_warnings(h),
        *_size_warnings(h, fresh=fresh),
        *_reading_warnings(h),
    ]


def _quality_warnings(h: Health, *, fresh: bool) -> list[str]:
    """Unknown tokens and duplicates."""
    found = []
    if h["unknown_rate"] > 0.01:
        if fresh:
            remedy = "a lower `min_count=` or a larger `vocab_size=` lets more into the vocabulary"
        else:
            remedy = "train a vocabulary on this text, or give the model tokens for it with `firth extend`"
        found.append(f"{h['unknown_rate']:.1%} of the tokens are unknown: {remedy}.")
    duplicate_lines = h["duplicate_lines"] / max(h["lines_read"], 1)
    if duplicate_lines > 0.1:
        found.append(f"{duplicate_lines:.0%} of the lines repeated earlier ones and were dropped: is it boilerplate?")
    duplicate_documents = h["duplicate_documents"] / max(h["documents_read"], 1)
    if duplicate_documents > 0.1:
        found.append(f"{duplicate_documents:.0%} of the documents repeated earlier ones and were dropped.")
    return found


def _document_warnings(h: Health) -> list[str]:
    """Documents that next-sentence prediction cannot use."""
    if h["documents"] < 2:
        return [
            "There are fewer than two documents, and next-sentence pairs need two: "
            "separate documents by blank lines, or let every line or file be one."
        ]
    if h["sentences"] < 1.5 * h["documents"]:
        return ["Most documents are a single sentence: next-sentence pairs need documents of several."]
    return []


def _size_warnings(h: Health, *, fresh: bool) -> list[str]:
    """Too little text, a vocabulary that is too large for it, or sentences that are too long."""
    found = []
    if h["tokens"] < 100_000:
        found.append(f"Only {h['tokens']:,} tokens: enough to try things out, too few to learn much from.")
    used = h["vocab_used"] / max(h["vocab_size"], 1)
    if fresh and used < 0.5:  # that of a model is what it is
        found.append(f"Only {used:.0%} of the vocabulary occurs: a smaller one would do, or more text.")
    # The largest sequence length is not known yet; 128 is the default of recipes.
    long = h["long_sentences"] / max(h["sentences"], 1)
    if long > 0.05:
        found.append(f"{long:.0%} of the sentences are longer than {_ROOM} tokens: sequences of {SEQUENCE} cut them.")
    return found


def _reading_warnings(h: Health) -> list[str]:
    """Text that was cut or left out while it was read."""
    found = []
    if h["cut_documents"]:
        found.append(
            f"Very long documents were cut in {h['cut_documents']:,} places: are blank lines missing between documents?"
        )
    if h["cut_lines"]:
        found.append(f"Very long lines were cut in {h['cut_lines']:,} places: are line breaks missing?")
    if h["skipped_files"]:
        found.append(
            f"{h['skipped_files']:,} files in the folders were left out: only .txt, .jsonl and .parquet are read there."
        )
    return found


def describe(h: Health) -> list[str]:
    """The report as lines to print, without its `warnings`."""
    dropped = [
        f"{h['duplicate_documents']:,} of {h['documents_read']:,} documents",
        f"{h['duplicate_lines']:,} of {h['lines_read']:,} lines",
    ]
    near_duplicates = h.get("near_duplicate_documents", 0)
    if near_duplicates:
        dropped.append(f"{near_duplicates:,} near-duplicates")
    filled = (
        f"{h['filled_by_documents']:.0%} if documents are cut into sequences, "
        f"{h['filled_by_sentences']:.0%} with one sentence a sequence"
    )
    rows = {
        "documents": f"{h['documents']:,}",
        "sentences": f"{h['sentences']:,}",
        "tokens": f"{h['tokens']:,}, {h['characters_per_token']:.2f} characters each",
        "unknown": f"{h['unknown_rate']:.3%} of the tokens",
        "vocabulary": f"{h['vocab_used']:,} of {h['vocab_size']:,} ids occur",
        "entropy": f"{h['entropy_nats']:.3f} nats: the loss of a model without context",
        "duplicates dropped": ", ".join(dropped),
        "sentence lengths": _render(h["sentence_lengths"]),
        "document lengths": _render(h["document_lengths"]),
        f"filled of {SEQUENCE}": filled,
    }
    language_tokens = h.get("language_tokens", {})
    if language_tokens:
        shares = []
        for language, count in language_tokens.items():
            share = count / h["tokens"]
            shares.append(f"{language} {share:.1%}")
        rows["languages"] = ", ".join(shares) + " of the tokens"
    return [f"{name:<20}{value}" for name, value in rows.items()]


def _histogram(lengths: np.ndarray) -> np.ndarray:
    """How many lengths fall into each bin; the last bin is for lengths above all edges."""
    bins = np.searchsorted(_EDGES, lengths)
    return np.bincount(bins, minlength=len(_EDGES) + 1)


def _as_dict(histogram: np.ndarray) -> dict[str, int]:
    """Upper edge -> number of lengths in (edge / 2, edge]; empty bins are left out."""
    counts: dict[str, int] = {}
    for i, count in enumerate(histogram):
        if count:
            upper_edge = 1 << i
            counts[str(upper_edge)] = int(count)
    return counts


def _render(histogram: Mapping[str, int]) -> str:
    total = max(sum(histogram.values()), 1)
    shares = [f"≤{edge}: {count / total:.1%}" for edge, count in histogram.items()]
    return ", ".join(shares) + " (tokens)"
