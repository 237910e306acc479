"""What `embed` promises whatever its precision: one vector a text, in order, the same in any company."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import firth
from firth import samples
from firth.checkpoint import Checkpoint, Embedding
from firth.encoders.bert import Bert
from firth.encoders.xlnet import XLNet
from firth.errors import BadConfig, BadInput
from firth.inference import embedding
from firth.inference.embedding import Embedder
from firth.inference.model import Model
from firth.tensors import Batch, States
from firth.tokenizers.wordpiece import WordPiece

Make = Callable[..., Model]


@pytest.fixture
def make(small_bert: Callable[..., Bert], tokenizer: WordPiece) -> Make:
    return lambda **settings: Model(Checkpoint(small_bert().eval(), {}, tokenizer), **settings)


@pytest.mark.parametrize("pooling", ["cls", "cls+mean", "mean+cls"])
def test_a_cls_token_at_the_end_is_the_one_that_is_pooled(pooling: str, tokenizer: WordPiece) -> None:
    config = XLNet.Config(len(tokenizer.vocab), num_layers=1, width=32, num_heads=2, ffn_width=64, cls_last=True)
    embedder = Embedder(XLNet(config).eval(), tokenizer, Embedding(), precision="fp32")
    found = embedder.embed(["A short text."], pooling=pooling)
    wanted = embedder.embed(["A short text."], pooling=pooling.replace("cls", "last"))
    assert np.array_equal(found, wanted)


@pytest.fixture
def passages() -> list[str]:
    lines = [*samples.prose("en").read_text("utf-8").splitlines(), *samples.prose("zh").read_text("utf-8").splitlines()]
    cut = [line[: 25 + 37 * i % 300] for i, line in enumerate(filter(None, lines))]
    return [*cut[:60], "", " ", "word " * 200]


def test_no_texts(make: Make) -> None:
    assert make().embed([]).shape == (0, 32)


@pytest.mark.parametrize("pooling", ["mean", "cls", "last", "max"])
def test_any_company_gives_the_same_vector(make: Make, passages: list[str], pooling: str) -> None:
    model = make()
    together = model.embed(passages, pooling=pooling)
    alone = np.concatenate([model.embed([text], pooling=pooling) for text in passages])
    assert together.shape == (len(passages), 32)
    assert np.abs(together - alone).max() < 1e-5
    assert len({row.tobytes() for row in together.round(3)}) > 55  # and different passages different ones


@pytest.mark.parametrize("block", [1, 7, 62, 63, 64])
def test_blocks_change_nothing(make: Make, passages: list[str], monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    model = make()
    whole = model.embed(passages)
    monkeypatch.setattr(embedding, "BLOCK_TEXTS", block)
    assert np.abs(model.embed(passages) - whole).max() < 1e-6
    monkeypatch.setattr(embedding, "BATCH_TOKENS", 50)
    assert np.abs(model.embed(passages) - whole).max() < 1e-6


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_batches_side_by_side_change_nothing(
    make: Make, passages: list[str], monkeypatch: pytest.MonkeyPatch, precision: str
) -> None:
    model = make(precision=precision)
    monkeypatch.setattr(embedding, "BATCH_TOKENS", 50)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    alone = model.embed(passages)
    torch.set_num_threads(3)
    seen: set[tuple[str, int]] = set()
    quick = model.embedder.fast_encoder

    def watched(batch: Batch) -> States:
        seen.add((threading.current_thread().name, torch.get_num_threads()))
        time.sleep(0.002)  # so that the other threads get a batch, however the system schedules them
        return quick(batch)

    monkeypatch.setitem(model.embedder.__dict__, "fast_encoder", watched)
    try:
        together = model.embed(passages)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
    assert len(seen) > 1
    assert {threads for _, threads in seen} == {1}
    assert np.abs(together - alone).max() < (1e-6 if precision == "fp32" else 1e-2)


def test_an_error_in_one_batch_reaches_the_caller(
    make: Make, passages: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make()
    quick, calls = model.embedder.fast_encoder, iter(range(1000))

    def failing(batch: Batch) -> States:
        if next(calls) == 5:
            raise MemoryError("no room")
        return quick(batch)

    monkeypatch.setitem(model.embedder.__dict__, "fast_encoder", failing)
    monkeypatch.setattr(embedding, "BATCH_TOKENS", 50)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        with pytest.raises(MemoryError, match="no room"):
            model.embed(passages)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def test_batches_have_few_sizes(make: Make, passages: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Every size is prepared for once and remembered, so sizes must not be as many as batches."""
    model = make()
    sizes: list[int] = []
    quick = model.embedder.fast_encoder

    def watched(batch: Batch) -> States:
        sizes.append(batch.num_tokens)
        return quick(batch)

    monkeypatch.setitem(model.embedder.__dict__, "fast_encoder", watched)
    monkeypatch.setattr(embedding, "BATCH_TOKENS", 200)
    monkeypatch.setattr(embedding, "MIN_ROUNDED_TOKENS", 1)
    for first in range(len(passages)):
        model.embed(passages[first:])
    assert len(sizes) > 200
    assert all(size % embedding.ROUND_TOKENS == 0 for size in sizes)
    assert len(set(sizes)) > 3


