"""What happens around the steps: logs, evaluation, saved states, time limits, warnings."""

import json
import multiprocessing
import re
import shutil
import time
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import firth
from firth import console
from firth.config import from_dict, load_toml
from firth.data.loader import BatchAddress, Batches
from firth.data.shards import Shards
from firth.errors import BadConfig, BadInput, FirthError, Resumable
from firth.lineage import Recipe
from firth.pretraining.training import build
from firth.tensors import Batch
from firth.train.evaluation import evaluate
from firth.train.journal import read_rows
from firth.train.limit import EvaluationExtent, TimeLimit, evaluation_extent
from firth.train.loop import Learner, Progress
from firth.train.run import PROVISIONAL_STEPS, TrainingRun, floor_step
from firth.train.settings import TrainConfig


def test_the_folder_of_a_run(run: Path) -> None:
    names = {path.name for path in run.iterdir()}
    assert names >= {"model.safetensors", "config.json", "firth.json", "tokenizer.json", "vocab.txt", "manifest.json"}
    assert names >= {"run.toml", "source.json", "metrics.jsonl", "timing.jsonl", "README.md", "checkpoints"}
    assert {path.name for path in (run / "checkpoints").iterdir()} == {"step-30", "step-40"}  # the last two are kept


def test_rows_come_when_the_config_says(run: Path) -> None:
    rows = read_rows(run / "metrics.jsonl")
    assert [row["step"] for row in rows if row["split"] == "train"] == list(range(5, 41, 5))
    assert [row["step"] for row in rows if row["split"] == "held-out"] == [20, 40]
    assert rows[0].keys() > {"masked_lm", "next_sentence", "masked_lm_accuracy", "next_sentence_accuracy", "rate"}
    assert [row["step"] for row in read_rows(run / "timing.jsonl")] == list(range(5, 41, 5))
    assert all(row["tokens_per_second"] > 0 and row["waiting"] >= 0 for row in read_rows(run / "timing.jsonl"))
    assert rows[-2]["masked_lm"] < rows[0]["masked_lm"]


def test_what_is_saved_of_where_it_comes_from(run: Path, data: Path) -> None:
    ours = json.loads((run / "firth.json").read_text())
    held_out = [row for row in read_rows(run / "metrics.jsonl") if row["split"] == "held-out"][-1]
    assert ours["held_out"] == {key: value for key, value in held_out.items() if key not in ("step", "split")}
    assert (ours["steps"], ours["recipe"], ours["max_length"]) == (40, "bert", 64)
    assert f"{ours['held_out']['masked_lm']:.4f}" in (run / "README.md").read_text()
    assert json.loads((run / "source.json").read_text())["data"] == str(data.resolve())


def test_a_runs_config_can_be_passed_back(run: Path, data: Path, tmp_path: Path) -> None:
    firth.pretrain(data, out=tmp_path / "again", config=run / "run.toml")
    for name in ("run.toml", "metrics.jsonl", "model.safetensors", "firth.json"):
        assert (tmp_path / "again" / name).read_bytes() == (run / name).read_bytes()
    firth.pretrain(data, out=tmp_path / "other", config=run / "run.toml", steps=3, changes=["train.seed=4"])
    plan = tomllib.loads((tmp_path / "other" / "run.toml").read_text())
    assert (plan["train"]["steps"], plan["train"]["seed"]) == (3, 4)
    with pytest.raises(BadConfig, match="leave out `recipe=` and `size=`"):
        firth.pretrain(data, out=tmp_path / "third", config=run / "run.toml", size="base")


def test_minutes_become_steps_and_are_saved(
    data: Path, tiny: tuple[str, ...], tmp_path: Path, messages: Callable[[], str]
) -> None:
    changes = [*tiny, "train.checkpoint_every=1000"]
    firth.pretrain(data, out=tmp_path / "run", minutes=0.02, changes=changes)
    steps = json.loads((tmp_path / "run" / "firth.json").read_text())["steps"]
    assert f"0.02 minutes are {steps:,} steps" in messages()
    plan = json.loads((tmp_path / "run" / "plan.json").read_text())
    assert plan["steps"] == steps > plan["planned_at"] > 2
    assert {p.name for p in tmp_path.glob("run/checkpoints/*")} == {f"step-{plan['planned_at']}", f"step-{steps}"}
    assert read_rows(tmp_path / "run" / "metrics.jsonl")[-1]["step"] == steps


