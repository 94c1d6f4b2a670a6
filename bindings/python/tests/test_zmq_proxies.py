"""Sockets of narrows.zmq in proxies, devices and pollers: no frame reaches a peer that cannot read
it.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import narrows
import narrows.zmq
import pytest
import zmq
import zmq.devices
import zmq.devices.monitoredqueuedevice
from narrows.zmq import proxying
from narrows.zmq.broadcast import ANNOUNCEMENTS, MAGIC, packed
from narrows.zmq.link import PREFIX
from zmq_peers import CLASSES, LINKED, PEERS, TIMEOUT_MS, Sockets, message, round_trips, sent_bytes, until

# All ways for an application to start a proxy.
PROXIES: dict[str, Callable[..., Any]] = {
    "narrows": narrows.zmq.proxy,
    "pyzmq": lambda *sockets: zmq.proxy(*sockets),
    "device": lambda front, back, _: zmq.device(zmq.QUEUE, front, back),
    "steerable": lambda *sockets: zmq.proxy_steerable(*sockets),
    "monitored": lambda *sockets: zmq.devices.monitored_queue(*sockets),
}


@contextmanager
def running(
    function: Callable[..., Any], *kinds: int | None, who: str = "narrows", connect: str = "", control: str = "", **kwargs: Any
) -> Iterator[list[Any]]:
    """A proxy in a thread. Yields its sockets, of which the second connects to ``connect`` if
    given; the others bind.
    """
    context = zmq.Context()
    made = [None if k is None else CLASSES[who](context, k, **(kwargs if who == "narrows" else {})) for k in kinds]
    for i, s in enumerate(made):
        if s is not None:
            s.linger = 0
            s.connect(connect) if i == 1 and connect else s.bind("tcp://127.0.0.1:*")
    if control:
        made.append(zmq.Socket(context, zmq.REP))
        made[-1].bind(control)
    failures: list[BaseException] = []

    def run() -> None:
        try:
            function(*made)
        except zmq.ContextTerminated:
            pass
        except BaseException as e:
            failures.append(e)
        finally:
            for s in made:
                if s is not None:
                    s.close(0)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield made
    finally:
        context.term()
        thread.join(10)
        assert not thread.is_alive() and not failures, failures


def endpoint(s: Any) -> str:
    return str(s.getsockopt_string(zmq.LAST_ENDPOINT)).rstrip("\0")


@pytest.mark.parametrize("name", PROXIES)
@pytest.mark.parametrize(("client", "worker"), [*PEERS, ("plain", "plain")])
@pytest.mark.parametrize("binds", [True, False])
def test_requests_through_a_proxy(sockets: Sockets, name: str, client: str, worker: str, binds: bool) -> None:
    """Client and worker get the same messages as without a proxy; each hop between two narrows
    sockets is compressed.
    """
    rep, req = sockets(zmq.REP, worker, policy=LINKED), sockets(zmq.REQ, client, policy=LINKED)
    address = "" if binds else sockets.bind(rep)
    told = None if name == "device" else zmq.PUB
    with running(PROXIES[name], zmq.ROUTER, zmq.DEALER, told, connect=address, policy=LINKED) as (front, back, _):
        if binds:
            rep.connect(endpoint(back))
        req.connect(endpoint(front))
        round_trips(req, rep, range(50))
        if client == "narrows":
            raw, wire = sent_bytes(req)
            assert raw > 30 * 80 and wire * 3 < raw, (raw, wire)
        if worker == "narrows":
            raw, wire = sent_bytes(rep)
            assert raw == 0 if binds else raw > 30 * 80 and wire * 3 < raw, (raw, wire)


@pytest.mark.parametrize("client", ["narrows", "plain"])
def test_a_broker_that_took_the_proxy_before_this_module_stays_plain(sockets: Sockets, client: str) -> None:
    """The DEALER of the proxy binds, so it does not announce support."""
    rep, req = sockets(zmq.REP, policy=LINKED), sockets(zmq.REQ, client, policy=LINKED)
    with running(proxying._plain_proxy, zmq.ROUTER, zmq.DEALER, None) as (front, back, _):
        rep.connect(endpoint(back))
        req.connect(endpoint(front))
        round_trips(req, rep, range(50))


@pytest.mark.parametrize("client", ["narrows", "plain"])
@pytest.mark.parametrize("kind", [zmq.devices.ThreadProxy, zmq.devices.ThreadDevice, zmq.devices.ThreadMonitoredQueue])
def test_devices_of_wrapped_sockets(sockets: Sockets, client: str, kind: Any) -> None:
    rep, req = sockets(zmq.REP, policy=LINKED), sockets(zmq.REQ, client, policy=LINKED)
    context = narrows.zmq.Context()
    is_device = kind is zmq.devices.ThreadDevice
    proxy = kind(zmq.QUEUE, zmq.ROUTER, zmq.DEALER) if is_device else kind(zmq.ROUTER, zmq.DEALER)
    proxy.context_factory = lambda: context
    front = f"tcp://127.0.0.1:{proxy.bind_in_to_random_port('tcp://127.0.0.1')}"
    proxy.connect_out(sockets.bind(rep))
    proxy.setsockopt_in(zmq.LINGER, 0)
    proxy.setsockopt_out(zmq.LINGER, 0)
    proxy.start()
    req.connect(front)
    round_trips(req, rep, range(50))
    assert sent_bytes(rep)[0] > 0
    context.term()
    proxy.join(10)


def test_pipelines_and_topics_reach_plain_readers(sockets: Sockets) -> None:
    """Units are for sockets of this module; behind a proxy of its sockets are others."""
    push, pull = sockets(zmq.PUSH, peers="narrows", policy="fixed:lz4:accel=1"), sockets(zmq.PULL, "plain")
    with running(zmq.proxy, zmq.PULL, zmq.PUSH) as (front, back):
        push.connect(endpoint(front))
        pull.connect(endpoint(back))
        for i in range(20):
            push.send_multipart([message(i) * 9, message(i)])
        for i in range(20):
            assert pull.recv_multipart() == [message(i) * 9, message(i)]
        assert push._encoder.sent.ratio > 2
    dictionary = narrows.Dictionary(b"".join(message(i) for i in range(60)))
    pub, sub = sockets(zmq.PUB, peers="narrows", dictionary=dictionary), sockets(zmq.SUB, "plain")
    context = zmq.Context()
    front, back = narrows.zmq.Socket(context, zmq.SUB), zmq.Socket(context, zmq.PUB)
    front.subscribe(b"a")
    front.connect(sockets.bind(pub))
    sub.subscribe(b"")
    back.bind("tcp://127.0.0.1:*")
    sub.connect(endpoint(back))

    def run() -> None:
        try:
            zmq.proxy(front, back)
        except zmq.ContextTerminated:
            front.close(0)
            back.close(0)

    thread = threading.Thread(target=run)
    thread.start()
    until(lambda: sub.poll(5) or pub.send_multipart([b"a", b"first"]))
    while sub.poll(50):
        assert sub.recv_multipart() == [b"a", b"first"]

    def is_compressed() -> bool:
        for i in range(40):
            pub.send_multipart([b"a", body(i)])
            assert sub.recv_multipart() == [b"a", body(i)]
        return bool(pub._writer.sent.ratio > 1.5)

    # The dictionary is used after its second announcement.
    until(is_compressed, 10)
    context.term()
    thread.join(10)


def test_a_steerable_proxy_obeys(sockets: Sockets) -> None:
    pull, push = sockets(zmq.PULL, "plain"), sockets(zmq.PUSH, "plain")
    control = sockets(zmq.REQ, "plain")
    with running(
        lambda front, back, c: zmq.proxy_steerable(front, back, None, c), zmq.PULL, zmq.PUSH, control="tcp://127.0.0.1:*"
    ) as (front, back, c):
        push.connect(endpoint(front))
        pull.connect(endpoint(back))
        control.connect(endpoint(c))

        def say(command: bytes) -> list[bytes]:
            control.send(command)
            return list(control.recv_multipart())

        push.send(b"first")
        assert pull.recv() == b"first"
        assert say(b"PAUSE") == [b""]
        push.send(b"second")
        assert not pull.poll(200)
        assert say(b"nonsense") == [b""]
        assert say(b"RESUME") == [b""]
        assert pull.recv() == b"second"
        numbers = [int.from_bytes(n, "little") for n in say(b"STATISTICS")]
        assert numbers == [2, 11, 0, 0, 0, 0, 2, 11]
        assert say(b"TERMINATE") == [b""]


def test_a_proxy_waits_for_a_target_that_takes_nothing(sockets: Sockets) -> None:
    """The proxy neither takes more from the source nor loops without waiting."""
    push, pull = sockets(zmq.PUSH, "plain"), sockets(zmq.PULL, "plain")
    with running(zmq.proxy, zmq.PULL, zmq.PUSH) as (front, back):
        push.connect(endpoint(front))
        for i in range(20):
            push.send(message(i))
        time.sleep(0.1)
        began = time.process_time()
        time.sleep(0.3)
        assert time.process_time() - began < 0.2
        pull.connect(endpoint(back))
        assert [pull.recv() for _ in range(20)] == [message(i) for i in range(20)]


def test_routers_on_both_sides_of_a_monitored_queue(sockets: Sockets) -> None:
    one, other, seen = (sockets(kind, "plain") for kind in (zmq.DEALER, zmq.DEALER, zmq.SUB))
    one.routing_id, other.routing_id = b"one", b"other"
    seen.subscribe(b"")
    with running(zmq.devices.monitored_queue, zmq.ROUTER, zmq.ROUTER, zmq.PUB) as (front, back, told):
        seen.connect(endpoint(told))
        one.connect(endpoint(front))
        other.connect(endpoint(back))
        # Repeats until the peer and the capturing socket are connected.
        until(lambda: seen.poll(20) or other.send_multipart([b"one", b"hello"]))
        assert one.recv_multipart() == [b"other", b"hello"]
        assert seen.recv_multipart() == [b"out", b"one", b"other", b"hello"]
        one.send_multipart([b"other", b"answer"])
        assert other.recv_multipart() == [b"one", b"answer"]
        while (parts := seen.recv_multipart())[0] == b"out":
            pass
        assert parts == [b"in", b"other", b"one", b"answer"]


# Announcements before the first message.


def body(i: int) -> bytes:
    """A message long enough that a dictionary pays even where encoding is slow."""
    return b"".join(message(10 * i + k) for k in range(10))


@pytest.mark.parametrize("kind", [zmq.REQ, zmq.DEALER])
def test_only_who_connects_says_that_it_understands(sockets: Sockets, kind: int) -> None:
    bound, inside, connected, second = (sockets(kind) for _ in range(4))
    address = sockets.bind(bound)
    bound.connect(address)
    inside.connect(sockets.bind(sockets(zmq.ROUTER), "inproc"))
    connected.connect(sockets.bind(sockets(zmq.ROUTER)))
    second.bind("tcp://127.0.0.1:*")
    assert [s.routing_id[:4] for s in (bound, inside, connected, second)] == [b"", b"", PREFIX, b""]


def test_a_plain_publisher_sees_no_subscription_but_the_applications(sockets: Sockets) -> None:
    xpub, sub = sockets(zmq.XPUB, "plain"), sockets(zmq.SUB)
    sub.subscribe(b"a")
    sub.connect(sockets.bind(xpub))
    assert xpub.recv() == b"\1a"
    for i in range(20):
        xpub.send_multipart([b"a", message(i)])
        assert sub.recv_multipart() == [b"a", message(i)]
    assert not xpub.poll(200)


@pytest.mark.parametrize("peers", ["any", "narrows"])
def test_a_late_reader_subscribes_to_announcements_when_it_needs_them(sockets: Sockets, peers: Any) -> None:
    """A new reader starts well before the next regular announcement, which is after ten seconds,
    and loses nothing: at 200 messages a second, since 1,024 may wait during the second in which new
    readers share an announcement.
    """
    dictionary = narrows.Dictionary(b"".join(message(i) for i in range(60)))
    pub, first = sockets(zmq.PUB, peers="narrows", dictionary=dictionary), sockets(zmq.SUB)
    first.subscribe(b"")
    address = sockets.bind(pub)
    first.connect(address)
    until(lambda: first.poll(5) or pub.send_multipart([b"a", b"first"]))
    end = time.monotonic() + 2.5
    sent = 0
    while time.monotonic() < end:
        # Until the announcements for the new reader are over.
        pub.send_multipart([b"a", body(sent), b"%d" % sent])
        sent += 1
        time.sleep(0.01)
    late = sockets(zmq.SUB, peers=peers)
    late.subscribe(b"a")
    late.connect(address)
    came: list[int] = []
    began = time.monotonic()
    poller = narrows.zmq.Poller()
    poller.register(late, zmq.POLLIN)
    while len(came) < 100 and time.monotonic() < began + 8:
        pub.send_multipart([b"a", body(sent), b"%d" % sent])
        sent += 1
        time.sleep(0.005)
        for s, _ in poller.poll(10):
            try:
                parts = s.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                # Undecodable messages stay inside the socket.
                continue
            assert parts == [b"a", body(int(parts[2])), parts[2]]
            came.append(int(parts[2]))
    assert len(came) >= 100 and came == list(range(came[0], came[0] + len(came)))
    assert late._reader.unannounced == late._reader.damaged == 0
    assert late._listening.subscribed and late._listening.knock is None
    assert ANNOUNCEMENTS == b"\0narrows"


def test_plain_messages_do_not_overtake_units_that_wait(sockets: Sockets) -> None:
    """A publisher sends plain what would not get shorter."""
    dictionary = narrows.Dictionary(b"".join(message(i) for i in range(60)))
    writer = narrows.MessageEncoder("fixed:zstd:level=1", delivery="fanout", borders=True)
    writer.offer(dictionary)
    writer.announce()
    announcement = writer.announce()
    xpub, sub = sockets(zmq.XPUB, "plain"), sockets(zmq.SUB)
    sub.subscribe(b"a")
    sub.connect(sockets.bind(xpub))
    assert xpub.recv() == b"\1a"
    sent = []
    for i in range(30):
        parts = [b"a", b"%d" % i, message(i)]
        xpub.send_multipart([b"a", MAGIC + writer.encode(packed(parts))] if i % 3 == 0 else parts)
        sent.append(parts)
    with pytest.raises(zmq.Again):
        sub.rcvtimeo = 200
        sub.recv_multipart()
    # It subscribes to announcements now that it needs them.
    assert xpub.recv() == b"\1" + ANNOUNCEMENTS
    xpub.send_multipart([ANNOUNCEMENTS, MAGIC + announcement])
    sub.rcvtimeo = TIMEOUT_MS
    assert [sub.recv_multipart() for _ in sent] == sent
    xpub.send_multipart([b"a", b"last"])
    assert sub.recv_multipart() == [b"a", b"last"]
    assert not sub._behind.entries and sub._behind.held == sub._behind.held_len == sub._behind.units == 0


# Pollers, and other ways to send and receive.


def test_pollers_know_what_waits_inside(sockets: Sockets) -> None:
    rep, dealer = sockets(zmq.REP, policy=LINKED), sockets(zmq.DEALER, policy=LINKED)
    dealer.connect(sockets.bind(rep))
    dealer.send_multipart([b"", message(1), message(2)])
    poller = narrows.zmq.Poller()
    poller.register(rep, zmq.POLLIN)
    poller.register(dealer, zmq.POLLIN)
    assert poller.poll(5000) == [(rep, zmq.POLLIN)]
    assert rep.recv() == message(1)
    assert rep.recv() == message(2)
    assert poller.poll(0) == []
    rep.send_multipart([message(3), message(4)])
    assert poller.poll(5000) == [(dealer, zmq.POLLIN)]
    # The first of three parts; the others are inside the socket.
    assert dealer.recv() == b""
    assert poller.poll(0) == [(dealer, zmq.POLLIN)] and dealer.poll(0) == zmq.POLLIN
    assert narrows.zmq.select([rep, dealer], [dealer], [], 0)[:2] == ([dealer], [dealer])
    assert (dealer.recv(), dealer.recv()) == (message(3), message(4))
    began = time.monotonic()
    assert poller.poll(50) == [] and time.monotonic() - began > 0.04
    assert narrows.zmq.select([dealer], [], [], 0.01) == ([], [], [])


@pytest.mark.parametrize(("client", "server"), PEERS)
def test_every_way_to_send_and_to_receive(sockets: Sockets, client: str, server: str) -> None:
    router, dealer = sockets(zmq.ROUTER, server, policy=LINKED), sockets(zmq.DEALER, client, policy=LINKED)
    dealer.connect(sockets.bind(router))
    room = bytearray(1000)
    for i in range(20):
        text = message(i)
        dealer.send_serialized([text, b"", text * 2], lambda parts: parts, copy=i % 2 == 0)
        name, *parts = router.recv_multipart(copy=i % 3 == 0)
        parts = [bytes(p) if i % 3 == 0 else p.bytes for p in parts]
        assert parts == [text, b"", text * 2]
        router.send(name, zmq.SNDMORE)
        router.send(memoryview(text), copy=False)
        assert dealer.recv_into(room) == len(text) and room[: len(text)] == text
        router.send_multipart([name, zmq.Frame(text)], copy=False)
        assert dealer.recv_serialized(lambda parts: parts) == [text]
        router.send_multipart([name, bytearray(text)])
        assert dealer.recv_into(memoryview(room)[:50]) == len(text) and room[:50] == text[:50]
        router.send_multipart([name, text])
        assert dealer.recv(copy=False).bytes == text
        router.send(name, zmq.SNDMORE)
        router.send_json({"i": i})
        assert dealer.recv_json() == {"i": i}
        router.send(name, zmq.SNDMORE)
        router.send_pyobj((i, text))
        assert dealer.recv_pyobj() == (i, text)
        tracker = dealer.send(text * 9, copy=False, track=True)
        assert router.recv_multipart()[1] == text * 9
        assert tracker is not None
