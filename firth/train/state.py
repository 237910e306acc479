"""Exact resume: a run goes on as if it had never stopped.

RUN/checkpoints/step-N holds the weights, the optimizer's moments, and the place in the data. A folder appears only when
it is complete. A damaged one is reported, and the one before it is used. With several ranks only rank 0 writes, except
where ranks share the weights: then each writes its own (`sharding.py`). Any number of ranks reads either.
"""

import platform
import shutil
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from firth.config import from_dict
from firth.cpu import this_cpu
from firth.data.loader import BatchAddress
from firth.errors import BadInput, Damaged, FirthError
from firth.files import atomic_folder, check_manifest, read_json, remove_leftovers, write_json
from firth.train.loop import Progress
from firth.train.parallel import current_world, is_lost_rank
from firth.train.sharding import copy_share, like, load_shares, save_shares, saved_names
from firth.train.whole import is_shared

WEIGHTS = "weights.safetensors"
OPTIMIZER = "optimizer.safetensors"
SUMS = "sums.safetensors"
PROGRESS = "progress.json"
SHARED_WEIGHTS = "weights"
SHARED_OPTIMIZER = "optimizer"
"""Folders with a file for each rank, in place of the files of these names."""
MOMENTS = ("exp_avg", "exp_avg_sq", "step", "momentum")
"""What optimizers keep for a parameter: AdamW the first three, Muon the last."""

Environment = Mapping[str, str | int]
"""What bit-identical results depend on besides the config: torch, device, world size, threads, the CPU's units."""
Report = Callable[[str], None]


@dataclass(frozen=True)
class SavedProgress:
    """What progress.json holds."""

    step: int
    steps: int
    place: BatchAddress
    """The first batch not yet used."""
    counts: Mapping[str, int]
    """The denominators of the losses since the last log row."""
    files: Mapping[str, int]
    """The sizes of the logs, in bytes."""
    environment: Environment


def save(
    folder: Path,
    learner: nn.Module,
    *,
    optimizer: torch.optim.Optimizer,
    progress: Progress,
    files: Mapping[str, int],
    keep: int,
) -> None:
    """Writes step-N and deletes all but the newest `keep`; `files` are the sizes of the logs at this moment."""
    world = current_world()
    sums = total_sums(progress)
    target = folder / f"step-{progress.step}"
    writer = _StateWriter(learner, optimizer, progress, sums=sums, files=files)
    is_new = not world.from_main(target.exists())
    if is_new and any(is_shared(parameter) for parameter in learner.parameters()):
        writer.write_shares(target)

    def write() -> None:
        if not target.exists():
            writer.write(target)
        # Deleted only after the new state is complete.
        for old in _steps(folder)[:-keep]:
            shutil.rmtree(folder / f"step-{old}")

    world.on_main(write)


def total_sums(progress: Progress) -> dict[str, float]:
    """The losses and tallies since the last log, over all ranks; waits for the device."""
    own_sums = {name: float(total) for name, total in progress.sums.items()}
    return current_world().total(own_sums)


class _StateWriter:
    """What a state holds, and how it is written."""

    def __init__(
        self,
        learner: nn.Module,
        optimizer: torch.optim.Optimizer,
        progress: Progress,
        *,
        sums: Mapping[str, float],
        files: Mapping[str, int],
    ) -> None:
        self.sums = sums
        device = next(learner.parameters()).device
        self.progress = SavedProgress(
            step=progress.step,
            steps=progress.steps,
            place=progress.place,
            counts=progress.counts,
            files=files,
            environment=environment(device),
        )
        self.weights = {name: tensor.detach().contiguous() for name, tensor in saved_tensors(learner).items()}
        self.moments = _moments(learner, optimizer)

    def write(self, target: Path) -> None:
        """Writes everything, in one process."""
        try:
            with atomic_folder(target) as temporary:
                save_file(self.weights, temporary / WEIGHTS)
                save_file(self.moments, temporary / OPTIMIZER)
                self._write_progress(temporary)
        except (OSError, SafetensorError) as error:
            raise _not_saved(target, self.progress.step, error) from None

    def write_shares(self, target: Path) -> None:
        """Writes what this rank holds; all ranks do so together, into a folder that rank 0 makes."""
        world = current_world()
        try:
            with ExitStack() as stack:
                temporary = target
                if world.is_main:
                    temporary = stack.enter_context(atomic_folder(target))
                temporary = world.from_main(temporary)
                save_shares(temporary / SHARED_WEIGHTS, self.weights)
                save_shares(temporary / SHARED_OPTIMIZER, self.moments)
                if world.is_main:
                    self._write_progress(temporary)
        except Exception as error:
            if is_lost_rank(error):
                raise
            raise _not_saved(target, self.progress.step, error) from None
        world.wait()

    def _write_progress(self, folder: Path) -> None:
        save_file(_as_tensors(self.sums), folder / SUMS)
        write_json(folder / PROGRESS, asdict(self.progress))


