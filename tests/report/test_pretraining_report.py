"""The page of a pre-training run: whole, well-formed, self-contained, honest, and the same every time."""

import re
from dataclasses import replace
from html.parser import HTMLParser
from xml.etree import ElementTree

import numpy as np
import pytest

import firth
from firth.report.gather import nearest
from firth.report.judgement import judge
from firth.report.pretraining import PretrainingReport, most_focused_head, render

HEADINGS = ["Loss", "Accuracy", "Optimiser", "Data", "Filling gaps", "Similar sentences", "Attention"]


def parse(page: str) -> ElementTree.Element:
    return ElementTree.fromstring(page.removeprefix("<!DOCTYPE html>"))


def headings(page: str) -> list[str | None]:
    return [element.text for element in parse(page).iter("h2")]


def text(page: str) -> str:
    return "".join(parse(page).find("body").itertext())  # type: ignore[union-attr]


def test_all_sections_are_there(run: PretrainingReport) -> None:
    page = render(run)
    assert headings(page) == HEADINGS
    assert "22.7M" in page
    assert "paris" in page
    assert "boilerplate" in page
    assert "0.86" in page


def test_the_page_asks_nothing_of_the_network(run: PretrainingReport) -> None:
    page = render(run)
    without_names = re.sub(r'xmlns="http://www\.w3\.org/2000/svg"', "", page)
    assert not re.search(r"https?:|//[a-z]|url\(|@import|<script|<iframe|\ssrc=", without_names)
    references = {v for e in parse(page).iter() for k, v in e.attrib.items() if k in ("href", "src")}
    assert all(value.startswith("#") or value == "data:," for value in references)
    assert "default-src 'none'" in page.replace("&#x27;", "'")


def test_html_tags_are_balanced(run: PretrainingReport) -> None:
    class Balance(HTMLParser):
        stack: list[str] = []

        def handle_starttag(self, tag: str, attrs: object) -> None:
            self.stack.append(tag)

        def handle_startendtag(self, tag: str, attrs: object) -> None:
            assert tag in ("meta", "link", "path", "line", "rect", "circle")

        def handle_endtag(self, tag: str) -> None:
            assert self.stack.pop() == tag

    parser = Balance()
    parser.feed(render(run))
    assert parser.stack == []


def test_every_chart_has_a_name(run: PretrainingReport) -> None:
    charts = [e for e in parse(render(run)).iter("{http://www.w3.org/2000/svg}svg") if not e.get("aria-hidden")]
    assert len(charts) >= 12
    assert all(e.get("role") == "img" and e.get("aria-label") for e in charts)


def test_the_same_run_gives_the_same_page(run: PretrainingReport) -> None:
    assert render(run) == render(replace(run))


def test_hostile_text_stays_text() -> None:
    evil = "<script>alert(1)</script>"
    page = render(
        PretrainingReport(
            title=evil,
            facts={evil: evil},
            metrics=[{"step": 1, "split": evil, "masked_lm": 3.0}],
            health={"warnings": [evil], evil: {"8": 1}, f"{evil}2": 7},
            fills=[(f"{evil} [MASK]", [(evil, 0.5)])],
            neighbours=[(evil, [(evil, 0.5)])],
            attention=([evil, "a"], np.full((1, 1, 2, 2), 0.5)),
        )
    )
    assert "<script" not in page
    assert text(page).count(evil) >= 8


def test_a_title_is_enough() -> None:
    page = render(PretrainingReport("Empty"))
    assert headings(page) == []
    assert "cannot say whether the model has learned" in text(page)


def test_missing_keys_leave_out_only_their_charts() -> None:
    rows = [{"step": 1, "split": "train", "masked_lm": 7.0}, {"step": 2}, {"split": "held-out"}, {}]
    page = render(PretrainingReport("Partial", metrics=[*rows, {"step": 2, "split": "held-out", "masked_lm": 6.0}]))
    assert headings(page) == ["Loss"]
    nothing = {"step": 1, "split": "held-out", "masked_lm": None, "next_sentence_accuracy": 0.7}
    assert headings(render(PretrainingReport("None", metrics=[nothing]))) == ["Accuracy"]


def test_infinite_numbers_do_not_stop_the_page(run: PretrainingReport) -> None:
    broken = [*run.metrics, {"step": 30000, "split": "train", "masked_lm": float("nan"), "gradient_norm": float("inf")}]
    page = render(replace(run, metrics=broken))
    assert headings(page) == HEADINGS
    assert "broke down: at step 30000" in text(page)


def test_data_facts_are_readable(run: PretrainingReport) -> None:
    shown = {e.findtext("dt"): e.findtext("dd") for e in parse(render(run)).iter("div") if e.find("dt") is not None}
    assert shown["Unknown rate"] == "0.021%"
    assert shown["Entropy"] == "6.87 nats"
    assert shown["Tokens"] == "46.1M"
    assert "Cut lines" not in shown  # zero


def test_empty_bins_are_put_back(run: PretrainingReport) -> None:
    titles = [e.text for e in parse(render(run)).iter("{http://www.w3.org/2000/svg}title")]
    assert "128 to 256: 0" in titles
    assert "256 to 512: 2,400" in titles


def test_many_tokens_are_cropped_and_the_page_says_so(run: PretrainingReport) -> None:
    tokens = [f"t{i}" for i in range(60)]
    page = render(replace(run, attention=(tokens, np.full((1, 1, 60, 60), 1 / 60))))
    assert "Only the first 32 tokens are drawn" in page
    assert "t31" in page
    assert "t32" not in page


