"""The server of `firth serve` as replicas of Ray Serve, on one machine or a cluster.

    pip install '.[ray,serve]' 'ray[serve]'
    serve run examples.ray_serve:build models=en-small replicas=2

Each replica loads the models and answers all routes of `firth serve`. The models must be at the same place on every
machine. FIRTH_TOKEN is the token that clients send; Ray Serve listens on this machine only unless it is told otherwise.
"""

from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

from ray import serve

from firth.serving.limits import Limits
from firth.serving.server import make_app, named_folders, read_token

Asgi = Callable[[MutableMapping[str, Any], Callable[[], Awaitable[Any]], Callable[[Any], Awaitable[None]]], Any]


def build(arguments: Mapping[str, str]) -> serve.Application:
    """The application that `serve run` deploys; `arguments` are its KEY=VALUE."""
    models = arguments.get("models", "en-small").split(",")
    replicas = int(arguments.get("replicas", "1"))

    def make_asgi() -> Asgi:
        """Runs in every replica."""
        app = make_app(named_folders(models), host="127.0.0.1", limits=Limits(), token=read_token(None))
        return _with_lifespan(app)

    deployment = serve.deployment(serve.ingress(make_asgi)())
    options = deployment.options(name="firth", num_replicas=replicas, max_ongoing_requests=64)
    return options.bind()


def _with_lifespan(app: Asgi) -> Asgi:
    """The app with answers to Ray Serve's messages about its start and end, which firth's own server does not send."""

    async def answer(scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] != "lifespan":
            await app(scope, receive, send)
            return
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await send({"type": "lifespan.shutdown.complete"})

    return answer
