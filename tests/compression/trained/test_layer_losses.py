"""Losses between layers (PKD, MiniLM, TinyBERT) against a plain computation, and short runs of these methods."""

import math
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import Tensor

import firth
from firth.checkpoint import Checkpoint
from firth.compression.augmenting import Augmented
from firth.compression.hidden_states import ClsStates, CosineStates, LayerStates
from firth.compression.lesson import Compared
from firth.compression.minilm import relation_heads
from firth.compression.pkd import copied_layers
from firth.compression.relations import AttentionMaps, AttentionScores, LastRelations, check_heads
from firth.data.packing import pack_tokens
from firth.encoders.bert import Bert
from firth.errors import BadConfig, BadInput
from firth.types import Fill

Compress = Callable[..., Checkpoint]
SmallBert = Callable[..., Bert]


@pytest.fixture
def pair(small_bert: SmallBert) -> tuple[Bert, Bert, Compared]:
    """A narrow student, its teacher, and what both say about three sequences of different lengths."""
    student = small_bert(width=16, ffn_width=32).eval().requires_grad_(False)
    teacher = small_bert(num_layers=4).eval().requires_grad_(False)
    generator = torch.Generator().manual_seed(1)
    ids = [torch.randint(5, 1000, (length,), generator=generator).numpy() for length in (7, 3, 12)]
    batch = pack_tokens(ids)
    with torch.no_grad():
        compared = Compared(batch, student(batch, layers=True), None, teacher(batch, layers=True))
    return student, teacher, compared


def sequences(compared: Compared, x_ND: Tensor) -> list[Tensor]:
    bounds = compared.batch.bounds_B1.tolist()
    return [x_ND[start:end] for start, end in pairwise(bounds)]


def test_first_tokens(pair: tuple[Bert, Bert, Compared]) -> None:
    _, _, compared = pair
    layers = {1: 2, 2: 3}
    own = compared.taught
    assert own is not None
    same_width = Compared(compared.batch, own, None, compared.taught)
    assert float(ClsStates({1: 1}, weight=1.0)(same_width)) == 0.0
    total = 0.0
    for a, b in layers.items():
        for x, y in zip(sequences(compared, own.layers[a]), sequences(compared, own.layers[b]), strict=True):
            total += float((x[0] / x[0].norm() - y[0] / y[0].norm()).square().sum())
    term = ClsStates(layers, weight=1.0)
    assert float(term(same_width)) == pytest.approx(total, rel=1e-5)
    assert term.count(compared.batch) == 3


def test_states_of_layers_with_projections(pair: tuple[Bert, Bert, Compared]) -> None:
    student, teacher, compared = pair
    assert compared.taught is not None
    term = LayerStates({0: 0, 2: 4}, student=student, teacher=teacher, weight=1.0)
    assert len(list(term.parameters())) == 4
    term.requires_grad_(False)
    total = 0.0
    for own, taught in term.layers.items():
        project = term.projections[str(own)]
        for token in range(compared.batch.num_tokens):
            wanted = compared.taught.layers[taught][token]
            total += float((project(compared.states.layers[own][token]) - wanted).square().mean())
    assert float(term(compared)) == pytest.approx(total, rel=1e-5)
    same = LayerStates({1: 1}, student=teacher, teacher=teacher, weight=1.0)
    assert not list(same.parameters())


def test_the_cosine_of_last_states(pair: tuple[Bert, Bert, Compared]) -> None:
    _, _, compared = pair
    assert compared.taught is not None
    states = compared.taught.layers[2]
    own = Compared(compared.batch, type(compared.taught)(states, states), None, compared.taught)
    wanted = 0.0
    for x, y in zip(states, compared.taught.last_ND, strict=True):
        wanted += 1 - float(x @ y / (x.norm() * y.norm()))
    assert float(CosineStates(weight=1.0)(own)) == pytest.approx(wanted, abs=1e-5)


