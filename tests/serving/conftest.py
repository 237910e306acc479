"""A real server in a process of its own, with small models of every kind; and a way to start others."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

from firth import checkpoint, samples
from firth.encoders.transformer import Transformer
from firth.finetuning import labelled
from firth.inference.model import Model, load
from firth.search.index import build_index
from firth.tasks import resolve
from firth.tokenizers import Tokenizer

QUIET = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
TASKS = {
    "classify": "classify.en.tsv",
    "tag": "entities.en.conll",
    "answer": "answers.en.json",
    "choose": "",
    "compare": "pairs.en.tsv",
}
CHOICES = '{"context": "It rains.", "options": ["Take a coat.", "Swim."], "label": 0}\n' * 2


@dataclass(frozen=True)
class Served:
    """A running server."""

    url: str
    process: subprocess.Popen[bytes]
    log: Path
    client: httpx.Client

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    @property
    def resident(self) -> int:
        """Bytes of memory the process holds."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+)", text)[1]) * 1024  # type: ignore[index]

    def post(self, path: str, body: Any, **options: Any) -> httpx.Response:
        return self.client.post(self.url + path, json=body, **options)

    def metric(self, name: str) -> float:
        text = self.client.get(f"{self.url}/metrics").text
        return sum(float(line.split()[-1]) for line in text.splitlines() if re.match(rf"{name}[{{ ]", line))


@contextmanager
def started(folder: Path, *arguments: object, environment: dict[str, str] | None = None) -> Iterator[Served]:
    """`firth serve ARGUMENTS` on a free port; ended at the end."""
    log = folder / f"log-{time.monotonic_ns()}.txt"
    command = [sys.executable, "-m", "firth", "serve", *map(str, arguments), "--port", "0"]
    with log.open("wb") as file:
        process = subprocess.Popen(
            command, stdout=file, stderr=file, cwd=folder, env={**os.environ, **QUIET, **(environment or {})}
        )
    try:
        with httpx.Client(timeout=60, verify=False) as client:
            yield Served(_url(process, log), process, log, client)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.wait(30)


def _url(process: subprocess.Popen[bytes], log: Path) -> str:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if found := re.search(r"Serving on (http://\S+)", log.read_text()):
            return found[1]
        assert process.poll() is None, log.read_text()
        time.sleep(0.05)
    raise AssertionError(log.read_text())


@pytest.fixture(scope="session")
def folders(run: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Model folders by name: a pre-trained one, and one for each task with a head that was never trained."""
    home = tmp_path_factory.mktemp("served")
    made = {"plain": run}
    plain = checkpoint.load(run)
    for name, file in TASKS.items():
        path = Path(str(samples.__file__)).parent / file if file else home / "choices.jsonl"
        if not file:
            path.write_text(CHOICES)
        data = labelled.read(name, resolve(name).Config(), {"train": path})
        task = checkpoint.make_head(name, data.config, plain.encoder, labels=data.labels)
        checkpoint.save(home / name, replace(plain, tasks={name: task}))
        made[name] = home / name
    made["rewrite"] = home / "rewrite"
    checkpoint.save(made["rewrite"], _writer(plain.tokenizer))
    return made


def _writer(tokenizer: Tokenizer) -> checkpoint.Checkpoint:
    """A model that writes, with random weights."""
    torch.manual_seed(2)
    sizes: dict[str, Any] = {"width": 32, "num_layers": 2, "num_heads": 2, "ffn_width": 64, "max_positions": 128}
    encoder = Transformer(Transformer.Config(vocab_size=len(tokenizer.vocab), **sizes))
    settings = {"beams": 2, "max_tokens": 12}
    head = checkpoint.make_head("rewrite", settings, encoder, labels={})
    return checkpoint.Checkpoint(encoder, {}, tokenizer, tasks={"rewrite": head})


@pytest.fixture(scope="session")
def models(folders: dict[str, Path]) -> dict[str, Model]:
    """The same models, asked offline."""
    return {name: load(folder) for name, folder in folders.items()}


@pytest.fixture(scope="session")
def runs_folder(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("watched")
    (folder / "finished").symlink_to(run)
    return folder


@pytest.fixture(scope="session")
def search_index(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index of English prose by the plain model."""
    out = tmp_path_factory.mktemp("search") / "index"
    build_index([samples.prose("en")], out, model=run)
    return out


@pytest.fixture(scope="session")
def served(
    folders: dict[str, Path], runs_folder: Path, search_index: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    arguments = [f"{name}={folder}" for name, folder in folders.items()]
    arguments += ["--runs", str(runs_folder), "--index", str(search_index)]
    with started(tmp_path_factory.mktemp("server"), *arguments) as server:
        yield server


@pytest.fixture
def start(tmp_path: Path) -> Callable[..., Any]:
    """Starts further servers: `with start("m=FOLDER", "--limit", "queued=1") as server`."""
    return lambda *arguments, **options: started(tmp_path, *arguments, **options)


@pytest.fixture(scope="module")
def serve_for_module(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    """The same for a server that all tests of a module share."""
    folder = tmp_path_factory.mktemp("module-server")
    return lambda *arguments, **options: started(folder, *arguments, **options)
