"""`narrows.zmq.asyncio`: the same messages as blocking sockets, with peers of every kind."""

import asyncio
import contextlib
from typing import Any

import narrows.zmq
import narrows.zmq.asyncio as zmq_asyncio
import pytest
import zmq
import zmq.asyncio
from zmq_peers import LINKED, Proxy, message, sent_bytes

LIMIT_S = 240
# Who is at each end: this module, pyzmq's asyncio, or neither.
PEERS = [("narrows", "narrows"), ("narrows", "plain"), ("plain", "narrows")]
KINDS = {"narrows": zmq_asyncio.Socket, "plain": zmq.asyncio.Socket}


def run(main: Any) -> None:
    problems: list[Any] = []

    async def bounded() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context))
        context = zmq.Context()
        made: list[Any] = []

        def socket(kind: int, who: str = "narrows", **options: Any) -> Any:
            s = KINDS[who](context, kind, **(options if who == "narrows" else {}))
            s.linger = 0
            made.append(s)
            return s

        try:
            await asyncio.wait_for(main(socket), LIMIT_S)
        finally:
            for s in made:
                s.close(0)
            # Waits for nothing that is still to be sent.
            context.destroy(0)

    asyncio.run(bounded())
    assert not problems, problems


def bound(s: Any) -> str:
    s.bind("tcp://127.0.0.1:*")
    return s.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\0")


@pytest.mark.parametrize(("client", "server"), PEERS)
def test_requests_and_replies(client: str, server: str) -> None:
    async def main(socket: Any) -> None:
        rep, req = socket(zmq.REP, server, policy=LINKED), socket(zmq.REQ, client, policy=LINKED)
        req.connect(bound(rep))
        for i in range(60):
            await req.send(message(i))
            assert await rep.recv() == message(i)
            await rep.send(message(i) + b"!")
            assert await req.recv() == message(i) + b"!"
        if client == server:
            raw, wire = sent_bytes(req._shadow_sock)
            assert raw > 40 * 80 and wire * 3 < raw, (raw, wire)

    run(main)


@pytest.mark.parametrize("kinds", [(zmq.DEALER, zmq.ROUTER), (zmq.REQ, zmq.ROUTER)])
@pytest.mark.parametrize(("client", "server"), PEERS)
def test_dealers_and_routers(client: str, server: str, kinds: tuple[int, int]) -> None:
    async def main(socket: Any) -> None:
        back, front = socket(kinds[1], server, policy=LINKED), socket(kinds[0], client, policy=LINKED)
        front.connect(bound(back))

        async def serve() -> None:
            while True:
                await back.send_multipart(await back.recv_multipart())

        task = asyncio.create_task(serve())
        for i in range(50):
            at_once = 1 if kinds[0] == zmq.REQ else i % 5 + 1
            body = [[message(i), b"", message(i + k)][: k % 3 + 1] for k in range(at_once)]
            for parts in body:
                await front.send_multipart(parts)
            for parts in body:
                assert await front.recv_multipart() == parts
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        if client == server:
            assert sent_bytes(front._shadow_sock)[0] > 0 and sent_bytes(back._shadow_sock)[0] > 0

    run(main)


def test_blocking_peers(sockets: Any) -> None:
    """The other end may be a blocking socket of `narrows.zmq`, on another thread."""
    rep = sockets(zmq.REP, policy=LINKED)
    address = sockets.bind(rep)

    def serve() -> None:
        for _ in range(40):
            rep.send(rep.recv())

    async def main(socket: Any) -> None:
        req = socket(zmq.REQ, policy=LINKED)
        req.connect(address)
        served = asyncio.create_task(asyncio.to_thread(serve))
        for i in range(40):
            await req.send(message(i))
            assert await req.recv() == message(i)
        await served
        assert sent_bytes(rep)[0] > 1000

    run(main)


