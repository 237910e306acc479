"""`firth extend`: new tokens get the means of their pieces' rows; nothing else changes."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import firth
from firth import samples
from firth.errors import FirthError

LINES = ["被告人应当承担民事责任，原告提起诉讼。", "The plaintiff filed a writ against the defendant."]


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "law.txt"
    path.write_text("\n\n".join(f"{line}\n({i})" for i in range(6) for line in LINES), "utf-8")
    return path


def test_rows_are_means_and_the_rest_is_unchanged(
    run: Path, text: Path, tmp_path: Path, command: Callable[..., Any]
) -> None:
    out = tmp_path / "extended"
    done = command("extend", run, "--text", text, "--add", 5, "--min-count", 1, "--out", out, "--json")
    assert done.code == 0, done.err
    shown = json.loads(done.out)
    assert len(shown["new"]) == 5
    assert shown["tokens_per_text_after"] < shown["tokens_per_text_before"]
    listed = command("extend", run, "--text", text, "--add", 5, "--min-count", 1, "--out", tmp_path / "again").out
    assert not listed.rstrip().endswith("...")
    old, new = firth.load(run), firth.load(out)
    size = len(old.tokenizer.vocab)
    for part, name in (("encoder", "embeddings.tokens.weight"), ("masked_lm", "head.bias")):
        states = [
            (model.encoder if part == "encoder" else model.checkpoint.goals[part]).state_dict() for model in (old, new)
        ]
        assert states[0].keys() == states[1].keys()
        assert all(torch.equal(t, states[1][key]) for key, t in states[0].items() if key != name)
        before, after = (state[name] for state in states)
        assert len(after) == max(len(before), size + 5)
        assert torch.equal(after[:size], before[:size])
        for row, word in enumerate(shown["new"], size):
            pieces = old.tokenizer.encode(word).ids
            assert len(pieces) > 1 or pieces[0] == old.tokenizer.vocab.unk
            assert torch.allclose(after[row], before[torch.from_numpy(pieces).long()].mean(0), atol=1e-7)
    assert new.info().training["extended_from"] == run.name


def test_an_extended_model_learns_on(run: Path, text: Path, tmp_path: Path, tiny: tuple[str, ...]) -> None:
    firth.extend(run, text=text, add=4, min_count=1, out=tmp_path / "extended")
    texts = [text, samples.prose("zh"), samples.prose("en")]
    firth.prepare(texts, out=tmp_path / "data", tokenizer=tmp_path / "extended", processes=0)
    figures = firth.pretrain(
        tmp_path / "data", out=tmp_path / "more", start_from=tmp_path / "extended", steps=3, changes=tiny, device="cpu"
    )
    assert figures["masked_lm"] > 0
    assert len(firth.load(tmp_path / "more").tokenizer.vocab) == len(firth.load(run).tokenizer.vocab) + 4


def test_the_table_grows_where_spare_rows_do_not_suffice(run: Path, tmp_path: Path) -> None:
    path = tmp_path / "words.txt"
    path.write_text("\n\n".join(f"qz{chr(97 + i)}x vq{chr(97 + i)}zy" for i in range(26)))
    firth.extend(run, text=path, add=50, min_count=1, out=tmp_path / "extended")
    old, new = firth.load(run).encoder, firth.load(tmp_path / "extended").encoder
    assert new.vocab_size == 1250 > old.vocab_size
    texts = ["The quick brown fox.", "一句话。"]
    assert (firth.load(run).embed(texts) == firth.load(tmp_path / "extended").embed(texts)).all()


def test_mistakes(run: Path, text: Path, tmp_path: Path) -> None:
    with pytest.raises(FirthError, match="already exists"):
        firth.extend(run, text=text, add=1, out=tmp_path)
    with pytest.raises(FirthError, match=r"absent\.txt"):
        firth.extend(run, text=tmp_path / "absent.txt", add=1, out=tmp_path / "out")
    with pytest.raises(FirthError, match="use `add="):
        firth.extend(run, text=text, add=5000, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()
