"""Chunks of text encoded by other processes, in order.

In: chunks of lines and the folder of a tokenizer. Out: encoded chunks. Workers are plain interpreters that communicate
over pipes: they import neither torch nor the caller's script.
"""

import os
import signal
import struct
import subprocess
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from queue import SimpleQueue
from typing import IO

import numpy as np

from firth import tokenizers
from firth.data.encoding import NUM_PARTS, Chunk, encode_chunk
from firth.data.shards import id_dtype
from firth.engines.interpreter import package_path
from firth.errors import Unsupported
from firth.tokenizers import Tokenizer

_SIZE = struct.Struct("<q")
"""The header of a message between processes: its number of bytes."""


def encode_all(chunks: Iterable[bytes], tokenizer: Tokenizer, *, folder: Path, num_workers: int) -> Iterator[Chunk]:
    """The chunks encoded, in order; at most two chunks per worker are in progress."""
    if num_workers == 0:
        for chunk in chunks:
            yield encode_chunk(tokenizer, chunk)
        return
    dtype = id_dtype(len(tokenizer.vocab))
    with ExitStack() as stack:
        idle: SimpleQueue[_Worker] = SimpleQueue()
        for _ in range(num_workers):
            worker = stack.enter_context(_Worker(folder, dtype))
            idle.put(worker)
        pool = stack.enter_context(ThreadPoolExecutor(num_workers))
        # Results are taken in the order of submission, whichever worker is done first.
        waiting: deque[Future[Chunk]] = deque()
        for chunk in chunks:
            waiting.append(pool.submit(_delegate, idle, chunk))
            if len(waiting) > 2 * num_workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def _delegate(idle: "SimpleQueue[_Worker]", chunk: bytes) -> Chunk:
    """Has an idle worker encode the chunk; runs in a thread that waits for it."""
    worker = idle.get()
    try:
        return worker.encode(chunk)
    finally:
        idle.put(worker)


class _Worker:
    """Another interpreter that runs `work`; `folder` holds the tokenizer, `dtype` is that of its ids."""

    def __init__(self, folder: Path, dtype: np.dtype[np.unsignedinteger]) -> None:
        self.dtype = dtype
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", "from firth.data.encoding_workers import work; work()", str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=_worker_environment(),
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.input: IO[bytes] = self.process.stdin
        self.output: IO[bytes] = self.process.stdout

    def encode(self, chunk: bytes) -> Chunk:
        try:
            _send(self.input, chunk)
            parts = [_receive(self.output) for _ in range(NUM_PARTS)]
        except (EOFError, BrokenPipeError):
            code = self.process.wait()
            raise Unsupported(
                f"A preparation process ended (exit code {code}), perhaps because memory ran out; use fewer processes."
            ) from None
        return Chunk.from_parts(parts, self.dtype)

    def __enter__(self) -> "_Worker":
        return self

    def __exit__(self, *_: object) -> None:
        # Closed pipes end the worker's main loop.
        self.output.close()
        with suppress(BrokenPipeError):
            self.input.close()
        self.process.wait()


def _worker_environment() -> dict[str, str]:
    """One thread for each worker, and this very package on its path."""
    return {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "RAYON_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONPATH": package_path(),
    }


def work() -> None:
    """The main loop of a worker: chunks come in over standard input, arrays go out over standard output."""
    # The parent decides when to stop: Ctrl-C reaches all processes of a terminal.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    tokenizer = tokenizers.load(Path(sys.argv[1]))
    while True:
        try:
            chunk = _receive(sys.stdin.buffer)
        except EOFError:
            return
        for part in encode_chunk(tokenizer, chunk).parts():
            _send(sys.stdout.buffer, part)


def _send(pipe: IO[bytes], data: bytes) -> None:
    """Writes a message: its size, then its bytes."""
    pipe.write(_SIZE.pack(len(data)))
    pipe.write(data)
    pipe.flush()


def _receive(pipe: IO[bytes]) -> bytes:
    """Reads a message; EOFError where the pipe ends before it does."""
    header = pipe.read(_SIZE.size)
    if len(header) < _SIZE.size:
        raise EOFError
    (size,) = _SIZE.unpack(header)
    data = pipe.read(size)
    if len(data) < size:
        raise EOFError
    return data
