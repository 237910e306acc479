"""Work on a local Ray cluster: the same bytes for any number of workers, and nothing lost with a killed one.

Skipped without ray (`pip install '.[ray]'`).
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import firth
from firth import samples
from firth.engines import open_engine
from firth.engines.engine import Engine
from firth.errors import BadConfig, BadInput, Unsupported
from firth.files import trouble
from firth.words import duplicates

ray = pytest.importorskip("ray", reason="ray is an extra")
from firth.engines.ray_cluster import _call, _connect  # noqa: E402 - it needs ray

pytestmark = pytest.mark.filterwarnings("default::ResourceWarning", "default::FutureWarning")


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    """A cluster of two workers that all tests of this file share."""
    with open_engine("ray", workers=2) as opened:
        assert opened is not None
        yield opened


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Path:
    """Eight pieces of text with repeated and nearly repeated documents."""
    path = tmp_path_factory.mktemp("corpus") / "text.txt"
    prose = samples.prose("en").read_text() + "\n\n" + samples.prose("zh").read_text()
    with path.open("w") as file:
        while file.tell() < 15_000_000:
            file.write(f"A document of its own begins at {file.tell()}.\n{prose}\n\n")
    return path


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_results_come_back_and_errors_are_sentences(engine):
    def divide(a: int, b: int) -> int:
        if not b:
            raise BadInput("One cannot divide by zero.")
        return a // b

    six = engine.submit(divide, engine.share(12), 2)
    assert engine.result(engine.submit(divide, six, 3)) == 2
    with pytest.raises(BadInput, match="cannot divide"):
        engine.result(engine.submit(divide, 1, 0))


def test_a_file_that_a_worker_cannot_read_is_the_error_of_one_process(engine):
    def read() -> None:
        raise PermissionError(13, "Permission denied", "texts/a.txt")

    with pytest.raises(PermissionError) as caught:
        engine.result(engine.submit(read))
    assert trouble(caught.value).startswith("texts/a.txt could not be read or written (Permission denied)")


def test_a_cluster_of_another_version_is_one_sentence(monkeypatch):
    def refuse(**_: object) -> None:
        raise RuntimeError("Version mismatch: The cluster was started with:\n    Ray: 2.9\n    Python: 3.10")

    monkeypatch.setenv("RAY_ADDRESS", "auto")
    monkeypatch.setattr(ray, "init", refuse)
    with pytest.raises(BadConfig, match=r"auto cannot be reached: Version .*: Ray: 2\.9 Python: 3\.10$"):
        _connect(1)


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1", "127.0.0.1:99999"])
def test_a_cluster_that_does_not_answer_is_told_at_once(monkeypatch, address):
    monkeypatch.setenv("RAY_ADDRESS", address)
    monkeypatch.setattr(ray, "init", lambda **_: pytest.fail("Ray would wait"))
    with pytest.raises(BadConfig, match=f"The Ray cluster {address} cannot be reached: "):
        _connect(1)


def test_work_of_a_killed_process_is_done_again(engine, tmp_path):
    marker = tmp_path / "died"

    def die_once(path: str, number: int) -> int:
        if number == 3 and not os.path.exists(path):
            Path(path).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return number * number

    handles = [engine.submit(die_once, str(marker), number) for number in range(6)]
    assert [engine.result(handle) for handle in handles] == [0, 1, 4, 9, 16, 25]
    assert marker.exists()


def test_work_that_always_kills_its_process_is_an_error(engine, monkeypatch):
    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr(engine, "task", ray.remote(_call).options(max_retries=1))
    with pytest.raises(Unsupported, match="use fewer processes"):
        engine.result(engine.submit(die))


@pytest.mark.long
def test_prepare_with_a_killed_worker_gives_the_same_bytes(tmp_path, corpus):
    """In a process of its own; one of its workers is killed while it encodes."""
    firth.prepare(corpus, out=tmp_path / "local", vocab_size=2000, processes=1, near_duplicates=3)
    command = [sys.executable, "-m", "firth", "prepare", str(corpus), "--out", str(tmp_path / "ray")]
    command += ["--vocab-size", "2000", "--engine", "ray", "--near-duplicates", "3"]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        killed = _kill_a_worker(process)
        assert process.wait() == 0, (tmp_path / "log").read_text()
    assert killed
    assert contents(tmp_path / "ray") == contents(tmp_path / "local")


def _kill_a_worker(process: "subprocess.Popen[bytes]") -> bool:
    """Kills the first worker of the process that has used half a second of a core."""
    psutil = pytest.importorskip("psutil")
    while process.poll() is None:
        try:
            for child in psutil.Process(process.pid).children(recursive=True):
                is_at_work = child.name().startswith("ray::") and "_call" in " ".join(child.cmdline())
                if is_at_work and child.cpu_times().user > 0.5:
                    child.kill()
                    return True
        except psutil.NoSuchProcess:
            continue
        time.sleep(0.02)
    return False


def test_prepare_is_the_same_with_any_number_of_workers(engine, tmp_path, texts):
    """The cluster of this file has two workers; more or fewer pieces are in progress at a time."""
    firth.prepare(texts, out=tmp_path / "local", vocab_size=900)
    for workers in (1, 2, 4):
        firth.prepare(texts, out=tmp_path / str(workers), vocab_size=900, engine="ray", processes=workers)
        assert contents(tmp_path / str(workers)) == contents(tmp_path / "local")


def test_duplicates_are_the_same(engine, texts):
    assert duplicates(texts, within=10, engine="ray") == duplicates(texts, within=10)


@pytest.fixture(scope="module")
def classifier(run, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("classifier") / "run"
    firth.finetune(run, task="classify", train=samples.labelled("classify", "en"), out=out, changes=["epochs=1"])
    return out


def test_embed_and_predict_are_those_of_one_process(engine, tmp_path, classifier, command):
    file = tmp_path / "texts.txt"
    file.write_text("".join(f"Text number {i} is {'good' if i % 2 else 'bad'}.\n" for i in range(2500)))
    one = command("embed", classifier, "--file", file, "--out", tmp_path / "one.npy")
    many = command("embed", classifier, "--file", file, "--out", tmp_path / "ray.npy", "--engine", "ray")
    assert (one.code, many.code) == (0, 0), many.err
    np.testing.assert_allclose(np.load(tmp_path / "ray.npy"), np.load(tmp_path / "one.npy"), atol=1e-5)
    one = command("predict", classifier, "--file", file)
    many = command("predict", classifier, "--file", file, "--engine", "ray")
    assert (one.code, many.code) == (0, 0), many.err
    assert many.out == one.out
    refused = command(
        "embed", classifier, "--file", file, "--out", tmp_path / "a.npy", "--engine", "ray", "--precision", "auto"
    )
    assert refused.code == 2
    assert "instead of auto" in refused.err
