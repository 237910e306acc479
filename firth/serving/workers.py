"""`firth serve --workers N`: processes that answer on one port, watched by this one.

The supervisor opens the socket and starts the workers, which accept connections from it and share the weights of the
models (`shared_weights`) and their metrics. A worker reports every second that its event loop runs. One that has ended,
or has not reported for some time, is replaced; requests on its connections are lost, all others go on. If the
supervisor dies, the workers stop, because nobody reads their reports.
"""

import json
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, current_thread, main_thread

from prometheus_client.multiprocess import mark_process_dead

from firth import console
from firth.config import from_dict, to_dict
from firth.cpu import num_cores
from firth.engines.interpreter import package_path
from firth.errors import BadConfig, BadInput, FirthError, Unsupported
from firth.files import trouble
from firth.serving import server
from firth.serving.limits import Limits

log = logging.getLogger(__name__)

METRICS = "PROMETHEUS_MULTIPROC_DIR"
"""Where the workers keep their counters, which are then added up; prometheus_client defines it."""
STALLED_SECONDS = 30.0
"""A worker that has not reported for this long is replaced."""
EARLY_SECONDS = 10.0
"""A worker that ends before it serves, or within this many seconds of its start, has ended early."""
MAX_EARLY_ENDS = 3
"""A server gives up if workers end early so often, before all of them have served for that long."""
LOOK_SECONDS = 0.1
"""Between two looks at the workers, which report every second."""
REPORT = b"."
ERROR = b"!"


@dataclass(frozen=True)
class WorkerSpec:
    """What a worker serves; sent to it as JSON over standard input, so that no other user sees the token."""

    folders: Mapping[str, str]
    host: str
    limits: Limits
    token: str | None
    runs: str | None
    index: str | None
    precision: str | None
    shared: str
    """The folder of the shared weights."""


def serve_many(
    folders: Mapping[str, Path],
    *,
    workers: int,
    host: str,
    port: int,
    limits: Limits,
    token: str | None = None,
    runs: Path | None = None,
    index: Path | None = None,
    precision: str | None = None,
    stop: Event | None = None,
) -> None:
    """Serves the models by several processes until SIGTERM, Ctrl-C or `stop`."""
    server.check_request(host, token, runs)
    with ExitStack() as stack:
        listener = stack.enter_context(server.listen(host, port))
        shared = stack.enter_context(TemporaryDirectory(prefix="firth-serve-"))
        spec = WorkerSpec(
            folders={name: str(folder) for name, folder in folders.items()},
            host=host,
            limits=limits,
            token=token,
            runs=str(runs) if runs else None,
            index=str(index) if index else None,
            precision=precision,
            shared=shared,
        )
        supervisor = _Supervisor(spec, listener, workers)
        with _StopSignals() as signals:
            try:
                supervisor.run(lambda: signals.came or (stop is not None and stop.is_set()))
            finally:
                supervisor.end(limits.drain_seconds)


class _StopSignals:
    """Inside `with`, SIGTERM and Ctrl-C only set `came`; outside the main thread no signals are handled."""

    def __init__(self) -> None:
        self.came = False
        self._stack = ExitStack()

    def __enter__(self) -> "_StopSignals":
        if current_thread() is main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                # A parent process may have set a signal to be ignored, as `nohup` does.
                if signal.getsignal(number) is not signal.SIG_IGN:
                    before = signal.signal(number, self._note)
                    self._stack.callback(signal.signal, number, before)
        return self

    def _note(self, *_: object) -> None:
        self.came = True

    def __exit__(self, *_: object) -> None:
        self._stack.close()


class _ServingProcess:
    """A process that serves, as the supervisor sees it."""

    def __init__(self, spec: WorkerSpec, listener: socket.socket, threads: int) -> None:
        self.reports, reports_end = os.pipe()
        os.set_blocking(self.reports, False)
        numbers = [str(listener.fileno()), str(reports_end)]
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", "from firth.serving.workers import work; work()", *numbers],
            stdin=subprocess.PIPE,
            pass_fds=(listener.fileno(), reports_end),
            env=_worker_environment(spec.shared, threads),
        )
        os.close(reports_end)
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            line = json.dumps(to_dict(spec))
            self.process.stdin.write(line.encode())
            self.process.stdin.close()
        self.started = time.monotonic()
        self.last_report = self.started
        self.is_ready = False
        self.error = b""
        """The error that it sent before it ended, with its mark; empty without one."""

    def look(self) -> None:
        """Takes what the worker has reported."""
        with suppress(BlockingIOError):
            while data := os.read(self.reports, 4096):
                if not self.error:
                    data = self._without_reports(data)
                self.error += data

    def _without_reports(self, data: bytes) -> bytes:
        """Takes the reports that come before an error; what is left is the error."""
        rest = data.lstrip(REPORT)
        if len(rest) < len(data):
            self.is_ready = True
            self.last_report = time.monotonic()
        return rest

    @property
    def has_ended(self) -> bool:
        return self.process.poll() is not None

    @property
    def is_settled(self) -> bool:
        """Whether it has served for some time."""
        return self.is_ready and time.monotonic() - self.started > EARLY_SECONDS

    @property
    def is_stalled(self) -> bool:
        """Whether it has served and does not report any more. Loading a model may take long."""
        return self.is_ready and time.monotonic() - self.last_report > STALLED_SECONDS

    def forget(self) -> None:
        """Ends the process, if it has not ended, and closes its pipe."""
        if not self.has_ended:
            self.process.kill()
        self.process.wait()
        os.close(self.reports)


