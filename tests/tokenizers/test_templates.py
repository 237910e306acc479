"""Features from templates: what they are made of, what is known, what an unknown unit becomes."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from firth import tokenizers
from firth.errors import FirthError
from firth.tokenizers import units
from firth.tokenizers.templates import Templates

TEXT = ["我们在家", "我们在这里", "他们在家", "2024年"]


def learned(*templates: str, **settings: int) -> Templates:
    return Templates.learn(TEXT, Templates.Config(templates=templates, **{"min_count": 1, **settings}))


def rows(tokenizer: Templates, text: str) -> list[set[int]]:
    parts, bounds = tokenizer.parts([text])
    return [set(parts[a:b].tolist()) for a, b in pairwise(bounds)]


def test_a_template_is_known_by_its_values_in_training() -> None:
    tokenizer = learned("%x[-1,unit]/%x[0,unit]", min_feature_count=1)
    pairs = {(a, b) for text in TEXT for a, b in zip(["^", *text], text, strict=False)}
    assert len(tokenizer.keys_F) == len(pairs)
    met, unmet = rows(tokenizer, "我们")[1], rows(tokenizer, "家们")[1]
    assert len(met) == 2
    assert len(unmet) == 1
    assert met > unmet == {tokenizer.vocab.ids["们"]}


def test_rare_values_are_no_features() -> None:
    assert len(learned("%x[1,unit]", min_feature_count=2).keys_F) == len({"们", "在", "家", "^"})
    assert len(learned("%x[1,unit]", min_feature_count=9).keys_F) == 0


def test_features_stay_within_their_sentence_and_do_not_depend_on_company() -> None:
    tokenizer = learned("usual", min_feature_count=1)
    together, bounds = tokenizer.parts(TEXT)
    alone = [tokenizer.parts([text])[0] for text in TEXT]
    assert together.tolist() == np.concatenate(alone).tolist()
    assert len(bounds) == sum(map(len, TEXT)) + 1
    empty, one = tokenizer.parts([])
    assert (len(empty), one.tolist()) == (0, [0])
    assert tokenizer.parts(["", "我", ""])[0].tolist() == tokenizer.parts(["我"])[0].tolist()
    assert together.max() < tokenizer.num_rows


def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = learned("usual", min_feature_count=1)
    monkeypatch.setattr("firth.tokenizers.templates._BLOCK", 3)
    parted = learned("usual", min_feature_count=1)
    assert parted.fingerprint == whole.fingerprint
    assert [part.tolist() for part in parted.parts(TEXT)] == [part.tolist() for part in whole.parts(TEXT)]


def test_wide_digits_are_narrow_ones() -> None:
    tokenizer = learned("usual", min_feature_count=1)
    assert rows(tokenizer, "２０２４年") == rows(tokenizer, "2024年")


@pytest.mark.parametrize(
    ("unit", "kind"),
    [
        ("７", "digit"), ("两", "numeral"), ("月", "date"), ("Q", "latin"), ("，", "punctuation"), ("龘", "chinese"),
        ("é", "other"), ("1,024.5%", "number"), ("B2B", "mixed"), ("NATO", "upper"), ("Firth", "capital"),
    ],
)  # fmt: skip
def test_unknown_units_have_a_class_by_shape(unit: str, kind: str) -> None:
    assert units.SHAPES[units.class_of(unit, {})] == kind


def test_unknown_words_have_a_class_by_suffix() -> None:
    words = [f"w{i}ing" for i in range(30)] + [f"字{i}者" for i in range(30)] + ["ox"]
    suffixes = {suffix: i for i, suffix in enumerate(units.common_suffixes(words))}
    assert {"ing", "者"} <= suffixes.keys()
    assert units.class_of("running", suffixes) == len(units.SHAPES) + suffixes["ing"]
    assert units.class_of("读者", suffixes) == len(units.SHAPES) + suffixes["者"]
    assert units.class_of("猫", suffixes) == units.SHAPES.index("chinese")


def test_shapes() -> None:
    assert [units.shape(word) for word in ("McDonald", "1998-01", "ＩＢＭ", "上海市")] == ["XxXxx", "dd-dd", "XX", "cc"]


@pytest.mark.parametrize(
    ("template", "says"),
    [
        ("U00:%x[0,0]", "is not of the form"),
        ("%x[0,word]", "no column 'word'"),
        ("%x[99,unit]", "20 is the farthest"),
        ("", "is not of the form"),
    ],
)
def test_templates_that_make_no_sense(template: str, says: str) -> None:
    with pytest.raises(FirthError, match=says):
        Templates.Config(templates=(template,))


def test_a_saved_folder_gives_the_same_features_and_a_damaged_one_is_told(tmp_path: Path) -> None:
    tokenizer = learned("usual", "%x[0,suffix2]", min_feature_count=1)
    tokenizer.save(tmp_path)
    again = tokenizers.load(tmp_path)
    assert isinstance(again, Templates)
    assert again.fingerprint == tokenizer.fingerprint
    assert again.parts(["他在这里吗"])[0].tolist() == tokenizer.parts(["他在这里吗"])[0].tolist()
    (tmp_path / "features.npy").write_bytes(b"not an array")
    with pytest.raises(FirthError, match=r"features\.npy cannot be read"):
        tokenizers.load(tmp_path)


@pytest.mark.parametrize("bound", ["MOST", "MOST_CHARACTERS"])
def test_units_are_forgotten_when_there_are_too_many(bound: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(units, bound, 3)
    tokenizer = learned("usual", min_feature_count=1)
    before = [part.tolist() for part in tokenizer.parts(TEXT)]
    tokenizer.parts(["甲乙丙丁戊己庚辛"])
    tokenizer.parts(["子"])
    assert tokenizer._units.keys() == {"子"}
    assert [part.tolist() for part in tokenizer.parts(TEXT)] == before
