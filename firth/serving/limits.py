"""How much a server accepts: a config of plain numbers. `firth serve --limit KEY=VALUE` changes one."""

from dataclasses import dataclass, fields

from firth.errors import BadConfig


@dataclass(frozen=True)
class Limits:
    """The limits of requests, of the queue and of connections."""

    body_bytes: int = 2_000_000
    """Bytes of a request's body; a longer one is refused before it is parsed."""
    held_bytes: int = 64_000_000
    """Bytes of all bodies that are being received or answered; beyond it new ones get 429."""
    inputs: int = 32
    """Texts, pairs or rows in one request."""
    characters: int = 32_768
    """Characters of one text."""
    batch_tokens: int = 16_384
    """Tokens of one request. Several requests share a batch of up to 2,048; a longer one is computed alone."""
    candidates: int = 1000
    """Candidates of one fill: its masks times how many are asked for each."""
    filled_characters: int = 4_000_000
    """Characters of a fill's answer, in which every candidate has the whole text with it."""
    attention_tokens: int = 96
    """Tokens of a text whose attention is shown: the answer grows with their square."""
    queued: int = 512
    """Requests that wait for their turn; beyond it new ones get 429."""
    connections: int = 4096
    """Open connections; beyond it new ones are closed."""
    receive_seconds: float = 10.0
    """How long a client may take to send the head of a request, and again to send its body."""
    answer_seconds: float = 30.0
    """How long a request may wait for its answer before it gets 429."""
    idle_seconds: float = 10.0
    """How long a connection stays open between two requests, or while a client does not read its answer."""
    drain_seconds: float = 15.0
    """How long a server that was told to stop goes on answering what it has taken on."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            # Written so that NaN is refused too.
            if not 0 < value < 1e12:
                raise BadConfig(f"The limit {field.name} must be above 0; it is {value}.")