@pytest.mark.parametrize(
    ("loss", "says", "good"),
    [
        (3.1, "has learned: held-out loss 3.10 is 3.40 nats below the unigram floor", True),
        (6.3, "learned little", False),
        (6.5, "has not learned", False),
        (7.9, "has not learned", False),
        (float("nan"), "broke down", False),
    ],
)
def test_the_verdict_is_honest(loss: float, says: str, good: bool) -> None:
    sentence, _, found = judge([{"step": 10, "split": "held-out", "masked_lm": loss}], 6.5)
    assert says in sentence
    assert found is good


def test_remarks_tell_overfitting_and_chance() -> None:
    rows = [
        {"step": 1, "split": "held-out", "masked_lm": 3.0, "masked_lm_accuracy": 0.4, "next_sentence_accuracy": 0.51},
        {"step": 2, "split": "held-out", "masked_lm": 3.4, "masked_lm_accuracy": 0.38, "next_sentence_accuracy": 0.52},
    ]
    said = " ".join(judge(rows, 6.5)[1])
    assert "lowest at step 1 (3.00)" in said
    assert "hardly more than" in said
    assert "38% of masked tokens" in said
    assert "risen" not in " ".join(judge(rows[:1], 6.5)[1])


def test_the_head_shown_looks_at_distant_words() -> None:
    tokens = ["[CLS]", "a", "b", "c", "d", "[SEP]"]
    weights = np.zeros((2, 3, 6, 6))
    weights[0, 0] = np.eye(6)
    weights[0, 1] = np.eye(6, k=1)
    weights[0, 2, :, 5] = 1.0
    weights[1, 1, 1:5, [4, 4, 1, 1]] = 0.6
    assert most_focused_head(weights, tokens) == (1, 1)


CURVES: dict[str, list[str]] = {
    "masked_lm next_sentence_accuracy": ["Masked-token loss", "Sentence pairs told right"],
    "causal_lm causal_lm_accuracy": ["Next-token loss", "Next tokens guessed right"],
    "causal_lm causal_lm_backward causal_lm_backward_accuracy": ["Loss over words", "Tokens before guessed right"],
    "masked_lm replaced_token replaced_token_recall replaced_token_precision": [
        "Generator's masked-token loss",
        "Replaced tokens found (recall)",
        "Tokens rightly called replaced (precision)",
    ],
    "masked_lm span_boundary": ["Loss over words"],
    "nnlm nnlm_accuracy": ["Next-word loss", "Next words guessed right"],
    "masked_lm sentence_order_accuracy": ["Masked-token loss", "Orders of sentences told right"],
}


@pytest.mark.parametrize("keys", CURVES)
def test_every_recipe_has_its_curves_against_the_floor(keys: str) -> None:
    rows = [
        {"step": step, "split": split, **{key: 5.5 - step / 10 if "_" not in key[9:] else 0.5 for key in keys.split()}}
        for step in (1, 2)
        for split in ("train", "held-out")
    ]
    page = parse(render(PretrainingReport("Curves", metrics=rows, unigram_floor=6.5)))
    labels = [
        e.get("aria-label") or "" for e in page.iter("{http://www.w3.org/2000/svg}svg") if not e.get("aria-hidden")
    ]
    for wanted in CURVES[keys]:
        [drawn] = {label for label in labels if label.startswith(wanted)}
        assert ("unigram floor is 6.5" in drawn) is ("loss" in wanted.lower())
        if wanted == "Loss over words":
            assert drawn.count("ends at") == 4  # two losses, on training and held-out text


def test_the_verdict_on_a_causal_model_and_on_a_judge_of_tokens() -> None:
    both = {"causal_lm": 5.0, "causal_lm_accuracy": 0.2, "causal_lm_backward": 5.1, "causal_lm_backward_accuracy": 0.21}
    sentence, remarks, good = judge([{"step": 3, "split": "held-out", **both}], 6.5)
    assert "1.50 nats below" in sentence
    assert good
    assert "At a next token" in " ".join(remarks)
    assert "20% of next tokens and 21% of tokens before" in " ".join(remarks)
    electra = {"masked_lm": 6.4, "replaced_token_recall": 0.07, "replaced_token_precision": 0.6}
    sentence, remarks, good = judge([{"step": 3, "split": "held-out", **electra}], 6.5)
    assert not good
    assert "finds 7% of replaced tokens (of those it names, 60% are)" in " ".join(remarks)
    words = {"step": 3, "split": "held-out", "nnlm": 5.0, "nnlm_accuracy": 0.2}
    assert "At a next word" in " ".join(judge([words], 6.5)[1])
    assert "20% of next words" in " ".join(judge([words], 6.5)[1])
    assert "broke down" in judge([words | {"nnlm": float("nan")}], 6.5)[0]
    backward = [{"step": 3, "split": "train", "causal_lm": 5.0, "causal_lm_backward": float("nan")}]
    assert "broke down" in judge(backward, 6.5)[0]


def test_a_sentence_is_not_its_own_neighbour() -> None:
    model = firth.load("en-small")
    sentences = ["The train was late again.", "Our bus did not come on time.", "The soup was too salty."]
    for text, neighbours in nearest(model, sentences, top=3):
        assert sorted(other for other, _ in neighbours) == sorted(other for other in sentences if other != text)
        assert all(-1.001 < cosine < 1.001 for _, cosine in neighbours)
    # Equal sentences have nothing that tells them apart.
    [(_, [(other, cosine)]), _] = nearest(model, sentences[:1] * 2)
    assert (other, cosine) == (sentences[0], 0.0)
    assert nearest(model, sentences[:1]) == [(sentences[0], [])]
