"""The server's process: a socket opened, models loaded and warmed, requests answered, and an orderly end."""

import logging
import os
import re
import resource
import signal
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from ipaddress import ip_address
from pathlib import Path
from threading import Event, current_thread, main_thread

import torch

from firth.errors import BadConfig, BadInput, FirthError, Unsupported

try:
    import orjson  # noqa: F401
    import prometheus_client  # noqa: F401
    import pydantic  # noqa: F401
    import uvicorn
except ImportError as error:
    raise Unsupported(f"Serving needs {error.name}: pip install 'firth[serve]'.") from None

from firth.inference.lexicon import Lexicon, open_lexicon
from firth.inference.model import Model, load
from firth.objectives.replaced_token import filler
from firth.serving.app import App
from firth.serving.batching import Batcher
from firth.serving.connections import Patient
from firth.serving.limits import Limits
from firth.serving.prometheus import Meters
from firth.serving.registry import House
from firth.serving.runs import Runs

log = logging.getLogger(__name__)

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
HEAD_BYTES = 16_384
TOKEN_CHARACTERS = 16
MEMORIES = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")
"""What oneDNN and torch keep of every shape of matrix product they met, 1,024 of them unless told otherwise. A server
meets a new one with every batch: hundreds of megabytes that are not used again."""
KEPT_SHAPES = "64"
SEARCHED = 5_000
"""Words among which near spellings of an unknown one are looked for: what others wait for, so few."""
WARM_UP = "A first text, so that nothing is left to prepare. 第一段文字。"


def serve(
    folders: Mapping[str, Path],
    *,
    host: str,
    port: int,
    limits: Limits,
    token: str | None = None,
    runs: Path | None = None,
    precision: str = "fp32",
    stop: Event | None = None,
) -> None:
    """Serves the models until SIGTERM, Ctrl-C or `stop`, then answers what it has taken on."""
    if token is None and not _is_loopback(host):
        raise BadConfig(f"{host} can be reached from other machines: give a token with `token_file=` or FIRTH_TOKEN.")
    if runs is not None and not runs.is_dir():
        raise BadInput(f"{runs} is not a folder; name the folder of your runs with `runs=`.")
    for name in MEMORIES:
        os.environ.setdefault(name, KEPT_SHAPES)
    with _listen(host, port) as listener:
        meters = Meters()
        models = {name: _warm(load(folder, precision=precision)) for name, folder in folders.items()}
        batcher = Batcher(limits, meters)
        house = House(models, limits, meters, batcher, Runs(runs) if runs else None, _lexicons(folders))
        app = App(house, token=token, hosts=LOOPBACK | {host.lower()})
        try:
            Server(_settings(app, limits), stop=stop).run([listener])
        finally:
            batcher.close()


def named_folders(models: Sequence[str]) -> dict[str, Path]:
    """`NAME=PATH` or `PATH` for each model; a path alone gives its last part as the name."""
    folders: dict[str, Path] = {}
    for text in models:
        name, equals, path = text.partition("=")
        folder = Path(path if equals else text)
        name = name if equals else folder.resolve().name
        if not re.fullmatch(r"[A-Za-z0-9._-]{1,64}", name):
            raise BadConfig(f"'{name}' cannot be a model's name: use letters, digits, points and dashes, as NAME=PATH.")
        if name in folders:
            raise BadConfig(f"Two models are named '{name}'; give each a name of its own, as NAME=PATH.")
        folders[name] = folder
    return folders


def read_token(file: Path | None) -> str | None:
    """The token of a file or of FIRTH_TOKEN; None where there is neither."""
    if file is None and "FIRTH_TOKEN" not in os.environ:
        return None
    given = file.read_bytes().decode("utf-8", "replace") if file else os.environ["FIRTH_TOKEN"]
    token = given.strip()
    if len(token) < TOKEN_CHARACTERS or not token.isascii() or not token.isprintable() or " " in token:
        where = file or "FIRTH_TOKEN"
        raise BadConfig(f"{where} must hold a token of at least {TOKEN_CHARACTERS} letters and digits on one line.")
    return token


class Server(uvicorn.Server):
    """Says where it listens, and treats a signal as a wish to stop, not as a failure."""

    def __init__(self, config: uvicorn.Config, *, stop: Event | None = None) -> None:
        super().__init__(config)
        self._stop = stop

    async def on_tick(self, counter: int) -> bool:
        """Called ten times a second; returns whether to stop."""
        if self._stop is not None and self._stop.is_set():
            self.should_exit = True
        return await super().on_tick(counter)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        host, port = (sockets or [])[0].getsockname()[:2]
        log.info(f"Serving on http://{f'[{host}]' if ':' in host else host}:{port} (Ctrl-C stops).")

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        if current_thread() is not main_thread():  # only the main thread may handle signals
            yield
            return
        before = {one: signal.signal(one, self.handle_exit) for one in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for one, handler in before.items():
                signal.signal(one, handler)


def _settings(app: App, limits: Limits) -> uvicorn.Config:
    settings = uvicorn.Config(
        app,
        http=Patient,
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        log_level="critical",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=limits.idle_seconds,  # type: ignore[arg-type]
        timeout_graceful_shutdown=limits.drain_seconds,  # type: ignore[arg-type]
        h11_max_incomplete_event_size=HEAD_BYTES,
    )
    settings.limits = limits  # type: ignore[attr-defined]
    return settings


def _listen(host: str, port: int) -> socket.socket:
    """A socket before any model is loaded, so that a wrong address is told of at once."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 65_536)) if hard > 0 else 65_536, hard))
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=2048)
    except (OSError, OverflowError) as error:
        raise BadConfig(f"{host}:{port} cannot be listened on ({error}); choose another `host=` or `port=`.") from None


def _warm(model: Model) -> Model:
    """Everything that is made when first needed, made now: packed weights, the choice of a precision, caches."""
    model.embed([WARM_UP])
    if filler(model.encoder, model.checkpoint.goals):
        model.fill(model.tokenizer.vocab.tokens[model.tokenizer.vocab.mask])
    torch.set_grad_enabled(False)
    return model


def _lexicons(folders: Mapping[str, Path]) -> dict[str, Lexicon]:
    found = {}
    for name, folder in folders.items():
        with suppress(FirthError):  # a model without a table of words
            found[name] = open_lexicon(folder, searched=SEARCHED)
    return found


def _is_loopback(host: str) -> bool:
    if host.lower() == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
