"""Two models on the same rows, weak slices, and drift: the tests are those of the books, the commands show them."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import firth
from firth import samples
from firth.errors import BadInput, Unsupported
from firth.metrics.paired import false_discovery, mcnemar, upper_tail
from firth.trust.comparing import bootstrap_interval, compare_models
from firth.trust.drift import _auc_error, _changed_words
from firth.trust.slices import groups_of, weak_groups
from firth.types import Example

stats = pytest.importorskip("scipy.stats")


@pytest.mark.parametrize(("first", "second"), [(3, 11), (0, 4), (7, 7), (30, 55), (0, 0)])
def test_mcnemar_is_the_exact_binomial_test(first: int, second: int) -> None:
    one = [True] * first + [False] * second + [True, False]
    other = [False] * first + [True] * second + [True, False]
    expected = stats.binomtest(first, first + second).pvalue if first + second else 1.0
    assert mcnemar(one, other) == pytest.approx(expected)


def test_the_upper_tail_is_that_of_fishers_test() -> None:
    for inside, drawn, marked, total in ((5, 10, 12, 60), (0, 10, 12, 60), (10, 10, 12, 60), (8, 30, 40, 45)):
        if drawn - inside > total - marked and inside < drawn - (total - marked):
            continue
        expected = stats.hypergeom.sf(inside - 1, total, marked, drawn)
        assert upper_tail(inside, drawn, marked, total) == pytest.approx(expected)


def test_false_discovery_is_scipys() -> None:
    values = [0.001, 0.2, 0.03, 0.04, 0.9, 0.0005]
    np.testing.assert_allclose(false_discovery(values), stats.false_discovery_control(values))


def test_the_bootstrap_covers_the_mean() -> None:
    values = np.arange(200) % 2
    low, high = bootstrap_interval(lambda rows: float(values[rows].mean()), 200, samples=500)
    deviation = 0.5 / math.sqrt(200)
    assert low == pytest.approx(0.5 - 1.96 * deviation, abs=0.02)
    assert high == pytest.approx(0.5 + 1.96 * deviation, abs=0.02)


def test_only_groups_with_too_many_errors_are_weak() -> None:
    right = np.ones(400, bool)
    right[:30] = False
    right[50::60] = False
    groups = {"weak": list(range(60)), "usual": list(range(100, 300)), "few": [0, 1, 2], "all": list(range(400))}
    found = weak_groups(groups, right, [Example(("a",), "x", row + 1) for row in range(400)])
    assert [each["name"] for each in found] == ["weak"]
    assert found[0]["accuracy"] < 0.5 < found[0]["rest"]
    assert found[0]["examples"] == [1, 2, 3, 4, 5]
    p_value = stats.hypergeom.sf(30, 400, int((~right).sum()), 60)
    assert found[0]["p_value"] == pytest.approx(p_value * 2, rel=0.01)


@pytest.fixture(scope="module")
def bags(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A classifier that knows all words, one that does not know 'awful' and 'great', and rows."""
    home = tmp_path_factory.mktemp("bags")
    lines = [f"{word} day {number}\t{label}" for number in range(20) for word, label in
             (("good", "pos"), ("bad", "neg"), ("great", "pos"), ("awful", "neg"))]  # fmt: skip
    found = {"rows": home / "rows.tsv", "train": home / "train.tsv"}
    found["rows"].write_text("\n".join(["text\tlabel", *lines]) + "\n")
    known = [line for line in lines if "great" not in line and "awful" not in line]
    found["train"].write_text("\n".join(["text\tlabel", *known]) + "\n")
    for name, rows in (("full", found["rows"]), ("part", found["train"])):
        found[name] = home / name
        firth.finetune(recipe="fasttext", task="classify", train=rows, dev=rows, out=found[name])
    return found


def test_two_models_are_compared_on_the_same_rows(bags: dict[str, Path], command: Callable[..., Any]) -> None:
    shown = command("evaluate", bags["full"], "--data", bags["rows"], "--against", bags["part"], "--json")
    found = json.loads(shown.out)
    assert found["first"]["accuracy"] == 1
    assert found["only_second_right"] == 0
    assert found["difference"] == pytest.approx(found["only_first_right"] / 80)
    assert found["p_value"] < 0.001
    assert 0 < found["interval"][0] < found["difference"] < found["interval"][1]
    assert found["verdict"] == "the first model is better"
    same = json.loads(
        command("evaluate", bags["full"], "--data", bags["rows"], "--against", bags["full"], "--json").out
    )
    assert same["verdict"] == "these rows do not show that either is better"


