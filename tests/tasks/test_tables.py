"""Tables as people and publishers write them."""

import gzip
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from firth.errors import BadConfig, BadInput
from firth.tasks.classify import ClassifyConfig, ClassifyReader
from firth.types import Example, Problem

Reader = Callable[..., tuple[list[Example], list[Problem]]]


@pytest.fixture
def read(tmp_path: Path) -> Reader:
    """Writes a file and reads it as rows to classify."""

    def call(text: str, name: str = "rows.tsv", **config: object) -> tuple[list[Example], list[Problem]]:
        path = tmp_path / name
        path.write_bytes(text.encode())
        problems: list[Problem] = []
        settled = ClassifyConfig(**config).with_preset()  # type: ignore[arg-type]
        return ClassifyReader(settled).read(path, problems), problems

    return call


def test_tabs_commas_and_json_give_the_same_examples(read: Reader) -> None:
    wanted = [Example(('Say "hello", twice.',), "yes", 2), Example(("Plain.",), "no", 3)]
    assert read('text\tlabel\nSay "hello", twice.\tyes\nPlain.\tno\n') == (wanted, [])
    assert read('text,label\r\n"Say ""hello"", twice.",yes\r\nPlain.,no\r\n', "rows.csv") == (wanted, [])
    rows = '\n{"label": "yes", "text": "Say \\"hello\\", twice."}\n{"text": "Plain.", "label": "no"}\n'
    assert read(rows, "rows.jsonl") == (wanted, [])
    assert [e.gold for e in read('[{"text": "a", "label": 1}]', "rows.json")[0]] == ["1"]


def test_a_byte_order_mark_and_a_csv_cut_at_tabs(read: Reader) -> None:
    assert read("\ufefftext\tlabel\na b\tx\n")[0] == [Example(("a b",), "x", 2)]
    assert read("id\tquery0\tquery1\tlabel\n1\t甲,乙\t丙\t1\n", "rows.csv")[0] == [Example(("甲,乙", "丙"), "1", 2)]


def test_line_ends_of_old_macs(read: Reader) -> None:
    assert read("text\tlabel\ra b\tx\rc\ty\r")[0] == [Example(("a b",), "x", 2), Example(("c",), "y", 3)]


def test_a_file_whose_first_json_row_cannot_be_read_says_why(read: Reader) -> None:
    with pytest.raises(BadInput, match=r"named columns \(row 1: broken JSON.*\); write rows such as"):
        read('{"text": "a", "label"\n', "rows.jsonl")


def test_columns_by_name_by_number_and_by_well_known_names(read: Reader) -> None:
    table = "a\tb\tc\n1\tfirst\tsecond\n"
    named = {"text_column": "b", "second_column": "c", "label_columns": ("a",)}
    assert read(table, **named)[0] == [Example(("first", "second"), "1", 2)]
    counted = {"text_column": "2", "label_columns": ("1",)}
    assert read("1\tfirst\n0\tother\n", **counted)[0] == [Example(("first",), "1", 1), Example(("other",), "0", 2)]
    # A header may have a column with the name 0.
    assert read("0\tlabel\na\tx\n", text_column="0")[0] == [Example(("a",), "x", 2)]
    assert read("premise\thypothesis\tlabel\np\th\tx\n")[0] == [Example(("p", "h"), "x", 2)]


def test_the_only_column_beside_the_label_is_the_text(read: Reader) -> None:
    wanted = [Example(("Fine, all in all.",), "1", 2)]
    assert read('label,review\n1,"Fine, all in all."\n', "rows.csv") == (wanted, [])
    assert read('review,score\n"Fine, all in all.",1\n', "rows.csv") == (wanted, [])
    assert read("stars\treview\n1\tFine, all in all.\n", label_columns=("stars",)) == (wanted, [])
    assert read('{"label": 1, "review": "Fine, all in all."}', "rows.json")[0][0].texts == wanted[0].texts
    assert read('label,review,text\n1,no,"Fine, all in all."\n', "rows.csv") == (wanted, [])
    with pytest.raises(BadInput, match=r"no column is known to be the text.*label, review, title"):
        read("label,review,title\n1,a,b\n", "rows.csv")


