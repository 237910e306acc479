"""Rewriting: files in all their forms, what is wrong with them, what is written, alone and together."""

import gzip
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from firth import checkpoint as checkpoints
from firth.checkpoint import Checkpoint, make_head
from firth.encoders.transformer import Transformer
from firth.errors import BadConfig, BadInput
from firth.finetuning import labelled
from firth.finetuning.checking import check, describe
from firth.inference.model import Model, load
from firth.nn.encoder_decoder import output_scores
from firth.nn.likelihood import IGNORE
from firth.tasks import rewrite as rewriting
from firth.tasks.rewrite import RewriteConfig, RewriteHead, RewriteReader, RewriteScorer
from firth.tasks.text_pairs import target_path
from firth.tasks.writers import LABELS
from firth.tensors import Encoder
from firth.tokenizers.wordpiece import WordPiece
from firth.types import Example, Prediction, Problem

PAIRS = [("a cat", "eine Katze"), ("two dogs run", "zwei Hunde laufen")]
TEXTS = ["the river", "A forecast says that it will rain, and so it does in the end.", "", "rain", "rain and rivers"]


def write(path: Path, rows: list[str]) -> Path:
    path.write_text("\n".join(rows) + "\n", "utf-8")
    return path


def read(path: Path, config: RewriteConfig | None = None, **options: Any) -> tuple[list[Any], list[Problem]]:
    problems: list[Problem] = []
    examples = RewriteReader(config or RewriteConfig()).read(path, problems, **options)
    return [(example.texts[0], example.gold) for example in examples], problems


# Files


def test_every_form_of_a_file_gives_the_same_pairs(tmp_path: Path) -> None:
    rows = ["\t".join(pair) for pair in PAIRS]
    plain = write(tmp_path / "plain.tsv", rows)
    named = write(tmp_path / "named.tsv", ["source\ttarget", *rows])
    lines = write(tmp_path / "lines.jsonl", [json.dumps({"text": a, "summary": b}) for a, b in PAIRS])
    comma = write(tmp_path / "comma.csv", ["en,id,de", *(f"{a},{i},{b}" for i, (a, b) in enumerate(PAIRS))])
    other = write(tmp_path / "other.tsv", ["\t".join(reversed(pair)) for pair in PAIRS])
    write(tmp_path / "both.en", [a for a, _ in PAIRS])
    write(tmp_path / "both.de", [b for _, b in PAIRS])
    for name in ("en", "de"):
        text = (tmp_path / f"both.{name}").read_bytes()
        (tmp_path / f"packed.{name}.gz").write_bytes(gzip.compress(text))
    for path, options in (
        (plain, {}),
        (named, {}),
        (lines, {}),
        (comma, {"text_column": "en", "label_columns": ("de",)}),
        (other, {"text_column": "2", "label_columns": ("1",)}),
        (tmp_path / "both.en", {"target_ending": "de"}),
        (tmp_path / "packed.en.gz", {"target_ending": ".de"}),
    ):
        assert read(path, RewriteConfig(**options)) == (PAIRS, []), path  # type: ignore[arg-type]
    assert target_path(Path("a/train.x.en.gz"), "de") == Path("a/train.x.de.gz")


def test_inputs_without_targets(tmp_path: Path) -> None:
    sources = [(a, None) for a, _ in PAIRS]
    table = write(tmp_path / "inputs.tsv", ["source", *(a for a, _ in PAIRS)])
    assert read(table, labelled=False) == (sources, [])
    reader = RewriteReader(RewriteConfig(text_column="en"))
    assert reader.example("a text").texts == ("a text",)
    assert reader.example({"en": "a text", "de": "ein Text"}).texts == ("a text",)
    with pytest.raises(BadInput, match="has no 'en' but fr"):
        reader.example({"fr": "x"})
    with pytest.raises(BadInput, match="must be one text"):
        reader.example(["a", "b"])


def test_unequal_files_name_the_first_line_without_counterpart(tmp_path: Path) -> None:
    write(tmp_path / "t.en", ["a", "b", "c"])
    write(tmp_path / "t.de", ["x", "y"])
    with pytest.raises(BadInput, match=r"t\.en, line 3 has no counterpart: .*t\.de has only 2 lines"):
        read(tmp_path / "t.en", RewriteConfig(target_ending="de"))
    with pytest.raises(BadInput, match=r"t\.en, line 3 has no counterpart"):
        read(tmp_path / "t.de", RewriteConfig(target_ending="en"))
    with pytest.raises(BadInput, match=r"already ends in \.en"):
        read(tmp_path / "t.en", RewriteConfig(target_ending="en"))
    with pytest.raises(BadInput, match=r"t\.fr does not exist"):
        read(tmp_path / "t.en", RewriteConfig(target_ending="fr"))