def parts_of(encoder: Bert, states: Tensor, layer: int) -> tuple[Tensor, ...]:
    qkv: Tensor = encoder.blocks[layer - 1].attention.qkv(states)  # type: ignore[union-attr,operator]
    return qkv.chunk(3, -1)


def test_attention_scores(pair: tuple[Bert, Bert, Compared]) -> None:
    student, teacher, compared = pair
    assert compared.taught is not None
    term = AttentionScores({1: 2, 2: 4}, student=student, teacher=teacher, weight=1.0)
    total = 0.0
    for own, taught in term.layers.items():
        q, k, _ = parts_of(student, compared.states.layers[own - 1], own)
        tq, tk, _ = parts_of(teacher, compared.taught.layers[taught - 1], taught)
        for parts in zip(*(sequences(compared, x) for x in (q, k, tq, tk)), strict=True):
            for head in range(2):
                a, b, c, d = (x.chunk(2, -1)[head] for x in parts)
                errors = (a @ b.T / math.sqrt(8) - c @ d.T / math.sqrt(16)).square()
                total += float(errors.mean(1).sum()) / 2
    with torch.no_grad():
        assert float(term(compared)) == pytest.approx(total, rel=1e-4)
        same = AttentionScores({2: 2}, student=teacher, teacher=teacher, weight=1.0)
        assert float(same(Compared(compared.batch, compared.taught, None, compared.taught))) == 0.0


def test_attention_maps(pair: tuple[Bert, Bert, Compared]) -> None:
    student, teacher, compared = pair
    assert compared.taught is not None
    own, taught = student(compared.batch, attention=True), teacher(compared.batch, attention=True)
    term = AttentionMaps({2: 3}, student=student, teacher=teacher, weight=1.0)
    total = 0.0
    for q, p in zip(own.attention[1], taught.attention[2], strict=True):
        total += float((p * (p / q).log()).sum()) / 2
    assert float(term(compared)) == pytest.approx(total, rel=1e-3)  # a small difference of larger numbers


def test_relations_of_the_last_layer(pair: tuple[Bert, Bert, Compared]) -> None:
    student, teacher, compared = pair
    assert compared.taught is not None
    heads = 4
    term = LastRelations(student=student, teacher=teacher, layer=4, num_heads=heads, weight=1.0)
    own = parts_of(student, compared.states.layers[1], 2)
    taught = parts_of(teacher, compared.taught.layers[3], 4)
    total = 0.0
    for first, second in ((0, 1), (2, 2)):
        chosen = (own[first], own[second], taught[first], taught[second])
        for parts in zip(*(sequences(compared, x) for x in chosen), strict=True):
            for head in range(heads):
                a, b, c, d = (x.chunk(heads, -1)[head] for x in parts)
                q = (a @ b.T / math.sqrt(a.shape[1])).softmax(-1)
                p = (c @ d.T / math.sqrt(c.shape[1])).softmax(-1)
                total += float((p * (p / q).log()).sum()) / heads
    with torch.no_grad():
        assert float(term(compared)) == pytest.approx(total, rel=1e-4)


def test_the_attention_that_is_compared_is_the_models(pair: tuple[Bert, Bert, Compared]) -> None:
    _, teacher, compared = pair
    assert compared.taught is not None
    shown = teacher(compared.batch, attention=True).attention[3]
    q, k, _ = parts_of(teacher, compared.taught.layers[3], 4)
    for weights, a, b in zip(shown, sequences(compared, q), sequences(compared, k), strict=True):
        first = (a.chunk(2, -1)[0] @ b.chunk(2, -1)[0].T / 4).softmax(-1)
        torch.testing.assert_close(weights[0], first)


