"""Word vector files: round trips with gensim, and what is wrong with a file told by line or byte."""

import gzip
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gensim.models import KeyedVectors

import firth
from firth import rng
from firth.convert.vector_files import FORMATS, open_vectors, write_vectors
from firth.errors import BadConfig, BadInput

WORDS = ["the", "青蛙", "naïve", "frog", "</s>", "池塘", "3", "\u00a0odd"]


@pytest.fixture
def rows() -> np.ndarray:
    return (rng.uniform(rng.key("rows"), np.arange(len(WORDS))[:, None], np.arange(5)) - 0.5).astype(np.float32)


def read(path: Path, *, skip_bad: bool = False) -> tuple[list[str], np.ndarray]:
    blocks = list(open_vectors(path, skip_bad=skip_bad).blocks())
    return [word for words, _ in blocks for word in words], np.concatenate([rows for _, rows in blocks])


@pytest.fixture
def gensim_vectors(rows: np.ndarray) -> KeyedVectors:
    vectors = KeyedVectors(5)
    vectors.add_vectors(WORDS[:-1], rows[:-1])
    return vectors


@pytest.mark.parametrize("binary", [False, True])
def test_what_gensim_writes_is_read(
    gensim_vectors: KeyedVectors, rows: np.ndarray, binary: bool, tmp_path: Path
) -> None:
    gensim_vectors.save_word2vec_format(tmp_path / "v", binary=binary)
    words, found = read(tmp_path / "v")
    assert words == WORDS[:-1]
    assert np.array_equal(found, rows[:-1])


@pytest.mark.parametrize("kind", FORMATS)
def test_what_is_written_is_read_by_gensim_and_by_us(rows: np.ndarray, kind: str, tmp_path: Path) -> None:
    path = tmp_path / "vectors"
    blocks = [(WORDS[:3], rows[:3]), (WORDS[3:7], rows[3:7])]
    write_vectors(path, blocks, count=7, width=5, kind=kind)
    theirs = KeyedVectors.load_word2vec_format(path, binary=kind == "word2vec-binary")
    assert theirs.index_to_key == WORDS[:7]
    assert np.array_equal(theirs.vectors, rows[:7])
    words, found = read(path)
    assert words == WORDS[:7]
    assert np.array_equal(found, rows[:7])


def test_glove_text_compressed_and_words_with_spaces(rows: np.ndarray, tmp_path: Path) -> None:
    lines = [
        f"{word} {' '.join(map(repr, row.tolist()))}" for word, row in zip([*WORDS[:7], ". . ."], rows, strict=True)
    ]
    with gzip.open(tmp_path / "glove.txt.gz", "wb") as file:
        file.write("\n".join(lines).encode())
    opened = open_vectors(tmp_path / "glove.txt.gz")
    assert (opened.kind, opened.width, opened.count) == ("headless", 5, None)
    words, found = read(tmp_path / "glove.txt.gz")
    assert words == [*WORDS[:7], ". . ."]
    assert np.array_equal(found, rows)


