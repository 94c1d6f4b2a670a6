"""ZeroMQ sockets with lost connections and hostile peers: no byte is wrong, nothing hangs."""

import random
import threading
import time
from typing import Any

import narrows
import narrows.zmq
import pytest
import zmq
from narrows.zmq.broadcast import MAGIC
from narrows.zmq.link import GONE, LACKS, WINDOW, Link, new_routing_id
from zmq_peers import (
    LINKED,
    TIMEOUT_MS,
    Proxy,
    Sockets,
    message,
    round_trips,
    sent_bytes,
    until,
)


@pytest.mark.parametrize("then", ["narrows", "plain"])
def test_a_server_comes_back(sockets: Sockets, then: str) -> None:
    """A server restarts on the same port, with or without this module: no reply is wrong or
    missing.
    """
    rep, req = sockets(zmq.REP, policy=LINKED), sockets(zmq.REQ, policy=LINKED)
    req.reconnect_ivl = 10
    address = sockets.bind(rep)
    req.connect(address)
    for turn in range(3):
        round_trips(req, rep, range(turn * 20, turn * 20 + 20))
        if then == "narrows" or turn == 0:
            assert req._link.proven
        rep.close(0)
        time.sleep(0.05)
        rep = sockets(zmq.REP, then, policy=LINKED)
        until(lambda rep=rep: bound(rep, address))  # type: ignore[misc]
    round_trips(req, rep, range(20))


def bound(s: Any, address: str) -> bool:
    try:
        s.bind(address)
    except zmq.ZMQError:
        return False
    return True


def test_what_was_queued_for_a_server_that_is_gone_reaches_the_next(sockets: Sockets) -> None:
    """Frames queued over a reconnection need state that the new server lacks: it requests them, and
    gets them in order.
    """
    router, dealer = sockets(zmq.ROUTER, policy=LINKED), sockets(zmq.DEALER, policy=LINKED)
    dealer.reconnect_ivl = 20
    address = sockets.bind(router)
    dealer.connect(address)
    for i in range(10):
        dealer.send(message(i))
        router.send_multipart(router.recv_multipart())
        assert dealer.recv() == message(i)
    link = dealer._link
    assert link.proven
    router.close(0)
    time.sleep(0.1)
    # As if the loss had not been noticed yet.
    dealer._alive[0] = time.perf_counter_ns() + 10**12
    for i in range(10, 20):
        dealer.send(message(i))
    assert link.seq and len(link.unacked) == 10
    dealer._alive[0] = 0
    for i in range(20, 30):
        dealer.send_multipart([message(i), b"", b"plain"])
    assert not link.proven
    router = sockets(zmq.ROUTER, policy=LINKED)
    until(lambda: bound(router, address))
    came = []

    def serve() -> None:
        for _ in range(20):
            came.append(router.recv_multipart()[1:])

    thread = threading.Thread(target=serve)
    thread.start()
    # The application waits for an answer; meanwhile this side sends again.
    dealer.rcvtimeo = 700
    with pytest.raises(zmq.Again):
        dealer.recv()
    thread.join(TIMEOUT_MS / 1000)
    assert came == [[message(i)] for i in range(10, 20)] + [[message(i), b"", b"plain"] for i in range(20, 30)]


def test_a_frame_that_waited_proves_nothing(sockets: Sockets) -> None:
    """A frame of the previous server, while the current one does not understand frames."""
    router, dealer = sockets(zmq.ROUTER, policy=LINKED), sockets(zmq.DEALER, policy=LINKED)
    dealer.reconnect_ivl = 10
    address = sockets.bind(router)
    dealer.connect(address)
    dealer.send(message(0))
    router.send_multipart(router.recv_multipart())
    until(lambda: bool(dealer.poll(10)))
    router.close(0)
    time.sleep(0.05)
    router = sockets(zmq.ROUTER, "plain")
    until(lambda: bound(router, address))
    assert dealer.recv() == message(0)
    for i in range(5):
        dealer.send(message(i))
        came = router.recv_multipart()
        assert came[1:] == [message(i)]
        router.send_multipart(came)
        assert dealer.recv() == message(i)
    assert dealer._link.seq == 0


