"""ZeroMQ sockets that compress what they send, where it pays and the peer understands it.

``import narrows.zmq as zmq`` in place of ``import zmq``: ``Context`` and ``Socket`` are subclasses of pyzmq's, all other names are
pyzmq's own. A peer that has not got this module sees plain ZeroMQ, and nothing has to be configured::

    import narrows.zmq as zmq

    socket = zmq.Context.instance().socket(zmq.REQ)
    socket.connect("tcp://192.0.2.1:5555")
    socket.send(b"...")
    answer = socket.recv()

REQ and DEALER with one ``connect`` and no ``bind``, and REP and ROUTER at the other end, link each message to what was sent before. PUSH and PUB
cannot know who reads: they compress if told ``peers="narrows"``. Everything else, and every ``inproc`` connection, is plain. Not for
``zmq.asyncio``.

``proxy``, ``proxy_steerable``, ``monitored_queue`` and ``device`` move messages of these sockets through the wrapper, and so do pyzmq's
own, and its devices, once this module is imported. ``Poller`` and ``select`` know of messages that wait inside a socket.

Who can see lengths on the way can guess at contents that were encoded together: ``send(..., private=True)`` and
``socket(..., history=0)`` are for secrets (``docs/format.md``, 12.9).
"""

from typing import Any

import zmq as _zmq

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
