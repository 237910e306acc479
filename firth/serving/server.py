"""The server's process: opens a socket, loads and warms up models, answers requests, and stops in order."""

import logging
import os
import re
import resource
import signal
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from ipaddress import ip_address
from pathlib import Path
from threading import Event, current_thread, main_thread

from firth import models
from firth.errors import BadConfig, BadInput, FirthError, absent

try:
    import orjson  # noqa: F401
    import prometheus_client  # noqa: F401
    import pydantic  # noqa: F401
    import uvicorn
except ImportError as error:
    raise absent(error.name, extra="serve", user="Serving") from None

from firth.inference.lexicon import Lexicon, open_lexicon
from firth.inference.model import Model, load
from firth.search.index import SearchIndex
from firth.serving.asgi import App
from firth.serving.batching import Batcher
from firth.serving.connections import TimeoutProtocol
from firth.serving.limits import Limits
from firth.serving.prometheus import ServerMetrics
from firth.serving.runs import Runs
from firth.serving.server_state import ServerState
from firth.serving.shared_weights import share_weights

log = logging.getLogger(__name__)

LOOPBACK_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})
MAX_HEAD_BYTES = 16_384
MIN_TOKEN_CHARACTERS = 16
MAX_OPEN_FILES = 65_536
KERNEL_CACHES = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")
"""Variables for how many kernels oneDNN and torch cache, one for every shape of a matrix product; 1,024 by default. A
server has a new shape with almost every batch: hundreds of megabytes that are not used again."""
CACHED_KERNELS = "64"
SPELLING_CANDIDATES = 5_000
"""Words that are searched for similar spellings; few, because other requests wait meanwhile."""
WARM_UP_TEXT = "A first text, so that nothing is left to prepare. 第一段文字。"


def serve(
    folders: Mapping[str, Path],
    *,
    host: str,
    port: int,
    limits: Limits,
    token: str | None = None,
    runs: Path | None = None,
    index: Path | None = None,
    precision: str | None = None,
    stop: Event | None = None,
) -> None:
    """Serves the models until SIGTERM, Ctrl-C or `stop`, then answers the requests it has accepted."""
    check_request(host, token, runs)
    is_over = stop.is_set if stop is not None else None
    with listen(host, port) as listener:
        answer(
            folders,
            listener,
            host=host,
            limits=limits,
            token=token,
            runs=runs,
            index=index,
            precision=precision,
            is_over=is_over,
            on_start=lambda: announce(listener),
        )


def check_request(host: str, token: str | None, runs: Path | None) -> None:
    """Raises for an address that needs a token, and for runs that are not there."""
    if token is None and not _is_loopback(host):
        raise BadConfig(f"{host} can be reached from other machines: give a token with `token_file=` or FIRTH_TOKEN.")
    if runs is not None and not runs.is_dir():
        raise BadInput(f"{runs} is not a folder; name the folder of your runs with `runs=`.")


def answer(
    folders: Mapping[str, Path],
    listener: socket.socket,
    *,
    host: str,
    limits: Limits,
    token: str | None,
    runs: Path | None,
    precision: str | None,
    index: Path | None = None,
    is_over: Callable[[], bool] | None = None,
    on_start: Callable[[], None] | None = None,
    shared: Path | None = None,
) -> None:
    """Loads the models and answers on an open socket until a signal, or until `is_over`, which is polled ten times a
    second. `on_start` is called when the first request can be answered.

    With the folder `shared`, the weights are mapped from files there, which other processes use too.
    """
    for name in KERNEL_CACHES:
        os.environ.setdefault(name, CACHED_KERNELS)
    app = make_app(
        folders, host=host, limits=limits, token=token, runs=runs, index=index, precision=precision, shared=shared
    )
    try:
        Server(_uvicorn_config(app, limits), is_over=is_over, on_start=on_start).run([listener])
    finally:
        app.state.batcher.close()


def make_app(
    folders: Mapping[str, Path],
    *,
    host: str,
    limits: Limits,
    token: str | None = None,
    runs: Path | None = None,
    index: Path | None = None,
    precision: str | None = None,
    shared: Path | None = None,
) -> App:
    """The ASGI app over these models, loaded and warmed up; the caller closes `app.state.batcher` at the end."""
    opened = None
    if index is not None:
        opened = SearchIndex.open(index)
        folders, name_of_index = _with_model_of(opened, folders)
    metrics = ServerMetrics()
    loaded = {}
    for name, folder in folders.items():
        loaded[name] = load(folder, precision=precision)
        if shared is not None:
            share_weights(loaded[name], shared / f"{name}.weights")
        _warm_up(loaded[name])
    search = None
    if opened is not None:
        opened.check_model(loaded[name_of_index])
        search = (name_of_index, opened)
    batcher = Batcher(limits, metrics)
    watched_runs = Runs(runs) if runs is not None else None
    state = ServerState(loaded, limits, metrics, batcher, watched_runs, _open_lexicons(folders), search=search)
    return App(state, token=token, hosts=LOOPBACK_HOSTS | {host.lower()})


def announce(listener: socket.socket) -> None:
    """Says where a server listens."""
    host, port = listener.getsockname()[:2]
    # An IPv6 address is in brackets in a URL.
    if ":" in host:
        host = f"[{host}]"
    log.info(f"Serving on http://{host}:{port} (Ctrl-C stops).")