def test_what_could_be_decoded_behind_what_could_not_comes_once_and_in_order(sockets: Sockets) -> None:
    router, dealer = sockets(zmq.ROUTER, policy=LINKED), sockets(zmq.DEALER, policy=LINKED)
    dealer.connect(sockets.bind(router))
    for _ in range(3):
        dealer.send(message(0))
        router.send_multipart(router.recv_multipart())
        assert dealer.recv() == message(0)
    next(iter(router._links.values())).decoder = None
    # The second is an independent frame, the third is plain.
    messages = [message(1), bytes(70_000), b"plain"]
    dealer.send(messages[0])
    dealer.send(messages[1])
    dealer.send(messages[2], private=True)
    dealer.rcvtimeo = 200
    came: list[bytes] = []
    thread = threading.Thread(target=lambda: came.extend(router.recv_multipart()[1] for _ in messages))
    thread.start()
    with pytest.raises(zmq.Again):
        dealer.recv()
    thread.join(TIMEOUT_MS / 1000)
    assert came == messages and not router.poll(20)


def test_what_was_encoded_and_not_sent_is_not_needed(sockets: Sockets) -> None:
    """The queue is full after a frame: the application gets an error, tries again, and everything
    arrives once.
    """
    router, dealer = sockets(zmq.ROUTER, policy=LINKED), sockets(zmq.DEALER, policy=LINKED)
    router.rcvhwm = dealer.sndhwm = 1
    router.rcvbuf = dealer.sndbuf = 4096
    dealer.connect(sockets.bind(router))
    for _ in range(2):
        dealer.send(message(0))
        router.send_multipart(router.recv_multipart())
        assert dealer.recv() == message(0)
    chance, refused, sent, came = random.Random(3), 0, [], []
    while len(sent) < 60:
        # Incompressible, so that the queue fills with few messages in flight.
        m = chance.randbytes(20_000) + message(len(sent))
        try:
            dealer.send(m, zmq.NOBLOCK)
            sent.append(m)
        except zmq.Again:
            refused += 1
            if not router.poll(20):
                continue
            parts = router.recv_multipart()
            came.append(parts[1])
            router.send_multipart([parts[0], b"acknowledged"])
            assert dealer.recv() == b"acknowledged"
    while len(came) < len(sent):
        came.append(router.recv_multipart()[1])
    assert came == sent and refused > 5
    assert dealer._link.encoder.sent.messages > 10


def test_who_is_not_answered_delivers_what_it_has(sockets: Sockets) -> None:
    """A client that never receives cannot send again; its later messages still arrive, a little
    later.
    """
    router, dealer = sockets(zmq.ROUTER, policy=LINKED), sockets(zmq.DEALER, policy=LINKED)
    dealer.connect(sockets.bind(router))
    for _ in range(2):
        dealer.send(message(0))
        router.send_multipart(router.recv_multipart())
        assert dealer.recv() == message(0)
    dealer.send(message(1))
    router._links.clear()
    dealer.send(message(2), private=True)
    assert router.recv_multipart()[1:] == [message(2)]


def test_connections_break_between_equal_peers(sockets: Sockets) -> None:
    """A relay drops connections at any point; a client that gives up and asks again gets the right
    answers.
    """
    rep = sockets(zmq.REP, policy=LINKED)
    proxy = Proxy(sockets.bind(rep))
    stop = threading.Event()

    def serve() -> None:
        rep.rcvtimeo = 50
        while not stop.is_set():
            try:
                request = rep.recv()
            except zmq.Again:
                continue
            rep.send(request + b"!")

    thread = threading.Thread(target=serve)
    thread.start()
    req = sockets(zmq.REQ, policy=LINKED)
    req.reconnect_ivl, req.rcvtimeo, req.req_relaxed, req.req_correlate = 10, 400, True, True
    req.connect(proxy.address)
    answers = 0
    try:
        for i in range(150):
            if i % 30 == 29:
                proxy.drop()
            req.send(message(i))
            try:
                assert req.recv() == message(i) + b"!"
                answers += 1
            except zmq.Again:
                pass
    finally:
        stop.set()
        thread.join(TIMEOUT_MS / 1000)
        proxy.close()
    assert answers >= 140 and proxy.accepted >= 5


def test_a_reply_that_was_lost_on_the_way_is_asked_for(sockets: Sockets) -> None:
    rep, req = sockets(zmq.REP, policy=LINKED), sockets(zmq.REQ, policy=LINKED)
    req.connect(sockets.bind(rep))
    round_trips(req, rep, range(10))
    server = threading.Thread(target=lambda: (rep.send(rep.recv() + b"!"), rep.send(rep.recv() + b"!")))
    req.send(message(11))
    # The client has lost its state, as after a damaged frame.
    req._link.decoder = None
    server.start()
    assert req.recv() == message(11) + b"!"
    req.send(message(12))
    assert req.recv() == message(12) + b"!"
    server.join(TIMEOUT_MS / 1000)


