"""The benches of compression: their plans name every method, and a model without its matrices opens again."""

from pathlib import Path

import numpy as np
import pytest

import firth
from bench.compress_gpu import Job, Queue
from bench.compression_plans import FINETUNE, ON_CPU, ORIGINAL, PLANS, chosen_plans
from bench.compression_table import accuracy, difference, f1
from bench.model_shapes import restore, strip
from firth import compression
from firth.config import override
from firth.tensors import parameter_count


def test_every_method_has_a_plan() -> None:
    methods = set()
    for plan in (*PLANS.values(), *ON_CPU):
        methods |= {step.by for step in plan.steps}
    assert methods - {FINETUNE} == set(compression.TABLE)


def test_plans_have_settings_that_their_methods_know() -> None:
    for plan in PLANS.values():
        for step in plan.steps:
            if step.by != FINETUNE:
                known = {"{others}": '["a"]', "{before}": "b", "{unlabelled}": "texts.txt", "{long}": "4"}
                filled = []
                for change in step.changes:
                    for name, value in known.items():
                        change = change.replace(name, value)
                    filled.append(change)
                override(compression.resolve(step.by).Config(), filled)


def test_a_student_is_compared_with_one_without_a_teacher() -> None:
    for plan in PLANS.values():
        if plan.against:
            assert PLANS[plan.against].start == plan.start
    assert [plan.name for plan in chosen_plans(["pkd,"])] == ["half the layers, no teacher", "pkd, half the layers"]


def test_jobs_wait_for_the_originals_that_they_need() -> None:
    distil = Job("mrpc", "distil, half the layers", 1)
    ensemble = Job("mrpc", "ensemble, half the layers", 1)
    originals = [Job("mrpc", ORIGINAL, seed) for seed in (1, 2)]
    queue = Queue([ensemble, distil, *originals], [], deadline=np.inf, seeds=2)
    assert queue.take() == originals[0]
    queue.finish(originals[0])
    assert queue.take() == distil
    assert queue.take() == originals[1]
    queue.finish(originals[1])
    assert queue.take() == ensemble
    assert queue.take() is None


@pytest.mark.parametrize("bits", [0, 4])
def test_a_stripped_model_opens_again(tuned: Path, rows: Path, tmp_path: Path, bits: int, quick: None) -> None:
    model = tuned
    if bits:
        model = tmp_path / "few"
        firth.compress(tuned, by="weights", data=rows, out=model, changes=[f"bits={bits}"])
    strip(model, tmp_path / "stripped")
    size = sum(path.stat().st_size for path in (tmp_path / "stripped").rglob("*.safetensors"))
    assert size < 0.1 * (tuned / "model.safetensors").stat().st_size
    again = firth.load(restore(tmp_path / "stripped", tmp_path / "again"))
    first = firth.load(tuned)
    assert parameter_count([again.encoder]) == parameter_count([first.encoder])
    assert len(again.predict(["a text", "another"])) == 2


def test_a_teachers_gain_has_an_interval() -> None:
    gold = "01" * 50
    better = {seed: {"answers": gold, "metric": "accuracy"} for seed in (1, 2)}
    worse = {seed: {"answers": "1" * 100, "metric": "accuracy"} for seed in (1, 2)}
    originals = {1: {"gold": gold}}
    mean, low, high = difference(better, worse, originals).replace("(", "").replace(")", "").replace("to ", "").split()
    assert float(mean) == 50.0
    assert 35 < float(low) < 50 < float(high) < 65
    assert difference(better, {}, originals) == ""
    answers = np.array([1, 1, 0, 0])
    wanted = np.array([1, 0, 1, 0])
    assert accuracy(answers, wanted) == 0.5
    assert f1(answers, wanted) == 0.5