def test_slices_name_the_words_on_which_a_model_is_weak(bags: dict[str, Path], command: Callable[..., Any]) -> None:
    shown = command("evaluate", bags["part"], "--data", bags["rows"], "--slices").out
    found = json.loads(command("evaluate", bags["part"], "--data", bags["rows"], "--slices", "--json").out)
    names = {each["name"] for each in found["slices"]}
    assert names & {"has the word 'great'", "has the word 'awful'"}
    assert not names & {"has the word 'good'", "has the word 'bad'", "has the word 'day'"}
    assert found["slices"][0]["name"] in shown
    clean = command("evaluate", bags["full"], "--data", bags["rows"], "--slices").out
    assert "No group of rows has more errors than chance explains." in clean


def test_groups_are_found_in_the_same_order_each_time(bags: dict[str, Path], tmp_path: Path) -> None:
    from firth.trust.rows import answer_file

    rows = tmp_path / "rows.tsv"
    lines = ["six five four three two one\tpos" if number % 2 else "good\tneg" for number in range(40)]
    rows.write_text("\n".join(["text\tlabel", *lines]) + "\n")
    names = list(groups_of(answer_file(bags["full"], rows)))
    words = [name.split("'")[1] for name in names if name.startswith("has the word")]
    assert words == ["good", "five", "four", "one", "six", "three", "two"]


def test_comparing_needs_rows_that_are_right_or_wrong(run: Path, tmp_path: Path) -> None:
    from firth.trust.rows import answer_file

    rows = tmp_path / "numbers.tsv"
    rows.write_text("text\tlabel\n" + "".join(f"day {i}\t{i}\n" for i in range(12)))
    firth.finetune(run, task="classify", kind="number", train=rows, out=tmp_path / "model", changes=["epochs=1"])
    with pytest.raises(Unsupported, match="neither right nor wrong"):
        answer_file(tmp_path / "model", rows)
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("anchor\tpositive\n" + "".join(f"day {i}\tnight {i}\n" for i in range(12)))
    firth.finetune(run, task="compare", train=pairs, out=tmp_path / "pairs", changes=["epochs=1"])
    with pytest.raises(Unsupported, match="neither right nor wrong"):
        answer_file(tmp_path / "pairs", pairs)


def test_a_bad_row_is_refused_or_left_out(bags: dict[str, Path], tmp_path: Path, command: Callable[..., Any]) -> None:
    from firth.trust.rows import answer_file

    rows = tmp_path / "rows.tsv"
    rows.write_text("text\tlabel\ngood day\tpos\n\tneg\nbad day\tneg\n")
    with pytest.raises(BadInput, match=r"row 3: an empty text; .*, or leave such rows out with `skip_bad=True`\.$"):
        answer_file(bags["full"], rows)
    for option in (("--slices",), ("--against", bags["part"])):
        shown = command("evaluate", bags["full"], "--data", rows, *option, "--skip-bad", "--json")
        assert json.loads(shown.out)["rows"] == 2
        assert "1 bad row skipped." in shown.err


def test_rows_that_are_bad_for_one_model_are_left_out_for_both(bags: dict[str, Path], tmp_path: Path) -> None:
    names = tmp_path / "names.tsv"
    lines = [f"{word} day {number}\t{word}" for number in range(20) for word in ("good", "pos")]
    names.write_text("\n".join(["text\tlabel", *lines]) + "\n")
    firth.finetune(recipe="fasttext", task="classify", train=names, dev=names, out=tmp_path / "names")
    rows = tmp_path / "rows.tsv"
    rows.write_text("text\tlabel\nbad day\tneg\ngood day\tpos\nfine day\tpos\n")
    found = compare_models(bags["full"], tmp_path / "names", data=rows, skip_bad=True)
    assert found["rows"] == 2
    rows.write_text("text\tlabel\nbad day\tneg\ngood day\tgood\n")
    with pytest.raises(BadInput, match="is good for both models"):
        compare_models(bags["full"], tmp_path / "names", data=rows, skip_bad=True)


def test_rows_that_were_learned_from_are_warned_about(bags: dict[str, Path], command: Callable[..., Any]) -> None:
    for option in (("--slices",), ("--against", bags["part"])):
        shown = command("evaluate", bags["full"], "--data", bags["rows"], *option)
        assert f"{bags['rows']} holds the rows that {bags['full']} was trained on" in shown.err
        assert f"{bags['part']} was trained on" not in shown.err


def test_draws_without_a_figure_do_not_count() -> None:
    """The AUC of rows that all have one label is undefined."""
    is_alike = np.arange(8) == 0

    def figure(rows: np.ndarray) -> float:
        return 1.0 if is_alike[rows].any() else float("nan")

    assert bootstrap_interval(figure, 8, samples=100) == (1.0, 1.0)
    low, high = bootstrap_interval(lambda rows: float("nan"), 8, samples=10)
    assert math.isnan(low)
    assert math.isnan(high)


# Drift


