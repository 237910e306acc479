"""Runs solved without gradients: word vectors from text or shards, and fastText's classifier."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import firth
from firth import lineage, objectives, rng, samples
from firth.checkpoint import load as load_checkpoint
from firth.config import to_dict, to_toml
from firth.convert.mapped import WORD_ROWS
from firth.errors import BadConfig, BadInput, Damaged
from firth.inference.lexicon import open_lexicon
from firth.pretraining import solving
from firth.pretraining.solving import PASSES, SolveRequest, resolve_config
from firth.tokenizers.subwords import Subwords
from firth.tokenizers.word_list import Words


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two topics in two languages: words of one topic stand together."""
    path = tmp_path_factory.mktemp("topics") / "text.txt"
    topics = (["frog", "pond", "water", "青蛙", "池塘"], ["king", "queen", "crown", "国王", "王后"])
    draws = rng.below(rng.key("topics"), 5, np.arange(200)[:, None], np.arange(15))
    path.write_text("\n\n".join(" ".join(topics[i % 2][j] for j in row) for i, row in enumerate(draws)))
    return path


@pytest.fixture(scope="module")
def words(text: Path) -> Path:
    out = text.parent / "words"
    firth.prepare(text, out=out, tokenizer="words", min_count=1, processes=0)
    return out


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("recipe", ["word2vec-sg-ns", "word2vec-sg-hs", "word2vec-cbow-ns", "fasttext", "glove"])
def test_words_of_one_topic_come_close(recipe: str, threads: int, text: Path, tmp_path: Path) -> None:
    changes = {"fasttext": ["tokenizer.subwords.num_buckets=500", "objectives.subwords.sample=0"]}.get(recipe, [])
    same = {"epochs": 20, "width": 10, "changes": changes}
    figures = firth.pretrain(text, out=tmp_path / "run", recipe=recipe, threads=threads, **same)
    assert figures["words_per_second"] > 0
    counts = [figures[name] for name in ("words", "vocabulary", "pairs") if name in figures]
    assert counts
    assert all(isinstance(count, int) and count > 0 for count in counts)
    model = firth.load(tmp_path / "run")
    unit = model.embed(["frog", "pond", "青蛙", "king", "国王"], normalise=True)
    near, far = (unit[0] @ unit[1] + unit[0] @ unit[2]) / 2, (unit[0] @ unit[3] + unit[2] @ unit[4]) / 2
    assert near > far + 0.2


def test_shards_and_text_give_the_same_vectors(text: Path, words: Path, tmp_path: Path) -> None:
    for name, data in (("text", text), ("shards", words)):
        firth.pretrain(data, out=tmp_path / name, recipe="word2vec-sg-ns", epochs=1, min_count=1, threads=1)
    one, two = (load_checkpoint(tmp_path / name).encoder.table.weight for name in ("text", "shards"))  # type: ignore[union-attr]
    assert one.equal(two)
    timing = json.loads((tmp_path / "text" / "timing.jsonl").read_text())
    assert timing["threads"] == 1
    assert timing["words_per_second"] == pytest.approx(3000 / timing["seconds"], rel=1e-3)


def test_a_higher_count_leaves_words_out(words: Path, tmp_path: Path) -> None:
    data = tmp_path / "more"
    (tmp_path / "more.txt").write_text("frog pond frog pond water\n" * 30 + "once upon frog\n")
    firth.prepare(tmp_path / "more.txt", out=data, tokenizer="words", min_count=1, processes=0)
    firth.pretrain(data, out=tmp_path / "run", recipe="word2vec-cbow-ns", epochs=1, min_count=2, threads=2)
    loaded = load_checkpoint(tmp_path / "run")
    assert isinstance(loaded.tokenizer, Words)
    assert loaded.tokenizer.vocab.tokens[5:] == ("frog", "pond", "water")
    assert loaded.encoder.vocab_size == 8
    assert not loaded.encoder.table.weight[:5].any()  # type: ignore[union-attr,index]


