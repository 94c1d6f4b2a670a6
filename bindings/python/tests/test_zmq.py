"""ZeroMQ sockets: each pattern with peers with and without this module, in both roles."""

import copy
import random
import time
from collections.abc import Callable
from typing import Any

import narrows
import narrows.zmq
import pytest
import zmq
from narrows.zmq.broadcast import MAGIC, packed, unpacked
from narrows.zmq.link import AS_IS, LACKS, PREFIX
from narrows.zmq.trial import FIRST, Trial
from zmq_peers import (
    LINKED,
    PEERS,
    TIMEOUT_MS,
    TRANSPORTS,
    Sockets,
    message,
    round_trips,
    sent_bytes,
    until,
)

# Kinds of peers, by role.


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize(("client", "server"), PEERS)
def test_requests_and_replies(sockets: Sockets, transport: str, client: str, server: str) -> None:
    rep, req = sockets(zmq.REP, server, policy=LINKED), sockets(zmq.REQ, client, policy=LINKED)
    req.connect(sockets.bind(rep, transport))
    round_trips(req, rep, range(60))
    if client == server and transport != "inproc":
        raw, wire = sent_bytes(req)
        assert raw > 40 * 80 and wire * 3 < raw, (raw, wire)
        raw, wire = sent_bytes(rep)
        assert raw > 40 * 80 and wire * 3 < raw, (raw, wire)
    else:
        # A plain peer read or wrote all of it, so nothing was framed.
        assert all(sent_bytes(s) == (0, 0) for s, who in ((req, client),) if who == "narrows")


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize(("client", "server"), PEERS)
@pytest.mark.parametrize("kinds", [(zmq.DEALER, zmq.ROUTER), (zmq.REQ, zmq.ROUTER), (zmq.DEALER, zmq.REP)])
def test_dealers_and_routers(
    sockets: Sockets, transport: str, client: str, server: str, kinds: tuple[int, int], chance: random.Random
) -> None:
    back, front = sockets(kinds[1], server, policy=LINKED), sockets(kinds[0], client, policy=LINKED)
    front.connect(sockets.bind(back, transport))
    for i in range(40):
        at_once = 1 if zmq.REQ in kinds else chance.randrange(1, 5)
        body = [
            [message(i), b"", message(i + 1), chance.randbytes(i)][: chance.randrange(1, 5)] for _ in range(at_once)
        ]
        if kinds == (zmq.DEALER, zmq.REP):
            body = [[b"", *parts] for parts in body]
        for parts in body:
            if i % 2:
                front.send_multipart(parts)
            else:
                for part in parts[:-1]:
                    front.send(part, zmq.SNDMORE)
                front.send(parts[-1])
        if kinds[1] == zmq.ROUTER:
            came = [back.recv_multipart() for _ in body]
            delimiter = [b""] if kinds[0] == zmq.REQ else []
            assert [m[1:] for m in came] == [delimiter + parts for parts in body]
            for m in came:
                back.send_multipart(m)
        else:
            for parts in body:
                request = [back.recv()]
                while back.rcvmore:
                    request.append(back.recv())
                assert request == parts[1:]
                back.send_multipart(request)
        for parts in body:
            assert front.recv_multipart() == parts
    if client == server and transport != "inproc":
        assert sent_bytes(front)[0] > 0 and sent_bytes(back)[0] > 0


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize(("sender", "receiver"), PEERS)
def test_pipelines_are_plain_unless_told(sockets: Sockets, transport: str, sender: str, receiver: str) -> None:
    pull, push = sockets(zmq.PULL, receiver), sockets(zmq.PUSH, sender)
    push.connect(sockets.bind(pull, transport))
    for i in range(30):
        push.send_multipart([message(i), b"", message(i) * 9])
    for i in range(30):
        assert pull.recv_multipart() == [message(i), b"", message(i) * 9]


