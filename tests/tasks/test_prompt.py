"""Prompts: patterns, words, and the masked LM's scores of the words."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import firth
from firth.checkpoint import make_head
from firth.data.items import pack_windows
from firth.encoders.bert import Bert
from firth.errors import BadConfig, Unsupported
from firth.tasks.prompt import PromptConfig, PromptHead, words_as_text, words_by_label
from firth.tokenizers.wordpiece import WordPiece
from firth.types import Example

LABELS = {"label": ("no", "yes")}
WORDS = "yes=the/and,no=of"
PATTERN = "{text} in [MASK] ."


@pytest.fixture
def head(small_bert: Callable[..., Bert]) -> PromptHead:
    made = make_head("prompt", PromptConfig(pattern=PATTERN, label_words=WORDS), small_bert(), labels=LABELS)
    assert isinstance(made, PromptHead)
    return made


def test_words_are_read_by_label() -> None:
    assert words_by_label("yes=great/good, no=bad") == {"yes": ("great", "good"), "no": ("bad",)}
    assert words_by_label("") == {}
    assert words_by_label("正面＝好／棒，负面＝差") == {"正面": ("好", "棒"), "负面": ("差",)}
    assert words_by_label("正面=好／棒， 负面＝差,中=平") == {"正面": ("好", "棒"), "负面": ("差",), "中": ("平",)}


def test_a_label_may_have_wide_marks() -> None:
    assert words_by_label("体育／健身=球,财经，股票=钱") == {"体育／健身": ("球",), "财经，股票": ("钱",)}
    assert words_by_label(words_as_text({"a／b": ["好", "棒"], "c": "差"})) == {"a／b": ("好", "棒"), "c": ("差",)}


def test_words_may_be_a_dict(run: Path) -> None:
    model = firth.load(run)
    by_text = model.zero_shot(["the end"], words="yes=the/of,no=in")
    assert model.zero_shot(["the end"], words={"yes": ["the", "of"], "no": "in"}) == by_text


def test_the_usual_pattern_is_in_the_language_of_the_words() -> None:
    assert PromptConfig(label_words="yes=great,no=bad").sentence == "{text} It was [MASK]."
    assert PromptConfig(pattern="{text} So [mask]!", label_words="yes=great").sentence == "{text} So [MASK]!"
    assert PromptConfig(label_words="正面=好/棒,负面=差").sentence == "{text} 总之很[MASK]。"
    assert PromptConfig(label_words="正面=好,负面=差", pattern="{text} [MASK]").sentence == "{text} [MASK]"


@pytest.mark.parametrize("text", ["great", "yes=", "yes=a,yes=b", "=a/", " = a,yes=b"])
def test_words_of_another_form_are_refused(text: str) -> None:
    with pytest.raises(BadConfig, match="does not give words"):
        words_by_label(text)


@pytest.mark.parametrize("pattern", ["no slots", "{text}", "[MASK]", "{text} [MASK] [MASK]", "{text} {text} [MASK]"])
def test_a_pattern_needs_one_text_and_one_mask(pattern: str) -> None:
    with pytest.raises(BadConfig, match="A pattern has"):
        PromptConfig(pattern=pattern)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("yes=the", "No words are given for the label 'no'"),
        ("yes=the,no=of,maybe=in", "which is no label"),
        ("", "words"),
    ],
)
def test_every_label_needs_words_and_no_other_name(small_bert: Callable[..., Bert], words: str, said: str) -> None:
    with pytest.raises(BadConfig, match=said):
        make_head("prompt", PromptConfig(label_words=words), small_bert(), labels=LABELS)


def test_the_pattern_surrounds_the_text_and_long_texts_are_cut(head: PromptHead, tokenizer: WordPiece) -> None:
    short = Example(("the end",))
    long = Example((" ".join(["the"] * 100),))
    items = head.encode([short, long], tokenizer, max_length=20, training=False)
    tokens = [tokenizer.vocab.tokens[token] for token in items[0].windows[0].ids]
    assert tokens[0] == "[CLS]"
    assert tokens[-4:] == ["in", "[MASK]", ".", "[SEP]"]
    assert len(items[1].windows[0].ids) == 20
    assert items[1].cut == 100 - (20 - 5)
    assert items[0].cut == 0


def test_a_pattern_for_pairs_takes_both_texts(small_bert: Callable[..., Bert], tokenizer: WordPiece) -> None:
    config = PromptConfig(pattern="{text} [MASK] {second}", label_words=WORDS)
    head = make_head("prompt", config, small_bert(), labels=LABELS)
    [item] = head.encode([Example(("the", "of"))], tokenizer, max_length=20, training=False)
    tokens = [tokenizer.vocab.tokens[token] for token in item.windows[0].ids]
    assert tokens == ["[CLS]", "the", "[MASK]", "of", "[SEP]"]
    with pytest.raises(BadConfig, match="takes two texts"):
        head.encode([Example(("the",))], tokenizer, max_length=20, training=False)


def test_a_word_must_be_one_known_token(small_bert: Callable[..., Bert], tokenizer: WordPiece) -> None:
    head = make_head("prompt", PromptConfig(label_words="yes=the,no=ofoftheinthe"), small_bert(), labels=LABELS)
    with pytest.raises(BadConfig, match=r"one token|does not know"):
        head.encode([Example(("a",))], tokenizer, max_length=20, training=False)


def test_scores_are_the_means_of_the_words_scores(run: Path) -> None:
    model = firth.load(run)
    head = make_head("prompt", PromptConfig(pattern=PATTERN, label_words=WORDS), model.encoder, labels=LABELS)
    head.start_from(model.checkpoint.goals)
    assert isinstance(head, PromptHead)
    [item] = head.encode([Example(("the end",))], model.tokenizer, max_length=40, training=False)
    batch = pack_windows(item.windows)
    with torch.inference_mode():
        states = model.encoder(batch)
        [scores] = head.outputs(states, batch)
        masks_P = torch.nonzero(batch.ids_N == model.tokenizer.vocab.mask)[:, 0]
        all_scores_V = model.require_mask_filler().head.scores(states, masks_P)[0].numpy()

    def score(word: str) -> float:
        return float(all_scores_V[model.tokenizer.encode(word).ids[0]])

    assert scores == pytest.approx([score("of"), (score("the") + score("and")) / 2], abs=1e-4)


def test_a_calibrated_prompt_is_undecided_about_an_empty_text(run: Path) -> None:
    [prediction] = firth.load(run).zero_shot([""], words=WORDS, pattern=PATTERN)
    assert list(prediction.probabilities.values()) == pytest.approx([0.5, 0.5], abs=1e-4)


def test_zero_shot_needs_a_masked_lm_head(run: Path, small_bert: Callable[..., Bert]) -> None:
    model = firth.load(run)
    head = make_head("prompt", PromptConfig(label_words=WORDS), model.encoder, labels=LABELS)
    with pytest.raises(Unsupported, match="no masked-LM head"):
        head.start_from({})


def test_zero_shot_is_the_same_in_python_and_on_the_command_line(run: Path, command: Callable[..., object]) -> None:
    [expected] = firth.load(run).zero_shot(["the end"], words=WORDS)
    answer = command("predict", run, "the end", "--words", WORDS, "--json")
    assert f'"label": "{expected.label}"' in str(answer)
    refused = command("predict", run, "the end", "--pattern", PATTERN)
    assert "--pattern needs --words" in str(refused)


def test_how_to_explain_is_refused_where_nothing_is_explained(run: Path, command: Callable[..., object]) -> None:
    refused = command("predict", run, "the end", "--words", WORDS, "--explain-by", "occlusion")
    assert "add --explain" in str(refused)


def test_zero_shot_is_measured_on_a_file(run: Path, tmp_path: Path) -> None:
    path = tmp_path / "rows.tsv"
    texts = ["the end", "of it", "in the town", "and then"]
    predictions = firth.load(run).zero_shot(texts, words=WORDS, pattern=PATTERN)
    rows = [f"{text}\t{label}" for text, label in zip(texts, ["yes", "no", "yes", "no"], strict=True)]
    path.write_text("\n".join(["text\tlabel", *rows]) + "\n", "utf-8")
    figures = firth.evaluate(run, data=path, task="prompt", label_words=WORDS, pattern=PATTERN)
    right = [p.label == gold for p, gold in zip(predictions, ["yes", "no", "yes", "no"], strict=True)]
    assert figures["accuracy"] == pytest.approx(float(np.mean(right)))
