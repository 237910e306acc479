"""Every way of laying text out in files gives the same documents, and every broken file one sentence."""

import gzip
import json
import lzma
from collections import Counter
from pathlib import Path

import pytest

from firth.corpus import readers, text_lines
from firth.corpus.readers import find_files, read_documents, read_texts
from firth.errors import BadConfig, BadInput

TEXT = "One.\nTwo.\n\n\nThree é 中.\n"
LINES = [("One.", "Two."), ("Three é 中.",)]


def lines(path, **options):
    return [document.lines for document in read_documents(path, **options)]


def write(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@pytest.mark.parametrize("ends", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_line_ends_and_byte_order_marks_do_not_matter(tmp_path, ends, mark):
    assert lines(write(tmp_path / "a.txt", mark + TEXT.replace("\n", ends))) == LINES


def test_line_ends_split_over_blocks_are_one(tmp_path, monkeypatch):
    path = write(tmp_path / "a.txt", TEXT.replace("\n", "\r\n"))
    for size in range(1, 9):
        monkeypatch.setattr(text_lines, "BLOCK", size)
        assert lines(path) == LINES


def test_a_document_knows_where_it_began(tmp_path):
    path = write(tmp_path / "a.txt", TEXT)
    assert [d.source for d in read_documents(path)] == [f"{path}:1", f"{path}:5"]


def test_documents_by_file_and_by_line(tmp_path):
    path = write(tmp_path / "a.txt", TEXT)
    assert lines(path, documents="file") == [("One.", "Two.", "Three é 中.")]
    assert lines(path, documents="line") == [("One.",), ("Two.",), ("Three é 中.",)]


def test_compressed_text_reads_as_plain(tmp_path):
    zstandard = pytest.importorskip("zstandard")
    data = TEXT.encode()
    for name, packed in (
        ("a.txt.gz", gzip.compress(data)),
        ("a.txt.xz", lzma.compress(data)),
        ("a.txt.zst", zstandard.compress(data[:9]) + zstandard.compress(data[9:])),
    ):
        assert lines(write(tmp_path / name, packed)) == LINES


def test_cut_short_compressed_files_are_refused(tmp_path):
    zstandard = pytest.importorskip("zstandard")
    data = "".join(f"Line {i * i}.\n" for i in range(9_000)).encode()
    for ending, compress in (("gz", gzip.compress), ("xz", lzma.compress), ("zst", zstandard.compress)):
        path = write(tmp_path / f"a.txt.{ending}", compress(data)[:-9])
        with pytest.raises(BadInput, match=rf"a\.txt\.{ending} is cut short"):
            lines(path)


def test_rows_of_json_and_parquet_are_documents(tmp_path):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    texts = ["One.\r\n\nTwo.", "Three é 中."]
    rows = write(tmp_path / "a.jsonl", "\n".join(json.dumps({"body": t, "n": 1}) for t in texts) + "\n\n")
    table = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.table({"n": [1, 2], "body": texts}), table)
    for path in (rows, table):
        assert lines(path, field="body") == LINES
        assert lines(path, field="body", documents="field") == LINES


def test_folders_are_read_in_order_and_what_is_skipped_is_counted(tmp_path):
    (tmp_path / "b").mkdir()
    for name in ("b/2.txt", "a.txt", "b/1.jsonl", "notes.md", ".hidden.txt"):
        write(tmp_path / name, '{"text": "x"}')
    tally = Counter()
    assert [p.name for p in find_files(tmp_path, tally=tally)] == ["a.txt", "1.jsonl", "2.txt"]
    assert tally["skipped_files"] == 1
    assert [p.name for p in find_files([tmp_path / "a.txt", str(tmp_path / "**/*.txt")])] == ["a.txt", "2.txt"]


def test_absurdly_long_lines_and_documents_are_cut_and_nothing_is_lost(tmp_path, monkeypatch):
    monkeypatch.setattr(readers, "MAX_LINE", 50)
    monkeypatch.setattr(readers, "MAX_DOCUMENT", 200)
    text = " ".join(f"word{i}" for i in range(100))
    for path in (write(tmp_path / "a.txt", text), write(tmp_path / "a.jsonl", json.dumps({"text": text}))):
        tally = Counter()
        found = lines(path, tally=tally)
        assert "".join(line for document in found for line in document) == text
        assert max(len(line) for document in found for line in document) <= 50
        assert max(sum(map(len, document)) for document in found) <= 200
        assert tally["cut_lines"] == sum(map(len, found)) - 1
        assert tally["cut_documents"] == len(found) - 1 > 2


def test_pieces_of_a_cut_line_stay_one_document(tmp_path, monkeypatch):
    monkeypatch.setattr(readers, "MAX_LINE", 10)
    path = write(tmp_path / "a.txt", "aaaa bbbb cccc dddd\neeee\n")
    assert lines(path, documents="line") == [("aaaa bbbb ", "cccc dddd"), ("eeee",)]


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.txt", b"fine\n" * 3 + b"caf\xe9 au lait\n", r"a\.txt, line 4: not valid UTF-8 \(byte 0xe9\).*iconv"),
        ("a.txt", b"cut in a character \xe4\xb8", r"a\.txt, line 1: not valid UTF-8"),
        ("a.txt", "text".encode("utf-16"), r"a\.txt is UTF-16.*iconv"),
        ("a.txt", b"text\r\nPK\x00\x01", r"a\.txt, line 2: a NUL byte.*binary"),
        ("a.txt", b"", r"a\.txt holds no text"),
        ("a.txt", b" \n\t\n", r"a\.txt holds no text"),
        ("a.txt.xz", b"plain after all", r"a\.txt\.xz is cut short or not a \.xz file"),
        ("a.txt.zst", b"plain after all", r"a\.txt\.zst is cut short or not a \.zst file"),
        ("a.jsonl", b'{"text": "x"}\n{"text": \n', r"a\.jsonl, line 2: not a JSON row"),
        ("a.jsonl", b'{"text": "x"}\n\n{"body": "y"}', r"line 3: the row has no field 'text' but body"),
        ("a.jsonl", b"[1]", r"line 1: a row must be an object"),
        ("a.jsonl", b'{"text": null}', r"line 1: the field 'text' is not text"),
        ("a.jsonl", b"[" * 100_000, r"line 1: not a JSON row"),
        ("a.parquet", b"no parquet", r"a\.parquet cannot be read as Parquet"),
    ],
)
def test_a_broken_file_is_named_with_its_line(tmp_path, name, data, message):
    if needed := {".parquet": "pyarrow", ".zst": "zstandard"}.get(Path(name).suffix):
        pytest.importorskip(needed)
    with pytest.raises(BadInput, match=message):
        lines(write(tmp_path / name, data))