def test_which_layers_are_copied(small_bert: SmallBert) -> None:
    assert copied_layers(6, 12, which="skip") == {1: 2, 2: 4, 3: 6, 4: 8, 5: 10}
    assert copied_layers(6, 12, which="last") == {1: 7, 2: 8, 3: 9, 4: 10, 5: 11}
    narrow = small_bert(width=24, num_heads=3)
    assert relation_heads(0, narrow, small_bert()) == 2
    with pytest.raises(BadConfig, match="must divide 24 and 32"):
        relation_heads(3, narrow, small_bert())


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("pkd", {"num_layers": 2}),
        ("pkd", {"num_layers": 3, "copied": "last"}),
        ("minilm", {"num_layers": 2}),
        ("minilm", {"num_layers": 2, "random": True, "width": 24}),
        ("tinybert", {"num_layers": 2}),
        ("tinybert", {"num_layers": 2, "random": True, "width": 16}),
    ],
)
def test_a_short_run(compress: Compress, method: str, settings: dict[str, object], tmp_path: Path) -> None:
    small = compress(method, **settings)
    assert small.encoder.num_layers == settings["num_layers"]
    assert small.encoder.width == settings.get("width", 32)
    logged = (tmp_path / "work" / "run" / "seed-1" / "metrics.jsonl").read_text()
    names = {"pkd": ["first_tokens", "soft_labels"], "minilm": ["relations"], "tinybert": ["states", "attention"]}
    assert all(f'"{name}":' in logged for name in names[method])


def test_copies_of_rows_by_a_masked_language_model(compress: Compress, pretrained: Path, tmp_path: Path) -> None:
    compress("tinybert", num_layers=1, augment=1, masked_lm=str(pretrained), folder="more")
    texts = (tmp_path / "more" / "augmented.jsonl").read_text("utf-8")
    assert len(texts) > 1000
    rows = (tmp_path / "more" / "teacher" / "rows.json").read_text()
    assert '"shape"' in rows
    with pytest.raises(BadConfig, match="go together"):
        compress("tinybert", augment=1)


def test_a_mask_spelled_in_a_text_stays_and_shifts_no_fills(pretrained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    augmented = Augmented(pretrained, copies=1, seed=1)
    monkeypatch.setattr("firth.compression.augmenting.REPLACED_SHARE", 1.0)

    def numbered(text: str, *, top: int) -> list[Fill]:
        """Candidates that only say which mask they are for."""
        num_masks = text.count("[MASK]")
        return [Fill(f"word{mask}", 0.5, text) for mask in range(num_masks) for _ in range(top)]

    monkeypatch.setattr(augmented.model, "fill", numbered)
    changed = augmented._changed("one [MASK] two", counters=(1, 0, 0))
    assert changed == "word0 [MASK] word2"
    assert augmented._changed("[MASK]", counters=(1, 0, 0)) == "[MASK]"


def test_students_that_are_not_allowed(compress: Compress, small_bert: SmallBert) -> None:
    with pytest.raises(BadConfig, match="same width"):
        compress("pkd", num_layers=2, random=True, width=16)
    with pytest.raises(BadConfig, match="must not be wider"):
        compress("tinybert", num_layers=2, random=True, width=64)
    with pytest.raises(BadConfig, match="heads; here they have 2 and 4"):
        check_heads(small_bert(num_heads=4), small_bert(), "tinybert")
    with pytest.raises(BadConfig, match="4 layers; layer=5"):
        compress("minilm", num_layers=2, layer=5)


def test_another_tokenizer_is_refused(
    compress: Compress, texts: list[Path], tiny: tuple[str, ...], tmp_path: Path
) -> None:
    other_data, other = tmp_path / "data", tmp_path / "other"
    firth.prepare(texts, out=other_data, vocab_size=800, processes=0)
    firth.pretrain(other_data, out=other, steps=1, changes=tiny, device="cpu")
    for method in ("minilm", "tinybert", "pkd"):
        with pytest.raises(BadInput, match="another tokenizer"):
            compress(method, student=str(other))
    assert compress("distil", student=str(other)).encoder.num_layers == 2
