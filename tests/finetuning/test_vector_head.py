"""The vector head: what it computes, what it learns from text, and where it is kept."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

import firth
from firth import checkpoint as checkpoints
from firth import model_files, models, samples
from firth.convert.vector_head import VECTOR_HEAD, VectorHead, read_vector_head, token_signs, write_vector_head
from firth.errors import BadConfig, BadInput, Damaged
from firth.files import write_manifest
from firth.finetuning.context_part import ContextConfig, first_states, train_context_part
from firth.finetuning.vector_head import VectorHeadConfig, read_sentences

SMALL = (
    "steps=30",
    "batch_size=16",
    "context.pairs=60",
    "context.steps=20",
    "context.width=16",
    "context.batch_size=16",
)


@pytest.fixture(scope="module")
def with_head(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small run with a head that was learned from the English prose."""
    out = tmp_path_factory.mktemp("heads") / "model"
    model_files.vector_head(run, text=samples.prose("en"), out=out, changes=SMALL)
    return out


def test_the_first_part_of_a_vector_is_the_sum_of_the_tokens_rows(with_head: Path) -> None:
    model = firth.load(with_head)
    text = "Rain is forecast by the shape of the sky."
    [vector] = model.embed([text], pooling="tokens")
    head = model.checkpoint.vector_head
    assert head is not None
    table_VE = checkpoints.token_table(model.encoder)
    assert table_VE is not None
    signs = token_signs(len(model.tokenizer.vocab), 256)
    expected = np.zeros(head.token_width)
    for token in model.tokenizer.encode(text).ids:
        meaning = table_VE[token].numpy() @ head.projection_ED + head.bias_D
        own = signs[token] * head.own_scales_R
        expected += head.token_weights_V[token] * np.concatenate([meaning, own])
    np.testing.assert_allclose(vector, expected / np.linalg.norm(expected), atol=1e-5)
    assert model.embedder.width("tokens") == head.token_width == len(vector)


def test_the_second_part_is_the_projected_state_of_the_first_token(with_head: Path) -> None:
    model = firth.load(with_head)
    texts = ["Rain is forecast by the shape of the sky.", "Cold air holds less vapour."]
    vectors = model.embed(texts)
    head = model.checkpoint.vector_head
    assert head is not None
    assert head.context is not None
    assert vectors.shape == (2, model.width) == (2, head.token_width + 16)
    states = model.embed(texts, pooling="cls", normalise=False)
    projected = states @ head.context.projection_DK + head.context.bias_K
    context = 0.7 * projected / np.linalg.norm(projected, axis=1, keepdims=True)
    expected = np.concatenate([model.embed(texts, pooling="tokens"), context], 1) / (1 + 0.7**2) ** 0.5
    np.testing.assert_allclose(vectors, expected, atol=1e-3)  # the head is kept in half precision


def test_training_brings_neighbours_closer_than_other_sentences() -> None:
    """How many sentences are nearer than the neighbour by the projection that training begins with, and by the trained
    one, on the pairs that were learned from. A model is needed that has learned something."""
    checkpoint = checkpoints.load(models.find("en-small"))
    sentences = read_sentences([samples.prose("en")], checkpoint.tokenizer, VectorHeadConfig(max_tokens=24))
    firsts = sentences.has_next_S.nonzero()[:, 0].tolist()
    sequences = []
    for number in [*firsts, *(first + 1 for first in firsts)]:
        ids, _ = sentences.take(torch.tensor([number]))
        sequences.append(checkpoint.tokenizer.vocab.frame.join(ids.numpy()))
    states = first_states(checkpoint.encoder, sequences)
    ranks = {}
    for steps in (0, 50):
        part = train_context_part(checkpoint.encoder, sequences, ContextConfig(steps=steps, batch_size=64), seed=1)
        vectors = part.vectors(states)
        scores = vectors[: len(firsts)] @ vectors[len(firsts) :].T
        ranks[steps] = float((scores > np.diag(scores)[:, None]).sum(1).mean())
    assert ranks[0] < 0.4 * len(firsts)
    assert ranks[50] < 0.7 * ranks[0]