def test_progress_of_a_time_limit_goes_by_the_clock_before_the_steps_are_planned(
    data: Path,
    tiny: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(console, "PLAIN_SECONDS", 0.0)
    with console.shown():
        firth.pretrain(data, out=tmp_path / "run", minutes=0.03, changes=tiny)
    planned_at = json.loads((tmp_path / "run" / "plan.json").read_text())["planned_at"]
    lines = re.findall(r"pre-training: (\d+) of ([\d,]+) steps", capfd.readouterr().err)
    before_plan = [line for line in lines if 2 <= int(line[0]) < planned_at]
    assert before_plan
    for _, expected_steps in before_plan:
        assert expected_steps != f"{PROVISIONAL_STEPS:,}"


def test_a_timed_run_resumed_goes_by_its_plan(data: Path, tiny: tuple[str, ...], tmp_path: Path) -> None:
    run = tmp_path / "run"
    firth.pretrain(data, out=run, minutes=0.02, changes=[*tiny, "train.checkpoint_every=1000"])
    whole = {name: (run / name).read_bytes() for name in ("metrics.jsonl", "model.safetensors", "plan.json")}
    for kept in ("planned", ""):  # the state before the last, then none
        (run / "manifest.json").unlink()
        planned_at = json.loads(whole["plan.json"])["planned_at"]
        for state in run.glob("checkpoints/*"):
            if not kept or state.name != f"step-{planned_at}":
                shutil.rmtree(state)
        firth.pretrain(data, out=run, resume=True)
        assert {name: (run / name).read_bytes() for name in whole} == whole


def test_evaluations_count_in_a_time_limit(
    data: Path, tiny: tuple[str, ...], tmp_path: Path, messages: Callable[[], str]
) -> None:
    changes = [*tiny, "train.evaluate_every=1", "batches.held_out_rate=0.7", "batches.tokens=64"]
    firth.pretrain(data, out=tmp_path / "run", minutes=0.01, changes=changes)
    plan = json.loads((tmp_path / "run" / "plan.json").read_text())
    rows = [row["step"] for row in read_rows(tmp_path / "run" / "metrics.jsonl") if row["split"] == "held-out"]
    assert plan["evaluate_every"] > 2
    later = range(plan["planned_at"] + 1, plan["steps"])
    between = [step for step in later if step % plan["evaluate_every"] == 0]
    assert rows == [plan["planned_at"], *between, plan["steps"]]
    assert plan["held_out"] > 0
    assert "of the held-out text, because all would take too long" in messages()


def test_the_plan_of_a_time_limit_adds_up() -> None:
    limit = TimeLimit(10.0, first=0)
    plan = limit.plan(50, per_step=0.1, evaluation=30.0, saving=6.0, every=(100, 1000), held_out=0)
    assert (plan.planned_at, plan.evaluate_every, plan.checkpoint_every) == (50, 3000, 1000)
    steps = plan.steps - 50
    seconds = steps * 0.1 + steps / 3000 * 30 + steps / 1000 * 6 + 30 + 2 * 6
    assert seconds == pytest.approx(600, abs=1)
    assert limit.plan(50, per_step=9e9, evaluation=1.0, saving=0.0, every=(1, 1), held_out=0).steps == 51


def test_steps_are_timed_for_a_tenth_of_the_limit() -> None:
    slow, quick = TimeLimit(100.0, first=0), TimeLimit(0.001, first=7)
    assert not any(slow.due(step) for step in range(1, 200))
    assert slow.due(200)
    assert not quick.due(8)
    time.sleep(0.02)
    assert not quick.due(9)
    assert quick.due(10)  # a third of the time is gone


def test_a_first_step_that_compiles_is_no_measure_of_the_others() -> None:
    limit = TimeLimit(0.5 / 60, first=0)
    time.sleep(0.3)
    assert not any(limit.due(step) for step in (1, 2, 3, 4, 5))
    assert limit.per_step(5) < 0.03


def test_epochs_become_steps(data: Path, tiny: tuple[str, ...], tmp_path: Path) -> None:
    firth.pretrain(data, out=tmp_path / "run", epochs=0.2, changes=tiny)
    tokens = firth.load(tmp_path / "run").info().training["tokens"]
    health = json.loads((data / "shards.json").read_text())["health"]
    assert tokens == pytest.approx(0.2 * health["tokens"], abs=512)


@pytest.mark.parametrize(
    ("limits", "says"),
    [
        ({"steps": 5, "minutes": 1.0}, "one of `steps=`, `epochs=` and `minutes=`"),
        ({"steps": 0}, "at least 1"),
        ({"minutes": -1.0}, "above 0"),
    ],
)
def test_limits_that_make_no_sense(limits: dict[str, float], says: str, data: Path, tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match=says):
        firth.pretrain(data, out=tmp_path / "run", **limits)  # type: ignore[arg-type]
    assert not (tmp_path / "run").exists()


def test_nothing_held_out(data: Path, tiny: tuple[str, ...], tmp_path: Path) -> None:
    changes = [*tiny, "batches.held_out_rate=0.0"]
    assert firth.pretrain(data, out=tmp_path / "run", steps=2, changes=changes) == {}
    assert [row["split"] for row in read_rows(tmp_path / "run" / "metrics.jsonl")] == ["train"]


def test_a_model_that_does_not_pass_the_floor_is_warned_of(
    data: Path, tiny: tuple[str, ...], tmp_path: Path, messages: Callable[[], str]
) -> None:
    firth.pretrain(data, out=tmp_path / "run", steps=200, changes=[*tiny, "train.optim.rate=0.0"])
    assert "has not passed the unigram floor" in messages()
    assert [floor_step(steps) for steps in (3, 300, 1000, 5000)] == [200, 200, 200, 1000]


def test_a_loss_that_is_not_a_number_stops_the_run(data: Path, tiny: tuple[str, ...], tmp_path: Path) -> None:
    changes = [*tiny, "train.optim.rate=1e30", "train.optim.clip=0.0"]
    with pytest.raises(FirthError, match=r"diverged \(NaN or infinite\) at step"):
        firth.pretrain(data, out=tmp_path / "run", steps=20, changes=changes)
    assert not (tmp_path / "run" / "config.json").exists()
    with pytest.raises(BadInput, match="not finished"):
        firth.load(tmp_path / "run")


def test_a_lost_process_that_makes_batches_ends_the_run_with_a_sentence(
    data: Path, tiny: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torch tells of it by a signal, wherever the training process is."""
    on_step = TrainingRun.on_step

    def kill_after_step_20(run: TrainingRun, progress: Progress, norm: torch.Tensor) -> None:
        on_step(run, progress, norm)
        if progress.step == 20:
            for worker in multiprocessing.active_children():
                worker.kill()
                worker.join()

    monkeypatch.setattr(TrainingRun, "on_step", kill_after_step_20)
    with pytest.raises(Resumable, match=r"lost, .* after step 2\d; the state of step \d+ is saved.*resume") as caught:
        firth.pretrain(data, out=tmp_path / "run", steps=40, changes=[*tiny, "batches.workers=1"])
    assert "\n" not in str(caught.value)


def test_parts_can_be_named_but_not_left_out(data: Path, tiny: tuple[str, ...], tmp_path: Path) -> None:
    for change in ("objectives={}", "encoder={}"):
        with pytest.raises(BadConfig, match="one encoder and at least one objective"):
            firth.pretrain(data, out=tmp_path / "run", changes=[*tiny, change])
    changes = [*tiny, 'objectives={"masked_lm": {"rate": 0.2}}']
    assert set(firth.pretrain(data, out=tmp_path / "run", steps=2, changes=changes)) == {
        "masked_lm",
        "masked_lm_accuracy",
    }
    assert firth.load(tmp_path / "run").info().heads == ["masked_lm"]


def test_a_limit_given_now_replaces_the_files(data: Path, tiny: tuple[str, ...], tmp_path: Path) -> None:
    firth.pretrain(data, out=tmp_path / "a", steps=3, changes=[*tiny, "train.minutes=0"])
    text = (tmp_path / "a" / "run.toml").read_text().replace("minutes = 0.0", "minutes = 9.0")
    (tmp_path / "plan.toml").write_text(text)
    firth.pretrain(data, out=tmp_path / "b", steps=4, config=tmp_path / "plan.toml")
    assert read_rows(tmp_path / "b" / "metrics.jsonl")[-1]["step"] == 4


def test_one_epoch_is_every_pack_once(data: Path, tiny: tuple[str, ...], tmp_path: Path) -> None:
    firth.pretrain(data, out=tmp_path / "run", epochs=1, changes=tiny)
    plan = from_dict(Recipe, load_toml(tmp_path / "run" / "run.toml"))
    assert plan.train.steps == build(plan, Shards.open(data), device="cpu").text.training.num_packs(0)


LONG_AT_THE_END = ("batches.last_length=96", "batches.last_share=0.25", "train.keep=100", "train.checkpoint_every=1")


@pytest.mark.parametrize("recipe", ["bert", "small", "gpt", "xlnet", "t5"])
def test_the_last_steps_read_longer_sequences(
    recipe: str, data: Path, tiny: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths: list[tuple[int, int]] = []
    read = Learner.counts

    def spy(learner: Learner, batch: Batch) -> dict[str, int]:
        if learner.training:
            text = batch.source or batch
            lengths.append((text.max_length, int(text.bounds_B1.diff().max())))
        return read(learner, batch)

    monkeypatch.setattr(Learner, "counts", spy)
    sizes = [change for change in tiny if not change.startswith("encoder.")]
    run = tmp_path / "run"
    firth.pretrain(data, out=run, recipe=recipe, size="tiny", steps=8, changes=[*sizes, *LONG_AT_THE_END])
    assert [length for length, _ in lengths] == [64] * 6 + [96] * 2
    assert all(longest <= 64 for _, longest in lengths[:6])
    assert max(longest for _, longest in lengths[6:]) > 64
    assert json.loads((run / "firth.json").read_text())["max_length"] == 96


def test_an_extent_holds_for_any_number_of_packs(run: Path, data: Path) -> None:
    """A time limit finds it with the sequences of the first steps, and longer ones at the end fall into other packs."""
    parts = build(from_dict(Recipe, load_toml(run / "run.toml")), Shards.open(data), device="cpu")
    assert parts.text.held_out is not None
    num_packs = parts.text.held_out.num_packs(0)
    assert num_packs > 1
    figures = []
    for wanted in (0, num_packs + 5, 1):
        extent = EvaluationExtent(packs=wanted)
        figures.append(evaluate(parts.learner, parts.text.held_out, precision="fp32", extent=extent))
        assert extent.share == (1 / num_packs if wanted == 1 else 1.0)
    assert figures[0] == figures[1] != figures[2]


def test_evaluations_of_a_short_run_do_not_read_all_held_out_text() -> None:
    """A short run over much text would spend most of its time in evaluations."""
    short = evaluation_extent(TrainConfig(steps=40, accumulate=2, evaluate_every=100), tokens_of_a_pack=16_384)
    assert short.packs == 0.25 * 40 * 2
    long = evaluation_extent(TrainConfig(steps=10_000, evaluate_every=500), tokens_of_a_pack=16_384)
    assert long.packs == 0.25 * 500
    shortest = evaluation_extent(TrainConfig(steps=1), tokens_of_a_pack=1024)
    assert shortest.packs * 1024 == 65_536
    limited = evaluation_extent(TrainConfig(minutes=1.0), tokens_of_a_pack=1024)
    assert limited.packs == 0, "the clock decides"


def test_a_short_run_says_how_much_it_evaluates(
    data: Path, tiny: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, messages: Callable[[], str]
) -> None:
    changes = [*tiny, "batches.held_out_rate=0.5"]
    firth.pretrain(data, out=tmp_path / "all", steps=4, changes=changes)
    assert "of the held-out text" not in messages(), "there is less text than a short run reads"
    monkeypatch.setattr("firth.train.limit.FEWEST_EVALUATED_TOKENS", 1)
    firth.pretrain(data, out=tmp_path / "part", steps=4, changes=changes)
    assert re.search(r"An evaluation reads \d+\.\d% of the held-out text", messages())
    figures = [json.loads((tmp_path / name / "firth.json").read_text())["held_out"] for name in ("all", "part")]
    assert figures[0] != figures[1]
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("all", "part")]
    assert weights[0] == weights[1]


@pytest.mark.parametrize("kept", [3, 6, 7])
def test_a_run_with_longer_sequences_at_the_end_resumes_exactly(
    kept: int, data: Path, tiny: tuple[str, ...], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    firth.pretrain(data, out=run, steps=8, changes=[*tiny, "encoder.bert.max_positions=96", *LONG_AT_THE_END])
    whole = {name: (run / name).read_bytes() for name in ("metrics.jsonl", "model.safetensors")}
    # Step 6 is the first of the last phase; a run may stop right before it.
    (run / "manifest.json").unlink()
    for state in run.glob("checkpoints/*"):
        if state.name != f"step-{kept}":
            shutil.rmtree(state)
    firth.pretrain(data, out=run, resume=True)
    assert {name: (run / name).read_bytes() for name in whole} == whole


def test_a_plan_shorter_than_what_is_done_begins_the_last_phase_at_once(
    data: Path, tiny: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nine tenths of the steps are the last phase, but it is not known how many these are before some are timed."""
    begun: list[tuple[int, BatchAddress]] = []
    train_on = TrainingRun._train_on

    def spy(run: TrainingRun, packs: Batches, *, until: Callable[[], int] | None = None) -> None:
        begun.append((run.progress.step, run.progress.place))
        train_on(run, packs, until=until)

    monkeypatch.setattr(TrainingRun, "_train_on", spy)
    run = tmp_path / "run"
    changes = [*tiny, "encoder.bert.max_positions=96", *LONG_AT_THE_END, "batches.last_share=0.9"]
    firth.pretrain(data, out=run, minutes=0.03, changes=changes)
    plan = json.loads((run / "plan.json").read_text())
    assert plan["steps"] - round(0.9 * plan["steps"]) < plan["planned_at"]
    (_, first_place), (last_step, last_place) = begun
    assert last_step == plan["planned_at"]
    # New batches from their beginning, with new draws.
    assert last_place.epoch > first_place.epoch
    assert last_place == BatchAddress(last_place.epoch)
    whole = {name: (run / name).read_bytes() for name in ("metrics.jsonl", "model.safetensors")}
    # A run that is resumed knows the plan from its first step on, and follows it in the same way.
    (run / "manifest.json").unlink()
    shutil.rmtree(run / "checkpoints")
    firth.pretrain(data, out=run, resume=True)
    assert {name: (run / name).read_bytes() for name in whole} == whole


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ("batches.last_length=4", "last_length=4 must be at least 8"),
        ("batches.last_length=100000", "last_length=100000 is more than"),
        ("batches.last_share=1", "last_share"),
        ("train.optim.beta1=1.5", "beta1"),
        ("train.optim.weight_decay=-0.1", "weight_decay must be at least 0"),
        ("train.minutes=-1", "minutes must be at least 0"),
        ("batches.workers=-1", "workers"),
        ("encoder.bert.num_heads=0", "at least 1"),
        ("encoder.bert.dropout=2", "dropout"),
        ("objectives.masked_lm.rate=0", "rate"),
        ("train.compile=yes", "GPU"),
    ],
)
def test_numbers_that_make_no_sense(changes: str, says: str, data: Path, tiny: tuple[str, ...], tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match=says):
        firth.pretrain(data, out=tmp_path / "run", changes=[*tiny, changes])
    assert not (tmp_path / "run").exists()


def test_devices_that_are_not_there(data: Path, tmp_path: Path) -> None:
    for device in ("gpu", "cuda"):
        if device == "cuda" and torch.cuda.is_available():
            continue
        with pytest.raises(BadConfig, match=r"device|GPU"):
            firth.pretrain(data, out=tmp_path / "run", device=device)