def _as_tensors(sums: Mapping[str, float]) -> dict[str, Tensor]:
    """Doubles hold the sums exactly."""
    return {name: torch.tensor(total, dtype=torch.float64) for name, total in sums.items()}


def _not_saved(target: Path, step: int, error: Exception) -> FirthError:
    folder = target.parent
    last = newest_step(folder)
    kept = f"the state of step {last} is intact" if last else "no state was saved before"
    why = error.strerror if isinstance(error, OSError) else error
    return FirthError(f"Step {step} could not be saved in {folder} ({why}); {kept}. Make room and use `resume=True`.")


def restore(
    folder: Path,
    learner: nn.Module,
    *,
    optimizer: torch.optim.Optimizer,
    report: Report,
) -> tuple[Progress, Mapping[str, int]] | None:
    """Loads the newest sound state into learner and optimizer.

    Gives the progress and the sizes that the logs had; None if there is no state.
    """
    world = current_world()
    world.on_main(partial(_clean, folder, report))
    # Rank 0 decides: a rank that found no state, or another one, would train other weights than the rest.
    step = world.from_main(newest_step(folder))
    if step is None:
        return None
    source = folder / f"step-{step}"
    if not source.is_dir():
        raise BadInput(f"{source} is not there for rank {world.rank}; all machines of a run must share its folder.")
    return _load(source, learner, optimizer, report)


def _clean(folder: Path, report: Report) -> None:
    """Deletes halves of states and damaged ones."""
    if folder.exists():
        remove_leftovers(folder, "step-")
        _remove_damaged(folder, report)


def _remove_damaged(folder: Path, report: Report) -> None:
    """Deletes damaged states from the newest on, until there is a sound one."""
    for step in reversed(_steps(folder)):
        source = folder / f"step-{step}"
        try:
            check_manifest(source)
        except Damaged as error:
            is_first = step == _steps(folder)[0]
            remedy = "There is no other: starting at step 0." if is_first else "Using the state before it."
            report(f"{error} {remedy}")
            shutil.rmtree(source)
        else:
            return


def saved_tensors(learner: nn.Module) -> dict[str, Tensor]:
    """The tensors of a model that a state keeps: parameters, shared ones once, and buffers that are saved."""
    # A tied parameter has several names in the state dict but one here.
    names_to_save = learner.state_dict().keys()
    tensors: dict[str, Tensor] = dict(learner.named_parameters())
    for name, buffer in learner.named_buffers():
        if name in names_to_save:
            tensors[name] = buffer
    return tensors


