"""Explanations: gradients add up to what the words change, occlusion is what leaving out a word does."""

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import firth
from firth import checkpoint, samples
from firth.data.items import pack_windows
from firth.errors import BadConfig, Unsupported
from firth.inference import explaining
from firth.inference.model import Model, load
from firth.tokenizers.wordpiece import WordPiece

LABELS = {"label": ("bad", "good", "odd")}
TEXT = "The river is open, and the day is long."


@pytest.fixture
def classifier(small_bert: Callable[..., Any], tokenizer: WordPiece) -> Callable[..., Model]:
    """Makes a classifier whose head has large random weights, so that words matter."""

    def make(**config: Any) -> Model:
        encoder = small_bert()
        labels = {} if config.get("kind") == "number" else LABELS
        head = checkpoint.make_head("classify", config, encoder, labels=labels)
        torch.manual_seed(3)
        nn.init.normal_(head.head.weight, std=0.6)  # type: ignore[union-attr,arg-type]
        return Model(checkpoint.Checkpoint(encoder.eval(), {}, tokenizer, tasks={"classify": head.eval()}))

    return make


def masked_probability(model: Model, text: str, label: str) -> float:
    """The label's probability of a text of as many masks as the text has tokens."""
    head = model.checkpoint.tasks["classify"]
    [item] = model.encode_examples(model.examples([text]))
    [window] = item.windows
    vocab = model.tokenizer.vocab
    is_text = ~np.isin(window.ids, sorted(vocab.specials - {vocab.unk}))
    ids = np.where(is_text, vocab.mask, window.ids)
    batch = pack_windows([explaining.Window(ids, window.segments)])
    with torch.no_grad():
        scores = head.scores(model.encoder(batch), batch)  # type: ignore[operator]
    return float(torch.softmax(scores, 1)[0, head.labels["label"].index(label)])


