"""Fine-tuning with few labels: contrast, prompts, self-training, and the choice among them."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import firth
from firth import samples
from firth.errors import BadConfig, BadInput, Damaged, Interrupted
from firth.files import read_json
from firth.finetuning.few.choosing import _num_folds
from firth.finetuning.few.contrast import supervised_contrast
from firth.finetuning.few.self_training import PseudoRows, read_unlabelled, surest
from firth.finetuning.few.table import read_table, write_table
from firth.finetuning.few.ways import WAYS, usual_epochs
from firth.train import logistic
from firth.types import Example, Prediction

CLASSIFY = samples.labelled("classify", "en")


@pytest.fixture
def few_rows(tmp_path: Path) -> Path:
    """Six rows of each label of the embedded set."""
    header, *rows = CLASSIFY.read_text("utf-8").splitlines()
    place = header.split("\t").index("label")
    taken: Counter[str] = Counter()
    kept = [header]
    for row in rows:
        label = row.split("\t")[place]
        if taken[label] < 6:
            taken[label] += 1
            kept.append(row)
    path = tmp_path / "few.tsv"
    path.write_text("\n".join(kept) + "\n", "utf-8")
    return path


def words_for(path: Path) -> str:
    """A word of the small vocabulary for each label."""
    header, *rows = path.read_text("utf-8").splitlines()
    labels = sorted({row.split("\t")[header.split("\t").index("label")] for row in rows})
    words = ["the", "of", "and", "in", "to", "a"]
    return ",".join(f"{label}={word}" for label, word in zip(labels, words, strict=False))


# The parts


def test_contrast_is_low_for_rows_that_are_sorted_and_high_for_rows_that_are_mixed() -> None:
    gold_E = torch.tensor([0, 0, 1, 1])
    sorted_ED = torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0]])
    mixed_ED = sorted_ED[[0, 2, 1, 3]]
    low = supervised_contrast(sorted_ED, gold_E, temperature=0.1)
    high = supervised_contrast(mixed_ED, gold_E, temperature=0.1)
    assert float(low.max()) < 0.01
    assert float(high.min()) > 5


def test_contrast_is_the_mean_over_the_rows_of_one_label() -> None:
    vectors_ED = torch.randn(5, 3, generator=torch.Generator().manual_seed(1))
    gold = [0, 0, 0, 1, 2]
    found_E = supervised_contrast(vectors_ED, torch.tensor(gold), temperature=0.5)
    unit_ED = vectors_ED / vectors_ED.norm(dim=1, keepdim=True)
    for row in range(5):
        scores = {other: float(unit_ED[row] @ unit_ED[other]) / 0.5 for other in range(5) if other != row}
        total = np.log(sum(np.exp(score) for score in scores.values()))
        alike = [total - score for other, score in scores.items() if gold[other] == gold[row]]
        expected = np.mean(alike) if alike else 0.0
        assert float(found_E[row]) == pytest.approx(expected, abs=1e-5)


def test_a_row_alone_with_its_label_has_a_finite_gradient() -> None:
    vectors_ED = torch.randn(3, 4, requires_grad=True)
    supervised_contrast(vectors_ED, torch.tensor([0, 1, 1]), temperature=0.1).sum().backward()  # type: ignore[no-untyped-call]
    assert vectors_ED.grad is not None
    assert bool(vectors_ED.grad.isfinite().all())


def test_the_head_is_the_logistic_regression_of_scikit_learn() -> None:
    linear_model = pytest.importorskip("sklearn.linear_model")
    rng = np.random.default_rng(0)
    gold_E = rng.integers(0, 3, 60)
    vectors_ED = rng.normal(size=(60, 5)) + 2 * np.eye(5)[gold_E]
    layer = logistic.fit(vectors_ED, gold_E, num_labels=3, l2=0.5)
    centred_ED = vectors_ED - vectors_ED.mean(0)
    scaled_ED = centred_ED / np.sqrt((centred_ED**2).sum(1).mean())
    oracle = linear_model.LogisticRegression(C=2.0, max_iter=1000, tol=1e-8).fit(scaled_ED, gold_E)
    assert layer.probabilities(vectors_ED) == pytest.approx(oracle.predict_proba(scaled_ED), abs=5e-3)


def test_the_surest_answers_are_kept_in_the_proportion_of_the_labels() -> None:
    rows = [Example(("x",), "a"), Example(("y",), "a"), Example(("z",), "b")]
    texts = [Example((str(number),)) for number in range(12)]
    predictions = [Prediction("a" if number < 9 else "b", 0.5 + number / 100) for number in range(12)]
    kept = surest(texts, predictions, rows, share=0.5, most=100)
    assert " ".join(row.texts[0] + row.gold for row in kept) == "8a 7a 6a 5a 11b 10b"
    assert len(surest(texts, predictions, rows, share=0.5, most=3)) == 3


def test_rows_of_self_training_survive_their_file(tmp_path: Path) -> None:
    rows = [Example(("好 \u2028 text",), "1", 1), Example(('with "quotes"', "a pair"), "0", 2)]
    write_table(tmp_path / "rows.jsonl", rows)
    assert read_table(tmp_path / "rows.jsonl") == rows


def test_rows_of_self_training_are_found_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    [change] = PseudoRows(Path("out/pseudo.jsonl"), 1).changes
    assert change == f"few.pseudo_rows={tmp_path / 'out/pseudo.jsonl'}"


def test_a_file_without_rows_is_read_and_a_missing_one_named(tmp_path: Path) -> None:
    """Of very few unlabelled texts, self-training may keep none."""
    write_table(tmp_path / "none.jsonl", [])
    assert read_table(tmp_path / "none.jsonl") == []
    with pytest.raises(Damaged, match=r"absent\.jsonl does not exist any more; start the run again"):
        read_table(tmp_path / "absent.jsonl")


def test_there_are_as_many_folds_as_the_rarest_label_has_texts() -> None:
    rows = [Example((f"text {number}",), "a", number) for number in range(8)]
    twice = [Example(("the same",), "b", number) for number in (9, 10)]
    assert _num_folds([*rows, *twice, Example(("another",), "b", 11)]) == 2
    with pytest.raises(BadInput, match="The label 'b' has one text"):
        _num_folds([*rows, *twice])


def test_unlabelled_texts_count_once(tmp_path: Path) -> None:
    path = tmp_path / "texts.txt"
    path.write_text("one\n\ntwo\none\n", "utf-8")
    assert [example.texts for example in read_unlabelled(path)] == [("one",), ("two",)]
    path.write_text("\n \n", "utf-8")
    with pytest.raises(BadInput, match="no text"):
        read_unlabelled(path)


def test_few_rows_are_read_many_times_and_many_rows_few_times() -> None:
    way = WAYS["contrast"]
    assert usual_epochs(way, 16) == way.steps
    assert usual_epochs(way, 100_000) == way.epochs


# Whole runs


@pytest.fixture
def learn(run: Path, tmp_path: Path, few_rows: Path) -> Callable[..., Any]:
    def call(few: str, *changes: str, name: str = "out", **options: Any) -> Any:
        settings: dict[str, Any] = {"task": "classify", "train": few_rows, "test": few_rows, "device": "cpu"}
        settings |= options
        return firth.finetune(run, out=tmp_path / name, few=few, changes=("epochs=2", *changes), **settings)

    return call


def test_contrast_fits_a_head_that_predicts_the_same_after_loading(
    learn: Callable[..., Any], few_rows: Path, tmp_path: Path
) -> None:
    summary = learn("contrast", "epochs=15", "train.optim.rate=2e-3", "few.l2=0.01")
    figures = summary["tasks"]["classify"]["figures"]
    assert summary["tasks"]["classify"]["picked_on"] == "the training rows themselves"
    assert figures["test"]["accuracy"]["mean"] > 0.8  # the rows that it has learned
    measured = firth.evaluate(tmp_path / "out", data=few_rows)
    assert measured["accuracy"] == pytest.approx(figures["test"]["accuracy"]["mean"])


def test_contrast_refuses_what_is_no_choice_of_one_label(learn: Callable[..., Any]) -> None:
    with pytest.raises(BadConfig, match="kind=one"):
        learn("contrast", kind="many")
    with pytest.raises(BadConfig, match="task='classify'"):
        learn("contrast", task="tag")


def test_a_prompt_learns_and_is_saved(learn: Callable[..., Any], few_rows: Path, tmp_path: Path) -> None:
    words = words_for(few_rows)
    summary = learn("prompt", "epochs=25", "train.optim.rate=2e-3", label_words=words, pattern="the {text} of [MASK] .")
    figures = summary["tasks"]["prompt"]["figures"]
    assert figures["test"]["accuracy"]["mean"] > 0.8
    measured = firth.evaluate(tmp_path / "out", data=few_rows)
    assert measured["accuracy"] == pytest.approx(figures["test"]["accuracy"]["mean"])
    [prediction] = firth.load(tmp_path / "out").predict(["a text"])
    assert sum(prediction.probabilities.values()) == pytest.approx(1.0)


def test_a_choice_compares_all_ways_and_says_which_is_best(
    learn: Callable[..., Any], few_rows: Path, tmp_path: Path, messages: Callable[[], str]
) -> None:
    unlabelled = tmp_path / "texts.txt"
    unlabelled.write_text("\n".join(f"a new text {number}" for number in range(8)) + "\n", "utf-8")
    learn("choose", "few.pseudo_most=6", label_words=words_for(few_rows), unlabelled=unlabelled)
    choice = read_json(tmp_path / "out" / "ways" / "choice.json")
    ways = ["plain", "contrast", "prompt"]
    assert list(choice["figures"]) == [*ways, *(f"{way}+unlabelled" for way in ways)]
    assert {len(values) for values in choice["figures"].values()} == {4}
    means = {way: np.mean(values) for way, values in choice["figures"].items()}
    assert means[choice["best"]] == max(means.values())
    assert f"{choice['best']}: {means[choice['best']]:.4f}" in messages()
    assert not list((tmp_path / "out" / "ways").rglob("model.safetensors"))  # only figures are kept


def test_self_training_adds_the_rows_that_a_teacher_labelled(learn: Callable[..., Any], tmp_path: Path) -> None:
    unlabelled = tmp_path / "texts.txt"
    unlabelled.write_text("\n".join(f"a new text {number}" for number in range(10)) + "\n", "utf-8")
    summary = learn("contrast", "few.pseudo_share=1", unlabelled=unlabelled)
    pseudo = read_table(tmp_path / "out" / "ways" / "pseudo.jsonl")
    assert 0 < len(pseudo) <= 10
    num_labelled = len((tmp_path / "few.tsv").read_text("utf-8").splitlines()) - 1
    assert summary["tasks"]["classify"]["rows"]["train"] == num_labelled + len(pseudo)


def test_self_training_that_keeps_nothing_is_plain(learn: Callable[..., Any], few_rows: Path, tmp_path: Path) -> None:
    unlabelled = tmp_path / "texts.txt"
    unlabelled.write_text("one more text\n", "utf-8")
    summary = learn("contrast", unlabelled=unlabelled)
    num_labelled = len(few_rows.read_text("utf-8").splitlines()) - 1
    assert summary["tasks"]["classify"]["rows"]["train"] == num_labelled
    known = few_rows.read_text("utf-8").splitlines()[1].split("\t")[0]
    unlabelled.write_text(f"{known}\n", "utf-8")
    with pytest.raises(BadInput, match="labelled rows, too"):
        learn("contrast", name="known", unlabelled=unlabelled)


def test_pairs_are_refused_before_anything_is_tried(learn: Callable[..., Any], tmp_path: Path) -> None:
    pairs = tmp_path / "pairs.tsv"
    lines = [f"day {number}\tnight {number}\t{number % 2}" for number in range(12)]
    pairs.write_text("\n".join(["sentence1\tsentence2\tlabel", *lines]) + "\n", "utf-8")
    unlabelled = tmp_path / "texts.txt"
    unlabelled.write_text("one more text\n", "utf-8")
    with pytest.raises(BadInput, match="these rows are pairs"):
        learn("choose", train=pairs, test=pairs, unlabelled=unlabelled)
    assert not (tmp_path / "out").exists()


@pytest.fixture
def unlabelled(learn: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Texts of a run by contrast that was stopped after its teacher had labelled them."""

    def stop(*arguments: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    texts = tmp_path / "texts.txt"
    texts.write_text("one more text\nand another\n", "utf-8")
    with monkeypatch.context() as stopped:
        stopped.setattr("firth.finetuning.few.ways.way_request", stop)  # after the teacher's answers
        with pytest.raises((KeyboardInterrupt, Interrupted)):
            learn("contrast", "few.pseudo_share=1", unlabelled=texts)
    return texts


@pytest.mark.parametrize("change", ["other rows", "another way"])
def test_what_was_tried_counts_for_the_same_request_only(
    change: str, learn: Callable[..., Any], tmp_path: Path, few_rows: Path, unlabelled: Path
) -> None:
    pseudo = tmp_path / "out" / "ways" / "pseudo.jsonl"
    written = pseudo.stat().st_mtime_ns
    way = "contrast"
    if change == "other rows":
        rows = few_rows.read_text("utf-8").splitlines()
        few_rows.write_text("\n".join(rows[:-1]) + "\n", "utf-8")
    else:
        # The labels are those of a teacher that learned by contrast.
        way = "plain"
    learn(way, "few.pseudo_share=1", unlabelled=unlabelled)
    assert pseudo.stat().st_mtime_ns != written


def test_a_finished_run_is_not_made_again(learn: Callable[..., Any], run: Path, tmp_path: Path) -> None:
    first = learn("contrast")
    again = firth.finetune(out=tmp_path / "out", few="contrast", resume=True, device="cpu")
    assert again == first


@pytest.mark.parametrize(
    ("few", "options", "said"),
    [
        ("best", {}, "known: plain, contrast, prompt, choose"),
        ("prompt", {}, "needs `label_words=`"),
        ("contrast", {"label_words": "a=b"}, "are for `few='prompt'`"),
        ("", {"unlabelled": "texts.txt"}, "goes with `few=`"),
        ("contrast", {"recipe": "ulmfit"}, "leave one out"),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    learn: Callable[..., Any], few: str, options: dict[str, str], said: str
) -> None:
    with pytest.raises(BadConfig, match=said):
        learn(few, **options)