@torch.no_grad()
def load_tensors(learner: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Copies what `saved_tensors` gave back into the model."""
    for name, tensor in saved_tensors(learner).items():
        copy_share(tensor, tensors[name])


def newest_step(folder: Path) -> int | None:
    """The step of the newest state; None if there is none."""
    steps = _steps(folder)
    if not steps:
        return None
    return steps[-1]


def _load(
    source: Path,
    learner: nn.Module,
    optimizer: torch.optim.Optimizer,
    report: Report,
) -> tuple[Progress, Mapping[str, int]]:
    saved = from_dict(SavedProgress, read_json(source / PROGRESS))
    device = next(learner.parameters()).device
    _report_other_environment(saved.environment, environment(device), report)
    is_shared_state = (source / SHARED_WEIGHTS).is_dir()
    if is_shared_state:
        _load_shared(source, learner, optimizer)
    else:
        _load_whole(source, learner, optimizer)
    # The saved sums are those of all ranks, so only one rank continues them.
    sums: dict[str, Tensor] = {}
    if current_world().is_main:
        sums = {name: total.to(device) for name, total in load_file(source / SUMS).items()}
    progress = Progress(saved.steps, saved.step, place=saved.place, sums=sums, counts=dict(saved.counts))
    return progress, saved.files


def _load_whole(source: Path, learner: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Loads what one process wrote."""
    weights = load_file(source / WEIGHTS)
    _refuse_other_model(source, weights.keys(), learner)
    load_tensors(learner, weights)
    moments = load_file(source / OPTIMIZER)
    for name, parameter in learner.named_parameters():
        state: dict[str, Tensor] = {}
        for moment in MOMENTS:
            saved = moments.get(f"{name}.{moment}")
            if saved is not None:
                state[moment] = _new_moment(moment, parameter)
                copy_share(state[moment], saved)
        if state:
            optimizer.state[parameter] = state


def _load_shared(source: Path, learner: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Loads what several ranks wrote."""
    weights = saved_tensors(learner)
    _refuse_other_model(source, saved_names(source / SHARED_WEIGHTS), learner)
    load_shares(source / SHARED_WEIGHTS, {name: tensor.detach() for name, tensor in weights.items()})
    known = saved_names(source / SHARED_OPTIMIZER)
    moments: dict[str, Tensor] = {}
    for name, parameter in learner.named_parameters():
        state: dict[str, Tensor] = {}
        for moment in MOMENTS:
            key = f"{name}.{moment}"
            if key in known:
                state[moment] = _new_moment(moment, parameter)
                moments[key] = state[moment]
        if state:
            optimizer.state[parameter] = state
    load_shares(source / SHARED_OPTIMIZER, moments)


def _new_moment(moment: str, parameter: nn.Parameter) -> Tensor:
    """An empty moment of a parameter: a number of steps, or a tensor of the same shape."""
    if moment == "step":
        return torch.zeros((), device=parameter.device)
    return like(parameter)


def _refuse_other_model(source: Path, names: Collection[str], learner: nn.Module) -> None:
    """Strict: a state of another config is refused, not loaded in part."""
    if set(names) != saved_tensors(learner).keys():
        raise BadInput(f"{source} belongs to another model; its tensors do not match this run's config.")


def _report_other_environment(then: Environment, now: Environment, report: Report) -> None:
    changed = []
    for name, value in now.items():
        # States of earlier versions do not say everything.
        if name in then and then[name] != value:
            changed.append(f"{name}: {then[name]} then, {value} now")
    if changed:
        report(f"The run goes on, but not bit for bit as it would have: {'; '.join(changed)}.")


def environment(device: torch.device) -> Environment:
    """What bit-identical results depend on besides the config."""
    is_gpu = device.type == "cuda"
    device_name = torch.cuda.get_device_name(device) if is_gpu else platform.machine()
    values: dict[str, str | int] = {
        "torch": torch.__version__,
        "device": device_name,
        "world": current_world().size,
    }
    if not is_gpu:
        values["threads"] = torch.get_num_threads()
        # They decide about the precision and about the order of sums.
        values["cpu"] = " ".join(this_cpu().units())
    return values


def _moments(learner: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimizer's state of each parameter, by `<parameter>.<moment>`."""
    moments: dict[str, Tensor] = {}
    for name, parameter in learner.named_parameters():
        state = optimizer.state[parameter]
        for moment in MOMENTS:
            if moment in state:
                moments[f"{name}.{moment}"] = state[moment].contiguous()
    return moments


def _steps(folder: Path) -> list[int]:
    """The steps whose states are in a folder, in order; a copy that someone named `step-40-good` is none of them."""
    numbers = [path.name.removeprefix("step-") for path in folder.glob("step-*")]
    return sorted(int(number) for number in numbers if number.isdecimal())