def test_pipelines_that_were_told(sockets: Sockets) -> None:
    pulls = [sockets(zmq.PULL), sockets(zmq.PULL)]
    push = sockets(zmq.PUSH, peers="narrows", policy="fixed:lz4:accel=1")
    for pull in pulls:
        push.connect(sockets.bind(pull))
    until(lambda: all(pull.poll(1) or not push.send(message(0) * 9) for pull in pulls))
    push.send_multipart([message(1) * 9, b"", MAGIC + b"x"])
    push.send(message(2) * 9, private=True)
    expected = {message(0) * 9, message(2) * 9, b"", message(1) * 9, MAGIC + b"x"}
    came = set()
    for pull in pulls:
        while pull.poll(300):
            came |= set(pull.recv_multipart())
    assert came == expected
    assert push._encoder.sent.ratio > 2


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize(("sender", "receiver"), PEERS)
def test_topics_are_plain_unless_told(sockets: Sockets, transport: str, sender: str, receiver: str) -> None:
    pub, sub = sockets(zmq.PUB, sender), sockets(zmq.SUB, receiver)
    sub.subscribe(b"a")
    sub.connect(sockets.bind(pub, transport))
    until(lambda: sub.poll(5) or pub.send_multipart([b"a/0", b"first"]))
    while sub.poll(20):
        assert sub.recv_multipart() == [b"a/0", b"first"]
    for i in range(20):
        pub.send_multipart([b"b/%d" % i, message(i)])
        pub.send_multipart([b"a/%d" % i, message(i)])
        assert sub.recv_multipart() == [b"a/%d" % i, message(i)]


@pytest.mark.parametrize("given", [True, False])
def test_topics_that_were_told(sockets: Sockets, given: bool) -> None:
    """With a given dictionary, and with one trained from the first messages."""
    dictionary = narrows.Dictionary(b"".join(message(i) for i in range(60))) if given else None
    pub, sub = sockets(zmq.PUB, peers="narrows", dictionary=dictionary), sockets(zmq.SUB)
    sub.subscribe(b"a")
    address = sockets.bind(pub)
    sub.connect(address)
    until(lambda: sub.poll(5) or pub.send_multipart([b"a", b"first"]))
    while sub.poll(20):
        assert sub.recv_multipart() == [b"a", b"first"]
    late = None
    for i in range(1500):
        pub.send_multipart([b"b", message(i)])
        pub.send_multipart([b"a", message(i), b"", b"%d" % i])
        assert sub.recv_multipart() == [b"a", message(i), b"", b"%d" % i]
        if i == 1000:
            late = sockets(zmq.SUB)
            late.subscribe(b"")
            late.connect(address)
        if i % 100 == 0:
            time.sleep(0.03)
    assert sub._reader.damaged == sub._reader.unannounced == 0
    # The late reader gets all messages from some point on, in order, and waits at most until the
    # next announcement.
    assert late is not None
    came, end = [], time.monotonic() + TIMEOUT_MS / 1000
    while not came and time.monotonic() < end:
        pub.send_multipart([b"a", b"last"])
        while late.poll(5):
            came.append(late.recv_multipart())
    numbers = [int(m[3]) for m in came if len(m) == 4]
    assert numbers == sorted(numbers) and all(m[1] == message(int(m[3])) for m in came if len(m) == 4)


def test_a_publisher_drops_above_its_limit_and_readers_go_on(sockets: Sockets) -> None:
    dictionary = narrows.Dictionary(b"".join(message(i) for i in range(60)))
    pub, sub = sockets(zmq.PUB, peers="narrows", dictionary=dictionary), sockets(zmq.SUB)
    pub.sndhwm = sub.rcvhwm = 5
    pub.sndbuf = sub.rcvbuf = 4096
    sub.subscribe(b"")
    sub.connect(sockets.bind(pub))
    until(lambda: sub.poll(5) or pub.send_multipart([b"a", b"0", b""]))
    for i in range(5000):
        pub.send_multipart([b"a", b"%d" % i, message(i) * 5])
    came = []
    while sub.poll(200):
        came.append(sub.recv_multipart())
    for i in range(9000, 9500):
        pub.send_multipart([b"a", b"%d" % i, message(i) * 5])
        if sub.poll(50):
            came.append(sub.recv_multipart())
            break
    numbers = [int(m[1]) for m in came if m[2]]
    assert numbers == sorted(numbers) and numbers[-1] >= 9000 and len(numbers) < 5000
    assert all(m[2] == message(int(m[1])) * 5 for m in came if m[2])


