"""Exact resume: everything a run needs to go on as if it had never stopped.

RUN/checkpoints/step-N holds weights, the optimizer's moments, and where in the data the run stands. A folder appears
only when complete; a damaged one is reported and the one before it is used.
"""

import platform
import shutil
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from firth.data.loader import Place
from firth.errors import BadInput, Damaged, FirthError
from firth.files import atomic_folder, check_manifest, read_json, remove_leftovers, write_json
from firth.train.loop import Progress
from firth.train.parallel import current_world

MOMENTS = ("exp_avg", "exp_avg_sq", "step", "momentum")
"""What optimizers keep of a parameter: AdamW the first three, Muon the last."""


def save(
    folder: Path,
    learner: nn.Module,
    *,
    optimizer: torch.optim.Optimizer,
    progress: Progress,
    files: dict[str, int],
    keep: int,
) -> None:
    """Writes step-N and drops the oldest; `files` are the lengths of the logs at this moment."""
    target = folder / f"step-{progress.step}"
    device = next(learner.parameters()).device
    if not target.exists():
        try:
            with atomic_folder(target) as temporary:
                weights = {name: tensor.detach().contiguous() for name, tensor in held(learner).items()}
                save_file(weights, temporary / "weights.safetensors")
                save_file(_moments(learner, optimizer), temporary / "optimizer.safetensors")
                save_file({n: t.cpu().clone() for n, t in progress.sums.items()}, temporary / "sums.safetensors")
                write_json(temporary / "progress.json", _facts(progress, files, device))
        except (OSError, SafetensorError) as error:
            last = newest_step(folder)
            kept = f"the state of step {last} is intact" if last else "no state was saved before"
            why = error.strerror if isinstance(error, OSError) else error
            raise FirthError(
                f"Step {progress.step} could not be saved in {folder} ({why}); {kept}. Make room and use `resume=True`."
            ) from None
    for old in _steps(folder)[:-keep]:
        shutil.rmtree(folder / f"step-{old}")


def restore(
    folder: Path, learner: nn.Module, *, optimizer: torch.optim.Optimizer, report: Any = print
) -> tuple[Progress, dict[str, int]] | None:
    """Loads the newest sound state into learner and optimizer; None when there is none."""
    if folder.exists():
        remove_leftovers(folder, "step-")
    for step in reversed(_steps(folder)):
        source = folder / f"step-{step}"
        try:
            check_manifest(source)
        except Damaged as error:
            before = any(other < step for other in _steps(folder))
            report(f"{error} {'Using the state before it.' if before else 'There is no other: starting at step 0.'}")
            shutil.rmtree(source)
            continue
        return _load(source, learner, optimizer, report)
    return None


def held(learner: nn.Module) -> dict[str, torch.Tensor]:
    """What a state keeps of a model: parameters, shared ones once, and what it counts as it goes."""
    saved = learner.state_dict().keys()
    return {**dict(learner.named_parameters()), **{n: b for n, b in learner.named_buffers() if n in saved}}


@torch.no_grad()
def put_back(learner: nn.Module, tensors: Mapping[str, torch.Tensor]) -> None:
    for name, tensor in held(learner).items():
        tensor.copy_(tensors[name])


def newest_step(folder: Path) -> int | None:
    steps = _steps(folder)
    return steps[-1] if steps else None


def _load(
    source: Path, learner: nn.Module, optimizer: torch.optim.Optimizer, report: Any
) -> tuple[Progress, dict[str, int]]:
    facts = read_json(source / "progress.json")
    here = environment(next(learner.parameters()).device)
    then = facts["environment"]
    changed = [f"{k}: {then.get(k)} then, {v} now" for k, v in here.items() if then.get(k) != v]
    if changed:
        report(f"The run goes on, but not bit for bit as it would have: {'; '.join(changed)}.")
    weights = load_file(source / "weights.safetensors")
    if weights.keys() != held(learner).keys():
        raise BadInput(f"{source} belongs to another model; its tensors do not match this run's config.")
    put_back(learner, weights)
    moments = load_file(source / "optimizer.safetensors")
    for name, parameter in learner.named_parameters():
        kept = {moment: moments[f"{name}.{moment}"] for moment in MOMENTS if f"{name}.{moment}" in moments}
        if kept:
            optimizer.state[parameter] = {moment: tensor.to(parameter.device) for moment, tensor in kept.items()}
    sums = {n: t.to(next(learner.parameters()).device) for n, t in load_file(source / "sums.safetensors").items()}
    progress = Progress(facts["steps"], facts["step"], place=Place(**facts["place"]), sums=sums, counts=facts["counts"])
    return progress, facts["files"]


def environment(device: torch.device) -> dict[str, Any]:
    """What bit-identical results depend on besides the config."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    same = {"torch": torch.__version__, "device": name, "world": current_world().size}
    return same if device.type == "cuda" else same | {"threads": torch.get_num_threads()}


def _facts(progress: Progress, files: dict[str, int], device: torch.device) -> dict[str, Any]:
    return {
        "step": progress.step,
        "steps": progress.steps,
        "place": asdict(progress.place),
        "counts": progress.counts,
        "files": files,
        "environment": environment(device),
    }


def _moments(learner: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    return {
        f"{name}.{moment}": optimizer.state[parameter][moment].contiguous()
        for name, parameter in learner.named_parameters()
        for moment in MOMENTS
        if moment in optimizer.state[parameter]
    }


def _steps(folder: Path) -> list[int]:
    return sorted(int(path.name.removeprefix("step-")) for path in folder.glob("step-*"))
