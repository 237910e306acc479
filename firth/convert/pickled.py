"""PyTorch's `.bin` files -> `model.safetensors`.

The format is a program that rebuilds objects. torch's weights-only reader refuses everything except tensors. It also
runs in a separate process that sees nothing of our environment, so a file that breaks the reader breaks nothing else.
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from firth.errors import BadInput
from firth.files import read_json, write_bytes

WEIGHTS = "pytorch_model.bin"
_KEPT_VARIABLES = ("PATH", "LD_LIBRARY_PATH", "SYSTEMROOT", "TMPDIR")
"""The environment variables that an interpreter may need; tokens and keys are not among them."""


def weight_files(folder: Path) -> list[Path]:
    """The `.bin` file of a folder, or the files that its index names; an empty list if there are none."""
    index = folder / f"{WEIGHTS}.index.json"
    if index.exists():
        file_of_tensor = read_json(index)["weight_map"]
        names = sorted(set(file_of_tensor.values()))
        return [folder / name for name in names]
    path = folder / WEIGHTS
    if path.is_file():
        return [path]
    return []


def to_safetensors(files: Sequence[Path], out: Path) -> None:
    """Writes the tensors of all `files` into one safetensors file."""
    environment = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
    # The subprocess must find the same firth.
    python_path = str(Path(__file__).parents[2])
    if os.environ.get("PYTHONPATH"):
        python_path += os.pathsep + os.environ["PYTHONPATH"]
    environment["PYTHONPATH"] = python_path
    program = "from firth.convert.pickled import work; work()"
    arguments = [str(path) for path in [*files, out]]
    # -P keeps the current folder, which may be the source's, off the import path.
    done = subprocess.run(
        [sys.executable, "-P", "-c", program, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        reason = f"the reader ended with code {done.returncode}"
        error_lines = done.stderr.strip().splitlines()
        if error_lines:
            reason = error_lines[-1]
        raise BadInput(f"{files[0].parent} has weights that cannot be read: {reason}.")


def work() -> None:
    """The subprocess's program; its arguments are `FILE... OUT`."""
    *files, out = [Path(argument) for argument in sys.argv[1:]]
    try:
        _convert(files, out)
    except BadInput as error:
        sys.exit(str(error).rstrip("."))


def _convert(files: Sequence[Path], out: Path) -> None:
    import torch
    from safetensors.torch import save

    tensors: dict[str, torch.Tensor] = {}
    for path in files:
        try:
            found = torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:
            # Any exception: the file's bytes decide which one it is.
            raise BadInput(f"{path.name} holds more than weights or is damaged ({_first_line(error)})") from None
        are_tensors = isinstance(found, dict) and all(isinstance(value, torch.Tensor) for value in found.values())
        if not are_tensors:
            raise BadInput(f"{path.name} does not hold tensors by name")
        for name, tensor in found.items():
            # Cloned, because tied tensors share memory, which safetensors refuses.
            tensors[str(name)] = tensor.contiguous().clone()
    write_bytes(out, save(tensors, {"format": "pt"}))


def _first_line(error: Exception) -> str:
    """The type of an error and the beginning of its first line."""
    lines = str(error).strip().splitlines()
    first = lines[0] if lines else ""
    return f"{type(error).__name__}: {first[:120]}"
