"""Connections with deadlines: bytes in, HTTP events out.

uvicorn speaks HTTP; what it lacks is added here: a client must send the head of a request in time, must go on reading
its answer, and there are only so many connections.
"""

import asyncio

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from firth.serving.limits import Limits
from firth.serving.responses import Refusal


class Patient(H11Protocol):
    """A connection whose patience ends: a request must begin and be whole in time, an answer must be read in time."""

    timer: asyncio.TimerHandle | None = None
    reading: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.limits.connections:
            transport.abort()
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._unset_keepalive_if_required()
        self._rest()
        self._stop_reading_clock()

    def pause_writing(self) -> None:
        """More is written than the client has read; it may be slow, but it must go on reading."""
        super().pause_writing()
        self._expect_reading()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_reading_clock()

    def timeout_keep_alive_handler(self) -> None:
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            super().timeout_keep_alive_handler()

    def send_400_response(self, msg: str) -> None:
        """What is not HTTP gets the same shape of error as all else."""
        reply = Refusal(400, "invalid_http", "This is not an HTTP/1.1 request.", connection="close").reply()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            head = h11.Response(status_code=400, headers=reply.raw_headers(), reason=b"Bad Request")
            for event in (head, h11.Data(data=reply.body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    @property
    def limits(self) -> Limits:
        limits: Limits = self.config.limits  # type: ignore[attr-defined]
        return limits

    def _watch(self) -> None:
        """The clock runs while no request is being worked on; the application has its own for bodies and answers."""
        if self.cycle is not None and not self.cycle.response_complete:
            self._rest()
        elif self.timer is None and not self.transport.is_closing():
            self.timer = self.loop.call_later(self.limits.receive_seconds, self.transport.abort)

    def _expect_reading(self) -> None:
        unread = self.transport.get_write_buffer_size()
        self.reading = self.loop.call_later(self.limits.idle_seconds, self._check_reading, unread)

    def _check_reading(self, before: int) -> None:
        if self.transport.get_write_buffer_size() < before:
            self._expect_reading()
        else:
            self.transport.abort()

    def _stop_reading_clock(self) -> None:
        if self.reading is not None:
            self.reading.cancel()
            self.reading = None

    def _rest(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