@pytest.mark.parametrize(
    ("table", "config", "says"),
    [
        ("gj04\t1\t\tA sentence.\n", {}, r"no column is known to be the text.*`text_column=`.*gj04"),
        ("text\tsentence\tlabel\na\tb\tc\n", {}, r"several columns could be the text.*text, sentence, label"),
        ('"text"\t"label"\n"a"\t"b"\n', {}, r"names of its columns are in quotes .*; save the table as .csv"),
        ("text\tkind\na\tb\n", {}, r"no column is known to be the label; name it with `label_columns=`"),
        ("text\tlabel\na\tb\n", {"text_column": "txt"}, r"has no column 'txt'; its columns are text, label"),
        ("text\tlabel\na\tb\n", {"text_column": "1", "label_columns": ("label",)}, r"mixes both"),
        ("a\tb\n", {"text_column": "0", "label_columns": ("1",)}, r"has no column 0: columns are counted from 1"),
        ("a\tb\n", {"text_column": "1", "label_columns": ("0",)}, r"has no column 0: columns are counted from 1"),
        ("text\ttext\tlabel\na\tb\tc\n", {}, r"has several columns 'text'; give them different names"),
        ("text\na\n", {}, r"has only one column \(text\), so its texts have no labels; add a column of labels"),
        ("", {}, r"is empty"),
    ],
)
def test_what_cannot_be_a_table_is_one_sentence(read: Reader, table: str, config: dict[str, object], says: str) -> None:
    with pytest.raises(BadInput, match=says):
        read(table, **config)


def test_the_second_column_alone_is_no_pair(read: Reader) -> None:
    with pytest.raises(BadConfig, match="name the first with `text_column=`"):
        read("text\tsay\tlabel\na\tb\tc\n", second_column="say")


def test_columns_with_one_name_that_are_not_read(read: Reader) -> None:
    assert read("text\tid\tid\tlabel\na\t1\t2\tx\n")[0] == [Example(("a",), "x", 2)]
    counted = {"text_column": "1", "label_columns": ("2",)}
    assert read("same\tsame\na\tx\n", **counted)[0] == [Example(("same",), "same", 1), Example(("a",), "x", 2)]


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"txt": "a"}, r"^An input: no column is known to be the text \(it has txt\); name it as the training file"),
        ({"txt": "a", "body": "b"}, r"^An input: no column is known to be the text \(it has txt, body\)"),
        ({}, r"^An input has no columns; give it those of the training file\."),
        ({"text": None}, r"^An input must be a text or a pair of texts; it is {'text': None}\."),
    ],
)
def test_rows_of_a_program_without_a_text_are_one_sentence(row: dict[str, object], says: str) -> None:
    with pytest.raises(BadInput, match=says):
        ClassifyReader(ClassifyConfig()).example(row)


@pytest.mark.parametrize("end", ["\n", "", "\r\n"])
def test_an_open_quote_counts_the_lines_that_it_takes(end: str, read: Reader) -> None:
    _, [problem] = read(f'text,label\n"a day,x\nb,y\nc,x{end}', "rows.csv")
    assert "so the 2 line(s) after it" in problem.what


def test_columns_separated_by_semicolons_are_one_sentence(read: Reader, tmp_path: Path) -> None:
    says = r"rows\.csv: the columns are separated by semicolons; save the file with commas \(\.csv\) or tabs"
    counted = {"text_column": "1", "label_columns": ("2",)}
    with pytest.raises(BadInput, match=says):
        read("text;label\nlove it, really;pos\nhate it;neg\n", "rows.csv")
    with pytest.raises(BadInput, match=says):
        read("text;label\nlove it;pos\n", "rows.csv", text_column="text", label_columns=("label",))
    with pytest.raises(BadInput, match=says):
        read("love it;pos\nhate it;neg\n", "rows.csv", **counted)
    # Semicolons within texts are no separators.
    assert read("text,label\na; b,x\nc; d,y\n", "rows.csv")[0][0].texts == ("a; b",)
    path = tmp_path / "texts.csv"
    path.write_text("One; two.\nThree.\nFour.\n")
    examples = ClassifyReader(ClassifyConfig(text_column="1")).read(path, [], labelled=False)
    assert [example.texts[0] for example in examples] == ["One; two.", "Three.", "Four."]