def test_unseen_words_have_vectors_by_their_parts(text: Path, tmp_path: Path) -> None:
    changes = ["tokenizer.subwords.num_buckets=500"]
    firth.pretrain(text, out=tmp_path / "run", recipe="fasttext", epochs=1, width=8, threads=1, changes=changes)
    model = firth.load(tmp_path / "run")
    assert isinstance(model.tokenizer, Subwords)
    unseen = model.embed(["froggy"])[0]
    table = model.encoder.table.weight.detach().numpy()  # type: ignore[union-attr]
    assert np.allclose(unseen, table[model.tokenizer.word_parts("froggy")].mean(0), atol=1e-6)
    assert np.abs(unseen).max() > 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"recipe": "word2vec-sg-ns", "epochs": 0.5}, "whole passes"),
        ({"recipe": "word2vec-sg-ns", "steps": 3}, "leave out `steps=`"),
        ({"recipe": "word2vec-sg-ns", "threads": 0}, "`threads=`"),
        ({"recipe": "word2vec-sg-ns", "min_count": 0}, "`min_count=` must be at least 1"),
        ({"recipe": "word2vec-sg-ns", "epochs": float("inf")}, "whole passes"),
        ({"recipe": "word2vec-sg-ns", "changes": ["epochs=0"]}, "whole passes"),
        ({"recipe": "word2vec-sg-ns", "window": 0}, "`window=` must be at least 1"),
        ({"recipe": "lda", "width": 0}, "`width=` must be at least 1"),
        ({"recipe": "tf-idf", "width": 5}, "tf-idf has no `width=`"),
        ({"recipe": "lsa", "window": 5}, "lsa has no `window=`"),
        ({"recipe": "tf-idf", "epochs": 1}, "leave out `epochs=`"),
        ({"recipe": "lsa", "changes": ["epochs=2"]}, "leave out `epochs=`"),
        ({"recipe": "bert", "window": 3}, "`window=`"),
        ({"recipe": "word2vec-sg", "epochs": 1}, "word2vec-sg-"),
    ],
)
def test_what_makes_no_sense_is_refused(options: dict[str, Any], said: str, words: Path, tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match=said):
        firth.pretrain(words, out=tmp_path / "run", **options)
    assert not (tmp_path / "run").exists()


def test_a_run_is_never_overwritten_and_other_tokens_have_no_counts(words: Path, data: Path, tmp_path: Path) -> None:
    firth.pretrain(words, out=tmp_path / "run", recipe="tf-idf")
    with pytest.raises(BadInput, match="already exists"):
        firth.pretrain(words, out=tmp_path / "run", recipe="glove")
    with pytest.raises(BadConfig, match="`min_count=` is for whole words"):
        firth.pretrain(data, out=tmp_path / "other", recipe="glove", min_count=3)


@pytest.mark.parametrize(
    ("recipe", "refused", "said"),
    [
        ("lsa", {"width": 500}, "lower the width"),
        ("word2vec-cbow-ns", {"min_count": 100_000}, "lower .?min.count"),
        ("lda", {"min_count": 100_000}, "lower .?min.count"),
    ],
)
@pytest.mark.parametrize("kind", ["text", "shards"])
def test_what_was_refused_is_not_in_the_way(
    recipe: str, refused: dict[str, Any], said: str, kind: str, text: Path, words: Path, tmp_path: Path
) -> None:
    data, out = text if kind == "text" else words, tmp_path / "run"
    with pytest.raises(BadInput, match=said):
        firth.pretrain(data, out=out, recipe=recipe, threads=1, **refused)
    assert not out.exists()
    firth.pretrain(data, out=out, recipe=recipe, threads=1, width=3)
    assert firth.load(out).encoder.width == 3


