"""``zmq.asyncio`` with the sockets of ``narrows.zmq``: use ``import narrows.zmq.asyncio`` instead of
``import zmq.asyncio``. A peer cannot tell the two, nor whether the other end uses asyncio::

    import narrows.zmq.asyncio as zmq_asyncio

    socket = zmq_asyncio.Context.instance().socket(zmq.REQ)
    socket.connect("tcp://192.0.2.1:5555")
    await socket.send(b"...")
    answer = await socket.recv()

``Context.socket`` takes the keywords of ``narrows.zmq.Settings``, and ``send`` takes ``private``.
Messages are encoded and decoded on the event loop, since that takes microseconds.
"""

from __future__ import annotations

import math
import time
from typing import Any

import zmq
import zmq.asyncio as plain

from . import socket as blocking
from .polling import Poller as _BlockingPoller

__all__ = ["Context", "Poller", "Socket"]

# asyncio's clock and that of held-back messages may differ by a little.
_LATE_S = 0.001


class Poller(plain.Poller, _BlockingPoller):  # type: ignore[misc]
    """As ``zmq.asyncio.Poller``, but also sees messages that wait inside a socket of this module."""


class Socket(plain.Socket):
    """As ``zmq.asyncio.Socket``. A socket of ``narrows.zmq`` does the work."""

    _poller_class = Poller
    # pyzmq's types do not mention these.
    _shadow_sock: Any
    _recv_futures: Any
    _call_later: Any
    _drop_io_state: Any
    _handle_events: Any
    # pyzmq's sockets only take attributes that the class has.
    _timer: Any = None

    def __init__(self, context: Any = None, socket_type: int = -1, **kwargs: Any) -> None:
        own = kwargs.get("_from_socket") is None and not kwargs.get("shadow") and not isinstance(context, zmq.Socket)
        if own:
            kwargs = {"_from_socket": blocking.Socket(context, socket_type, **kwargs)}
            context, socket_type = None, -1
        super().__init__(context, socket_type, **kwargs)  # type: ignore[misc]

    # What a socket does beside sending and receiving tells it who its peers are.

    def connect(self, addr: str) -> Any:
        return self._shadow_sock.connect(addr)

    def bind(self, addr: str) -> Any:
        return self._shadow_sock.bind(addr)

    def disconnect(self, addr: Any) -> None:
        self._shadow_sock.disconnect(addr)

    def unbind(self, addr: Any) -> None:
        self._shadow_sock.unbind(addr)

    def monitor(self, addr: Any, events: int = zmq.EVENT_ALL) -> None:
        self._shadow_sock.monitor(addr, events)

    def set(self, option: int, optval: Any) -> None:
        self._shadow_sock.set(option, optval)

    setsockopt = set

    def get(self, option: int) -> Any:
        value = self._shadow_sock.get(option)
        if option == zmq.EVENTS:
            self._schedule_remaining_events(value)
        return value

    getsockopt = get

    def close(self, linger: int | None = None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        inner = self._shadow_sock
        if not self.closed:
            # Cancels what waits, and takes the descriptor off the event loop.
            super().close(linger)
        inner.close(linger)

    def _handle_recv(self) -> None:
        """As pyzmq's, but if all that came was for the socket itself, the wait goes on."""
        waiting = self._recv_futures
        while waiting and waiting[0].future.done():
            waiting.popleft().timer.cancel()
        if not waiting:
            self._drop_io_state(zmq.POLLIN)
            return
        if not self._shadow_sock.get(zmq.EVENTS) & zmq.POLLIN:
            return
        event = waiting[0]
        result: Any = None
        error: Exception | None = None
        if event.kind != "poll":
            options = {**event.kwargs, "flags": event.kwargs["flags"] | zmq.DONTWAIT}
            try:
                result = getattr(self._shadow_sock, event.kind)(*event.args, **options)
            except blocking.LostReply as lost:
                error = lost
            except zmq.Again:
                return
            except Exception as failure:
                error = failure
        waiting.popleft()
        event.timer.cancel()
        if not waiting:
            self._drop_io_state(zmq.POLLIN)
        if error is None:
            event.future.set_result(result)
        else:
            event.future.set_exception(error)

    def _schedule_remaining_events(self, events: Any = None) -> None:
        super()._schedule_remaining_events(events)  # type: ignore[misc]
        # Held-back messages are delivered at their time, even if nothing arrives.
        inner = self._shadow_sock
        if not self._recv_futures or self._timer is not None or not isinstance(inner, blocking.Socket):
            return
        due = inner._due()
        if due < math.inf:
            self._timer = self._call_later(max(0.0, due - time.monotonic()) + _LATE_S, self._on_time)

    def _on_time(self) -> None:
        self._timer = None
        self._handle_events()


class Context(blocking.Context):
    """As ``zmq.asyncio.Context``."""

    _socket_class: Any = Socket
    # Separate from the instance of `narrows.zmq.Context.instance()`.
    _instance = None