def test_parts_one_by_one_and_polls() -> None:
    """Parts that wait inside a socket are seen by everything that waits for them."""

    async def main(socket: Any) -> None:
        router, dealer = socket(zmq.ROUTER, policy=LINKED), socket(zmq.DEALER, policy=LINKED)
        dealer.connect(bound(router))
        for i in range(30):
            for part, flag in ((message(i), zmq.SNDMORE), (b"", zmq.SNDMORE), (message(i + 1), 0)):
                await dealer.send(part, flag)
            came = await router.recv_multipart()
            assert came[1:] == [message(i), b"", message(i + 1)]
            await router.send_multipart(came)
            poller = zmq_asyncio.Poller()
            poller.register(dealer, zmq.POLLIN)
            assert await dealer.poll(5000) == zmq.POLLIN
            got = [await dealer.recv()]
            while dealer.get(zmq.RCVMORE):
                assert dict(await poller.poll(5000)) == {dealer: zmq.POLLIN}
                assert dealer.get(zmq.EVENTS) & zmq.POLLIN
                got.append(await dealer.recv())
            assert got == came[1:]
        assert await dealer.poll(20) == 0 and await poller.poll(20) == []

    run(main)


def test_publishers() -> None:
    async def main(socket: Any) -> None:
        pub, sub = socket(zmq.PUB, peers="narrows"), socket(zmq.SUB, peers="narrows")
        sub.subscribe(b"topic")
        sub.connect(bound(pub))
        got: list[Any] = []

        async def read() -> None:
            while len(got) < 300:
                got.append(await sub.recv_multipart())

        task = asyncio.create_task(read())
        i = 0
        while not task.done():
            await pub.send_multipart([b"topic", message(i) * 2])
            await pub.send_multipart([b"other", message(i)])
            await asyncio.sleep(0.001)
            i += 1
        await task
        assert all(parts == [b"topic", parts[1]] and parts[1].startswith(b"SUBSCRIBE") for parts in got)

    run(main)


def test_pipelines() -> None:
    async def main(socket: Any) -> None:
        push, pull = socket(zmq.PUSH, peers="narrows", policy="fixed:lz4:accel=1"), socket(zmq.PULL)
        push.connect(bound(pull))
        for i in range(200):
            await push.send(message(i) * 5, private=i % 7 == 0)
        for i in range(200):
            assert await pull.recv() == message(i) * 5

    run(main)


def test_a_cancelled_wait_takes_no_message() -> None:
    async def main(socket: Any) -> None:
        router, dealer = socket(zmq.ROUTER, policy=LINKED), socket(zmq.DEALER, policy=LINKED)
        dealer.connect(bound(router))
        for i in range(30):
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(router.recv_multipart(), 0.002)
            await dealer.send(message(i))
            assert (await router.recv_multipart())[1] == message(i)
        dealer.rcvtimeo = 30
        with pytest.raises(zmq.Again):
            await dealer.recv()
        with pytest.raises(zmq.Again):
            await dealer.recv(zmq.NOBLOCK)

    run(main)


def test_a_lost_connection() -> None:
    """What a new connection lacks is requested and sent again; the waits go on meanwhile."""

    async def main(socket: Any) -> None:
        router = socket(zmq.ROUTER, policy=LINKED)
        proxy = Proxy(bound(router))
        try:
            dealer = socket(zmq.DEALER, policy=LINKED)
            dealer.reconnect_ivl = 10
            dealer.connect(proxy.address)
            for turn in range(3):
                for i in range(30):
                    await dealer.send(message(i))
                    came = await router.recv_multipart()
                    assert came[1:] == [message(i)]
                    await router.send_multipart(came)
                    assert await dealer.recv() == message(i)
                proxy.drop()
                await asyncio.sleep(0.1)
        finally:
            proxy.close()

    run(main)


def test_contexts_and_closing() -> None:
    async def main(socket: Any) -> None:
        with zmq_asyncio.Context() as context, contextlib.ExitStack() as left:
            # If a check fails, the end of the context would wait for what is still to be sent.
            left.callback(context.destroy, 0)
            rep = context.socket(zmq.REP, policy="off")
            with context.socket(zmq.REQ) as req:
                assert isinstance(req, zmq.asyncio.Socket) and isinstance(rep, zmq_asyncio.Socket)
                req.connect(bound(rep))
                await req.send(b"a")
                assert await rep.recv() == b"a"
                waiting = rep.recv()
            assert req.closed and req._shadow_sock.closed
            rep.close(0)
            assert rep.closed and waiting.cancelled()
            with pytest.raises(zmq.ZMQError):
                await rep.recv()
        with narrows.zmq.Context() as blocking, narrows.zmq.Socket(blocking, zmq.PULL) as pull:
            assert zmq_asyncio.Socket.from_socket(pull)._shadow_sock is pull

    run(main)