def test_a_refused_run_leaves_an_empty_folder_as_it_was(text: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    out.mkdir()
    with pytest.raises(BadInput, match="lower the width"):
        firth.pretrain(text, out=out, recipe="lsa", width=500, threads=1)
    with pytest.raises(BadInput, match="No word of the text"):
        firth.pretrain(text, out=out, recipe="lsa", width=3, min_count=9999, threads=1)
    assert list(out.iterdir()) == []


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize("name", ["vocab.txt", "README.md", "data", "notes.txt"])
def test_files_of_others_are_not_written_over(name: str, resume: bool, words: Path, tmp_path: Path) -> None:
    (tmp_path / name).write_text("mine")
    with pytest.raises(BadInput, match="exists and holds no run; choose another `out=`"):
        firth.pretrain(words, out=tmp_path, recipe="lsa", width=500, threads=1, resume=resume)
    assert (tmp_path / name).read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("recipe", ["word2vec-cbow-ns", "glove", "lsa", "lda", "tf-idf"])
def test_whole_words_of_a_text_prepared_with_parts(recipe: str, text: Path, words: Path, tmp_path: Path) -> None:
    """A list with n-grams serves recipes of whole words as well: they give rows to words only."""
    firth.prepare(text, out=tmp_path / "parts", tokenizer="subwords", min_count=1, processes=0)
    asked = {} if recipe == "tf-idf" else {"width": 4}
    for data, out in ((tmp_path / "parts", "run"), (words, "plain")):
        firth.pretrain(data, out=tmp_path / out, recipe=recipe, threads=1, **asked)
    runs = [firth.load(tmp_path / out) for out in ("run", "plain")]
    assert runs[0].encoder.vocab_size == len(runs[0].tokenizer.vocab)
    assert not (tmp_path / "run" / WORD_ROWS).exists()
    assert f"| Vocabulary | {len(runs[0].tokenizer.vocab)} tokens |" in (tmp_path / "run" / "README.md").read_text()
    assert np.array_equal(*(run.embed(["frog pond", "国王"]) for run in runs))
    if recipe != "tf-idf":
        assert open_lexicon(tmp_path / "run").neighbours("frog") == open_lexicon(tmp_path / "plain").neighbours("frog")


def test_a_run_of_a_text_is_resumed_with_that_text(text: Path, tmp_path: Path) -> None:
    asked = {"recipe": "word2vec-sg-ns", "width": 4, "epochs": 1, "threads": 1, "min_count": 60}
    firth.pretrain(text, out=tmp_path / "run", **asked)
    other = tmp_path / "other.txt"
    other.write_text("another text " * 50)
    with pytest.raises(BadInput, match=r"was made from other data than .*other\.txt"):
        firth.pretrain(other, out=tmp_path / "run", resume=True)
    assert firth.pretrain(text, out=tmp_path / "run", resume=True)
    # All numbers of the run are in its file, so that they make the same model again.
    firth.pretrain(text, out=tmp_path / "again", config=tmp_path / "run" / "run.toml", threads=1)
    models = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("run", "again")]
    assert models[0] == models[1]


def test_a_run_is_no_text_and_no_model_of_others(words: Path, tmp_path: Path) -> None:
    firth.pretrain(words, out=tmp_path / "run", recipe="tf-idf")
    with pytest.raises(BadInput, match="is already a model of firth"):
        firth.import_model(tmp_path / "run", out=tmp_path / "copy")
    with pytest.raises(BadInput, match="is a run of `firth pretrain`; resume it with that command"):
        firth.finetune(out=tmp_path / "run", resume=True)
    (tmp_path / "run" / "manifest.json").unlink()  # as if it were not finished
    with pytest.raises(BadInput, match="not of prepared text"):
        firth.pretrain(tmp_path / "run", out=tmp_path / "other", recipe="glove")
    (tmp_path / "run" / "source.json").write_text('{"files": {}}')
    with pytest.raises(BadInput, match="is a run of `firth finetune`"):
        firth.pretrain(words, out=tmp_path / "run", resume=True)


@pytest.mark.parametrize("others", ['"masked_lm": {}, "skip_gram": {}', '"skip_gram": {}, "glove": {}'])
def test_what_needs_no_gradients_stands_alone(others: str, words: Path, tmp_path: Path) -> None:
    plan = lineage.make("word2vec-sg-ns", "tiny")
    goals = {name: objectives.resolve(name).Config() for name in json.loads(f"{{{others}}}")}
    (tmp_path / "plan.toml").write_text(to_toml(to_dict(replace(plan, objectives=goals))))
    with pytest.raises(BadConfig, match="solved without gradients, so it must be the only one"):
        firth.pretrain(words, out=tmp_path / "run", config=tmp_path / "plan.toml")