def test_commas_in_a_tab_file_are_one_sentence(read: Reader) -> None:
    says = r"rows\.tsv: the columns seem to be separated by commas; let the name of the file end in \.csv"
    table = "text,label\nlove it,pos\nhate it,neg\n"
    named = {"text_column": "text", "label_columns": ("label",)}
    counted = {"text_column": "1", "label_columns": ("2",)}
    for config in ({}, named, counted):
        with pytest.raises(BadInput, match=says):
            read(table, **config)
    # Commas within texts are no separators.
    assert read("a, b\tx\nc, d\ty\n", **counted)[0][0].texts == ("a, b",)


def test_columns_that_are_counted_are_shown_as_they_are_given(tmp_path: Path, command: Callable[..., Any]) -> None:
    rows = tmp_path / "rows.tsv"
    rows.write_text("love it\tpos\nhate it\tneg\n")
    refused = command("check", rows, "--task", "classify").err
    assert "if the file has no header, count columns: --text-column 1 and --label-column 2 (" in refused
    assert command("check", rows, "--task", "classify", "--text-column", 1, "--label-column", 2).code == 0


def test_bad_rows_are_told_with_their_number_and_the_others_are_kept(read: Reader) -> None:
    rows = ['{"text": "good", "label": "a"}', "{broken", "[1]", '{"text": "no label"}', '{"text": "  ", "label": "a"}']
    rows += ['{"text": 5, "label": "a"}', '{"text": "x", "label": ""}', '{"text": "last", "label": "b"}']
    examples, problems = read("\n".join(rows), "rows.jsonl")
    assert [e.texts[0] for e in examples] == ["good", "last"]
    assert sorted(p.row for p in problems) == [2, 3, 4, 5, 6, 7]
    assert all(p.bad and p.what and p.remedy for p in problems)
    assert read("text\tlabel\na\n b\tc\td\ne\tf\n")[1][0].what == "the number of columns is 1, not 2"


def test_a_line_of_a_megabyte_is_a_mistake_not_a_text(read: Reader) -> None:
    examples, problems = read(f"text\tlabel\n{'a ' * 600_000}\tx\nshort\ty\n")
    assert [e.texts[0] for e in examples] == ["short"]
    assert problems[0].row == 2
    assert "characters" in problems[0].what


def test_bytes_that_are_not_utf8_name_their_row(tmp_path: Path) -> None:
    path = tmp_path / "rows.tsv"
    path.write_bytes(b"text\tlabel\ngood\tx\n\xff\xfe\ty\n")
    with pytest.raises(BadInput, match=r"row 3: not UTF-8; convert the file.*LATIN1"):
        ClassifyReader(ClassifyConfig()).read(path, [])
    path.write_bytes("text\tlabel\n这本书写得很好，值得一读\t好\n".encode("gb18030"))
    with pytest.raises(BadInput, match=r"row 2: not UTF-8; .*iconv -f GB18030 -t UTF-8"):
        ClassifyReader(ClassifyConfig()).read(path, [])
    path.write_bytes("text\tlabel\n".encode("utf-16"))
    with pytest.raises(BadInput, match="iconv -f UTF-16 -t UTF-8"):
        ClassifyReader(ClassifyConfig()).read(path, [])


@pytest.mark.parametrize(
    ("preset", "table", "texts", "gold"),
    [
        ("cola", "gj04\t1\t\tHe left.\n", ("He left.",), "1"),
        ("sst-2", "label\tsentence\n0\tdull \n", ("dull",), "0"),
        ("sst-2", "sentence\tlabel\nfine \t1\n", ("fine",), "1"),
        ("mrpc", "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t7\t8\tOne.\tTwo.\n", ("One.", "Two."), "1"),
        ("stsb", "c\tf\t2012\t1\t3.800\tA man.\tA flute.\tlicence\tmore\n", ("A man.", "A flute."), 3.8),
        ("stsb", "index\tsentence1\tsentence2\tscore\n0\tA.\tB.\t5.000\n", ("A.", "B."), 5.0),
        ("qqp", "1\t2\t3\tWhy?\tHow?\t0\n", ("Why?", "How?"), "0"),
        ("mnli", "index\tsentence1\tsentence2\tlabel1\tgold_label\n0\tP.\tH.\tx\tneutral\n", ("P.", "H."), "neutral"),
        ("qnli", "index\tquestion\tsentence\tlabel\n0\tQ?\tS.\tentailment\n", ("Q?", "S."), "entailment"),
        ("rte", "index\tsentence1\tsentence2\tlabel\n0\tP.\tH.\tnot_entailment\n", ("P.", "H."), "not_entailment"),
    ],
)  # fmt: skip
def test_glue_files_are_read_as_published(
    read: Reader, preset: str, table: str, texts: tuple[str, ...], gold: object
) -> None:
    examples, problems = read(table, preset=preset)
    assert not problems
    assert [(e.texts, e.gold) for e in examples] == [(texts, gold)]