def test_empty_texts_are_named_by_row(tmp_path: Path) -> None:
    path = write(tmp_path / "t.tsv", ["source\ttarget", "a\tb", "c\t ", " \td"])
    examples, problems = read(path)
    assert examples == [("a", "b")]
    assert [(problem.row, problem.what) for problem in problems] == [(3, "an empty target"), (4, "an empty source")]
    write(tmp_path / "t.en", ["a", "b"])
    write(tmp_path / "t.de", ["x", ""])
    data = labelled.read("rewrite", RewriteConfig(target_ending="de"), {"train": tmp_path / "t.en"})
    with pytest.raises(BadInput, match=r"t\.en, row 2: an empty target; fill it in or remove the row"):
        labelled.refuse_bad(data, {"train": tmp_path / "t.en"})


def test_a_header_of_unknown_names_is_no_example(tmp_path: Path) -> None:
    rows = ["a first text\tein Text", "a second one.\tnoch einer."]
    for header in ("en\tde", "English\tGerman", "原文\t译文"):
        named = write(tmp_path / "named.tsv", [header, *rows])
        with pytest.raises(BadInput, match=r"the first row \(.*\) looks like names of columns; name source and target"):
            read(named)
    source, target = header.split("\t")
    pairs = [tuple(row.split("\t")) for row in rows]
    assert read(named, RewriteConfig(text_column=source, label_columns=(target,))) == (pairs, [])
    counted = RewriteConfig(text_column="1", label_columns=("2",))
    assert read(named, counted) == ([(source, target), *pairs], [])
    # Where all rows are single words, the first one is like the others.
    words = write(tmp_path / "words.tsv", ["cat\tKatze", "dog\tHund"])
    assert read(words) == ([("cat", "Katze"), ("dog", "Hund")], [])


def test_columns_that_cannot_be_found(tmp_path: Path) -> None:
    three = write(tmp_path / "three.tsv", ["a\tb\tc"])
    with pytest.raises(BadInput, match="no columns are known to be source and target"):
        read(three)
    with pytest.raises(BadConfig, match="Name both columns or none"):
        read(three, RewriteConfig(text_column="a"))
    with pytest.raises(BadConfig, match="leave out target_ending"):
        RewriteConfig(text_column="a", target_ending="de")
    with pytest.raises(BadConfig, match="one target"):
        RewriteConfig(label_columns=("a", "b"))
    with pytest.raises(BadConfig, match="label_smoothing"):
        RewriteConfig(label_smoothing=1.0)
    with pytest.raises(BadConfig, match="beams"):
        RewriteConfig(beams=0)


def test_the_language_decides_how_bleu_cuts() -> None:
    for gold, tokens in (("eine Katze", "13a"), ("一只猫在睡觉", "zh")):
        config = RewriteReader(RewriteConfig()).learn([Example(("a",), gold)])
        assert config.bleu_tokens == tokens
        figures = RewriteScorer(config, {}).score([Prediction(gold)], [Example(("a",), gold)])
        assert figures["rougeL"] == 1
        assert figures["bleu"] == (1 if tokens == "zh" else 0)  # a sentence of two words has no 4-gram
    chosen = {metric: RewriteScorer(RewriteConfig(metric=metric), {}).main_metric for metric in ("bleu", "rouge")}  # type: ignore[arg-type]
    assert chosen == {"bleu": "bleu", "rouge": "rougeL"}


# Learning and writing


@pytest.fixture(scope="module")
def writer(tokenizer: WordPiece) -> Encoder:
    torch.manual_seed(3)
    sizes: dict[str, Any] = {"width": 32, "num_layers": 2, "num_heads": 2, "ffn_width": 64, "max_positions": 40}
    return Transformer(Transformer.Config(vocab_size=len(tokenizer.vocab), dropout=0.0, **sizes)).eval()


