"""The example of Ray Serve answers as the model does. Skipped without `ray[serve]`."""

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from firth.inference.model import load

pytest.importorskip("ray", reason="ray is an extra")
pytest.importorskip("aiohttp_cors", reason="ray[serve] is not installed")
pytestmark = [
    pytest.mark.long,
    pytest.mark.filterwarnings("ignore"),
]
PORT = 18437
"""Ray Serve does not say which free port it took."""
EXAMPLE = Path(__file__).parents[2] / "examples" / "ray_serve.py"


@pytest.fixture
def serve() -> Iterator[Any]:
    import ray
    from ray import serve

    ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False, configure_logging=False)
    serve.start(http_options={"host": "127.0.0.1", "port": PORT})
    yield serve
    serve.shutdown()
    ray.shutdown()


def test_replicas_answer_as_the_model_does(serve: Any, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FIRTH_TOKEN", raising=False)
    spec = importlib.util.spec_from_file_location("ray_serve_example", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    serve.run(example.build({"models": f"m={run}", "replicas": "2"}), name="firth", route_prefix="/")
    answer = httpx.post(f"http://127.0.0.1:{PORT}/embed", json={"texts": ["asked"]}, timeout=60)
    assert answer.status_code == 200, answer.text
    np.testing.assert_allclose(answer.json()["vectors"], load(run).embed(["asked"]), atol=1e-5)
    assert httpx.get(f"http://127.0.0.1:{PORT}/health", timeout=60).json() == {"status": "ok"}
