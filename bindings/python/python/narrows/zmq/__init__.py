"""ZeroMQ sockets that compress what they send, where it pays and the peer supports it.

Use ``import narrows.zmq as zmq`` instead of ``import zmq``: ``Context`` and ``Socket`` are
subclasses of pyzmq's, all other names are pyzmq's own. A peer without this module sees plain
ZeroMQ, and nothing has to be configured::

    import narrows.zmq as zmq

    socket = zmq.Context.instance().socket(zmq.REQ)
    socket.connect("tcp://192.0.2.1:5555")
    socket.send(b"...")
    answer = socket.recv()

REQ and DEALER with one ``connect`` and no ``bind``, and REP and ROUTER at the other end, encode
each message with the help of those before it. PUSH and PUB cannot know who reads: they compress
only with ``peers="narrows"``. Everything else, and every ``inproc`` connection, is plain.
``narrows.zmq.asyncio`` does the same for asyncio.

``proxy``, ``proxy_steerable``, ``monitored_queue`` and ``device`` move messages of these sockets
through the wrapper. So do pyzmq's own functions and devices once this module is imported.
``Poller`` and ``select`` take messages that wait inside a socket into account.

An observer of message lengths can infer contents that were encoded together: use ``send(...,
private=True)`` or ``socket(..., history=0)`` for secrets (``docs/format.md``, 12.9).
"""

from typing import Any

from .._extras import missing as _missing

try:
    import zmq as _zmq
except ModuleNotFoundError as error:
    raise _missing(error, __name__, "zmq", "pyzmq>=26") from None

from . import kinds as _kinds  # Registers the socket types.
from .polling import Poller, select
from .proxying import device, guard, monitored_queue, proxy, proxy_steerable
from .settings import Settings
from .socket import Context, Socket

__all__ = [
    "Context",
    "Poller",
    "Settings",
    "Socket",
    "device",
    "monitored_queue",
    "proxy",
    "proxy_steerable",
    "select",
]

guard()


def __getattr__(name: str) -> Any:
    return getattr(_zmq, name)