def head_of(encoder: Encoder, **options: Any) -> RewriteHead:
    head = make_head("rewrite", RewriteConfig(**options), encoder, labels={})
    assert isinstance(head, RewriteHead)
    return head


def test_a_batch_has_sources_inputs_and_labels(writer: Encoder, tokenizer: WordPiece) -> None:
    head = head_of(writer, prefix="translate: ")
    items = head.encode([Example((a,), b) for a, b in PAIRS], tokenizer, max_length=40, training=True)
    batch = head.batch(items)
    assert batch.source is not None
    vocab = tokenizer.vocab
    bounds = batch.bounds_B1.tolist()
    for row, (source, target) in enumerate(PAIRS):
        ids = batch.ids_N[bounds[row] : bounds[row + 1]].tolist()
        labels = batch.targets[LABELS][bounds[row] : bounds[row + 1]].tolist()
        assert ids[0] == vocab.cls
        assert labels[-1] == vocab.sep
        assert ids[1:] == labels[:-1] == tokenizer.ids_batch([target])[0]
        start, end = batch.source.bounds_B1[row : row + 2].tolist()
        wanted = vocab.frame.join(np.array(tokenizer.ids_batch([f"translate: {source}"])[0]))
        assert batch.source.ids_N[start:end].tolist() == wanted.tolist()
    assert head.counts(batch) == {"rewrite": bounds[-1]}
    assert not (batch.targets[LABELS] == IGNORE).any()


def test_the_loss_is_smoothed_cross_entropy(writer: Encoder, tokenizer: WordPiece) -> None:
    items = head_of(writer).encode([Example((a,), b) for a, b in PAIRS], tokenizer, max_length=40, training=True)
    for smoothing in (0.0, 0.1):
        head = head_of(writer, label_smoothing=smoothing)
        batch = head.batch(items)
        states = writer(batch)
        wanted = torch.nn.functional.cross_entropy(
            output_scores(states), batch.targets[LABELS], reduction="sum", label_smoothing=smoothing
        )
        found = head.loss(states, batch).sums["rewrite"]
        assert found.item() == pytest.approx(wanted.item(), rel=1e-5)