def test_few_positions_leave_no_room_for_filler(
    small_bert: Callable[..., Bert], tokenizer: WordPiece, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedding, "MIN_ROUNDED_TOKENS", 1)
    model = Model(Checkpoint(small_bert(max_positions=16).eval(), {}, tokenizer))
    for count in range(1, 30):
        assert model.embed(["frog"] * count).shape == (count, 32)


def test_callers_keep_their_number_of_threads(make: Make, passages: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Those too that use torch for the first time while others go side by side."""
    model = make()
    monkeypatch.setattr(embedding, "BATCH_TOKENS", 50)
    before = torch.get_num_threads()
    torch.set_num_threads(3)

    def call(_: int) -> int:
        model.embed(passages)
        return torch.get_num_threads()

    try:
        with ThreadPoolExecutor(8) as callers:
            assert set(callers.map(call, range(24))) == {3}
    finally:
        torch.set_num_threads(before)


def test_one_block_is_cut_ahead_and_no_more(make: Make, passages: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory: at no time are there more than two blocks of ids."""
    model = make()
    events: list[str] = []
    tokenize, embed_tokenized = Embedder.tokenize, Embedder.embed_tokenized
    model.embed(passages[:1])
    monkeypatch.setattr(embedding, "BLOCK_TEXTS", 10)
    monkeypatch.setattr(Embedder, "tokenize", lambda *a, **k: (events.append("cut"), tokenize(*a, **k))[1])
    monkeypatch.setattr(
        Embedder, "embed_tokenized", lambda *a, **k: (embed_tokenized(*a, **k), events.append("computed"))[0]
    )
    model.embed(passages)
    assert events.count("cut") == events.count("computed") == 7
    ahead = np.cumsum([1 if event == "cut" else -1 for event in events])
    assert ahead.max() <= 2


class BrokenText(str):
    """A text that cannot be read."""

    def isascii(self) -> bool:
        raise RuntimeError("broken")


def test_an_error_while_tokenising_reaches_the_caller(make: Make) -> None:
    with pytest.raises(RuntimeError, match="broken"):
        make().embed(["a text", BrokenText("another")])
    with pytest.raises(BadInput, match="must be a string; it is 5"):
        make().embed(["a text", 5])  # type: ignore[list-item]


def test_the_folders_settings_and_windows(make: Make, passages: list[str]) -> None:
    model = make()
    long = "word " * 200
    first = model.embed([long], max_length=20)
    assert np.allclose(first, model.embed(["word " * 18], max_length=20), atol=1e-6)
    assert not np.allclose(first, model.embed([long]), atol=1e-4)
    unit = Model(replace(model.checkpoint, embedding=replace(model.checkpoint.embedding, normalise=True)))
    assert np.allclose(np.linalg.norm(unit.embed(passages), axis=1), 1, atol=1e-5)


def test_saving_keeps_full_precision(make: Make, tmp_path: Path) -> None:
    """The folder is the model's, not its quick copy's."""
    half, whole = make(precision="bf16"), make()
    half.embed(["one text"])
    half.save(tmp_path / "half")
    whole.save(tmp_path / "whole")
    assert (tmp_path / "half/model.safetensors").read_bytes() == (tmp_path / "whole/model.safetensors").read_bytes()


@pytest.mark.parametrize("max_length", [-1, 0, 1, 2])
def test_a_length_without_room_for_a_token_is_refused(max_length: int, make: Make) -> None:
    with pytest.raises(BadConfig, match="max_length must be at least 3"):
        make().embed(["a text of several words"], max_length=max_length)
    assert make().embed(["a text of several words"], max_length=3).any()


@pytest.mark.parametrize("call", ["tokens", "fill", "generate", "attention", "neighbours"])
def test_what_is_no_text_is_named(call: str, run: Path) -> None:
    with pytest.raises(BadInput, match="A text must be a string; it is 5"):
        getattr(firth.load(run), call)(5)


def test_words_that_are_no_texts_are_named(run: Path) -> None:
    model = firth.load(run)
    wrong: Any = None
    with pytest.raises(BadInput, match="A text must be a string; it is None"):
        model.analogy("day", wrong, "night")
    with pytest.raises(BadInput, match="A text must be a string; it is None"):
        model.senses(wrong, ["a day"])