# Bytes.


@pytest.mark.parametrize("length", [0, 1, 3, 4, 5, 6, 7, 65_535, 65_536, 1_000_000])
def test_every_length(sockets: Sockets, length: int, chance: random.Random) -> None:
    rep, req = sockets(zmq.REP, policy=LINKED), sockets(zmq.REQ, policy=LINKED)
    router, dealer = sockets(zmq.ROUTER, policy=LINKED), sockets(zmq.DEALER, policy=LINKED)
    req.connect(sockets.bind(rep))
    dealer.connect(sockets.bind(router))
    for kind in (bytes(length), chance.randbytes(length)):
        for i in range(4):
            req.send_multipart([kind, message(i), kind])
            assert rep.recv_multipart() == [kind, message(i), kind]
            rep.send(kind)
            assert req.recv() == kind
            dealer.send_multipart([kind, b"", kind])
            came = router.recv_multipart()
            assert came[1:] == [kind, b"", kind]
            router.send_multipart([came[0], kind])
            assert dealer.recv() == kind


def test_what_begins_like_a_frame_is_not_taken_for_one(sockets: Sockets) -> None:
    router, dealer = sockets(zmq.ROUTER), sockets(zmq.DEALER)
    dealer.connect(sockets.bind(router))
    dealer.send(b"hello")
    came = router.recv_multipart()
    router.send_multipart(came)
    assert dealer.recv() == b"hello"
    link = dealer._link
    assert link.proven
    for tag in (link.tag_out, link.tag_in):
        for tail in (b"", b"\x01\x00" + bytes((LACKS,)), b"\x01\x00" + bytes((AS_IS,)) + b"x"):
            dealer.send(tag + tail, private=True)
            assert router.recv_multipart() == [came[0], tag + tail]
            router.send_multipart([came[0], tag + tail], private=True)
            assert dealer.recv_multipart() == [tag + tail]


def test_any_buffer_and_frames(sockets: Sockets) -> None:
    rep, req = sockets(zmq.REP, policy=LINKED), sockets(zmq.REQ, policy=LINKED)
    req.connect(sockets.bind(rep))
    for i in range(8):
        m = message(i)
        req.send([m, bytearray(m), memoryview(m), zmq.Frame(m)][i % 4], copy=i % 3 == 0)
        came = rep.recv(copy=i % 2 == 0)
        assert bytes(came) == m
        tracker = rep.send(m, copy=False, track=True)
        assert tracker is not None
        room = bytearray(200)
        assert req.recv_into(room) == len(m) and room.startswith(m)
    with pytest.raises(TypeError):
        req.send("text")  # type: ignore[arg-type]
    req.send_json({"celsius": 21.5})
    assert rep.recv_json() == {"celsius": 21.5}
    rep.send_pyobj([1, 2])
    assert req.recv_pyobj() == [1, 2]
    req.send_string("grün")
    assert rep.recv_string() == "grün"


def test_private_messages_are_in_no_history(sockets: Sockets) -> None:
    rep, req = sockets(zmq.REP, policy=LINKED), sockets(zmq.REQ, policy=LINKED)
    req.connect(sockets.bind(rep))
    round_trips(req, rep, range(5))
    before = req._link.encoder.sent
    req.send(message(3), private=True)
    assert rep.recv() == message(3)
    assert req._link.encoder.sent.messages == before.messages
    rep.send(b"ok")
    assert req.recv() == b"ok"


