"""PyTorch's `.bin` files -> `model.safetensors`.

The format is a program that rebuilds objects. torch's weights-only reader refuses all but tensors; besides, it runs in
a process of its own that sees none of our environment, so a file that breaks the reader breaks nothing else.
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from firth.errors import BadInput
from firth.files import read_json, write_bytes

WEIGHTS = "pytorch_model.bin"
_NEEDED = ("PATH", "LD_LIBRARY_PATH", "SYSTEMROOT", "TMPDIR")
"""All that an interpreter may need of the environment; tokens and keys are not among it."""


def weight_files(folder: Path) -> list[Path]:
    """The folder's `.bin` file, or the files its index names; none where there are none."""
    index = folder / f"{WEIGHTS}.index.json"
    names = sorted(set(read_json(index)["weight_map"].values())) if index.exists() else [WEIGHTS]
    return [folder / name for name in names if index.exists() or (folder / name).is_file()]


def to_safetensors(files: Sequence[Path], out: Path) -> None:
    """Writes the tensors of all `files` into one safetensors file."""
    place = os.pathsep.join([str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])])
    kept = {name: os.environ[name] for name in _NEEDED if name in os.environ}
    done = subprocess.run(
        [sys.executable, "-P", "-c", "from firth.convert.pickled import work; work()", *map(str, [*files, out])],
        env={**kept, "PYTHONPATH": place},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or [f"the reader ended with code {done.returncode}"])[-1]
        raise BadInput(f"{files[0].parent} has weights that cannot be read: {reason}.")


def work() -> None:
    """What the subprocess does: `FILE... OUT` are its arguments."""
    *files, out = map(Path, sys.argv[1:])
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
            # Whatever it is, the file's bytes brought it about.
            raise BadInput(f"{path.name} holds more than weights or is damaged ({_first_line(error)})") from None
        if not isinstance(found, dict) or not all(isinstance(value, torch.Tensor) for value in found.values()):
            raise BadInput(f"{path.name} does not hold tensors by name")
        tensors |= {str(name): tensor.contiguous().clone() for name, tensor in found.items()}
    write_bytes(out, save(tensors, {"format": "pt"}))


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0][:120]}"