def test_a_request_that_cannot_be_decoded_is_asked_for(sockets: Sockets) -> None:
    rep, req = sockets(zmq.REP, policy=LINKED), sockets(zmq.REQ, policy=LINKED)
    req.connect(sockets.bind(rep))
    round_trips(req, rep, range(10))
    next(iter(rep._links.values())).decoder = None
    server = threading.Thread(target=lambda: rep.send(rep.recv() + b"!"))
    server.start()
    req.send_multipart([message(11)])
    assert req.recv() == message(11) + b"!"
    server.join(TIMEOUT_MS / 1000)
    assert req._link.skip > 0, "it is spared for a while"
    round_trips(req, rep, range(40))
    assert sent_bytes(req)[0] > 0


def test_a_dealer_needs_no_leave(sockets: Sockets) -> None:
    """Frames of a DEALER may be in flight while it is answered plain, so a REP that serves one
    inspects every request.
    """
    rep, dealer, plain = sockets(zmq.REP, policy=LINKED), sockets(zmq.DEALER, policy=LINKED), sockets(zmq.REQ, "plain")
    address = sockets.bind(rep)
    dealer.connect(address)
    plain.connect(address)
    for i in range(3):
        dealer.send_multipart([b"", message(i)])
        assert rep.recv() == message(i)
        if i == 2:
            next(iter(rep._links.values())).skip = 100
        rep.send(message(i))
        assert dealer.recv_multipart() == [b"", message(i)]
    assert rep._calm.granted == 0
    round_trips(plain, rep, range(100))
    seq = dealer._link.seq
    dealer.send_multipart([b"", message(3)])
    assert dealer._link.seq == seq + 1
    assert rep.recv() == message(3)


def test_who_does_not_wait_for_the_reply_sends_no_frame(sockets: Sockets) -> None:
    """The reply may have said that frames are not expected any more."""
    rep, req = sockets(zmq.REP, policy=LINKED), sockets(zmq.REQ, policy=LINKED)
    req.req_relaxed = True
    req.connect(sockets.bind(rep))
    round_trips(req, rep, range(5))
    assert req._link.granted
    link = next(iter(rep._links.values()))
    link.skip = 100
    req.send(message(5))
    assert rep.recv() == message(5)
    rep.send(b"plain")
    rep._calm.plain_run = 1000
    req.send(message(6))
    assert rep.recv() == message(6) and rep._calm.left > 0
    rep.send(b"plain")
    assert req.recv() == b"plain"


def test_more_clients_than_are_remembered(sockets: Sockets) -> None:
    router = sockets(zmq.ROUTER, policy=LINKED, peers_max=4)
    address = sockets.bind(router)
    clients = [sockets(zmq.DEALER, policy=LINKED) for _ in range(12)]
    for c in clients:
        c.connect(address)
    stop = threading.Event()

    def serve() -> None:
        router.rcvtimeo = 50
        while not stop.is_set():
            try:
                router.send_multipart(router.recv_multipart())
            except zmq.Again:
                continue

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        for i in range(30):
            for k, c in enumerate(clients):
                c.send(message(i * 100 + k))
            for k, c in enumerate(clients):
                assert c.recv() == message(i * 100 + k)
    finally:
        stop.set()
        thread.join(TIMEOUT_MS / 1000)
    assert len(router._links) == 4


def test_dictionaries_begin_the_history_if_both_have_them(sockets: Sockets) -> None:
    dictionary = narrows.Dictionary(b"".join(message(i) for i in range(60)))
    for theirs in (dictionary, None):
        rep = sockets(zmq.REP, policy=LINKED, dictionary=theirs)
        req = sockets(zmq.REQ, policy=LINKED, dictionary=dictionary)
        req.connect(sockets.bind(rep))
        server = threading.Thread(target=lambda rep=rep: [rep.send(rep.recv()) for _ in range(40)])  # type: ignore[misc]
        server.start()
        for i in range(40):
            req.send(message(i))
            assert req.recv() == message(i)
        server.join(TIMEOUT_MS / 1000)
        assert sent_bytes(req)[0] > 0


# Hostile peers.


def hostile(sockets: Sockets, address: str, routing_id: bytes) -> Any:
    s = sockets(zmq.DEALER, "plain")
    s.routing_id = routing_id
    s.connect(address)
    return s


