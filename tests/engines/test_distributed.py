"""A corpus in pieces gives the bytes that one process writes, whatever the pieces; without ray."""

import gzip
from collections import Counter
from pathlib import Path

import pytest

from firth.corpus.languages import find_sources
from firth.corpus.readers import read_documents
from firth.data import distributed, pieces
from firth.data.distributed import fingerprints_of
from firth.data.pieces import Reading, cut, read_piece
from firth.data.prepare import prepare
from firth.data.simhash import fingerprint
from firth.data.vocabulary import train_tokenizer
from firth.engines.engine import InProcess, ahead
from firth.errors import BadConfig, BadInput
from firth.tokenizers.bpe import BPE
from firth.tokenizers.wordpiece import WordPiece

LONG = "A line that is long enough to be compared with all the lines before it, number {}."


def corpus_text() -> str:
    """Documents with repeated lines, repeated documents, near duplicates, Chinese, and blank lines of spaces."""
    documents = []
    for i in range(120):
        lines = [f"Document {i} begins here. It has words.", LONG.format(i % 50), f"我们今天去北京大学 {i}。"]
        if i % 7 == 0:
            lines = ["The same document again and again.", "It has two lines."]
        if i % 11 == 0:
            lines = [f"{'one two three four five six seven eight nine ten ' * 8}{i % 3}"]
        documents.append("\n".join(lines))
    return "\n\n".join(documents[:60]) + "\n \n" + "\r\n\r\n".join(documents[60:]) + "\n"


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("corpus") / "text.txt"
    path.write_bytes(corpus_text().encode())
    return path


@pytest.fixture(scope="module")
def tokenizer(corpus) -> WordPiece:
    return WordPiece.train([corpus_text()], WordPiece.Config(vocab_size=300, min_count=1), fewer=True)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.fixture(params=[1, 700, 1 << 22])
def piece_bytes(request, monkeypatch) -> int:
    """Pieces of one document, of some, and of all."""
    monkeypatch.setattr(cut, "__kwdefaults__", {"piece_bytes": request.param})
    return request.param


@pytest.mark.parametrize("near", [None, 3])
@pytest.mark.parametrize("documents", ["blank-line", "line", "file"])
def test_pieces_give_the_same_bytes(tmp_path, corpus, tokenizer, piece_bytes, near, documents):
    prepare(corpus, tmp_path / "one", tokenizer=tokenizer, documents=documents, processes=0, near=near)
    reading = Reading(documents=documents)
    health = distributed.prepare(
        InProcess(), corpus, tmp_path / "pieces", tokenizer=tokenizer, reading=reading, near=near
    )
    assert contents(tmp_path / "pieces") == contents(tmp_path / "one")
    assert documents == "file" or health["duplicate_lines"] or health["duplicate_documents"]
    if near and documents == "blank-line":
        assert health["near_duplicate_documents"]


def test_the_corpus_is_cut_where_documents_end(corpus, piece_bytes):
    found = list(cut(find_sources(corpus), Reading()))
    assert len(found) == 1 if piece_bytes > 1000 else len(found) > 5
    documents = [document for piece in found for document in read_piece(piece, Reading(), Counter())]
    assert [d.lines for d in documents] == [d.lines for d in read_documents(corpus)]


def test_a_tokenizer_that_keeps_spaces_gives_the_same_bytes(tmp_path, corpus, piece_bytes, monkeypatch):
    bpe = BPE.train([corpus_text()], BPE.Config(vocab_size=400, min_count=1), fewer=True)
    prepare(corpus, tmp_path / "one", tokenizer=bpe, processes=0)
    # Chunks that end in the middle of a document.
    monkeypatch.setattr("firth.data.encoding.CHUNK", 100)
    prepare(corpus, tmp_path / "chunks", tokenizer=bpe, processes=0)
    distributed.prepare(InProcess(), corpus, tmp_path / "pieces", tokenizer=bpe, reading=Reading())
    assert contents(tmp_path / "chunks") == contents(tmp_path / "one")
    assert contents(tmp_path / "pieces") == contents(tmp_path / "one")


