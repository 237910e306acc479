"""Text files become the same shards whatever the number of processes, in little memory, with an honest report."""

import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from firth.corpus.sentences import split
from firth.data import encoding
from firth.data.health import describe, entropy
from firth.data.prepare import prepare
from firth.data.shards import Shards
from firth.data.vocabulary_sample import sample_texts
from firth.errors import BadConfig, BadInput, Unsupported
from firth.tokenizers.wordpiece import WordPiece

DOCUMENTS = [
    ["The quick brown fox jumps. It sleeps.", "Unbelievable jumping foxes!"],
    ["我们今天去北京大学。你好吗？", "Mixed 中文 and English text. Foxes sleep."],
    ["\u0301", "Sleep."],  # a line of one combining mark has no tokens
    *[[f"Document {i} tells of fox number {i * i}. It jumps {i} times.", "Then it sleeps."] for i in range(60)],
]
TEXTS = [line for document in DOCUMENTS for line in document]


@pytest.fixture(scope="module")
def tokenizer() -> WordPiece:
    return WordPiece.train(TEXTS, WordPiece.Config(vocab_size=120, min_count=1, coverage=1.0))


@pytest.fixture
def corpus(tmp_path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("\n\n".join("\n".join(document) for document in DOCUMENTS))
    return path


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_shards_hold_the_sentences_of_the_text(tmp_path, corpus, tokenizer):
    prepare(corpus, tmp_path / "out", tokenizer=tokenizer)
    shards = Shards.open(tmp_path / "out")
    encodings = [[tokenizer.encode(s) for line in document for s in split(line)] for document in DOCUMENTS]
    kept = [[e for e in document if len(e)] for document in encodings]
    assert sum(map(len, encodings)) == sum(map(len, kept)) + 1
    assert np.diff(shards.documents).tolist() == [len(document) for document in kept]
    flat = [e for document in kept for e in document]
    assert np.diff(shards.sentences).tolist() == [len(e) for e in flat]
    assert shards.ids.tolist() == np.concatenate([e.ids for e in flat]).tolist()
    assert (
        shards.word_starts(np.arange(shards.num_tokens)).tolist()
        == np.concatenate([e.word_starts for e in flat]).tolist()
    )


def test_the_bytes_do_not_depend_on_the_number_of_processes(tmp_path, corpus, tokenizer, monkeypatch):
    prepare(corpus, tmp_path / "whole", tokenizer=tokenizer, processes=0)
    monkeypatch.setattr(encoding, "CHUNK", 300)  # so that documents go over several chunks
    for processes in (0, 1, 2, 4):
        prepare(corpus, tmp_path / f"{processes}", tokenizer=tokenizer, processes=processes)
        assert files(tmp_path / f"{processes}") == files(tmp_path / "whole")


def test_a_document_over_several_chunks_is_one(tmp_path, tokenizer, monkeypatch):
    monkeypatch.setattr(encoding, "CHUNK", 10)
    (tmp_path / "a.txt").write_text("\n".join(["The fox sleeps."] * 5) + "\n\nIt jumps.")
    prepare(tmp_path / "a.txt", tmp_path / "out", tokenizer=tokenizer, processes=0)
    assert Shards.open(tmp_path / "out").documents.tolist() == [0, 5, 6]


def test_workers_import_no_torch_and_need_no_main_guard(tmp_path, corpus, tokenizer):
    tokenizer.save(tmp_path / "tokenizer")
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\nfrom pathlib import Path\nfrom firth import tokenizers\nfrom firth.data import encoding, prepare\n"
        f"encoding.CHUNK = 300\ntokenizer = tokenizers.load(Path({str(tmp_path / 'tokenizer')!r}))\n"
        f"prepare.prepare({str(corpus)!r}, Path({str(tmp_path / 'out')!r}), tokenizer=tokenizer, processes=2)\n"
        "assert 'torch' not in sys.modules\n"
    )
    root = str(Path(encoding.__file__).parents[2])
    subprocess.run(
        [sys.executable, script], check=True, cwd=tmp_path, env={**os.environ, "PYTHONPATH": root}, timeout=60
    )
    assert Shards.open(tmp_path / "out").num_documents == len(DOCUMENTS)


def test_a_worker_that_dies_is_one_sentence(tmp_path, corpus, tokenizer, monkeypatch):
    monkeypatch.setattr(encoding, "CHUNK", 300)
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(Unsupported, match="preparation process ended"):
        prepare(corpus, tmp_path / "out", tokenizer=tokenizer, processes=2)
    assert not (tmp_path / "out").exists()