def test_forged_frames_do_no_harm(sockets: Sockets, chance: random.Random) -> None:
    """Peers with a routing id of narrows: nothing crashes, messages are delivered as they were
    sent, and others are served.
    """
    for kind in (zmq.ROUTER, zmq.REP):
        server = sockets(kind, policy=LINKED)
        server.rcvtimeo = 100
        address = sockets.bind(server)
        routing_id = new_routing_id()
        attacker = hostile(sockets, address, routing_id)
        honest = sockets(zmq.REQ, policy=LINKED)
        honest.connect(address)
        real = Link(routing_id, narrows.zmq.Settings(policy=LINKED), client=True)
        frames = [real.encode(message(i), True) for i in range(4)]
        forged = [real.tag_out, real.tag_out + b"\1", real.tag_out + b"\1\1", real.tag_out + b"\1\1\1"]
        forged += [real.control(k, s) for k in (LACKS, GONE, 0x0A, 0xC1, 0xFF) for s in (0, 1, 255)]
        for _ in range(150):
            frame = bytearray(chance.choice(frames))
            for _ in range(chance.randrange(1, 4)):
                frame[chance.randrange(4, len(frame))] ^= 1 << chance.randrange(8)
            forged.append(bytes(frame[: chance.randrange(4, len(frame) + 1)]))
        forged += [real.tag_out + chance.randbytes(chance.randrange(60)) for _ in range(50)]
        chance.shuffle(forged)
        for i, frame in enumerate(forged):
            attacker.send_multipart([b"", frame] if i % 3 else [b"", frame, b"", frame])
            if i % 10 == 0:
                honest.send(message(i))
                for _ in range(30):
                    try:
                        came = server.recv_multipart()
                    except zmq.Again:
                        continue
                    server.send_multipart(came)
                    if came[-1] == message(i):
                        break
                assert honest.recv() == message(i)
            while attacker.poll(0):
                attacker.recv_multipart()
        link = next(x for x in server._links.values() if x.tag_in == real.tag_out)
        assert len(link.unacked) <= WINDOW and link.held_len < 1 << 21


def test_many_forged_names_are_bounded(sockets: Sockets) -> None:
    router = sockets(zmq.ROUTER, peers_max=8)
    address = sockets.bind(router)
    for _ in range(40):
        hostile(sockets, address, new_routing_id()).send(b"x")
        assert router.recv_multipart()[1:] == [b"x"]
    assert len(router._links) == 8


def test_forged_replies_do_not_hang_a_client(sockets: Sockets) -> None:
    rep, req = sockets(zmq.REP, "plain"), sockets(zmq.REQ, policy=LINKED)
    req.connect(sockets.bind(rep))
    stop = threading.Event()
    tag = req._link.tag_in

    def serve() -> None:
        rep.rcvtimeo = 50
        kinds = [bytes((k,)) for k in (LACKS, GONE, 1, 0xC1)]
        i = 0
        while not stop.is_set():
            try:
                rep.recv()
            except zmq.Again:
                continue
            rep.send(tag + b"\1\0" + kinds[i % len(kinds)] + b"x" * (i % 3))
            i += 1

    thread = threading.Thread(target=serve)
    thread.start()
    req.req_relaxed = True
    try:
        for i in range(20):
            req.send(message(i))
            with pytest.raises(zmq.Again):
                # A stored message outside its flow is invalid.
                req.recv()
    finally:
        stop.set()
        thread.join(TIMEOUT_MS / 1000)


def test_forged_units_of_topics_and_pipelines(sockets: Sockets, chance: random.Random) -> None:
    pub, sub = sockets(zmq.PUB, "plain"), sockets(zmq.SUB)
    push, pull = sockets(zmq.PUSH, "plain"), sockets(zmq.PULL)
    sub.subscribe(b"")
    sub.connect(sockets.bind(pub))
    push.connect(sockets.bind(pull))
    until(lambda: sub.poll(5) or pub.send(b"first"))
    for _ in range(200):
        unit = MAGIC + chance.randbytes(chance.randrange(40))
        pub.send_multipart([b"a", unit])
        push.send(unit)
        assert isinstance(pull.recv(), bytes)
    pub.send_multipart([b"last", b"plain"])
    came: Any = None
    while came != [b"last", b"plain"]:
        came = sub.recv_multipart()
    assert sub._reader.damaged > 0