def test_gradients_of_a_prompt_are_those_of_its_texts(
    small_bert: Callable[..., Any], tokenizer: WordPiece, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(explaining, "STEPS", 200)
    config = {"pattern": "the {second} and [MASK] is {text} or", "label_words": "bad=the,good=of,odd=in"}
    encoder = small_bert()
    head = checkpoint.make_head("prompt", config, encoder, labels=LABELS)
    model = Model(checkpoint.Checkpoint(encoder.eval(), {}, tokenizer, tasks={"prompt": head.eval()}))
    pair = ("A small house.", "The night was dark and old")
    [found] = model.explain([pair], by="gradients")
    assert [word.word for word in found.words if word.text == 1] == pair[1].split()
    [item] = model.encode_examples(model.examples([pair]))
    ids = item.windows[0].ids.copy()
    lengths = [len(tokenizer.encode(text)) for text in pair]
    for text, (position, count) in zip(pair, head.text_places(lengths, tokenizer, max_length=64), strict=True):  # type: ignore[operator]
        assert ids[position : position + count].tolist() == tokenizer.encode(text).ids.tolist()
        ids[position : position + count] = tokenizer.vocab.mask
    batch = pack_windows([explaining.Window(ids, item.windows[0].segments)])
    # The head reads the first mask only if there is one, so the pattern's own mask is given to it.
    own_mask = int(np.flatnonzero(item.windows[0].ids == tokenizer.vocab.mask)[0])
    monkeypatch.setattr(head, "mask_positions", lambda batch: torch.tensor([own_mask]))
    with torch.no_grad():
        scores = head.scores(encoder(batch), batch)  # type: ignore[operator]
    start = float(torch.softmax(scores, 1)[0, LABELS["label"].index(found.label)])
    total = sum(word.weight for word in found.words)
    assert total == pytest.approx(found.probability - start, abs=2e-3)


def test_gradients_add_up_to_the_difference_from_masks(
    classifier: Callable[..., Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = classifier(pooling="mean")
    monkeypatch.setattr(explaining, "STEPS", 200)
    texts = [TEXT, "A small house.", "open", "He was old and the night was dark", "Water"]
    differences = []
    for text, found in zip(texts, model.explain(texts, by="gradients"), strict=True):
        assert found.method == "gradients"
        total = sum(word.weight for word in found.words)
        differences.append(found.probability - masked_probability(model, text, found.label))
        assert total == pytest.approx(differences[-1], abs=0.004)
    assert max(map(abs, differences)) > 0.02


def test_gradients_are_captums(classifier: Callable[..., Model], monkeypatch: pytest.MonkeyPatch) -> None:
    attr = pytest.importorskip("captum.attr", reason="captum is not installed (pip install '.[bench]')")
    model = classifier()
    monkeypatch.setattr(explaining, "STEPS", 64)
    [found] = model.explain([TEXT], by="gradients")
    head = model.checkpoint.tasks["classify"]
    [item] = model.encode_examples(model.examples([TEXT]))
    [window] = item.windows
    vocab = model.tokenizer.vocab
    is_text = ~np.isin(window.ids, sorted(vocab.specials - {vocab.unk}))
    baseline = torch.from_numpy(np.where(is_text, vocab.mask, window.ids))[None]
    place = head.labels["label"].index(found.label)

    table: nn.Embedding = model.encoder.embeddings.tokens  # type: ignore[union-attr,assignment]

    def forward(embedded: torch.Tensor) -> torch.Tensor:
        batch = pack_windows([window] * len(embedded))
        hook = table.register_forward_hook(lambda *_: embedded.flatten(0, 1))
        scores = head.scores(model.encoder(batch), batch)  # type: ignore[operator]
        hook.remove()
        return torch.softmax(scores, 1)[:, place]

    ids = torch.from_numpy(window.ids)[None]
    integrated = attr.IntegratedGradients(forward)
    given = integrated.attribute(table(ids), baselines=table(baseline), n_steps=64, method="riemann_middle")
    by_token = given[0].sum(1).detach().numpy()[1:-1]
    encoding = model.tokenizer.encode(TEXT)
    starts = [*np.flatnonzero(encoding.word_starts).tolist(), len(encoding)]
    theirs = [by_token[a:b].sum() for a, b in pairwise(starts)]
    np.testing.assert_allclose([word.weight for word in found.words], theirs, atol=2e-4)


def test_occlusion_is_what_leaving_out_a_word_does(classifier: Callable[..., Model]) -> None:
    model = classifier()
    [found] = model.explain([TEXT], by="occlusion")
    assert [word.word for word in found.words] == [
        "The",
        "river",
        "is",
        "open",
        ",",
        "and",
        "the",
        "day",
        "is",
        "long",
        ".",
    ]
    for word in found.words:
        assert TEXT[word.start : word.end] == word.word
        [without] = model.predict([TEXT[: word.start] + TEXT[word.end :]])
        assert word.weight == pytest.approx(found.probability - without.probabilities[found.label], abs=1e-5)
    top = found.top(3)
    assert [abs(word.weight) for word in top] == sorted((abs(word.weight) for word in found.words), reverse=True)[:3]


@pytest.mark.parametrize("by", ["gradients", "occlusion"])
def test_both_texts_of_a_pair_are_explained(by: Any, classifier: Callable[..., Model]) -> None:
    model = classifier()
    [found] = model.explain([["The river is open.", "The day"]], by=by)
    assert [(word.text, word.word) for word in found.words if word.text == 1] == [(1, "The"), (1, "day")]
    assert sum(word.text == 0 for word in found.words) == 5
    assert all(abs(word.weight) > 0 for word in found.words)


@pytest.mark.parametrize("by", ["gradients", "occlusion"])
def test_every_window_of_a_long_text_counts(by: Any, classifier: Callable[..., Model]) -> None:
    model = classifier()
    text = " ".join(f"the river is open {number}." for number in range(14))
    assert len(model.encode_examples(model.examples([text]))[0].windows) > 1
    [found] = model.explain([text], by=by)
    assert all(word.weight != 0 for word in found.words)
    assert "".join(word.word for word in found.words) == text.replace(" ", "")


@pytest.mark.parametrize("kind", ["many", "number"])
@pytest.mark.parametrize("by", ["gradients", "occlusion"])
def test_other_kinds_of_labels(kind: str, by: Any, classifier: Callable[..., Model]) -> None:
    model = classifier(kind=kind)
    [found] = model.explain([TEXT], by=by)
    [prediction] = model.predict([TEXT])
    if kind == "number":
        assert found.probability == pytest.approx(prediction.label)
    else:
        assert found.probability == max(prediction.probabilities.values())
    assert any(word.weight for word in found.words)


@pytest.mark.parametrize("by", ["gradients", "occlusion"])
@pytest.mark.parametrize("text", ["", "  "])
def test_a_text_without_words_has_no_weights(text: str, by: Any, classifier: Callable[..., Model]) -> None:
    [found] = classifier().explain([text], by=by)
    assert found.words == ()
    assert found.label in LABELS["label"]


def test_explaining_changes_nothing(classifier: Callable[..., Model]) -> None:
    model = classifier()
    before = model.predict([TEXT])
    weights = {name: value.clone() for name, value in model.encoder.state_dict().items()}
    model.explain([TEXT], by="gradients")
    assert model.predict([TEXT]) == before
    assert all(torch.equal(value, weights[name]) for name, value in model.encoder.state_dict().items())
    assert all(parameter.grad is None for parameter in model.encoder.parameters())


def test_bags_are_explained_by_occlusion_through_the_command(tmp_path: Path, command: Callable[..., Any]) -> None:
    rows = tmp_path / "rows.tsv"
    rows.write_text("text\tlabel\n" + "a good day\tpos\na bad day\tneg\n" * 12)
    firth.finetune(recipe="fasttext", task="classify", train=rows, dev=rows, out=tmp_path / "model")
    shown = command("predict", tmp_path / "model", "a good day", "--explain").out.splitlines()
    assert shown[0].startswith("pos\t")
    assert shown[1].startswith("  occlusion: good +")
    row = json.loads(command("predict", tmp_path / "model", "a good day", "--explain", "--json").out)
    assert max(row["explanation"]["words"], key=lambda word: word["weight"])["word"] == "good"
    refused = command("predict", tmp_path / "model", "a good day", "--explain", "--explain-by", "gradients")
    assert "explain by occlusion" in refused.err
    assert load(tmp_path / "model").explain(["a good day"], by="occlusion")[0].label == "pos"


def test_what_cannot_be_explained_is_refused(classifier: Callable[..., Model], run: Path, tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match="no method 'magic'"):
        classifier().explain([TEXT], by="magic")  # type: ignore[arg-type]
    rows = Path(str(samples.__file__)).parent / "entities.en.conll"
    firth.finetune(run, task="tag", train=rows, out=tmp_path / "tagger", changes=["epochs=1"], device="cpu")
    with pytest.raises(Unsupported, match="Only classifiers"):
        load(tmp_path / "tagger").explain([TEXT])
