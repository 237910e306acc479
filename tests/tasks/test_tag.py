"""Tagging: files of tagged words, windows of whole words, legal decoding, places in the text."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from firth.checkpoint import make_head
from firth.encoders.bert import Bert
from firth.errors import BadInput
from firth.finetuning import labelled
from firth.finetuning.labelled import Labelled
from firth.metrics import PREFIXES
from firth.nn import schemes
from firth.tasks import conll, scorer_of
from firth.tasks.predicting import predict
from firth.tasks.tag import TagConfig, TagHead, TagReader
from firth.tasks.word_windows import word_windows
from firth.tokenizers.wordpiece import WordPiece
from firth.types import Problem

CONLL = "-DOCSTART- -X- O\n\nEU NNP B-ORG\nrejects VBZ O\nJohn NNP B-PER\nSmith NNP I-PER\n\nPeace NN O\n. . O\n"


@pytest.fixture
def read(tmp_path: Path) -> Callable[..., Labelled]:
    def call(text: str, **config: Any) -> Labelled:
        path = tmp_path / "tagged.txt"
        path.write_text(text, "utf-8")
        return labelled.read("tag", TagConfig(**config), {"train": path})

    return call


@pytest.fixture
def make(small_bert: Callable[..., Bert]) -> Callable[..., tuple[TagHead, Bert]]:
    def build(data: Labelled) -> tuple[TagHead, Bert]:
        encoder = small_bert()
        task = make_head("tag", data.config, encoder, labels=data.labels)
        assert isinstance(task, TagHead)
        return task, encoder

    return build


def test_columns_become_sentences_with_places(read: Callable[..., Labelled]) -> None:
    data = read(CONLL)
    first, second = data.examples["train"]
    assert first.texts == ("EU rejects John Smith",)
    assert first.gold == ("B-ORG", "O", "B-PER", "I-PER")
    assert [first.texts[0][a:b] for a, b in first.words] == ["EU", "rejects", "John", "Smith"]  # type: ignore[attr-defined]
    assert (first.row, second.row) == (3, 8)
    assert (data.config.scheme, data.config.unit) == ("BIO", "word")
    assert data.labels == {"tag": ("B-ORG", "B-PER", "I-PER", "O")}
    assert read(CONLL, tag_column=2).labels == {"tag": (".", "NN", "NNP", "VBZ")}


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("text\tlabel\nthe soup was cold\tbad\na lovely day\tgood\n", "a table of texts"),
        ("the soup was cold\tbad\n\na lovely day\tgood\n\n", "a table of texts"),
        ("今天天气好\tgood\n汤是冷的\tbad\n", "a text on each line"),
        ("我们 在 图书馆 。\n他 来 了\n我 不 知道\n", "a text on each line"),
        ('{"text": "a b", "label": "x"}\n{"text": "c", "label": "y"}\n', "JSON lines"),
    ],
)
def test_a_file_of_another_task_says_what_it_looks_like(read: Callable[..., Labelled], text: str, form: str) -> None:
    expected = f"columns of tagged words but like {form}; a word and its tag are expected on each line"
    with pytest.raises(BadInput, match=expected) as error:
        read(text)
    assert "`task='classify'`" in str(error.value)
    assert "`format='words'`" in str(error.value)


def test_columns_without_blank_lines_are_one_sentence(read: Callable[..., Labelled]) -> None:
    data = read("EU B-ORG\nrejects O\nit O\n")
    with pytest.raises(BadInput, match=r"Only 1 training row.* The file needs a blank line between sentences"):
        labelled.hold_out("tag", data, rate=0.1, seed=1)


def test_columns_that_tabs_and_spaces_separate_are_columns(read: Callable[..., Labelled]) -> None:
    data = read("EU NNP\tB-ORG\nrejects VBZ\tO\n\nPeace NN\tO\n")
    assert [example.gold for example in data.examples["train"]] == [("B-ORG", "O"), ("O",)]


def test_a_table_of_texts_is_not_read_as_words_without_tags(tmp_path: Path) -> None:
    table = tmp_path / "texts.tsv"
    table.write_text("text\tlabel\nthe soup was cold\tbad\na lovely day\tgood\n")
    with pytest.raises(BadInput, match=r"write each text on a line of its own into a file that ends in \.txt"):
        TagReader(TagConfig()).read(table, [], labelled=False)


def test_chinese_characters_stand_without_spaces(read: Callable[..., Labelled]) -> None:
    data = read("北 B-LOC\n京 I-LOC\n有 O\nBERT O\n\n我0 O\n们1 O\n")
    assert [e.texts[0] for e in data.examples["train"]] == ["北京有BERT", "我0们1"]
    assert read("我0\tO\n们1\tB-X\n", word_index=True).examples["train"][0].texts == ("我们",)


def test_segmented_text_becomes_marks_and_back(
    read: Callable[..., Labelled], make: Callable[..., tuple[TagHead, Bert]], tokenizer: WordPiece
) -> None:
    data = read("我们  在  图书馆  。\n他  来  了\n", format="words")
    first = data.examples["train"][0]
    assert first.texts == ("我们在图书馆。",)
    assert "".join(first.gold) == "BESBMES"
    assert (data.config.scheme, data.config.unit) == ("BMES", "character")
    task, _ = make(data)
    prediction = scorer_of(task).perfect(first)
    assert scorer_of(task).score([prediction], [first])["f1"] == 1.0
    encoder = make(data)[1]
    items = task.encode([TagReader(data.config).example("我们在图书馆。")], tokenizer, max_length=64, training=False)
    words = [span.text for span in predict(encoder, task, items)[0].spans]
    assert "".join(words) == "我们在图书馆。"


def test_a_repaired_file_is_in_the_newer_form(read: Callable[..., Labelled]) -> None:
    old = "A I-PER\nB I-PER\nC I-LOC\nD O\nE I-PER\n\nF B-LOC\nG B-PER\n"
    broken = read(old)
    assert [p.row for p in broken.problems["train"] if p.bad] == [1]
    assert "illegal in BIO" in broken.problems["train"][0].what
    assert read(old, repair=True).examples["train"][0].gold == ("B-PER", "I-PER", "B-LOC", "O", "B-PER")


RESUME = "张 B-NAME\n三 E-NAME\n任 O\n\n某 O\n公 B-ORG\n司 M-ORG\n董 M-ORG\n\n在 O\n厂 S-ORG\n内 B-ORG\n外 E-ORG\n"


def test_a_sentence_that_ends_inside_an_entity_is_named_by_its_last_line_and_repaired(
    read: Callable[..., Labelled],
) -> None:
    broken = read(RESUME)
    (problem,) = broken.problems["train"]
    assert (problem.row, problem.what) == (8, "the sentence ends inside ORG (its last tag is M-ORG)")
    assert "tasks.tag.repair=true" in problem.remedy
    assert [example.row for example in broken.examples["train"]] == [1, 10]
    assert broken.num_skipped == {"train": 1}
    whole = read(RESUME, repair=True)
    assert whole.problems["train"] == []
    assert whole.examples["train"][1].gold == ("O", "B-ORG", "M-ORG", "E-ORG")
    marks = read("a B\nb E\nc S\n\nd S\ne B\n")
    assert [(p.row, p.what) for p in marks.problems["train"]] == [
        (6, "the sentence ends inside a word (its last tag is B)")
    ]


@pytest.mark.parametrize(
    ("scheme", "tags", "wanted"),
    [
        ("BMES", "B-X", "S-X"),
        ("BMES", "M-X M-X O E-X", "B-X E-X O S-X"),
        ("BMES", "B-X M-X B-Y M-X E-X", "B-X E-X S-Y B-X E-X"),
        ("BMES", "B M M", "B M E"),
        ("BIOES", "B-X I-X S-Y I-Y", "B-X E-X S-Y S-Y"),
        ("BIOES", "B-X I-X E-X O S-X", "B-X I-X E-X O S-X"),
        ("BIO", "I-X I-X I-Y O B-Y I-X", "B-X I-X B-Y O B-Y B-X"),
    ],
)
def test_repaired_tags_are_legal(scheme: Any, tags: str, wanted: str) -> None:
    found = conll.repaired(conll.sentence(["w"] * len(tags.split()), tuple(tags.split())), scheme).gold
    assert found == tuple(wanted.split())
    names = [f"{part}-{kind}" for part in PREFIXES[scheme].replace("O", "") for kind in "XY"]
    names = ["O", *(names if "-" in wanted else [*PREFIXES[scheme].replace("O", "")])]
    legal = schemes.legal_transitions(names, scheme)
    assert legal.first_break(torch.tensor([names.index(tag) for tag in found])) is None


def test_tags_after_slashes_are_repaired_and_a_forbidden_pair_is_named(read: Callable[..., Labelled]) -> None:
    text = "a/O b/B-X\nc/B-X d/E-X e/S-X\n"
    assert [(p.row, p.what) for p in read(text, format="tagged").problems["train"]] == [
        (1, "the sentence ends inside X (its last tag is B-X)")
    ]
    assert read(text, format="tagged", repair=True).examples["train"][0].gold == ("O", "S-X")
    (pair,) = read("a O\nb O\nc B-X\n\nd O\ne B-X\n", forbidden=("O O",), repair=True).problems["train"]
    assert (pair.row, pair.what) == (2, "word 2: 'O O' is a forbidden pair")
    assert "tasks.tag.forbidden" in pair.remedy


def test_bad_sentences_are_told_and_the_others_kept(read: Callable[..., Labelled], tmp_path: Path) -> None:
    data = read(f"a O\nb\n\nc O\nd B-X\n\n{'e O' + chr(10) + ''}" + "e O\n" * 6000)
    assert len(data.examples["train"]) == 1
    assert [(p.row, p.what) for p in data.problems["train"]] == [
        (2, "a word without its columns"),
        (7, "a sentence of 6,001 words"),
    ]
    with pytest.raises(BadInput, match="is empty"):
        read("\n \n")
    with pytest.raises(BadInput, match="nothing to learn"):
        read("a O\nb O\n")
    unseen = list(TagReader(data.config).problems(data.examples["train"], {"tag": ("B-Y", "O")}))
    assert "'B-X' never occurs in training" in unseen[0].what
    assert unseen[0].row == 5


@pytest.mark.parametrize("tagger", ["softmax", "crf"])
def test_predictions_are_legal_and_their_places_slice_the_text(
    read: Callable[..., Labelled], make: Callable[..., tuple[TagHead, Bert]], tokenizer: WordPiece, tagger: str
) -> None:
    data = read("a B-PER\nb I-PER\nc E-PER\nd S-LOC\ne O\n\nf B-LOC\ng E-LOC\n", tagger=tagger)
    assert data.config.scheme == "BIOES"
    assert "I-PER" in data.labels["tag"]
    task, encoder = make(data)
    torch.nn.init.normal_(task.tagger.head.weight)  # type: ignore[arg-type,union-attr]
    texts = ["Tall trees, old rivers and a good road.", "用语言模型来预测 BERT 的下一个词。", "x", ""]
    items = task.encode(
        [TagReader(data.config).example(text) for text in texts], tokenizer, max_length=64, training=False
    )
    predictions = predict(encoder, task, items)
    legal = task.tagger.legal  # type: ignore[union-attr]
    index = {tag: i for i, tag in enumerate(task.tags)}
    for text, prediction in zip(texts, predictions, strict=True):
        ids = torch.tensor([index[tag] for tag in prediction.label], dtype=torch.long)
        assert not len(ids) or not legal.breaks(ids, torch.tensor([0, len(ids)])).any()  # type: ignore[union-attr,operator]
        assert all(text[span.start : span.end] == span.text for span in prediction.spans)
    assert predictions[3].label == ()
    assert sum(len(p.spans) for p in predictions) > 0


def test_windows_hold_whole_words_overlap_and_cover_everything() -> None:
    ends = np.cumsum([1, 3, 2, 5, 1, 1, 4, 2, 2, 3] * 6)
    spans = word_windows(ends, 16)
    starts = np.concatenate([[0], ends[:-1]])
    assert spans[0][0] == 0
    assert spans[-1][1] == len(ends)
    assert all(ends[last - 1] - starts[first] <= 16 for first, last in spans)
    assert all(one[0] < other[0] < one[1] < other[1] for one, other in pairwise(spans))
    assert word_windows(np.empty(0, np.int64), 16) == [(0, 0)]


def test_a_long_text_is_decoded_as_one_chain_from_the_middles_of_its_windows(
    read: Callable[..., Labelled], make: Callable[..., tuple[TagHead, Bert]], tokenizer: WordPiece
) -> None:
    data = read(CONLL, tagger="crf")
    task, encoder = make(data)
    words = [f"word{i}" for i in range(150)]
    item = task.encode([conll.sentence(words)], tokenizer, max_length=64, training=False)[0]
    assert len(item.windows) > 2
    chosen: np.ndarray = item.facts
    assert (np.diff(chosen) >= 0).all()
    assert set(chosen.tolist()) == set(range(len(item.windows)))
    prediction = predict(encoder, task, [item])[0]
    assert len(prediction.label) == 150
    whole = conll.sentence(words, tuple(prediction.label))
    (training,) = task.encode([whole], tokenizer, max_length=64, training=True)
    batch = task.batch([training])
    assert batch.targets["words_B1"].tolist() == [0, 150]
    first_ids = batch.ids_N[batch.targets["rows_W"]]
    assert first_ids.tolist() == [int(tokenizer.encode(word).ids[0]) for word in words]


def test_words_that_the_tokenizer_drops_keep_their_place(
    read: Callable[..., Labelled], make: Callable[..., tuple[TagHead, Bert]], tokenizer: WordPiece
) -> None:
    task, encoder = make(read(CONLL))
    words = ["a", "\u200d", "b" * 3000, "c"]
    (item,) = task.encode([conll.sentence(words)], tokenizer, max_length=64, training=False)
    assert len(predict(encoder, task, [item])[0].label) == 4


def test_raw_text_is_cut_as_the_training_text_was() -> None:
    config = TagConfig(unit="word")
    text = "He's in the U.S.-led team, 上海 2024."
    example = TagReader(config).example(text)
    words = [text[a:b] for a, b in example.words]  # type: ignore[attr-defined]
    assert words == ["He's", "in", "the", "U.S", ".", "-", "led", "team", ",", "上", "海", "2024", "."]
    split = TagReader(TagConfig(unit="character")).example("ab 上")
    assert split.words == ((0, 1), (1, 2), (3, 4))  # type: ignore[attr-defined]
    assert TagReader(config).example(["New", "York"]).texts == ("New York",)
    with pytest.raises(BadInput, match="a text or a list of words"):
        TagReader(config).example(7)


def test_reading_without_tags(tmp_path: Path) -> None:
    path = tmp_path / "plain.txt"
    path.write_text("one\ntwo\n\nthree\n")
    problems: list[Problem] = []
    rows = TagReader(TagConfig()).read(path, problems, labelled=False)
    assert [row.texts[0] for row in rows] == ["one two", "three"]
    assert rows[0].gold is None
    assert not problems


@pytest.mark.parametrize("column", [5, -4])
def test_a_column_that_is_not_there_is_told_with_its_line(read: Callable[..., Labelled], column: int) -> None:
    with pytest.raises(BadInput, match=rf"tagged\.txt has no row .*row 1: 3 columns where {abs(column)} are needed"):
        read(CONLL, tag_column=column)