def test_operations_are_those_of_pyzmq(sockets: Sockets, chance: random.Random) -> None:
    """The same calls on both kinds of sockets give the same bytes and the same errors."""

    def play(who: str, chance: random.Random) -> list[object]:
        log: list[object] = []
        back, front = sockets(zmq.ROUTER, who), sockets(zmq.DEALER, who)
        front.connect(sockets.bind(back))
        rep, req = sockets(zmq.REP, who), sockets(zmq.REQ, who)
        req.connect(sockets.bind(rep))
        for s in (back, front, rep, req):
            s.rcvtimeo = s.sndtimeo = 200
        peer = None

        def tried(call: Callable[..., Any], *args: Any) -> None:
            try:
                result = call(*args)
                # The routing id is random.
                log.append([p for p in result if p != peer] if isinstance(result, list) else result)
            except zmq.ZMQError as e:
                log.append(e.errno)

        front.send(b"who")
        peer = back.recv_multipart()[0]
        for _ in range(120):
            step = chance.randrange(12)
            parts = [chance.choice([b"", b"x", message(3), message(4)]) for _ in range(chance.randrange(1, 4))]
            if step == 0:
                tried(front.send_multipart, parts)
                tried(back.recv_multipart)
            elif step == 1:
                tried(back.send_multipart, [peer, *parts])
                tried(front.recv)
                while front.rcvmore:
                    tried(front.recv)
            elif step == 2:
                tried(front.recv, zmq.NOBLOCK)
            elif step == 3:
                tried(back.recv_multipart, zmq.NOBLOCK)
            elif step == 4:
                tried(back.send_multipart, [b"nobody", b"x"])
            elif step == 5:
                tried(req.send_multipart, parts)
            elif step == 6:
                tried(rep.recv_multipart, 0 if rep.poll(100) else zmq.NOBLOCK)
            elif step == 7:
                tried(rep.send_multipart, parts)
            elif step == 8:
                tried(req.recv_multipart, 0 if req.poll(100) else zmq.NOBLOCK)
            elif step == 9:
                log.append((front.poll(0, zmq.POLLOUT), front.getsockopt(zmq.TYPE), front.closed))
            elif step == 10:
                tried(front.setsockopt, zmq.LINGER, -2)
            elif step == 11:
                tried(rep.send, b"out of turn", zmq.NOBLOCK)
        return log

    seed = chance.randrange(1 << 30)
    assert play("narrows", random.Random(seed)) == play("plain", random.Random(seed))


def test_a_full_queue_says_again(sockets: Sockets) -> None:
    dealer = sockets(zmq.DEALER)
    dealer.sndhwm = 2
    dealer.connect("tcp://127.0.0.1:1")
    dealer.send(b"1", zmq.NOBLOCK)
    dealer.send_multipart([b"2", b"2"], zmq.NOBLOCK)
    for _ in range(3):
        with pytest.raises(zmq.Again):
            dealer.send_multipart([b"3", b"3"], zmq.NOBLOCK)
        with pytest.raises(zmq.Again):
            dealer.recv(zmq.NOBLOCK)


def test_the_context_makes_these_sockets() -> None:
    with narrows.zmq.Context() as context, context.socket(zmq.REQ, policy="off", history=0) as s:
        assert isinstance(s, narrows.zmq.Socket) and s.type == zmq.REQ
        s.connect("tcp://127.0.0.1:9")
        assert s.routing_id.startswith(PREFIX)
    assert s.closed
    plain = zmq.Context.instance()
    shared = narrows.zmq.Context.instance()
    assert plain is not shared and shared is narrows.zmq.Context.instance()
    assert narrows.zmq.NOBLOCK == zmq.NOBLOCK
    with pytest.raises(ValueError, match="peers"):
        narrows.zmq.Socket(plain, zmq.PUSH, peers="all")
    plain.term()
    shared.term()


