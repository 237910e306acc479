"""Whole fine-tuning runs on the embedded labelled sets: figures, seeds, ways of transfer, resuming, mistakes."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import firth
from firth import checkpoint as checkpoints
from firth import samples
from firth.config import to_dict
from firth.errors import BadConfig, BadInput
from firth.files import read_json, sha256, write_json
from firth.finetuning.measuring import warn_if_trained_on
from firth.run_folder import LOCK
from firth.run_source import SOURCE, CompressionSource, SourceFile, TuningSource

CLASSIFY = samples.labelled("classify", "en")
ENTITIES = samples.labelled("entities", "en")
SMALL = ("batch_size=16", "train.optim.rate=1e-3")
Finetune = Callable[..., Path]


@pytest.fixture
def finetune(run: Path, tmp_path: Path) -> Finetune:
    """Fine-tunes the small pre-trained model and gives the folder."""

    def call(*changes: str, name: str = "tuned", **options: Any) -> Path:
        settings: dict[str, Any] = {"task": "classify", "train": CLASSIFY, "device": "cpu", **options}
        firth.finetune(run, out=tmp_path / name, changes=(*SMALL, *changes), **settings)
        return tmp_path / name

    return call


def write(path: Path, rows: list[str]) -> Path:
    path.write_text("\n".join(rows) + "\n", "utf-8")
    return path


@pytest.fixture
def split(tmp_path: Path) -> tuple[Path, Path]:
    header, *rows = CLASSIFY.read_text("utf-8").splitlines()
    return write(tmp_path / "train.tsv", [header, *rows[:80]]), write(tmp_path / "dev.tsv", [header, *rows[80:136]])


def test_a_model_of_a_search_or_of_compression_is_told_too(
    finetune: Finetune, split: tuple[Path, Path], tmp_path: Path, messages: Callable[[], str]
) -> None:
    files = {part: SourceFile(str(path), sha256(path)) for part, path in zip(("train", "dev"), split, strict=True)}
    tuned = TuningSource(model="run", model_sha256="", random=False, files=files)
    compressed = CompressionSource(model="run", model_sha256="", method="distil", files={"train": files["train"]})
    for source, wanted in ((tuned, ("was trained on", "picked its settings on")), (compressed, ("was trained on",))):
        write_json(tmp_path / SOURCE, to_dict(source))
        messages()
        for path, use in zip(split, wanted, strict=False):
            warn_if_trained_on(tmp_path, path, sha256(path))
            assert f"{path} holds the rows that {tmp_path} {use}, so these figures flatter it." in messages()


def test_a_model_measured_on_its_own_rows_is_told(
    finetune: Finetune, split: tuple[Path, Path], tmp_path: Path, messages: Callable[[], str]
) -> None:
    folder = finetune("epochs=1", train=split[0], dev=split[1])
    copy = tmp_path / "copy.tsv"  # another name does not hide it
    copy.write_bytes(split[0].read_bytes())
    messages()
    for file, wanted in ((copy, "was trained on"), (split[1], "picked its epochs on"), (CLASSIFY, "")):
        firth.evaluate(folder, data=file)
        said = f"Warning: {file} holds the rows that {folder} {wanted}, so these figures flatter it.\n"
        assert messages() == (said if wanted else "")


def test_rows_that_a_model_cannot_read_are_told_once(
    finetune: Finetune, messages: Callable[[], str], tmp_path: Path
) -> None:
    rows = tmp_path / "rows.tsv"
    lines = [f"ничего не понятно {number}\t{'yes' if number % 2 else 'no'}" for number in range(12)]
    rows.write_text("\n".join(["text\tlabel", *lines]) + "\n", "utf-8")
    messages()
    finetune("epochs=1", train=rows, seeds=2)
    assert messages().count("of the tokens are unknown") == 1


def test_a_run_leaves_a_measured_and_documented_model(finetune: Finetune, split: tuple[Path, Path]) -> None:
    folder = finetune("epochs=2", train=split[0], dev=split[1], test=split[1], seeds=3)
    results = read_json(folder / "results.json")
    row = results["tasks"]["classify"]
    assert results["seeds"] == [1, 2, 3]
    by_seed = [figures["accuracy"] for figures in row["by_seed"]["dev"]]
    spread = row["figures"]["dev"]["accuracy"]
    assert spread["mean"] == pytest.approx(sum(by_seed) / 3)
    assert spread["deviation"] == pytest.approx(torch.tensor(by_seed).std().item(), abs=1e-6)
    best = max(by_seed)
    assert by_seed[results["kept_seed"] - 1] == best
    measured = firth.evaluate(folder, data=split[1])
    assert measured["rows"] == 56
    assert measured["accuracy"] == pytest.approx(best)
    assert row["figures"]["test"]["accuracy"]["mean"] == pytest.approx(spread["mean"])
    card = (folder / "README.md").read_text("utf-8")
    assert "(used for picking)" in card
    assert "majority baseline" in card
    assert "Hardest errors" in card
    assert row["data"]["train"] in card
    page = (folder / "report.html").read_text("utf-8")
    assert "fine-tuning report" in page
    assert not list(folder.glob("seed-*/checkpoints"))
    assert not list(folder.glob("seed-*/best.safetensors"))


def test_one_seed_says_that_no_deviation_is_known(run: Path, tmp_path: Path, command: Callable[..., Any]) -> None:
    folder = tmp_path / "tuned"
    options = ("--task", "classify", "--train", CLASSIFY, "--device", "cpu", "--out", folder)
    said = command("finetune", run, *options, *SMALL, "epochs=1").out
    assert "no deviation is known" in said
    assert "on 48 held-out training rows (used for picking)" in said
    row = read_json(folder / "results.json")["tasks"]["classify"]
    assert row["figures"]["dev"]["accuracy"]["deviation"] is None
    assert row["rows"] == {"train": 432, "dev": 48}


@pytest.mark.parametrize(
    ("task", "language", "inputs"),
    [
        ("classify", "zh", ["这家店很好。", "太糟糕了，再也不来。"]),
        ("tag", "zh", ["联合国成立于一九四五年。", "李白是诗人"]),
        ("tag", "en", ["James Watt worked in Glasgow.", "Nothing here"]),
    ],
)
def test_the_walk_in_both_languages(finetune: Finetune, task: str, language: str, inputs: list[str]) -> None:
    source = samples.labelled({"classify": "classify", "tag": "entities"}[task], language)
    folder = finetune("epochs=1", task=task, train=source)
    model = firth.load(folder)
    forwards, backwards = model.predict(inputs), model.predict(inputs[::-1])[::-1]
    assert [p.label for p in forwards] == [p.label for p in backwards]
    assert all(text[s.start : s.end] == s.text for text, p in zip(inputs, forwards, strict=True) for s in p.spans)
    assert firth.evaluate(folder, data=source)["accuracy"] > 0.3


def test_the_command_line(run: Path, split: tuple[Path, Path], tmp_path: Path, command: Callable[..., Any]) -> None:
    out = tmp_path / "tuned"
    options = ["--task", "classify", "--train", split[0], "--dev", split[1], "--out", out, "--device", "cpu"]
    answer = command("finetune", run, *options, "epochs=1", *SMALL, "--json")
    assert answer.code == 0
    assert json.loads(answer.out)["tasks"]["classify"]["main"] == "accuracy"
    lines = command("predict", out, "A fine day.", "A bad day.").out.splitlines()
    assert len(lines) == 2
    assert all(line.split("\t")[0] in ("positive", "negative") for line in lines)
    rows = command("predict", out, "--file", split[1], "--json").out.splitlines()
    assert len(rows) == 56
    assert set(json.loads(rows[0])["probabilities"]) == {"positive", "negative"}
    plain = write(tmp_path / "lines.txt", ["A fine day.", "A bad day."])
    assert command("predict", out, "--file", plain).out.splitlines() == lines
    assert json.loads(command("evaluate", out, "--data", split[1], "--json").out)["rows"] == 56
    assert "480 rows" in command("check", CLASSIFY, "--task", "classify", "--model", out).out
    found = json.loads(command("check", split[0], "--dev", CLASSIFY, "--task", "classify", "--json").out)
    assert len(found["parts"]["dev"]["also_in_train"]) == 80
    assert command("predict", out).code == 2
    assert "finetune" in command("predict", run, "text").err


def test_the_same_seed_gives_the_same_bytes(finetune: Finetune) -> None:
    one, other = finetune("epochs=1", name="one"), finetune("epochs=1", name="other")
    for name in ("model.safetensors", "head.safetensors", "seed-1/metrics.jsonl"):
        assert (one / name).read_bytes() == (other / name).read_bytes()


def test_a_copy_keeps_the_card_with_the_figures(finetune: Finetune, tmp_path: Path) -> None:
    folder = finetune("epochs=1", "transfer.mode=adapters")
    firth.load(folder).save(tmp_path / "copy")
    kept = (tmp_path / "copy/README.md").read_text("utf-8")
    assert "majority baseline" in kept
    assert kept == (folder / "README.md").read_text("utf-8")


def test_a_setting_has_one_name_everywhere(run: Path, tmp_path: Path, command: Callable[..., Any]) -> None:
    pairs = samples.labelled("pairs", "en")
    figures = {
        name: command("evaluate", run, "--task", "compare", "--data", pairs, f"{name}=cls", "--json").out
        for name in ("pooling", "tasks.compare.pooling")
    }
    assert len({*figures.values()}) == 1
    assert json.loads(figures["pooling"])["rows"] == 70
    refused = command("evaluate", run, "--task", "compare", "--data", pairs, "tasks.classify.pooling=cls")
    assert "'tasks.classify.pooling' is not a known key" in refused.err
    for at, name in enumerate(figures):
        made = command(
            "finetune", run, "--task", "compare", "--train", pairs, "--out", tmp_path / str(at), f"{name}=cls",
            "epochs=1", "--device", "cpu",
        )  # fmt: skip
        assert made.code == 0, made.err
        assert firth.load(tmp_path / str(at)).checkpoint.tasks["compare"].config.pooling == "cls"
        assert command("finetune", "--out", tmp_path / str(at), "--resume", f"{name}=cls").code == 0
    both = ("--task", "classify", "--train", CLASSIFY, "--task", "compare", "--train", pairs)
    unclear = command("finetune", run, *both, "--out", tmp_path / "both", "pooling=cls")
    assert "'pooling' is not a known key" in unclear.err  # both tasks have one


RESUMED = ("epochs=8", "train.checkpoint_every=3", "transfer.unfreeze_every=1", "transfer.layer_decay=0.9")


def stopped_at(out: Path, arguments: list[Any], state: str, number: signal.Signals) -> tuple[int, str]:
    """Runs the command until this state is saved, sends the signal, and gives exit code and last line."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())}
    process = subprocess.Popen(
        [sys.executable, "-m", "firth", "finetune", *map(str, arguments)],
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 60
    while not list(out.glob(state)) and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    return process.returncode, said.splitlines()[-1] if said else ""


def test_a_stopped_and_killed_run_resumes_to_the_same_bytes(run: Path, finetune: Finetune, tmp_path: Path) -> None:
    whole = finetune(*RESUMED, name="whole", seeds=2)
    out = tmp_path / "killed"
    arguments = [run, "--task", "classify", "--train", CLASSIFY, "--out", out, "--seeds", 2, "--device", "cpu"]
    arguments += [*SMALL, *RESUMED]
    for number, state in ((signal.SIGTERM, "seed-1/checkpoints/step-3"), (signal.SIGINT, "seed-2/checkpoints/step-3")):
        code, said = stopped_at(out, arguments, state, number)
        assert code == 128 + number
        assert re.fullmatch(r"firth: Stopped at step \d+; its state is saved\. Continue with --resume\.", said)
        assert not (out / LOCK).exists()
        arguments = ["--out", out, "--resume", "--device", "cpu"]
    stopped_at(out, arguments, "seed-2/checkpoints/step-9", signal.SIGKILL)
    assert not (out / "results.json").exists()
    assert (out / LOCK).exists()  # nobody holds it any more
    firth.finetune(out=out, resume=True, device="cpu")
    for name in ("model.safetensors", "head.safetensors", "seed-2/metrics.jsonl", "results.json"):
        assert (whole / name).read_bytes() == (out / name).read_bytes(), name
    again = firth.finetune(out=out, resume=True, device="cpu")
    assert again == read_json(out / "results.json")


@pytest.mark.parametrize(
    "changes",
    [
        ("transfer.mode=features", "transfer.features.layers=[-1]", "transfer.features.combine=sum"),
        ("transfer.mode=features", "transfer.features.layers=[1,2]", "transfer.features.combine=concat"),
        ("transfer.mode=features", "transfer.features.layers=[0,1,2]", "transfer.features.lstm_width=8"),
        ("transfer.mode=adapters", "transfer.adapter_width=4"),
    ],
)
@pytest.mark.parametrize("task", ["classify", "tag"])
def test_what_is_frozen_stays_and_the_model_comes_back(
    run: Path, finetune: Finetune, changes: tuple[str, ...], task: str
) -> None:
    folder = finetune("epochs=1", *changes, task=task, train=CLASSIFY if task == "classify" else ENTITIES)
    before, after = checkpoints.load(run).encoder.state_dict(), checkpoints.load(folder).encoder.state_dict()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    if "transfer.mode=features" in changes:
        assert not changed
        assert firth.load(folder).fill("a [MASK]")  # what was pre-trained still works
    else:
        assert changed
        assert all("norm" in name or "pooler" in name for name in changed)
        assert any("_slot" in name for name in after)
    results = read_json(folder / "results.json")["tasks"][task]["figures"]["dev"]
    model = firth.load(folder)
    items = model.predict(["A fine day.", "Watt lived in Glasgow"])
    assert len(items) == 2
    assert "accuracy" in results


def test_features_mix_learns_its_weights(finetune: Finetune) -> None:
    folder = finetune("epochs=1", "transfer.mode=features", "transfer.features.layers=[0,1,2]")
    reader = checkpoints.load(folder).feature_encoder
    assert reader is not None
    own = reader.own_parameters()  # type: ignore[operator]
    assert set(own) == {"weights_K", "gamma"}
    assert own["gamma"].item() != 1.0
    assert own["weights_K"].abs().sum().item() > 0


def test_gradual_unfreezing_begins_at_the_top(run: Path, finetune: Finetune) -> None:
    before = checkpoints.load(run).encoder.state_dict()
    after = checkpoints.load(finetune("epochs=2", "transfer.unfreeze_every=1", "pick=last")).encoder.state_dict()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert any(name.startswith("blocks.1.") for name in changed)
    assert all(name.startswith(("blocks.1.", "pooler.")) for name in changed)


def test_several_tasks_share_one_encoder(finetune: Finetune, split: tuple[Path, Path]) -> None:
    folder = finetune("epochs=2", task=["classify", "tag", "classify"], train=[CLASSIFY, ENTITIES, split[0]])
    model = firth.load(folder)
    assert list(model.checkpoint.tasks) == ["classify", "tag", "classify-2"]
    assert model.predict(["A fine day."], task="classify-2")[0].label in ("positive", "negative")
    assert len(model.predict(["Watt lived here"], task="tag")[0].label) == 3
    with pytest.raises(BadConfig, match="several tasks"):
        model.predict(["A fine day."])
    figures = read_json(folder / "results.json")["tasks"]
    assert set(figures["tag"]["figures"]["dev"]) == {"f1", "precision", "recall", "accuracy"}
    losses = [json.loads(line) for line in (folder / "seed-1/metrics.jsonl").read_text().splitlines()]
    assert {"classify", "tag", "classify-2"} <= {key for row in losses for key in row}


def test_without_a_model_and_with_random_weights(run: Path, finetune: Finetune, tmp_path: Path) -> None:
    firth.finetune(
        task="classify", train=CLASSIFY, random=True, out=tmp_path / "alone", changes=["epochs=1"], device="cpu"
    )
    assert read_json(tmp_path / "alone/results.json")["model"] == "random weights"
    control = finetune("epochs=1", "train.optim.rate=1e-9", random=True)
    start, end = checkpoints.load(run).encoder, checkpoints.load(control).encoder
    assert start.config == end.config
    assert not torch.allclose(start.embeddings.tokens.weight, end.embeddings.tokens.weight, atol=0.01)


def test_early_stopping_stops(finetune: Finetune, messages: Callable[[], str]) -> None:
    folder = finetune("epochs=30", "patience=1", "train.optim.rate=1e-12")
    assert "nothing better since step 27" in messages()
    assert read_json(folder / "results.json")["kept_epoch"] == 1


def test_mistakes_get_one_sentence(finetune: Finetune, run: Path, split: tuple[Path, Path], tmp_path: Path) -> None:
    train, _ = split
    strange = write(tmp_path / "strange.tsv", ["text\tlabel", "fine\tpositive", "odd\tsideways", "\tpositive"])
    with pytest.raises(
        BadInput, match=r"strange.tsv, row 3: the label 'sideways' never occurs.*`skip_bad=True` \(2 such"
    ):
        finetune(train=train, dev=strange)
    assert not (tmp_path / "tuned").exists()
    folder = finetune("epochs=1", train=train, dev=strange, skip_bad=True)
    row = read_json(folder / "results.json")["tasks"]["classify"]
    assert row["skipped"] == {"train": 0, "dev": 2}
    assert row["rows"]["dev"] == 1
    with pytest.raises(BadInput, match="already exists"):
        finetune(train=train)
    with pytest.raises(BadInput, match="row 3: the label 'sideways'"):
        firth.evaluate(folder, data=strange)
    assert firth.evaluate(folder, data=strange, skip_bad=True)["skipped"] == 2
    with pytest.raises(BadInput, match="does not exist"):
        finetune(train=tmp_path / "nowhere.tsv", name="b")
    with pytest.raises(BadConfig, match="one for each task"):
        finetune(task=["classify", "tag"], name="b")
    with pytest.raises(BadConfig, match="did you mean 'classify'"):
        finetune(task="clasify", name="b")
    with pytest.raises(BadConfig, match="did you mean 'epochs'"):
        finetune("epoch=3", name="b")
    with pytest.raises(BadConfig, match=r"did you mean 'train\.optim\.rate'"):
        finetune("rate=1e-4", name="b")
    with pytest.raises(BadConfig, match=r"'fasttext\.rate=1e-4' is for encoder=fasttext; this run has encoder=model\."):
        finetune("fasttext.rate=1e-4", name="b")
    with pytest.raises(BadConfig, match="at most the model's 64"):
        finetune("max_length=512", name="b")
    with pytest.raises(BadInput, match="too few to hold some out"):
        finetune(train=write(tmp_path / "two.tsv", ["text\tlabel", "a\tx", "b\ty"]), name="b")
    with pytest.raises(BadInput, match="holds no run to resume; give all options without `resume=True`"):
        firth.finetune(out=tmp_path / "c", resume=True)
    with pytest.raises(BadInput, match="not fine-tuned"):
        firth.load(run).predict(["x"])
    with pytest.raises(BadInput, match="into a list"):
        firth.load(folder).predict("x")


def test_resuming_needs_the_same_data_and_numbers(finetune: Finetune, split: tuple[Path, Path], tmp_path: Path) -> None:
    folder = finetune("epochs=1", train=split[0])
    with pytest.raises(BadConfig, match="leave out options"):
        firth.finetune(out=folder, resume=True, changes=["epochs=9"])
    with pytest.raises(BadInput, match="was not begun with"):
        firth.finetune(out=folder, resume=True, task="classify", train=split[1])
    with pytest.raises(BadInput, match="did not start from"):
        firth.finetune(folder, out=folder, resume=True)
    split[0].write_text(split[0].read_text() + "one more\tpositive\n")
    with pytest.raises(BadInput, match="is not as it was"):
        firth.finetune(out=folder, resume=True)


def test_a_damaged_head_is_found(finetune: Finetune) -> None:
    folder = finetune("epochs=1")
    path = folder / "head.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(firth.FirthError, match=r"head\.safetensors"):
        firth.load(folder)


@pytest.mark.parametrize("metric", ["f1", "nonsense"])
def test_a_figure_that_is_never_measured_is_refused_before_training(
    finetune: Finetune, tmp_path: Path, metric: str
) -> None:
    with pytest.raises(BadConfig, match=rf"classify has no figure '{metric}' .* it has accuracy, "):
        finetune("epochs=1", f"tasks.classify.metric={metric}")
    assert not (tmp_path / "tuned").exists()


def test_accumulating_does_not_multiply_the_epochs(finetune: Finetune) -> None:
    folder = finetune("epochs=2", "batch_size=8", "train.accumulate=4", "pick=last")  # 432 rows: 54 batches
    rows = [json.loads(line) for line in (folder / "seed-1/metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows if row["split"] == "held-out"] == [14, 27]
    assert read_json(folder / "results.json")["kept_epoch"] == 2


def test_a_run_killed_before_it_began_begins_again(run: Path, finetune: Finetune, tmp_path: Path) -> None:
    whole = finetune("epochs=1", name="whole")
    killed = tmp_path / "killed"
    killed.mkdir()
    (killed / "source.json").write_bytes((whole / "source.json").read_bytes())
    (killed / ".run.toml.abc").write_text("half")
    with pytest.raises(BadInput, match="holds no run to resume"):
        firth.finetune(out=killed, resume=True)
    finetune("epochs=1", name="killed")
    assert (killed / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    assert not list(killed.glob(".*"))
    (killed / "results.json").unlink()
    (killed / "seed-1/.best.json.abc").write_text("half")
    (killed / "seed-1/result.json").unlink()
    firth.finetune(out=killed, resume=True, device="cpu")
    assert not list(killed.glob("seed-1/.*"))
    with pytest.raises(BadInput, match="exists and holds no run"):
        finetune(name=".", resume=True)  # a folder of other things


def test_what_cannot_be_built_fails_before_anything_is_written(finetune: Finetune, tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match="layers"):
        finetune("epochs=1", "transfer.mode=features", "transfer.features.layers=[9]")
    pairs = write(tmp_path / "pairs.tsv", ["first\tsecond\tlabel", *(f"a {i}\tb {i}\t{i % 6}" for i in range(12))])
    with pytest.raises(BadConfig, match="way=pooled needs no training"):
        finetune("epochs=1", task="compare", train=pairs, way="pooled")
    assert not (tmp_path / "tuned").exists()