@pytest.mark.parametrize("beams", [1, 3])
def test_a_text_does_not_depend_on_its_neighbours(
    writer: Encoder, tokenizer: WordPiece, beams: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Model(Checkpoint(writer, {}, tokenizer))
    together = model.rewrite(TEXTS, beams=beams)
    assert len({text.text for text in together}) > 1
    for text, found in zip(TEXTS, together, strict=True):
        [alone] = model.rewrite([text], beams=beams)
        assert alone.text == found.text
        assert alone.probability == pytest.approx(found.probability, rel=1e-4)
    monkeypatch.setattr(rewriting, "MAX_TEXTS", {"cpu": 2 * beams})  # several batches
    assert [text.text for text in model.rewrite(TEXTS, beams=beams)] == [text.text for text in together]
    drawn = model.rewrite(TEXTS, temperature=1.0, seed=4)
    assert [text.text for text in model.rewrite(TEXTS[::-1], temperature=1.0, seed=4)][::-1] == [
        text.text for text in drawn
    ]
    assert drawn != model.rewrite(TEXTS, temperature=1.0, seed=5)


def test_lengths_have_limits(writer: Encoder, tokenizer: WordPiece) -> None:
    model = Model(Checkpoint(writer, {}, tokenizer))
    assert {text.num_tokens for text in model.rewrite(TEXTS, beams=1, max_tokens=3)} <= {1, 2, 3}
    assert max(text.num_tokens for text in model.rewrite(TEXTS, beams=1)) <= writer.max_positions
    with pytest.raises(BadConfig, match="at least 1"):
        model.rewrite(TEXTS, max_tokens=0)
    with pytest.raises(BadInput, match="list of texts"):
        model.rewrite("a text")
    [cut] = model.rewriter().tokenize(["river " * 100])
    assert len(cut.windows[0]) == writer.max_positions
    assert cut.cut > 0


def test_a_forced_first_token(writer: Encoder, tokenizer: WordPiece) -> None:
    vocab = tokenizer.vocab
    items = head_of(writer).encode([Example(("rain",))], tokenizer, max_length=40, training=False)
    for beams in (1, 4):
        head = head_of(writer, first_token="the", beams=beams, max_tokens=5)
        options = rewriting.WritingOptions(head.config.choice, 5)
        with torch.inference_mode():
            [written] = head.write_items(writer, items, options)
        assert written.tokens[0] == vocab.ids["the"]
        assert np.isfinite(written.log_probability)
    with pytest.raises(BadConfig, match="'nowhere' is not a token"), torch.inference_mode():
        head_of(writer, first_token="nowhere").write_items(writer, items, options)


def test_attention_to_the_source(writer: Encoder, tokenizer: WordPiece) -> None:
    model = Model(Checkpoint(writer, {}, tokenizer))
    found = model.rewrite_with_attention("rain and rivers", beams=2)
    assert found.rewritten == model.rewrite(["rain and rivers"], beams=2)[0]
    assert found.source[0] == "[CLS]"
    assert found.source[-1] == "[SEP]"
    assert len(found.target) == found.rewritten.num_tokens
    assert found.weights.shape == (2, 2, len(found.target), len(found.source))
    np.testing.assert_allclose(found.weights.sum(-1), 1, atol=1e-5)


def test_a_saved_model_writes_the_same(writer: Encoder, tokenizer: WordPiece, tmp_path: Path) -> None:
    head = head_of(writer, beams=2, max_tokens=7, no_repeat_ngram=2)
    checkpoint = Checkpoint(writer, {}, tokenizer, tasks={"rewrite": head})
    checkpoints.save(tmp_path / "model", checkpoint)
    model = load(tmp_path / "model")
    before = Model(checkpoint).rewrite(TEXTS)
    assert model.rewrite(TEXTS) == before
    assert [prediction.label for prediction in model.predict(TEXTS)] == [text.text for text in before]
    assert all(text.num_tokens <= 7 for text in before)
    with pytest.raises(BadConfig, match="no task 'other' that rewrites; it has rewrite"):
        model.rewrite(TEXTS, task="other")
    two = replace(checkpoint, tasks={"rewrite": head, "rewrite-2": head})
    with pytest.raises(BadConfig, match="several tasks that rewrite"):
        Model(two).rewrite(TEXTS)
    assert Model(two).can_rewrite
    assert Model(two).rewrite(TEXTS, task="rewrite-2") == before


def test_check_knows_the_files(writer: Encoder, tokenizer: WordPiece, tmp_path: Path) -> None:
    checkpoints.save(tmp_path / "model", Checkpoint(writer, {}, tokenizer))
    rows = [f"a cat {i}\ta dog {i}" for i in range(6)]
    path = write(tmp_path / "t.tsv", [*rows, rows[0], "a cat 1\tanother", "short\t" + "the " * 60, "x\t "])
    findings = check("rewrite", RewriteConfig(), {"train": path}, model=tmp_path / "model")
    text = "\n".join(describe(findings))
    assert "train: 8 rows that can be used, 2 that cannot." in text
    assert "row 10: an empty target" in text
    assert "row 9: a target of 60 tokens, but the model writes at most 39 (shorten it)" in text
    assert "1 text has several labels, such as rows 2, 8" in text
    assert "without reading the texts: bleu 0.0" in text


def test_check_takes_a_model_that_fine_tuning_makes_a_writer_of(
    small_bert: Callable[..., Encoder], tokenizer: WordPiece, tmp_path: Path
) -> None:
    encoder = small_bert()
    checkpoints.save(tmp_path / "bert", Checkpoint(encoder, {}, tokenizer))
    path = write(tmp_path / "t.tsv", [f"a cat {i}\ta dog {i}" for i in range(6)])
    findings = check("rewrite", RewriteConfig(), {"train": path}, model=tmp_path / "bert")
    assert findings["parts"]["train"]["rows"] == 6
    assert findings["parts"]["train"]["lengths"]["read_at_once"] == encoder.max_positions


def test_training_rows_longer_than_the_model_are_told(
    writer: Encoder, tokenizer: WordPiece, small_bert: Callable[..., Encoder]
) -> None:
    head = head_of(writer)
    rows = [Example(("a",), "the " * 39, 1), Example(("a",), "the " * 40, 7)]
    found = list(head.token_problems(rows, tokenizer, max_length=40))
    assert [(problem.row, problem.what) for problem in found] == [
        (7, "a target of 40 tokens, but the model writes at most 39")
    ]
    with pytest.raises(Exception, match="reads but cannot write"):
        head_of(small_bert())
