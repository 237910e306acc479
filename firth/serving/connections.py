"""Connections with timeouts: bytes in, HTTP events out.

uvicorn speaks HTTP. Added here: a client must send the head of a request in time and must keep reading its response,
and the number of connections is limited.
"""

import asyncio

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from firth.serving.limits import Limits
from firth.serving.responses import HttpError


class TimeoutProtocol(H11Protocol):
    """A connection that is closed if a request does not arrive in time or a response is not read in time."""

    receive_timer: asyncio.TimerHandle | None = None
    """Runs until the head of the next request is complete."""
    write_timer: asyncio.TimerHandle | None = None
    """Runs while the client has not read all that was written."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.limits.connections:
            transport.abort()
        self._update_receive_timer()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._update_receive_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._unset_keepalive_if_required()
        self._cancel_receive_timer()
        self._cancel_write_timer()

    def pause_writing(self) -> None:
        """More is written than the client has read. It may be slow, but it must keep reading."""
        super().pause_writing()
        self._start_write_timer()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._cancel_write_timer()

    def timeout_keep_alive_handler(self) -> None:
        # With bytes still to be written a graceful close would wait for the client.
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            super().timeout_keep_alive_handler()

    def send_400_response(self, msg: str) -> None:
        """What is not HTTP gets an error of the same shape as all others."""
        error = HttpError(400, "invalid_http", "This is not an HTTP/1.1 request.", connection="close")
        response = error.response()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            head = h11.Response(status_code=400, headers=response.raw_headers(), reason=b"Bad Request")
            for event in (head, h11.Data(data=response.body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    @property
    def limits(self) -> Limits:
        limits: Limits = self.config.limits  # type: ignore[attr-defined]
        return limits

    def _update_receive_timer(self) -> None:
        """The timer runs while no request is being answered; the application has its own for bodies and responses."""
        is_answering = self.cycle is not None and not self.cycle.response_complete
        if is_answering:
            self._cancel_receive_timer()
        elif self.receive_timer is None and not self.transport.is_closing():
            self.receive_timer = self.loop.call_later(self.limits.receive_seconds, self.transport.abort)

    def _cancel_receive_timer(self) -> None:
        if self.receive_timer is not None:
            self.receive_timer.cancel()
            self.receive_timer = None

    def _start_write_timer(self) -> None:
        unread = self.transport.get_write_buffer_size()
        self.write_timer = self.loop.call_later(self.limits.idle_seconds, self._check_progress, unread)

    def _check_progress(self, unread_before: int) -> None:
        """Closes the connection if the client has read nothing since the timer was started."""
        if self.transport.get_write_buffer_size() < unread_before:
            self._start_write_timer()
        else:
            self.transport.abort()

    def _cancel_write_timer(self) -> None:
        if self.write_timer is not None:
            self.write_timer.cancel()
            self.write_timer = None
