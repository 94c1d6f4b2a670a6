"""Registers the class of each socket type with ``socket``, which so need not import them."""

import zmq

from .broadcast import Publisher, Puller, Pusher, Subscriber
from .client import Dealer, Requester
from .server import Replier, Router
from .socket import CLASSES, Socket

_classes: dict[int, type[Socket]] = {
    zmq.REQ: Requester,
    zmq.DEALER: Dealer,
    zmq.REP: Replier,
    zmq.ROUTER: Router,
    zmq.PUSH: Pusher,
    zmq.PULL: Puller,
    zmq.PUB: Publisher,
    zmq.SUB: Subscriber,
}
CLASSES.update(_classes)
