"""What a user can do wrong: one sentence, exit code 2, nothing half-written, no traceback."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import firth
from firth import samples
from firth.errors import BadConfig, BadInput
from firth.tasks.calibration import threshold_for

Command = Callable[..., Any]
WORDS = "The quick brown fox jumps over the lazy dog while the other dogs watch.\n"


@pytest.fixture
def refused(command: Command, tmp_path: Path) -> Callable[..., str]:
    """Runs a command that must be refused; gives its sentence."""

    def call(*arguments: object, leaves: set[str] = frozenset()) -> str:  # type: ignore[assignment]
        before = {str(path) for path in tmp_path.rglob("*")}
        code, out, err = command(*arguments)
        assert code == 2, err
        assert out == ""
        assert "Traceback" not in err
        *notes, sentence = err.splitlines()
        assert all(note.startswith("Training a vocabulary") for note in notes)
        assert sentence.startswith("firth: ")
        assert sentence.endswith((".", "?"))
        assert {str(path) for path in tmp_path.rglob("*")} - before == set(leaves)
        return sentence

    return call


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("missing.txt", None, "does not exist"),
        ("empty.txt", b"", "empty"),
        ("blank.txt", b"\n\n  \n", ""),
        ("binary.txt", bytes(range(256)) * 20, "binary.txt"),
        ("latin.txt", "Le caf\xe9 est ferm\xe9.\n".encode("latin-1") * 20, "UTF-8"),
        ("utf16.txt", WORDS.encode("utf-16"), "UTF-8"),
        ("cut.txt.gz", b"\x1f\x8b\x08\x00\x00\x00", "cut.txt.gz"),
        ("bad.jsonl", b'{"text": "a"}\n{"text": \n', "bad.jsonl, line 2"),
        ("other.jsonl", b'{"body": "a"}\n', "no field 'text' but body"),
        ("bad.parquet", b"PAR1 but not really", "bad.parquet"),
    ],
)
def test_text_that_cannot_be_read(
    name: str, content: bytes | None, says: str, refused: Callable[..., str], tmp_path: Path
) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    sentence = refused("prepare", path, "--out", tmp_path / "data", "--vocab-size", 40)
    assert name in sentence
    assert says in sentence


def test_vocabularies_the_text_does_not_allow(refused: Callable[..., str], tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text(WORDS * 3)
    sentence = refused("prepare", path, "--out", tmp_path / "data", "--vocab-size", 30_000)
    assert "only" in sentence
    assert "--vocab-size" in sentence
    assert "5" in refused("prepare", path, "--out", tmp_path / "data", "--vocab-size", 3)


def test_options_of_prepare(refused: Callable[..., str], tmp_path: Path, run: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text(WORDS * 3)
    (tmp_path / "there").mkdir()
    assert "already exists" in refused("prepare", path, "--out", tmp_path / "there", "--vocab-size", 40)
    assert "has its own" in refused("prepare", path, "--out", tmp_path / "d", "--tokenizer", run, "--vocab-size", 40)
    assert "nowhere" in refused("prepare", path, "--out", tmp_path / "d", "--tokenizer", tmp_path / "nowhere")
    assert "did you mean wordpiece?" in refused("prepare", path, "--out", tmp_path / "d", "--tokenizer", "wordpeice")
    assert "processes" in refused("prepare", path, "--out", tmp_path / "d", "--processes", -1, "--vocab-size", 30)
    assert "--field body is for JSON lines and Parquet" in refused(
        "prepare", path, "--out", tmp_path / "d", "--field", "body", "--vocab-size", 40
    )


@pytest.mark.parametrize(
    ("documents", "says"),
    [
        ("lines", "--documents must be one of blank-line, file, line, field; it is 'lines'; did you mean 'line'?"),
        ("page", "--documents must be one of blank-line, file, line, field; it is 'page'."),
        ("field", "text.txt is plain text and has no field 'text'; choose blank-line, file or line for --documents."),
    ],
)
def test_the_end_of_documents_is_checked_before_a_vocabulary_is_trained(
    documents: str, says: str, command: Command, tmp_path: Path
) -> None:
    path = tmp_path / "text.txt"
    path.write_text(WORDS * 3)
    code, _, err = command("prepare", path, "--out", tmp_path / "d", "--documents", documents, "--vocab-size", 40)
    assert code == 2
    assert says in err
    assert "Training a vocabulary" not in err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("batches.max_lenght=64",), "did you mean 'batches.max_length'?"),
        (("encoder.bert.widht=64",), "did you mean 'encoder.bert.width'?"),
        (("batches.tokns=64",), "did you mean 'batches.tokens'?"),
        (("tokens=2048",), "did you mean 'batches.tokens'?"),
        (("batchs.tokens=2048",), "did you mean 'batches.tokens'?"),
        (("train.optim.rate=fast",), "'train.optim.rate' must be a number"),
        (("train.optim.schedule=wavy",), "linear, cosine, trapezoid, constant"),
        (("train.keep=0",), "train.keep must be at least 1"),
        (("batches.max_length=1024", "batches.tokens=2048"), "more than the model's 512 positions"),
        (("batches.max_length=4",), "at least 8"),
        (("batches.tokens=64",), "at most batches.tokens=64"),
        (("batches.tokens=1000000",), "fewer than one step"),
        (("train.accumulate=100",), "fewer than one step"),
        (("encoder.bert.width=100", "encoder.bert.num_heads=3"), "not a multiple of the number of heads"),
        (("encoder.bert.activation=softly",), "no activation named 'softly'"),
        (("train=5",), "keys of its own"),
        (("objectives={}",), "at least one objective"),
        (("--recipe", "brt"), "did you mean 'bert'?"),
        (("--size", "huge"), "tiny, mini, small"),
        (("--config", "none.toml"), "none.toml does not exist"),
        (("--steps", "5", "--epochs", "1"), "not several"),
        (("--from", "nowhere"), "nowhere is not a folder with a model"),
        (("train.compile=yes",), "needs a GPU"),
    ],
)
def test_runs_that_make_no_sense(
    arguments: tuple[str, ...], says: str, refused: Callable[..., str], data: Path, tmp_path: Path
) -> None:
    assert says in refused("pretrain", data, "--out", tmp_path / "run", *arguments)


def test_data_that_is_not_data(refused: Callable[..., str], data: Path, tmp_path: Path) -> None:
    assert "firth prepare" in refused("pretrain", tmp_path / "none", "--out", tmp_path / "run")
    (tmp_path / "folder").mkdir()
    assert "manifest.json" in refused("pretrain", tmp_path / "folder", "--out", tmp_path / "run")


@pytest.fixture
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Text prepared with another vocabulary."""
    folder = tmp_path_factory.mktemp("other")
    (folder / "text.txt").write_text("\n\n".join(f"{WORDS}{WORDS[::-1]} {i}" for i in range(200)))
    firth.prepare(folder / "text.txt", out=folder / "data", vocab_size=70, processes=0)
    return folder / "data"