class _Supervisor:
    """Keeps as many workers as wanted."""

    def __init__(self, spec: WorkerSpec, listener: socket.socket, num_workers: int) -> None:
        self.spec = spec
        self.listener = listener
        self.num_workers = num_workers
        self.threads = max(1, num_cores() // num_workers)
        self.workers: list[_ServingProcess] = []
        self.num_early_ends = 0
        (Path(spec.shared) / "metrics").mkdir()

    def run(self, is_over: Callable[[], bool]) -> None:
        """Starts the workers and replaces those that end, until `is_over`."""
        has_announced = False
        while not is_over():
            # The first one writes the weights that the others share.
            num_wanted = self.num_workers if has_announced else 1
            while len(self.workers) < num_wanted:
                self.workers.append(_ServingProcess(self.spec, self.listener, self.threads))
            time.sleep(LOOK_SECONDS)
            for worker in list(self.workers):
                worker.look()
                self._replace_if_lost(worker)
            if not has_announced and self.workers and self.workers[0].is_ready:
                server.announce(self.listener)
                has_announced = True
            if len(self.workers) == self.num_workers and all(worker.is_settled for worker in self.workers):
                self.num_early_ends = 0

    def _replace_if_lost(self, worker: _ServingProcess) -> None:
        """Forgets a worker that has ended or stalled; the next round starts another one."""
        if not worker.has_ended and not worker.is_stalled:
            return
        # What it sent before it ended.
        worker.look()
        self.workers.remove(worker)
        worker.forget()
        mark_process_dead(worker.process.pid, str(Path(self.spec.shared) / "metrics"))  # type: ignore[no-untyped-call]
        if worker.error:
            raise _as_error(worker.error)
        if not worker.is_settled:
            self.num_early_ends += 1
        if self.num_early_ends >= MAX_EARLY_ENDS:
            raise Unsupported(
                f"Workers ended {MAX_EARLY_ENDS} times before they served or soon after (exit code "
                f"{worker.process.returncode}), perhaps because memory ran out; use fewer `workers=`."
            )
        what = "ended" if worker.process.returncode != -signal.SIGKILL else "was killed or did not answer"
        log.warning(f"Worker {worker.process.pid} {what}; another one takes its place.")

    def end(self, patience: float) -> None:
        """Shuts down gracefully: the workers have `patience` seconds to answer the requests they have accepted."""
        for worker in self.workers:
            with suppress(ProcessLookupError):
                worker.process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + patience + 2
        for worker in self.workers:
            with suppress(subprocess.TimeoutExpired):
                worker.process.wait(max(0.1, deadline - time.monotonic()))
            worker.forget()


def _worker_environment(shared: str, threads: int) -> dict[str, str]:
    """The environment of a worker; the user's own number of threads comes first."""
    return {
        "OMP_NUM_THREADS": str(threads),
        **os.environ,
        METRICS: str(Path(shared) / "metrics"),
        "PYTHONPATH": package_path(),
    }


def _as_error(message: bytes) -> FirthError:
    """The error that a worker has sent."""
    kind, text = json.loads(message.removeprefix(ERROR))
    classes = {"BadInput": BadInput, "BadConfig": BadConfig, "Unsupported": Unsupported}
    return classes.get(kind, BadInput)(text)


def work() -> None:
    """The main function of a worker. Its arguments are the numbers of the socket and of the pipe for its reports."""
    listener = socket.socket(fileno=int(sys.argv[1]))
    reporter = _Reporter(int(sys.argv[2]))
    spec = from_dict(WorkerSpec, json.load(sys.stdin))
    try:
        with console.shown():
            server.answer(
                {name: Path(folder) for name, folder in spec.folders.items()},
                listener,
                host=spec.host,
                limits=spec.limits,
                token=spec.token,
                runs=Path(spec.runs) if spec.runs else None,
                index=Path(spec.index) if spec.index else None,
                precision=spec.precision,
                is_over=reporter.tick,
                shared=Path(spec.shared),
            )
    except FirthError as error:
        reporter.report_error(error)
        sys.exit(error.exit_code)
    except OSError as error:
        reporter.report_error(BadInput(trouble(error)))
        sys.exit(BadInput.exit_code)
    if reporter.is_alone:
        # A supervisor that was killed could not remove it.
        shutil.rmtree(spec.shared, ignore_errors=True)


class _Reporter:
    """A worker's end of the pipe to its supervisor."""

    def __init__(self, pipe: int) -> None:
        self.pipe = pipe
        self.num_ticks = 0
        self.is_alone = False
        """Whether the supervisor is gone: nobody reads the reports."""

    def tick(self) -> bool:
        """Called ten times a second; reports once a second, and returns whether the supervisor is gone."""
        if self.num_ticks % 10 == 0:
            try:
                os.write(self.pipe, REPORT)
            except BrokenPipeError:
                self.is_alone = True
        self.num_ticks += 1
        return self.is_alone

    def report_error(self, error: FirthError) -> None:
        """Sends an error to the supervisor, which raises it."""
        described = json.dumps([type(error).__name__, str(error)])
        os.write(self.pipe, ERROR + described.encode())
