"""How many pieces a vocabulary gets: the usual number is a limit, one that was asked for a wish."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from firth import tokenizers
from firth.data.vocabulary import train_tokenizer
from firth.errors import BadInput


@pytest.mark.parametrize("name", ["wordpiece", "bpe"])
def test_a_small_text_gets_as_many_pieces_as_it_supports(
    name: str, command: Callable[..., Any], tmp_path: Path
) -> None:
    (tmp_path / "text.txt").write_text("the quick brown fox jumps over the lazy dog\n你好，世界。你好。\n" * 3)
    settings = ("prepare", tmp_path / "text.txt", "--tokenizer", name, "--processes", 1)
    made = command(*settings, "--out", tmp_path / "data")
    size = len(tokenizers.load(tmp_path / "data" / "tokenizer").vocab)
    assert made.code == 0
    assert size < 30_000
    assert f"The text supports a vocabulary of {size:,} pieces.\n" in made.err
    same = command(*settings, "--out", tmp_path / "same", "--vocab-size", size)
    assert (same.code, "supports" in same.err) == (0, False)
    asked = command(*settings, "--out", tmp_path / "asked", "--vocab-size", size + 1)
    assert asked.code == 2
    assert f"or use --vocab-size {size}." in asked.err


def test_a_text_without_pieces_is_refused(command: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("once\n")
    refused = command("prepare", tmp_path / "text.txt", "--out", tmp_path / "data", "--min-count", 50)
    assert (refused.code, "lower --min-count" in refused.err) == (2, True)
    assert not (tmp_path / "data").exists()


def test_a_missing_file_is_told_before_anything_is_announced(tmp_path: Path, messages: Callable[[], str]) -> None:
    with pytest.raises(BadInput, match=r"none\.txt does not exist"):
        train_tokenizer("wordpiece", [tmp_path / "none.txt"])
    assert messages() == ""