def test_wrong_utf8_behind_a_block_border_has_the_right_line(tmp_path, monkeypatch):
    path = write(tmp_path / "a.txt", b"fine\r\n" * 3 + b"caf\xe9 au lait\n")
    for size in range(1, 9):
        monkeypatch.setattr(text_lines, "BLOCK", size)
        with pytest.raises(BadInput, match="line 4: not valid UTF-8"):
            lines(path)


def test_a_json_row_too_long_to_parse_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(readers, "_MAX_ROW", 1 << 20)
    path = write(tmp_path / "a.jsonl", '{"text": "x"}\n' + json.dumps({"text": "y" * (1 << 20)}))
    with pytest.raises(BadInput, match="line 2: a row of more than 1 MB"):
        lines(path)


def test_what_is_not_there_is_named(tmp_path):
    for path, message in (
        (tmp_path / "no.txt", r"no\.txt does not exist"),
        (tmp_path / "*.txt", r"\*\.txt matches no file"),
        (tmp_path, r"holds no \.txt"),
        ([], "No files were given"),
    ):
        with pytest.raises(BadInput, match=message):
            lines(path)


def test_options_that_make_no_sense(tmp_path):
    path = write(tmp_path / "a.txt", TEXT)
    with pytest.raises(BadInput, match="has no field 'text'"):
        lines(path, documents="field")
    with pytest.raises(BadConfig, match="must be one of blank-line"):
        lines(path, documents="page")


def test_chinese_bytes_are_told_with_their_encoding(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes("青蛙在池塘里游来游去。".encode("gb18030"))
    with pytest.raises(BadInput, match="iconv -f GB18030"):
        list(read_documents(path))
    path.write_bytes("Die Frösche schwimmen im Teich.".encode("latin-1"))
    with pytest.raises(BadInput, match="iconv -f LATIN1"):
        list(read_documents(path))


def test_blank_lines_are_texts_and_told(tmp_path, messages):
    path = tmp_path / "lines.txt"
    path.write_text("one\n\ntwo\n  \n")
    assert read_texts(path) == ["one", "", "two", "  "]
    assert "lines.txt has 2 blank lines, answered like the others." in messages()
    path.write_text("one\ntwo\n")
    assert read_texts(path) == ["one", "two"]
    assert messages() == ""