@pytest.mark.parametrize("alone", [0, 10])
def test_replies_of_two_servers_do_not_mix(sockets: Sockets, alone: int) -> None:
    """Each server answers by frames of its own flow. The client, which can no longer choose between
    them, sends none.
    """
    reps = [sockets(zmq.REP, policy=LINKED), sockets(zmq.REP, policy=LINKED)]
    req = sockets(zmq.REQ, policy=LINKED)
    req.connect(sockets.bind(reps[0]))
    round_trips(req, reps[0], range(alone))
    seq = req._link.seq
    assert bool(seq) == bool(alone)
    req.connect(sockets.bind(reps[1]))
    for i in range(80):
        req.send(message(i))
        until(lambda: any(rep.poll(5) for rep in reps))
        rep = next(rep for rep in reps if rep.poll(0))
        assert rep.recv() == message(i)
        rep.send(message(i) + b"!")
        assert req.recv() == message(i) + b"!"
    assert req._link.seq == seq and all(sent_bytes(rep)[0] > 0 for rep in reps)


def test_a_replier_looks_at_few_plain_requests_and_misses_no_frame(sockets: Sockets) -> None:
    """Among many plain requests a client gets permission to send frames, and keeps it however long
    it is silent.
    """
    rep, plain = sockets(zmq.REP, policy=LINKED), sockets(zmq.REQ, "plain")
    address = sockets.bind(rep)
    plain.connect(address)
    early, late = sockets(zmq.REQ, policy=LINKED), sockets(zmq.REQ, policy=LINKED)
    early.connect(address)
    round_trips(early, rep, range(3))
    assert early._link.granted
    round_trips(plain, rep, range(200))
    assert rep._calm.left == 0
    round_trips(early, rep, range(2))
    assert copy.copy(early).type == zmq.REQ
    early.send(message(1), private=True)
    assert rep.recv() == message(1)
    rep.send(b"ok", zmq.SNDMORE)
    rep.send(b"")
    assert early.recv_multipart() == [b"ok", b""]
    early.close()
    # Its last reply was a frame, so it might still send one.
    round_trips(plain, rep, range(100))
    assert rep._calm.left == 0
    rep._calm.grant(next(iter(rep._links.values())), False)
    round_trips(plain, rep, range(100))
    # It may be inspecting a request just now.
    assert rep._calm.left > 0 or round_trips(plain, rep, range(1)) or rep._calm.left > 0
    late.connect(address)
    for i in range(400):
        if i % 2:
            round_trips(plain, rep, range(1))
        round_trips(late, rep, range(i, i + 1))
        if late._link.seq > 3:
            break
    assert late._link.seq > 3


def test_frames_are_sent_if_they_are_faster() -> None:
    for span_ns, faster in ((0, True), (40_000_000, False)):
        trial = Trial()
        count = 0
        while not trial.is_over():
            framed = trial.wants_frame()
            trial.asked(framed)
            trial.begin -= span_ns if framed else 20_000_000
            trial.answered(framed)
            count += 1
        assert count == 36 and trial.verdict() is faster and trial.every == (512 if faster else FIRST)
    while trial.rest > 0:
        trial.asked(False)
    assert trial.wants_frame(), "it is tried again"


@pytest.mark.parametrize("how", ["own name", "two endpoints", "bind", "monitor", "off"])
def test_sockets_that_stay_plain(sockets: Sockets, how: str) -> None:
    rep = sockets(zmq.REP, policy=LINKED)
    req = sockets(zmq.REQ, policy="off" if how == "off" else LINKED)
    if how == "own name":
        req.routing_id = b"worker-7"
    if how == "monitor":
        sockets.made.append(req.get_monitor_socket())
    if how == "bind":
        rep.connect(sockets.bind(req))
    else:
        req.connect(sockets.bind(rep))
    if how == "two endpoints":
        req.connect(req.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\0"))
    round_trips(req, rep, range(20))
    assert sent_bytes(req) == (0, 0)


def test_packed_parts() -> None:
    for parts in ([b""], [b"a", b""], [b"a", b"b" * 300, b"", b"c"]):
        assert unpacked(packed(parts)) == parts
    body = packed([b"topic", b"x"])
    assert [unpacked(body[:n]) for n in range(2)] == [None, None]
    assert all(unpacked(body[:n]) != [b"topic", b"x"] for n in range(len(body)))
    assert unpacked(b"\0\0x") is None and unpacked(b"\xff\xff\xff\xff\xff\xffx") is None