def test_the_passes_of_glove_follow_the_width() -> None:
    plan = lineage.make("glove", "tiny")
    assert resolve_config(plan, SolveRequest()).epochs == 50
    assert resolve_config(plan, SolveRequest(width=300)).epochs == 100
    assert resolve_config(plan, SolveRequest(changes=("encoder.static.width=400",))).epochs == 100
    assert resolve_config(lineage.make("glove", "base"), SolveRequest(width=299)).epochs == 50
    assert resolve_config(plan, SolveRequest(width=300, epochs=7)).epochs == 7
    assert resolve_config(plan, SolveRequest(width=300, changes=("epochs=50",))).epochs == 50
    begun = resolve_config(plan, SolveRequest(width=300, epochs=7))
    assert resolve_config(begun, SolveRequest()) == begun


@pytest.mark.parametrize("recipe", ["tf-idf", "lsa", "lda"])
def test_counting_tells_how_far_it_is(
    recipe: str, words: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shares = list[float]()

    @contextmanager
    def watched(*_: Any, **__: Any) -> Iterator[Callable[..., None]]:
        yield lambda done, *_: shares.append(done)

    monkeypatch.setattr(solving, "bar", watched)
    changes = ["objectives.lda.documents=50"] if recipe == "lda" else []
    options = {} if recipe == "tf-idf" else {"width": 4}
    firth.pretrain(words, out=tmp_path / "run", recipe=recipe, changes=changes, **options)
    assert shares[0] == 0
    assert shares[-1] == 100
    assert shares == sorted(shares)
    assert len(shares) > 30 or recipe != "lda"


@pytest.mark.parametrize("head", ["linear", "tree"])
def test_the_classifier_learns_and_answers(head: str, tmp_path: Path, command: Callable[..., Any]) -> None:
    rows, out = samples.labelled("classify", "en"), tmp_path / "run"
    answer = command(
        "finetune", f"tasks.classify.head={head}", "epochs=20", "fasttext.width=16", "--task", "classify",
        "--recipe", "fasttext", "--train", rows, "--out", out,
    )  # fmt: skip
    assert answer.code == 0, answer.err
    assert json.loads(command("evaluate", out, "--data", rows, "--json").out)["accuracy"] > 0.85
    assert load_checkpoint(out).info["fine_tuned_from"] == "the words of the training rows"
    said = firth.load(out).predict(["some text"])[0]
    assert sum(said.probabilities.values()) == pytest.approx(1, abs=1e-5)


def test_the_classifier_refuses_what_it_cannot_do(tmp_path: Path) -> None:
    rows = samples.labelled("classify", "en")
    with pytest.raises(BadConfig, match="known: fasttext"):
        firth.finetune(task="classify", recipe="bert", train=rows, out=tmp_path / "a")
    with pytest.raises(BadConfig, match="leave out the model"):
        firth.finetune("somewhere", task="classify", recipe="fasttext", train=rows, out=tmp_path / "b")
    with pytest.raises(BadConfig, match="task='classify'"):
        firth.finetune(task="tag", recipe="fasttext", train=samples.labelled("entities", "en"), out=tmp_path / "c")


_KILLED = """
import sys
import firth
from firth.objectives import passes
passes.SECONDS = 0.0
data, out, recipe, epochs = sys.argv[1:]
firth.pretrain(data, out=out, recipe=recipe, epochs=int(epochs), width=8, min_count=2, threads=1)
"""


@pytest.mark.parametrize(("recipe", "epochs"), [("word2vec-sg-ns", 300), ("glove", 300)])
def test_a_killed_run_goes_on_after_its_last_pass_with_the_same_bits(
    recipe: str, epochs: int, words: Path, tmp_path: Path
) -> None:
    call = [sys.executable, "-c", _KILLED, str(words), str(tmp_path / "run"), recipe, str(epochs)]
    child, kept = subprocess.Popen(call, stderr=subprocess.DEVNULL), tmp_path / "run" / PASSES
    while not kept.exists() and child.poll() is None:
        time.sleep(0.01)
    child.kill()
    child.wait()
    assert kept.exists()
    with np.load(kept) as file:
        done = int(file["passes"])
    assert 0 < done < epochs
    with pytest.raises(BadInput, match="`resume=True`"):
        firth.pretrain(words, out=tmp_path / "run", recipe=recipe)
    for other in ({"width": 9}, {"threads": 2}, {"min_count": 1}):
        with pytest.raises(BadConfig, match="leave out options that differ"):
            firth.pretrain(words, out=tmp_path / "run", resume=True, **other)
    resumed = firth.pretrain(words, out=tmp_path / "run", resume=True)
    firth.pretrain(words, out=tmp_path / "whole", recipe=recipe, epochs=epochs, width=8, min_count=2, threads=1)
    one, two = (load_checkpoint(tmp_path / name).encoder.table.weight for name in ("run", "whole"))  # type: ignore[union-attr]
    assert one.equal(two)
    assert not kept.exists()
    read = resumed["words_per_second"] * resumed["seconds"]
    assert read == pytest.approx(3000 * (epochs - done), rel=1e-6)
    assert firth.pretrain(words, out=tmp_path / "run", resume=True) == resumed


_STOPPED = """
import sys
from firth.cli import main
from firth.objectives import passes
passes.SECONDS = 0.0
main()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_run_tells_how_to_continue(number: signal.Signals, words: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    asked = ["pretrain", words, "--recipe", "word2vec-sg-ns", "--epochs", 100_000, "--width", 8, "--out", out]
    call = [sys.executable, "-c", _STOPPED, *map(str, asked)]
    # What a shell starts in the background is deaf to this signal, and so are its children.
    heard = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    child = subprocess.Popen(call, stderr=subprocess.PIPE, text=True, preexec_fn=heard)
    while not (out / PASSES).exists() and child.poll() is None:
        time.sleep(0.01)
    child.send_signal(number)
    _, said = child.communicate(timeout=60)
    assert child.returncode == 128 + number, said
    assert said == "firth: Stopped. Continue with --resume.\n"
    assert not list(out.glob(".run.lock"))


def test_passes_that_cannot_be_read_are_told_and_other_data_refused(words: Path, text: Path, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"out": tmp_path / "run", "recipe": "word2vec-sg-ns", "epochs": 2, "threads": 1}
    firth.pretrain(words, **settings)
    (tmp_path / "run" / "manifest.json").unlink()
    (tmp_path / "run" / PASSES).write_bytes(b"half of it")
    with pytest.raises(Damaged, match="remove it"):
        firth.pretrain(words, resume=True, **settings)
    more = tmp_path / "more.txt"
    more.write_text(text.read_text() * 2)
    firth.prepare(more, out=tmp_path / "more", tokenizer="words", min_count=1, processes=0)
    with pytest.raises(BadInput, match="other data"):
        firth.pretrain(tmp_path / "more", resume=True, **settings)


def test_a_model_of_parts_keeps_the_vectors_of_its_words(text: Path, tmp_path: Path) -> None:
    changes = ["tokenizer.subwords.num_buckets=500"]
    firth.pretrain(text, out=tmp_path / "run", recipe="fasttext", epochs=1, width=8, threads=1, changes=changes)
    stored, embedded = open_lexicon(tmp_path / "run"), firth.load(tmp_path / "run").embed(["frog", "青蛙"])
    assert isinstance(stored.rows_VD, np.memmap)
    assert np.allclose(stored.rows_VD[[stored.row_of("frog"), stored.row_of("青蛙")]], embedded, atol=1e-6)
    (tmp_path / "run" / WORD_ROWS).unlink()
    with pytest.raises(Damaged, match=WORD_ROWS):
        open_lexicon(tmp_path / "run")
    for name in ("manifest.json", "run.toml"):  # as in a folder that someone else put together
        (tmp_path / "run" / name).unlink()
    assert np.array_equal(open_lexicon(tmp_path / "run").rows_VD, stored.rows_VD)


@pytest.mark.parametrize(("recipe", "goal"), [("word2vec-sg-ns", "skip_gram"), ("glove", "glove")])
def test_vectors_without_bounds_are_refused_and_leave_nothing(
    recipe: str, goal: str, words: Path, tmp_path: Path
) -> None:
    out, options = tmp_path / "run", {"recipe": recipe, "width": 8, "epochs": 2}
    with pytest.raises(BadConfig, match=f"lower objectives.{goal}.rate"):
        firth.pretrain(words, out=out, changes=[f"objectives.{goal}.rate=1e9"], **options)
    assert not out.exists()
