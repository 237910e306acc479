"""How much a server accepts: a config of plain numbers. `firth serve --limit KEY=VALUE` changes one."""

from dataclasses import dataclass, fields

from firth.errors import BadConfig

LARGEST = 1e12
"""Of any limit: more than a machine has of anything, but finite, as timeouts must be."""


@dataclass(frozen=True)
class Limits:
    """The limits of requests, of the queue and of connections."""

    body_bytes: int = 2_000_000
    """Bytes of a request's body; a longer body is refused before it is parsed."""
    held_bytes: int = 64_000_000
    """Bytes of all bodies that are being received or answered; above it new ones get 429."""
    inputs: int = 2048
    """Texts, pairs or rows in one request, as many as OpenAI takes; their tokens count, too (batch_tokens)."""
    cosines: int = 65_536
    """Cosines of one /similarity request: its texts times its others."""
    characters: int = 32_768
    """Characters of one text."""
    batch_tokens: int = 16_384
    """Tokens of one request. Several requests share a batch of up to 2,048; a longer one is computed alone."""
    candidates: int = 1000
    """Candidates of one fill: its masks times the candidates requested for each."""
    filled_characters: int = 4_000_000
    """Characters of a fill's response, where every candidate contains the whole text."""
    attention_tokens: int = 96
    """Tokens of a text whose attention is shown: the response grows with their square."""
    queued: int = 512
    """Requests in the queue; above it new ones get 429."""
    connections: int = 4096
    """Open connections; above it new ones are closed."""
    receive_seconds: float = 10.0
    """Timeout for a client to send the head of a request, and again to send its body."""
    answer_seconds: float = 30.0
    """Timeout of a request: after it the client gets 429."""
    idle_seconds: float = 10.0
    """Timeout of a connection between two requests, or while a client does not read its response."""
    drain_seconds: float = 15.0
    """Timeout of a graceful shutdown: how long a stopping server still answers the requests it has accepted."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            # Written so that NaN is refused too.
            if not 0 < value < LARGEST:
                raise BadConfig(f"The limit {field.name} must be above 0 and below a trillion; it is {value}.")


def raised_by(name: str, needed: int) -> str:
    """How the operator of a server raises a limit; the end of a message about a request that is too large."""
    return f" Whoever runs the server can raise the limit: firth serve --limit {name}={needed}."