def _with_model_of(index: SearchIndex, folders: Mapping[str, Path]) -> tuple[dict[str, Path], str]:
    """The models to serve, with the one that built the index, and its name."""
    folder = models.find(index.model)
    for name, served in folders.items():
        if served.resolve() == folder.resolve():
            return dict(folders), name
    name = folder.resolve().name
    while name in folders:
        name = f"{name}-of-index"
    return {**folders, name: folder}, name


def named_folders(arguments: Sequence[str]) -> dict[str, Path]:
    """Model folders by name, from `NAME=PATH` or `PATH` each; a path alone is named by its last part.

    A path may also be the name of a model that comes with firth.
    """
    folders: dict[str, Path] = {}
    for text in arguments:
        name, equals, path = text.partition("=")
        if not equals:
            path = text
            name = Path(path).resolve().name
        if not re.fullmatch(r"[A-Za-z0-9._-]{1,64}", name):
            raise BadConfig(f"'{name}' cannot be a model's name: use letters, digits, points and dashes, as NAME=PATH.")
        if name in folders:
            raise BadConfig(f"Two models are named '{name}'; give each a name of its own, as NAME=PATH.")
        folders[name] = models.find(path)
    return folders


def read_token(file: Path | None) -> str | None:
    """The token in a file or in FIRTH_TOKEN; None if there is neither."""
    source = "FIRTH_TOKEN"
    given = os.environ.get("FIRTH_TOKEN")
    if file is not None:
        source = str(file)
        given = file.read_bytes().decode("utf-8", "replace")
    if given is None:
        return None
    token = given.strip()
    is_printable = token.isascii() and token.isprintable() and " " not in token
    if len(token) < MIN_TOKEN_CHARACTERS or not is_printable:
        raise BadConfig(
            f"{source} must hold a token of at least {MIN_TOKEN_CHARACTERS} letters and digits on one line."
        )
    return token


class Server(uvicorn.Server):
    """Says when it has started, and treats a signal as a request to stop, not as a failure."""

    def __init__(
        self,
        config: uvicorn.Config,
        *,
        is_over: Callable[[], bool] | None = None,
        on_start: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(config)
        self._is_over = is_over
        self._on_start = on_start

    async def on_tick(self, counter: int) -> bool:
        """Called ten times a second; returns whether to stop."""
        if self._is_over is not None and self._is_over():
            self.should_exit = True
        return await super().on_tick(counter)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self._on_start is not None:
            self._on_start()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """uvicorn's own version raises the signal again after the server has stopped."""
        # Only the main thread may handle signals.
        if current_thread() is not main_thread():
            yield
            return
        previous = {}
        for number in (signal.SIGINT, signal.SIGTERM):
            previous[number] = signal.signal(number, self.handle_exit)
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)


def _uvicorn_config(app: App, limits: Limits) -> uvicorn.Config:
    config = uvicorn.Config(
        app,
        http=TimeoutProtocol,
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
        h11_max_incomplete_event_size=MAX_HEAD_BYTES,
    )
    # uvicorn hands its config to every connection, which needs the limits.
    config.limits = limits  # type: ignore[attr-defined]
    return config


def listen(host: str, port: int) -> socket.socket:
    """A socket, opened before any model is loaded, so that a wrong address is reported at once."""
    _raise_open_files_limit()
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=2048)
    except (OSError, OverflowError) as error:
        raise BadConfig(
            f"{host}:{port} cannot be listened on: {_reason(error)}; choose another `host=` or `port=`."
        ) from None


def _reason(error: OSError | OverflowError) -> str:
    """What the system says about an address: "address already in use"."""
    text = str(error)
    if isinstance(error, socket.gaierror):
        text = error.strerror or text
    elif isinstance(error, OSError) and error.errno:
        # The error's own text contains the address again.
        text = os.strerror(error.errno)
    return text[:1].lower() + text[1:]


def _raise_open_files_limit() -> None:
    """Every connection is an open file, and the usual limit is 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Some systems allow fewer files than their own hard limit says; then the usual limit stays.
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (open_files_limit(soft, hard), hard))


def open_files_limit(soft: int, hard: int) -> int:
    """The limit to set: `MAX_OPEN_FILES` as far as the hard limit allows, and never less than there is."""
    if soft == resource.RLIM_INFINITY:
        return soft
    if hard == resource.RLIM_INFINITY:
        return max(soft, MAX_OPEN_FILES)
    return max(soft, min(hard, MAX_OPEN_FILES))


def _warm_up(model: Model) -> None:
    """Makes everything that is otherwise made when first needed: packed weights, the choice of a precision, caches."""
    model.embed([WARM_UP_TEXT])
    if model.mask_filler is not None:
        vocab = model.tokenizer.vocab
        model.fill(vocab.tokens[vocab.mask])


def _open_lexicons(folders: Mapping[str, Path]) -> dict[str, Lexicon]:
    lexicons = {}
    for name, folder in folders.items():
        # A model without a table of words raises.
        with suppress(FirthError):
            lexicons[name] = open_lexicon(folder, spelling_candidates=SPELLING_CANDIDATES)
    return lexicons


def _is_loopback(host: str) -> bool:
    if host.lower() == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