def test_a_head_needs_no_encoder_if_no_pairs_are_read(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "model"
    model_files.vector_head(run, text=samples.prose("en"), out=out, changes=[*SMALL, "context.pairs=0"])
    model = firth.load(out)
    texts = ["Rain is forecast.", "The light turns flat."]
    np.testing.assert_array_equal(model.embed(texts), model.embed(texts, pooling="tokens"))


def test_the_pooling_of_tokens_needs_a_head(run: Path) -> None:
    with pytest.raises(BadConfig, match="needs a model with a vector head"):
        firth.load(run).embed(["Rain."], pooling="tokens")


def test_a_head_with_half_of_its_context_part_is_damaged(with_head: Path, tmp_path: Path) -> None:
    checkpoints.save(tmp_path / "model", checkpoints.load(with_head))
    stored = load_file(tmp_path / "model" / VECTOR_HEAD)
    del stored["context_bias"]
    save_file(stored, tmp_path / "model" / VECTOR_HEAD)
    with pytest.raises(Damaged, match="does not hold context_projection"):
        read_vector_head(tmp_path / "model")


def test_signs_say_which_tokens_a_text_has() -> None:
    signs = token_signs(500, 200)
    assert signs.shape == (500, 200)
    assert set(np.unique(signs).tolist()) == {-1, 1}
    cosines = signs.astype(np.float64) @ signs.T / 200
    np.testing.assert_array_equal(np.diag(cosines), 1)
    between = cosines[~np.eye(500, dtype=bool)]
    assert abs(between.mean()) < 0.005
    assert between.std() == pytest.approx(200**-0.5, rel=0.05)
    # A token has the same signs in every vocabulary and at every width.
    np.testing.assert_array_equal(token_signs(30, 64), signs[:30, :64])


def test_own_weight_is_the_length_of_the_signs_beside_the_meaning(run: Path, tmp_path: Path) -> None:
    lengths = {}
    for weight in (0.5, 2.0):
        out = tmp_path / str(weight)
        changes = (*SMALL, f"own_weight={weight}", "own_width=64")
        model_files.vector_head(run, text=samples.prose("en"), out=out, changes=changes)
        rows = firth.load(out).embedder.token_rows_VD
        assert rows is not None
        assert rows.shape[1] == 32 + 64
        tokens = checkpoints.load(run).tokenizer.ids_batch([samples.prose("en").read_text("utf-8")])[0]
        seen = np.unique(tokens)
        meaning, own = np.square(rows[seen, :32]).sum(1), np.square(rows[seen, 32:]).sum(1)
        lengths[weight] = (own.mean() / meaning.mean()) ** 0.5
    assert lengths[0.5] == pytest.approx(0.5, rel=0.1)
    assert lengths[2.0] == pytest.approx(2.0, rel=0.1)


def test_a_long_text_has_the_sum_of_all_its_windows(with_head: Path) -> None:
    model = firth.load(with_head)
    sentence = "The drops that form at first are so small that they float. "
    [once] = model.embed([sentence], pooling="tokens")
    [often] = model.embed([sentence * 40], pooling="tokens")  # far more tokens than the model has positions
    np.testing.assert_allclose(once, often, atol=1e-5)


def test_a_pooling_that_is_asked_for_leaves_the_head_out(with_head: Path, run: Path) -> None:
    texts = ["Warm air holds more vapour than cold air."]
    np.testing.assert_array_equal(
        firth.load(with_head).embed(texts, pooling="mean"), firth.load(run).embed(texts, pooling="mean")
    )


def test_a_blank_text_has_a_vector_of_zeros(with_head: Path) -> None:
    assert not firth.load(with_head).embed([""]).any()


def test_nothing_but_the_vectors_changes(with_head: Path, run: Path) -> None:
    before = checkpoints.load(run).encoder.state_dict()
    after = checkpoints.load(with_head).encoder.state_dict()
    assert all(bool((before[name] == after[name]).all()) for name in before)


def test_the_same_text_gives_the_same_head(with_head: Path, run: Path, tmp_path: Path) -> None:
    model_files.vector_head(run, text=samples.prose("en"), out=tmp_path / "again", changes=SMALL)
    assert (tmp_path / "again" / VECTOR_HEAD).read_bytes() == (with_head / VECTOR_HEAD).read_bytes()


def test_training_finds_neighbours_better_than_whitening_alone(run: Path, tmp_path: Path) -> None:
    checkpoint = checkpoints.load(run)
    config = VectorHeadConfig()
    sentences = read_sentences([samples.prose("en")], checkpoint.tokenizer, config)
    firsts = sentences.has_next_S.nonzero()[:, 0]
    found: dict[int, float] = {}
    for steps in (0, 60):
        out = tmp_path / f"{steps}"
        model_files.vector_head(
            run, text=samples.prose("en"), out=out, changes=[f"steps={steps}", "batch_size=64", "weight_rate=0.03"]
        )
        head = checkpoints.load(out).vector_head
        rows = firth.load(out).embedder.token_rows_VD
        assert head is not None
        assert rows is not None
        sums = [
            rows[sentences.ids_N[start : start + length]].sum(0)
            for start, length in zip(sentences.starts_S.tolist(), sentences.lengths_S.tolist(), strict=True)
        ]
        vectors = np.stack(sums)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        scores = vectors[firsts] @ vectors[firsts + 1].T
        ranks = (scores > np.diag(scores)[:, None]).sum(1)
        found[steps] = float(ranks.mean())
    assert found[60] < 0.9 * found[0]


def test_sentences_next_to_each_other_are_of_one_line(run: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("The sun is up now. Then it will rain again. No.\nWarm air rises over cold air.\n\nIt is cold.\n")
    tokenizer = checkpoints.load(run).tokenizer
    sentences = read_sentences([text], tokenizer, VectorHeadConfig())
    first, second, *_ = tokenizer.ids_batch(["The sun is up now.", "Then it will rain again."])
    ids, offsets = sentences.take(sentences.has_next_S.nonzero()[:, 0])
    assert ids.tolist() == first
    assert offsets.tolist() == [0]
    ids, _ = sentences.take(sentences.has_next_S.nonzero()[:, 0] + 1)
    assert ids.tolist() == second


def test_a_quantised_model_keeps_its_weights_and_its_head(with_head: Path, tmp_path: Path) -> None:
    firth.export(with_head, out=tmp_path / "small", kind="quantised")
    model_files.vector_head(tmp_path / "small", text=samples.prose("en"), out=tmp_path / "again", changes=SMALL)
    name = "model.quantised.safetensors"
    assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "small" / name).read_bytes()
    texts = ["Rain is forecast.", "The light turns flat."]
    exported = firth.load(tmp_path / "small").embed(texts)
    np.testing.assert_allclose(exported, firth.load(with_head).embed(texts), atol=0.05)


def test_a_model_with_other_tokens_loses_the_head(with_head: Path, tmp_path: Path) -> None:
    firth.model_files.extend(with_head, text=samples.prose("en"), add=5, out=tmp_path / "grown", min_count=1)
    assert not (tmp_path / "grown" / VECTOR_HEAD).exists()
    assert firth.load(tmp_path / "grown").embed(["Rain."]).shape == (1, 32)


def test_a_head_without_signs_is_read(with_head: Path, tmp_path: Path) -> None:
    checkpoint = checkpoints.load(with_head)
    assert checkpoint.vector_head is not None
    checkpoints.save(tmp_path / "model", checkpoint)
    stored = load_file(tmp_path / "model" / VECTOR_HEAD)
    del stored["own_scales"]
    save_file(stored, tmp_path / "model" / VECTOR_HEAD)
    head = read_vector_head(tmp_path / "model")
    assert head is not None
    assert head.width == checkpoint.vector_head.width - 256
    np.testing.assert_allclose(head.projection_ED, checkpoint.vector_head.projection_ED, atol=1e-2)


def test_a_head_of_another_model_is_refused(with_head: Path, tmp_path: Path) -> None:
    checkpoint = checkpoints.load(with_head)
    head = VectorHead(
        np.ones(3, np.float32), np.ones((2, 2), np.float32), np.zeros(2, np.float32), np.zeros(0, np.float32)
    )
    checkpoints.save(tmp_path / "model", replace(checkpoint, vector_head=None))
    write_vector_head(tmp_path / "model", head)
    write_manifest(tmp_path / "model")
    with pytest.raises(Damaged, match="of another model"):
        checkpoints.load(tmp_path / "model")


def test_too_little_text_is_refused(run: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("One sentence only, and no more.\n")
    with pytest.raises(BadInput, match="at least 512 are needed"):
        model_files.vector_head(run, text=text, out=tmp_path / "model")
    assert not (tmp_path / "model").exists()