def test_presets_bring_their_metric_and_unknown_ones_are_refused(read: Reader) -> None:
    assert ClassifyConfig(preset="cola").with_preset().metric == "matthews"
    assert ClassifyConfig(preset="stsb").with_preset().kind == "number"
    with pytest.raises(BadConfig, match=r"no preset 'kola'.*cola"):
        read("a\tb\n", preset="kola")
    with pytest.raises(BadConfig, match="does not look like rte"):
        read("text\tlabel\na\tb\n", preset="rte")


def test_labels_of_other_kinds(read: Reader) -> None:
    names = ("joy", "fear", "rage")
    many = {"text_column": "1", "label_columns": ("2",), "kind": "many", "label_names": names}
    assert [e.gold for e in read("a\t2,0\nb\t1\n", **many)[0]] == [("joy", "rage"), ("fear",)]
    assert read("a\t7\nb\t1\n", **many)[1][0].row == 1
    assert read("text\tlabel\na\tlots\nb\t2\n", kind="number")[1][0].what == "the label 'lots' is not a number"
    assert read("text\tlabel\na\tnan\nb\t2\n", kind="number")[1][0].row == 2
    assert read("text\tlabel\na\t \nb\t2\n", kind="number")[1][0].what == "the label is empty"
    groups = {"label_columns": ("topic", "tone")}
    assert read("text\ttopic\ttone\na\tsport\tglad\n", **groups)[0][0].gold == ("sport", "glad")


def test_files_without_rows_and_broken_archives_are_refused_by_name(read: Reader, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"rows\.csv has only empty rows"):
        read(",,\n,\n", "rows.csv")
    with pytest.raises(BadInput, match=r"rows\.jsonl has no rows"):
        read("[]", "rows.jsonl")
    table = b"text\tlabel\n" + b"".join(b"row %d\tx\n" % i for i in range(200))
    for ending, data in ((".gz", gzip.compress(table)), (".xz", lzma.compress(table))):
        for broken in (data[:-20], b"text\tlabel\n"):
            path = tmp_path / f"broken.tsv{ending}"
            path.write_bytes(broken)
            with pytest.raises(BadInput, match=rf"broken\.tsv\{ending} cannot be read"):
                ClassifyReader(ClassifyConfig()).read(path, [])


def test_cells_that_a_spreadsheet_quoted_are_worth_a_look(read: Reader) -> None:
    rows = 'text\tlabel\nPlain.\tno\n"Say ""hello"", twice."\tyes\nPlain, too.\tno\n'
    examples, (found,) = read(rows)
    assert [example.texts[0] for example in examples][1] == '"Say ""hello"", twice."'
    assert (found.row, found.bad) == (3, False)
    assert "column 'text' are in quotes" in found.what
    assert ".csv with commas" in found.remedy
    quoted = 'text\tlabel\n"One."\t"x"\n"Two."\t"y"\n"Three."\t"x"\n'
    assert ["'text'" in problem.what for problem in read(quoted)[1]] == [True, False]
    assert [problem.row for problem in read('"a"\tx\n"b"\ty\n', text_column="1", label_columns=("2",))[1]] == [1]
    commas = 'text\tlabel\n"good, fine"\tx\n"bad, poor"\ty\nplain\tx\nfair\ty\ngood\tx\n'
    assert [problem.row for problem in read(commas)[1]] == [2]
    # One quotation among other sentences is a quotation.
    assert read('text\tlabel\n"Yes," she said, "and no."\tx\nPlain.\ty\nNo.\tx\n')[1] == []
    assert read('text,label\n"""Quoted.""",x\n"""Again.""",y\n', "rows.csv")[1] == []