def test_drift_is_seen_between_languages_of_sport_and_not_within(
    run: Path, bags: dict[str, Path], tmp_path: Path, command: Callable[..., Any]
) -> None:
    lines = [line for line in samples.prose("en").read_text("utf-8").splitlines() if len(line) > 40][:120]
    old = tmp_path / "old.txt"
    same = tmp_path / "same.txt"
    other = tmp_path / "other.txt"
    old.write_text("\n".join(lines[::2]))
    same.write_text("\n".join(lines[1::2]))
    other.write_text("\n".join(f"goal goal number {number} 今天 比赛" for number in range(60)))
    unchanged = json.loads(command("drift", old, same, "--model", run, "--json").out)
    assert unchanged["drifted"] is False
    changed = json.loads(command("drift", old, other, "--model", run, "--json").out)
    assert changed["drifted"] is True
    assert changed["auc"] > 0.95
    assert changed["more_frequent"][0][0] in {"goal", "number", "今天", "比赛"}
    shown = command("drift", old, other, "--model", run).out
    assert shown.startswith("the new texts differ from the old ones")
    assert "unlike: goal goal number" in shown
    assert "no drift is seen" in command("drift", old, same, "--model", run).out


def test_drift_compares_the_labels_of_a_classifier(bags: dict[str, Path]) -> None:
    from firth.trust.drift import find_drift

    found = find_drift(bags["rows"], bags["train"], model=bags["full"])
    assert found["old"]["labels"] == {"neg": 0.5, "pos": 0.5}
    assert found["old"]["texts"] == 80
    assert found["new"]["texts"] == 40
    assert 0.5 < (found["new"]["confidence"] or 0) <= 1


def test_drift_reads_pairs_as_a_classifier_of_pairs_does(run: Path, tmp_path: Path) -> None:
    from firth.trust.drift import find_drift

    pairs = tmp_path / "pairs.tsv"
    lines = [f"day {number}\tnight {number}\t{number % 2}" for number in range(12)]
    pairs.write_text("\n".join(["sentence1\tsentence2\tlabel", *lines]) + "\n")
    firth.finetune(run, task="classify", train=pairs, out=tmp_path / "pair-model", changes=["epochs=1"])
    found = find_drift(pairs, pairs, model=tmp_path / "pair-model")
    assert set(found["old"]["labels"]) <= {"0", "1"}
    assert sum(found["old"]["labels"].values()) == pytest.approx(1.0)


def test_several_names_of_a_row_are_shown_as_they_are_written(run: Path, tmp_path: Path) -> None:
    from firth.trust.drift import find_drift

    rows = tmp_path / "names.tsv"
    rows.write_text("text\tlabel\n" + "".join(f"day {i}\t{'warm,dry' if i % 2 else 'warm'}\n" for i in range(12)))
    firth.finetune(run, task="classify", kind="many", train=rows, out=tmp_path / "model", changes=["epochs=1"])
    found = find_drift(rows, rows, model=tmp_path / "model")
    assert set(found["old"]["labels"]) <= {"(none)", "warm", "dry", "dry, warm"}


def test_numbers_are_no_labels_of_drift(run: Path, tmp_path: Path) -> None:
    from firth.trust.drift import find_drift

    rows = tmp_path / "numbers.tsv"
    rows.write_text("text\tlabel\n" + "".join(f"day {i}\t{i}\n" for i in range(12)))
    firth.finetune(run, task="classify", kind="number", train=rows, out=tmp_path / "model", changes=["epochs=1"])
    found = find_drift(rows, rows, model=tmp_path / "model")
    assert found["old"]["labels"] == {}
    assert found["old"]["confidence"] is None


def test_too_few_texts_show_no_drift(run: Path, tmp_path: Path) -> None:
    from firth.trust.drift import find_drift

    path = tmp_path / "few.txt"
    path.write_text("a day\n\na night\n")
    copies = tmp_path / "copies.txt"
    copies.write_text("the disk is full\n" * 40)
    with pytest.raises(BadInput, match="has 1 different text;"):
        find_drift(copies, copies, model=run)
    with pytest.raises(BadInput, match="has 2 different texts; it takes at least 10"):
        find_drift(path, path, model=run)


def test_the_error_of_an_auc() -> None:
    # Of 50 and 50 texts at AUC 0.5: sqrt((n + m + 1) / (12 n m)), as for Mann-Whitney's U.
    assert _auc_error(0.5, 50, 50) == pytest.approx(math.sqrt(101 / (12 * 2500)), rel=0.01)


def test_changed_words_are_ranked_by_their_z_scores() -> None:
    risen, fallen = _changed_words(["a day", "a day"] * 10, ["a night", "a night"] * 10)
    assert risen[0][0] == "night"
    assert fallen[0][0] == "day"
    assert risen[0][1] == pytest.approx(-fallen[0][1])


def test_a_single_word_has_no_odds() -> None:
    assert _changed_words(["Yes.", "yes!"], ["Yes?"]) == ([], [])
    assert _changed_words(["..."], ["!!!"]) == ([], [])