def test_shards_of_another_tokenizer(refused: Callable[..., str], other: Path, run: Path, tmp_path: Path) -> None:
    changes = ("batches.tokens=512", "batches.max_length=64")
    for arguments in (
        ("pretrain", other, "--out", tmp_path / "new", "--from", run, *changes),
        ("evaluate", run, "--data", other),
    ):
        sentence = refused(*arguments)
        assert str(other) in sentence
        assert f"--tokenizer {run}" in sentence


def test_a_corpus_of_too_few_documents(refused: Callable[..., str], tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text(" ".join(f"{word}{i}" for i in range(300) for word in WORDS.split()))
    firth.prepare(text, out=tmp_path / "data", vocab_size=60, processes=0)
    changes = ("batches.tokens=512", "batches.max_length=64")
    assert "too few to train on" in refused("pretrain", tmp_path / "data", "--out", tmp_path / "run", *changes)


def test_a_text_that_a_model_cannot_read_is_filled_with_a_warning(command: Command, run: Path) -> None:
    assert "unknown to this model" in command("fill", run, "ποιότητα ήταν [MASK]").err
    assert "unknown to this model" not in command("fill", run, "The [MASK] is open.").err


def test_models_asked_for_what_they_have_not(refused: Callable[..., str], run: Path, tmp_path: Path) -> None:
    assert "is not a folder with a model" in refused("info", tmp_path / "none")
    assert "no [MASK] to fill" in refused("fill", run, "There is no mask.")
    assert "more than the model's 64" in refused("fill", run, "word " * 100 + "[MASK]")
    lines = tmp_path / "lines.txt"
    assert "lines.txt does not exist" in refused("embed", run, "--file", lines, "--out", tmp_path / "v.npy")
    lines.write_bytes(b"")
    assert "lines.txt is empty; put one text on each line" in refused(
        "embed", run, "--file", lines, "--out", tmp_path / "v.npy"
    )
    assert "lines.txt is empty; put one name on each line" in refused(
        "check", lines, "--task", "classify", "--label-names", lines
    )
    lines.write_bytes(b"\xff\xfe")
    assert "lines.txt is not UTF-8 (byte 0); convert the file, for example with iconv -f UTF-16" in refused(
        "embed", run, "--file", lines, "--out", tmp_path / "v.npy"
    )
    lines.write_text("a text\n")
    assert "no pooling named 'sum'" in refused(
        "embed", run, "--file", lines, "--out", tmp_path / "v.npy", "--pooling", "sum"
    )


@pytest.mark.parametrize("mask", ["[mask]", "[Mask]", "[MASK]"])
def test_a_mask_is_read_in_any_case(mask: str, run: Path, command: Command) -> None:
    for text in ("The [MASK] is open.", "这家[MASK]很好。"):
        expected = firth.load(run).fill(text)
        assert firth.load(run).fill(text.replace("[MASK]", mask)) == expected
    assert expected[0].token in command("fill", run, f"这家{mask}很好。").out


def test_blank_lines_of_embed_are_told_once_and_rightly(command: Command, run: Path, tmp_path: Path) -> None:
    (tmp_path / "lines.txt").write_text("a text\n\n\nanother\n")
    told = command("embed", run, "--file", tmp_path / "lines.txt", "--out", tmp_path / "v.npy").err
    assert "2 blank lines have vectors of zeros" in told
    assert "answered like the others" not in told


def test_a_text_in_the_place_of_a_model_or_a_file(refused: Callable[..., str], run: Path, tmp_path: Path) -> None:
    sentence = refused("embed", "some text", "--out", tmp_path / "v.npy")
    assert "'some text' is not a model; write texts to a file, one on each line, and name it with --file" in sentence
    # The file is looked for before the model, which takes seconds to load.
    assert "nosuch does not exist" in refused("predict", run, "--file", tmp_path / "nosuch")
    assert "nosuch does not exist" in refused("rewrite", run, "--file", tmp_path / "nosuch")


def test_rows_of_another_task_say_which_form_is_wanted(refused: Callable[..., str], tmp_path: Path) -> None:
    table = samples.labelled("classify", "en")
    assert "a .json file as SQuAD's, or a .jsonl file with question" in refused("check", table, "--task", "answer")
    questions = samples.labelled("answers", "en")
    sentence = refused("check", questions, "--task", "classify")
    assert 'write rows such as {"text": "...", "label": "..."}' in sentence
    iob1 = tmp_path / "iob1.conll"
    iob1.write_text("EU I-ORG\nrejects O\n\nPeter I-PER\n")
    assert "tasks.tag.repair=true" in refused("check", iob1, "--task", "tag", "tasks.tag.scheme=BIO")
    mrpc = tmp_path / "mrpc.tsv"
    mrpc.write_text("Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t1\t2\tA day.\tOne day.\n")
    assert "use --preset mrpc, name it with" in refused("check", mrpc, "--task", "classify")


def test_a_field_that_is_no_text_is_shown_as_the_file_has_it(refused: Callable[..., str], tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"text": 3, "label": "a"}\n{"text": null, "label": "b"}\n')
    assert "row 1: the text is 3, not text" in refused("check", rows, "--task", "classify")
    rows.write_text('{"text": {"a": null}, "label": "b"}\n')
    assert 'row 1: the text is {"a": null}, not text' in refused("check", rows, "--task", "classify")


def test_numbers_out_of_range(refused: Callable[..., str], command: Command, run: Path, tmp_path: Path) -> None:
    rows = samples.labelled("classify", "en")
    finetune = ("finetune", run, "--task", "classify", "--train", rows, "--out", tmp_path / "run")
    assert "epochs must be above 0" in refused(*finetune, "epochs=0")
    assert "epochs above 0" in refused(*finetune, "epochs=-3")
    with pytest.raises(BadConfig, match="precision must be from 0 to 1; it is 2"):
        threshold_for({}, "classify", 2)
    assert "less than or equal to 1" in command("predict", run, "A day.", "--abstain-below", 5).err
    for top in (0, 2.5):
        with pytest.raises(BadConfig, match="`top=` must be a whole number of at least 1"):
            firth.load(run).fill("The [MASK].", top=top)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("epochs", "3"), "write epochs=3, not epochs 3."),
        (("epochs", "=", "3"), "write epochs=3, not epochs 3."),
        (("epochs", "=3"), "write epochs=3, not epochs 3."),
        (("train.optim.rate", "1e-4"), "write train.optim.rate=1e-4, not train.optim.rate 1e-4."),
        (("other",), "Name one model; there are 2: run, other."),
    ],
)
@pytest.mark.parametrize("name", ["finetune", "tune"])
def test_settings_without_an_equals_sign(
    name: str,
    words: tuple[str, ...],
    says: str,
    refused: Callable[..., str],
    run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(run.parent)
    rows = samples.labelled("classify", "en")
    assert says in refused(name, "run", *words, "--task", "classify", "--train", rows, "--out", tmp_path / "run")
    if len(words) > 1:
        assert says in refused(name, *words, "--task", "classify", "--train", rows, "--out", tmp_path / "run")


@pytest.mark.parametrize("minutes", ["nan", "inf", "-1", "0"])
def test_time_limits_are_finite(
    minutes: str, refused: Callable[..., str], data: Path, run: Path, tmp_path: Path
) -> None:
    rows = samples.labelled("classify", "en")
    says = f"firth: --minutes must be a finite number above 0; it is {float(minutes)}."
    assert refused("pretrain", data, "--out", tmp_path / "run", "--minutes", minutes) == says
    tune = ("tune", run, "--task", "classify", "--train", rows, "--out", tmp_path / "run")
    assert refused(*tune, "--minutes", minutes) == says
    assert refused("demo", "--out", tmp_path / "demo", "--minutes", minutes) == says
    assert refused("study", "senses", "--out", tmp_path / "study", "--minutes", minutes) == says


def test_numbers_of_the_wrong_kind(refused: Callable[..., str], data: Path, run: Path, tmp_path: Path) -> None:
    rows = samples.labelled("classify", "en")
    out = tmp_path / "run"
    whole = "must be a whole number of at least 1; it is"
    with pytest.raises(BadConfig, match=f"`steps=` {whole} 2.5"):
        firth.pretrain(data, out=out, steps=2.5)  # type: ignore[arg-type]
    with pytest.raises(BadConfig, match=f"`vocab_size=` {whole} 'big'"):
        firth.prepare(rows, out=out, vocab_size="big")  # type: ignore[arg-type]
    with pytest.raises(BadConfig, match=f"`seeds=` {whole} '3'"):
        firth.finetune(run, task="classify", train=rows, out=out, seeds="3")  # type: ignore[arg-type]
    with pytest.raises(BadConfig, match=f"`add=` {whole} 0"):
        firth.extend(run, text=rows, add=0, out=out)
    assert f"--vocab-size {whole} -10" in refused("prepare", rows, "--out", out, "--vocab-size", -10)
    assert "--epochs must be a finite number" in refused("pretrain", data, "--out", out, "--epochs", "nan")


def test_what_a_user_of_python_tries_first(run: Path, tmp_path: Path) -> None:
    rows = samples.labelled("classify", "en")
    model = firth.load(run)
    texts = ["A day.", "Another day."]
    for answer in (model.embed, model.predict, model.explain):
        with pytest.raises(BadInput, match=f"{answer.__name__} takes a list of texts; it is None"):
            answer(None)  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="predict takes a list of texts; put the one text into a list"):
        model.predict({"text": "A day."})
    with pytest.raises(BadInput, match="save takes the path of a model folder; it is None"):
        model.save(None)  # type: ignore[arg-type]
    assert (model.embed(text for text in texts) == model.embed(texts)).all()
    assert {"load", "finetune", "Model"} <= set(dir(firth))
    with pytest.raises(BadConfig, match="`out=` is the folder to write; it is None"):
        firth.finetune(run, task="classify", train=rows, out=None)  # type: ignore[arg-type]
    with pytest.raises(BadConfig, match=r"epochs is a setting of the run.*; give it as changes=\['epochs=3'\]"):
        firth.finetune(run, task="classify", train=rows, out=tmp_path / "run", epochs=3)
    with pytest.raises(BadInput, match=r"take files of labelled rows, not {'text': 'a', 'label': 'b'}"):
        firth.finetune(run, task="classify", train=[{"text": "a", "label": "b"}], out=tmp_path / "run")  # type: ignore[list-item]
    for changes in ({"epochs": -1}, "epochs=-1", ["epochs=-1"]):
        with pytest.raises(BadConfig, match="epochs above 0"):
            firth.finetune(run, task="classify", train=rows, out=tmp_path / "run", changes=changes)


def test_a_model_is_not_saved_over_another(run: Path, tmp_path: Path) -> None:
    model = firth.load(run)
    model.save(tmp_path / "copy")
    before = {path: path.stat().st_mtime_ns for path in run.iterdir()}
    file = tmp_path / "file"
    file.write_text("in the way")
    for place in (run, tmp_path / "copy", file):
        with pytest.raises(BadInput, match="already exists; choose another folder or remove it"):
            model.save(place)
    assert {path: path.stat().st_mtime_ns for path in run.iterdir()} == before
    (tmp_path / "empty").mkdir()
    model.save(tmp_path / "empty")
    assert firth.load(tmp_path / "empty").fill("The [MASK].") == model.fill("The [MASK].")


def test_places_that_cannot_be_written(refused: Callable[..., str], run: Path, tmp_path: Path, data: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    lines = tmp_path / "lines.txt"
    lines.write_text("a text\n")
    assert "is a file, not a folder" in refused("embed", run, "--file", lines, "--out", tmp_path / "file" / "v.npy")
    changes = ("batches.tokens=512", "batches.max_length=64")
    assert "is a file, not a folder" in refused(
        "pretrain", data, "--out", tmp_path / "file" / "run", "--steps", 1, *changes
    )