def test_mistakes_leave_nothing_behind(tmp_path, tokenizer, corpus, monkeypatch):
    monkeypatch.setattr(encoding, "CHUNK", 300)
    bad = tmp_path / "zz.txt"
    bad.write_bytes(corpus.read_bytes() + b"\n\xff\n")
    marks = tmp_path / "marks.txt"
    marks.write_text("\u0301")
    for path, message in (
        (bad, "line .*not valid UTF-8"),
        (marks, "Nothing is left"),
        (tmp_path / "no", "does not exist"),
    ):
        with pytest.raises(BadInput, match=message):
            prepare(path, tmp_path / "out", tokenizer=tokenizer, processes=2)
    with pytest.raises(BadConfig, match="processes must be"):
        prepare(corpus, tmp_path / "out", tokenizer=tokenizer, processes=-1)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["marks.txt", "text.txt", "zz.txt"]


def test_progress_ends_at_the_size_of_the_text(tmp_path, corpus, tokenizer, monkeypatch):
    monkeypatch.setattr(encoding, "CHUNK", 300)
    seen = []
    report = prepare(corpus, tmp_path / "out", tokenizer=tokenizer, processes=0, progress=lambda *x: seen.append(x))
    size = corpus.stat().st_size
    assert len(seen) > 5
    assert seen[-1] == (size, size, report["tokens"])


def test_the_report_is_right(tmp_path, tokenizer):
    line = "The fox sleeps and jumps and sleeps and jumps and sleeps and jumps again."
    (tmp_path / "a.txt").write_text(f"{line}\nIt 龘 sleeps.\n\n{line}\nIt jumps.\n\nIt jumps.\n\nIt jumps.\n")
    report = prepare(tmp_path / "a.txt", tmp_path / "out", tokenizer=tokenizer)
    shards = Shards.open(tmp_path / "out")
    lengths, documents = np.diff(shards.sentences), np.diff(shards.sentences[shards.documents])
    assert report == shards.info["health"]
    assert (report["documents"], report["sentences"], report["tokens"]) == (3, 4, len(shards.ids))
    assert (report["documents_read"], report["lines_read"]) == (4, 6)
    assert (report["duplicate_documents"], report["duplicate_lines"]) == (1, 1)
    assert report["characters"] == len(line) + len("It 龘 sleeps.") + 2 * len("It jumps.")
    assert report["unknown_rate"] == 1 / len(shards.ids)
    assert report["vocab_used"] == len(set(shards.ids.tolist()))
    assert sum(report["sentence_lengths"].values()) == 4
    assert report["sentence_lengths"]["4"] == np.count_nonzero((lengths > 2) & (lengths <= 4))
    assert report["filled_by_documents"] == pytest.approx((documents + 2).mean() / 128)
    assert report["filled_by_sentences"] == pytest.approx((lengths + 2).mean() / 128)
    found = " ".join(report["warnings"])
    for words in ("of the tokens are unknown", "25% of the documents repeated", "17% of the lines", "Only"):
        assert words in found
    assert "fewer than two" not in found
    text = "\n".join(describe(report))
    assert f"tokens              {report['tokens']}" in text
    assert "warning" not in text  # they go to standard error


def test_entropy_of_a_fair_die():
    assert entropy(np.array([0, 5, 5, 5, 5, 5, 5])) == pytest.approx(math.log(6))
    assert entropy(np.array([7, 0])) == 0


def test_one_document_is_warned_about(tmp_path, corpus, tokenizer):
    report = prepare(corpus, tmp_path / "out", tokenizer=tokenizer, documents="file")
    assert report["documents"] == 1
    assert any("next-sentence pairs need two" in warning for warning in report["warnings"])


def test_a_sample_is_all_of_a_small_corpus_and_a_keyed_share_of_a_large_one(tmp_path, corpus):
    everything = list(sample_texts(corpus, 10**9))
    assert everything == TEXTS
    budget = corpus.stat().st_size // 3
    some = list(sample_texts(corpus, budget, seed=1))
    assert some == list(sample_texts(corpus, budget, seed=1))
    assert some != list(sample_texts(corpus, budget, seed=2))
    assert budget / 2 < sum(len(line.encode()) for line in some) < budget * 2
    assert set(some) < set(everything)


def test_a_table_read_as_prose_is_warned_about(tmp_path, corpus, tokenizer):
    table = tmp_path / "rows.tsv"
    table.write_text("text\tlabel\nA good day.\tyes\n")
    other = tmp_path / "more.csv"
    other.write_text("text,label\nA bad day.,no\n")
    warned = prepare([corpus, table, other], tmp_path / "data", tokenizer=tokenizer, processes=0)["warnings"]
    assert [f"{table} and 1 more: the rows of a table were read as prose" in line for line in warned].count(True) == 1
    clean = prepare([corpus], tmp_path / "clean", tokenizer=tokenizer, processes=0)["warnings"]
    assert not [line for line in clean if "table" in line]