def test_rows_languages_and_pairs_give_the_same_bytes(tmp_path, tokenizer, piece_bytes):
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(f'{{"body": "Row {i % 30} has a text.\\nAnd {i} lines."}}\n' for i in range(90)))
    german = tmp_path / "pairs.tsv"
    german.write_text("".join(f"The house number {i}\tDas Haus Nummer {i}\n" for i in range(50)))
    packed = tmp_path / "packed.txt.gz"
    packed.write_bytes(gzip.compress(b"A text that is packed.\n\nAnother one."))
    paths = [f"en={rows}", f"en+de={german}", f"en={packed}"]
    prepare(paths, tmp_path / "one", tokenizer=tokenizer, field="body", processes=0)
    distributed.prepare(InProcess(), paths, tmp_path / "pieces", tokenizer=tokenizer, reading=Reading(field="body"))
    assert contents(tmp_path / "pieces") == contents(tmp_path / "one")


@pytest.mark.parametrize("whole_bytes", [0, 1 << 26])
@pytest.mark.parametrize("name", ["wordpiece", "bpe", "words"])
def test_a_vocabulary_is_the_same(corpus, piece_bytes, name, whole_bytes, monkeypatch):
    # 0: no worker may read a piece of this size, so this process reads all.
    monkeypatch.setattr(pieces, "WHOLE_BYTES", whole_bytes)
    for sample_bytes in (1 << 26, 4000, 400):
        monkeypatch.setattr("firth.data.vocabulary.SAMPLE_BYTES", sample_bytes)
        monkeypatch.setattr("firth.data.distributed.SAMPLE_BYTES", sample_bytes)
        alone = train_tokenizer(name, corpus, min_count=1)
        counted = train_tokenizer(name, corpus, min_count=1, engine=InProcess())
        assert counted.vocab.tokens == alone.vocab.tokens
        assert counted.fingerprint == alone.fingerprint


@pytest.mark.parametrize("whole_bytes", [0, 1 << 26])
def test_fingerprints_have_the_lines_of_the_file(corpus, piece_bytes, whole_bytes, monkeypatch):
    monkeypatch.setattr(pieces, "WHOLE_BYTES", whole_bytes)
    for kind in ("line", "blank-line"):
        sources, marks = fingerprints_of(InProcess(), [corpus], Reading(documents=kind), shingle=3)
        alone = list(read_documents(corpus, documents=kind))
        assert sources == [document.source for document in alone]
        assert marks == [fingerprint("\n".join(document.lines)) for document in alone]


def test_an_error_names_the_line_of_the_file(tmp_path, tokenizer, piece_bytes):
    path = tmp_path / "bad.txt"
    path.write_bytes(b"Good.\r\n\r\n" * 300 + b"Line 601 \xff is bad.\n")
    with pytest.raises(BadInput, match="line 601: not valid UTF-8"):
        distributed.prepare(InProcess(), path, tmp_path / "out", tokenizer=tokenizer, reading=Reading())
    assert not (tmp_path / "out").exists()


def test_an_empty_file_is_an_error(tmp_path, corpus, tokenizer):
    empty = tmp_path / "empty.txt"
    empty.write_text("\n\n \n")
    for paths in ([corpus, empty], [empty, corpus]):
        with pytest.raises(BadInput, match="holds no text"):
            distributed.prepare(InProcess(), paths, tmp_path / "out", tokenizer=tokenizer, reading=Reading())


def test_a_wrong_kind_of_document_is_an_error(tmp_path, corpus, tokenizer):
    reading = Reading(documents="page")  # type: ignore[arg-type]
    with pytest.raises(BadConfig, match="`documents=` must be one of"):
        distributed.prepare(InProcess(), corpus, tmp_path / "out", tokenizer=tokenizer, reading=reading)


def test_work_is_submitted_ahead_and_bounded():
    submitted = []

    def items():
        for i in range(10):
            submitted.append(i)
            yield i

    taken = ahead(items(), 3)
    assert next(taken) == 0
    assert submitted == [0, 1, 2, 3]
    assert list(taken) == list(range(1, 10))