def test_word2vecs_own_spaces_and_newlines(tmp_path: Path) -> None:
    (tmp_path / "c.txt").write_bytes(b"2 2\na 1 2 \nb 3 4 \n")
    assert read(tmp_path / "c.txt")[1].tolist() == [[1, 2], [3, 4]]
    values = np.array([1, 2, 3, 4], "<f4")
    (tmp_path / "c.bin").write_bytes(b"2 2\na " + values[:2].tobytes() + b"b " + values[2:].tobytes())
    assert read(tmp_path / "c.bin")[0] == ["a", "b"]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"3 2\na 1 2\nb 3 4\n", "line 1: the header promises 3 words, the file has 2"),
        (b"1 2\na 1 2\nb 3 4\n", "line 1: the header promises 1 words, the file has 2"),
        (b"2 3\na 1 2\nb 3 4\n", "line 2: 2 numbers instead of 3"),
        (b"2 2\na 1 2\nb 3 4 5\n", "line 3: 3 numbers instead of 2"),
        (b"a 1 2\nb 3\n", "line 2: 1 numbers instead of 2"),
        (b"a 1 2\nb 3 x\n", "line 2: "),
        (b"a 1 2\n\na 3 4\n", "line 3: the word 'a' is already at line 1"),
        (b"2 2\na 1 2\nb 3 nan\n", "line 3: the row of 'b' holds NaN or infinity"),
        (b"a 1 2\nb 3 1e999\n", "line 2: the row of 'b' holds NaN or infinity"),
        (b"2 2\n\xff 1 2\nb 3 4\n", "line 2: the word b'\\xff' is not UTF-8"),
        (b"hello\n", "line 1: neither a word2vec header"),
        (b"", "line 1: neither a word2vec header"),
        (b"0 5\n", "line 1: a header of 0 words of width 5 describes no vectors"),
    ],
)
def test_bad_text(content: bytes, says: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.vec"
    path.write_bytes(content)
    with pytest.raises(BadInput) as told:
        read(path)
    assert str(told.value).startswith(f"{path}, ") or str(path) in str(told.value)
    assert says in str(told.value)


def test_bad_binary(rows: np.ndarray, tmp_path: Path) -> None:
    path = tmp_path / "v.bin"
    write_vectors(path, [(WORDS[:7], rows[:7])], count=7, width=5, kind="word2vec-binary")
    whole = path.read_bytes()
    for cut in range(len(whole) - 1):
        path.write_bytes(whole[:cut])
        with pytest.raises(BadInput, match="v.bin" if cut < 30 else rf"ends at byte {cut}"):
            read(path)
    path.write_bytes(whole[:-40])
    with pytest.raises(BadInput, match=rf"ends at byte {len(whole) - 40}, within word 6 of the 7"):
        read(path)
    path.write_bytes(whole + b"more")
    with pytest.raises(BadInput, match="goes on after the 7 words"):
        read(path)
    twice = whole.replace("池塘".encode(), "青蛙".encode())
    path.write_bytes(twice)
    with pytest.raises(BadInput, match=r"byte \d+: the word '青蛙' is already at byte \d+"):
        read(path)
    assert read(path, skip_bad=True)[0] == [word for word in WORDS[:7] if word != "池塘"]


def test_bad_rows_can_be_left_out(tmp_path: Path) -> None:
    path = tmp_path / "bad.txt"
    path.write_bytes(b"6 2\na 1 2\na 3 4\nb 5 nan\nc 5\n\xff 1 2\nd 7 8\n")
    opened = open_vectors(path, skip_bad=True)
    [(words, rows)] = opened.blocks()
    assert (words, rows.tolist(), opened.skipped) == (["a", "d"], [[1, 2], [7, 8]], 4)


def test_words_and_formats_that_cannot_be_written(rows: np.ndarray, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="'two words' has a space"):
        write_vectors(tmp_path / "v", [(["two words"], rows[:1])], count=1, width=5, kind="vec")
    with pytest.raises(BadConfig, match="word2vec, word2vec-binary, vec"):
        write_vectors(tmp_path / "v", [], count=0, width=5, kind="word2vec-text")
    assert not (tmp_path / "v").exists()


@pytest.mark.parametrize("ending", ["gz", "xz"])
def test_a_compressed_file_cut_short_is_told_as_prepare_tells_it(
    ending: str, tmp_path: Path, command: Callable[..., Any]
) -> None:
    lines = [f"w{i} {i * 7919 % 1009} {i * 104729 % 1013}" for i in range(3000)]
    squeeze = gzip.compress if ending == "gz" else lzma.compress
    path = tmp_path / f"cut.txt.{ending}"
    path.write_bytes(squeeze("\n".join(lines).encode())[:3000])
    code, _, err = command("import", path, "--out", tmp_path / "model")
    wanted = command("prepare", path, "--out", tmp_path / "data")
    assert code == wanted.code == 2
    assert f"cut.txt.{ending} is cut short or not a .{ending} file" in err
    assert err.strip().splitlines()[-1] == wanted.err.strip().splitlines()[-1]


@pytest.mark.parametrize(
    "cut", ["5 2\na 1 2\nb 3 4\nc 5", "5 2\na 1 2\nb 3 4\n", "3 2\na 1 2\nb 3 4\nc", "a 1 2\nb 3 4\nc 5"]
)
def test_of_a_file_that_was_cut_short_the_whole_rows_can_be_taken(
    cut: str, tmp_path: Path, command: Callable[..., Any]
) -> None:
    path = tmp_path / "cut.vec"
    path.write_text(cut)
    refused = command("import", path, "--out", tmp_path / "model")
    assert (refused.code, "--skip-bad" in refused.err) == (2, True)
    taken = command("import", path, "--out", tmp_path / "model", "--skip-bad")
    assert taken.code == 0, taken.err
    assert ("the header promises 5 words" in taken.err) == cut.startswith("5")
    assert [word for word, _ in firth.load(tmp_path / "model").neighbours("a")] == ["b"]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("2 3\na 1 2\nb 3 4\n", r"none of its 2 rows .*the header promises 2 words of width 3 \(line 1\); fix"),
        ("a nan 2\nb 3 nan\n", "none of its 2 rows can be used; it is not a file of word vectors"),
    ],
)
def test_a_file_of_which_nothing_is_left_makes_no_model(content: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "bad.txt").write_text(content)
    with pytest.raises(BadInput, match=says):
        firth.import_model(tmp_path / "bad.txt", out=tmp_path / "model", skip_bad=True)
    assert not (tmp_path / "model").exists()


def test_long_words_and_missing_spaces_in_binary_files(tmp_path: Path) -> None:
    path, row = tmp_path / "v.bin", np.array([1, 2], "<f4").tobytes()
    long = b"w" * 1_200_000  # beyond one piece, and beyond what is taken for a word
    path.write_bytes(b"3 2\na " + row + long[:900_000] + b" " + row + b"\nb " + row)
    assert read(path)[0] == ["a", "w" * 900_000, "b"]
    path.write_bytes(b"2 2\na " + row + long + b" " + row)
    with pytest.raises(BadInput, match="has no word at byte 14, though its header promises 2"):
        read(path)


@pytest.mark.parametrize("odd", ["1_0", "+1", "1e-3", ".5", "1E2", "-0", "0x10", "1d3", "--1", "1,5"])
def test_numbers_are_what_python_takes_for_numbers(odd: str, tmp_path: Path) -> None:
    (tmp_path / "v.txt").write_text(f"a 1 2 3\nb 4 {odd} 5\n")
    try:
        value = float(odd)
    except ValueError:
        with pytest.raises(BadInput, match=f"line 2: '{odd}' is not a number"):
            read(tmp_path / "v.txt")
    else:
        assert read(tmp_path / "v.txt")[1][1].tolist() == [4, np.float32(value), 5]
