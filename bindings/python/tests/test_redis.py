"""Values in Redis: a real server, and the real library beside ours."""

import asyncio
import contextlib
import copy
import os
import pickle
import random
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import narrows
import narrows.redis
import narrows.redis.asyncio
import pytest
import redis
import redis.asyncio
from conftest import text
from narrows import Values
from redis.backoff import NoBackoff
from redis.retry import Retry

# Commands that redis calls deprecated are still used.
pytestmark = pytest.mark.filterwarnings("ignore:Call to deprecated:DeprecationWarning")
LIMIT_S = 240
MAGIC = b"NRV\x1a"
# Bytes and text, by both versions of the protocol.
FORMS: list[dict[str, Any]] = [
    {"protocol": protocol, "decode_responses": decode} for protocol in (2, 3) for decode in (False, True)
]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The socket of a server that stores nothing on disk."""
    if shutil.which("redis-server") is None:
        (pytest.fail if os.environ.get("CI") in ("true", "1") else pytest.skip)("there is no redis-server")
    folder = tmp_path_factory.mktemp("redis")
    # Paths of sockets are short.
    socket = Path(os.path.relpath(folder)) / "s" if len(str(folder)) > 80 else folder / "s"
    command = ["redis-server", "--port", "0", "--unixsocket", str(socket), "--save", "", "--dir", str(folder)]
    if shutil.which("setpriv"):
        # Also when a hang ends the tests at once.
        command = ["setpriv", "--pdeathsig", "KILL", *command]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as child:
        try:
            end = time.monotonic() + LIMIT_S
            while not socket.exists():
                assert child.poll() is None and time.monotonic() < end, "the server does not start"
                time.sleep(0.01)
            yield str(socket)
        finally:
            child.kill()


def options(path: str, **more: Any) -> dict[str, Any]:
    return {"unix_socket_path": path, "socket_timeout": LIMIT_S, "retry": Retry(NoBackoff(), 0), **more}


@pytest.fixture
def plain(path: str) -> Iterator[redis.Redis]:
    """What is stored."""
    with redis.Redis(**options(path)) as client:
        client.flushall()
        yield client


@pytest.fixture
def client(path: str, plain: redis.Redis) -> Iterator[narrows.redis.Redis]:
    with narrows.redis.Redis(**options(path)) as made:
        yield made


def document(i: int, length: int = 400) -> bytes:
    return b'{"id": %d, "name": "user %d", "tags": ["a", "b"], "text": "' % (i, i % 7) + b"word " * (length // 5) + b'"}'


# --- values ---


@pytest.mark.parametrize("policy", ["fixed:zstd", "fixed:lz4", "fixed:zlib", "fixed:xz:level=6"])
def test_values_round_trip(policy: str, chance: random.Random) -> None:
    values = Values(policy)
    for length in (0, 1, 63, 64, 200, 1000, 65_536, 65_537, 200_000):
        for raw in (text(chance, length), chance.randbytes(length), bytes(length)):
            stored = values.encode(raw)
            assert values.decode(stored) == raw and len(stored) <= len(raw)
            assert values.decode(memoryview(stored)) == values.decode(bytearray(stored)) == raw
            assert values.encode(bytearray(raw)) == stored
    assert len(values.encode(text(chance, 5000))) < 3000


def test_values_with_a_dictionary(chance: random.Random) -> None:
    samples = [document(i, 100) for i in range(400)]
    old, new = narrows.train(samples[:200]), narrows.train(samples[100:300])
    assert old is not None and new is not None
    for policy in ("fixed:zstd", "fixed:lz4", "fixed:zstd:level=1"):
        with_old, with_both = Values(policy, dictionary=old), Values(policy, dictionary=new, known=[old])
        stored = with_old.encode(samples[300])
        assert len(stored) < len(Values(policy).encode(samples[300])) * 0.8
        assert with_both.decode(stored) == with_both.decode(with_both.encode(samples[300])) == samples[300]
        with pytest.raises(narrows.UnsupportedError, match="dictionary"):
            Values(policy).decode(stored)
        long = text(chance, 100_000)
        assert with_old.decode(with_old.encode(long)) == long


def test_values_pickle_and_copy() -> None:
    old, new = narrows.Dictionary(document(1)), narrows.Dictionary(document(2))
    stored, long = Values(dictionary=old).encode(document(3)), document(4, 2000)
    made = Values(level=3, dictionary=new, known=[old], min_length=100, max_length=1000)
    ways = [pickle.loads(pickle.dumps(made, protocol)) for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1)]
    for again in (*ways, copy.copy(made), copy.deepcopy(made), pickle.loads(pickle.dumps(ways[0]))):
        assert type(again) is Values and repr(again) == repr(made)
        assert again.encode(document(3)) == made.encode(document(3)) != document(3)
        assert again.decode(stored) == document(3), "the dictionary of earlier values is lost"
        short = b"word " * 19
        assert again.encode(short) is short and again.encode(long) is long
        with pytest.raises(narrows.LimitError):
            again.decode(Values().encode(long))
    assert repr(pickle.loads(pickle.dumps(Values("fixed:store")))) == repr(Values("fixed:store"))


def test_values_that_look_encoded_and_the_way_back() -> None:
    values, raw = Values(), document(1)
    stored = values.encode(raw)
    for again in (values, Values("fixed:store")):
        assert again.decode(again.encode(stored)) == stored and again.decode(stored) == raw
        assert again.decode(again.encode(MAGIC)) == MAGIC
    assert Values("fixed:store").encode(raw) is raw and values.decode(raw) is raw


def test_damaged_values_and_wrong_use() -> None:
    values, raw = Values(), document(1)
    stored = values.encode(raw)
    for length in range(4, len(stored)):
        with pytest.raises((narrows.CorruptError, narrows.TruncatedError)):
            values.decode(stored[:length])
    for at in range(4, len(stored)):
        for bit in range(8):
            flipped = bytearray(stored)
            flipped[at] ^= 1 << bit
            with pytest.raises(narrows.NarrowsError):
                values.decode(flipped)
    with pytest.raises(narrows.LimitError):
        Values(max_length=len(raw) - 1).decode(stored)
    long = document(1, 2000)
    assert Values(max_length=1000).encode(long) is long
    with pytest.raises(narrows.LimitError):
        Values(max_length=100).encode(MAGIC + bytes(100))
    dictionary = narrows.Dictionary(document(1))
    for wrong in (
        {"policy": "balance"},
        {"policy": "fixed:zstd:link"},
        {"policy": "fixed:nothing"},
        {"policy": "fixed:lepton"},
        {"level": 77},
        {"min_length": 47},
        {"max_length": 1 << 30},
        {"policy": "fixed:xz", "dictionary": dictionary},
    ):
        with pytest.raises(narrows.MisuseError):
            Values(**wrong)  # type: ignore[arg-type]
    for call in (values.encode, values.decode):
        with pytest.raises(TypeError):
            call("text")  # type: ignore[arg-type]


def test_hostile_values(chance: random.Random) -> None:
    dictionary = narrows.Dictionary(document(1))
    values = Values(dictionary=dictionary, max_length=1 << 20)
    wires = [values.encode(document(i)) for i in range(3)] + [Values("fixed:lz4").encode(document(1, 5000)), MAGIC]
    for _ in range(3000):
        damaged = bytearray(chance.choice(wires))
        for _ in range(chance.randrange(1, 5)):
            at = chance.randrange(4, len(damaged) + 1)
            damaged[at : at + chance.randrange(3)] = chance.randbytes(chance.randrange(3))
        try:
            assert len(values.decode(damaged)) <= 1 << 20
        except narrows.NarrowsError:
            pass


def test_threads_share_values() -> None:
    values, failed = Values(dictionary=narrows.Dictionary(document(1))), []

    def work(of: int) -> None:
        for i in range(300):
            raw = document(i * of, 100 + i * 40)
            if values.decode(values.encode(raw)) != raw:
                failed.append(i)

    threads = [threading.Thread(target=work, args=(of,), daemon=True) for of in range(1, 6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
        assert not thread.is_alive()
    assert not failed


# --- the client ---

A, B, SHORT = document(1).decode(), document(2).decode(), "short"
# All commands with values, as calls; the replies must be those of the plain library.
CALLS: list[Callable[[Any], Any]] = [
    lambda c: c.set("s", A),
    lambda c: c.get("s"),
    lambda c: c.set("s", B.encode(), get=True),
    lambda c: c.set("s", memoryview(A.encode()), xx=True),
    lambda c: c.set("s", SHORT, nx=True),
    lambda c: c.execute_command("get", "s"),
    lambda c: c.execute_command("set", "s2", A),
    lambda c: c.getset("s2", B),
    lambda c: c.getex("s2", ex=100),
    lambda c: c.setex("s3", 100, A),
    lambda c: c.psetex("s4", 100_000, A),
    lambda c: c.setnx("s5", A),
    lambda c: c.mset({"m1": A, "m2": SHORT, "m3": 17, "m4": 1.5, b"m5": B}),
    lambda c: c.msetnx({"m6": A, "m7": B}),
    lambda c: c.mget("m1", "m2", "nothing", "m3", "m4", "m5", "m6"),
    lambda c: c.mget(["s", "s3"]),
    lambda c: c.getdel("m1"),
    lambda c: c.get("m1"),
    lambda c: c.incr("m3"),
    lambda c: c.incrbyfloat("m4", 0.25),
    lambda c: c.hset("h", "f1", A),
    lambda c: c.hset("h", mapping={"f2": B, "f3": 5}),
    lambda c: c.hsetnx("h", "f4", A),
    lambda c: c.execute_command("HMSET", "h", "f5", A, "f6", SHORT),
    lambda c: c.hget("h", "f1"),
    lambda c: c.hget("h", "nothing"),
    lambda c: c.hmget("h", ["f1", "f3", "nothing"]),
    lambda c: c.hgetall("h"),
    lambda c: c.hgetall("nothing"),
    lambda c: c.hvals("h"),
    lambda c: c.hkeys("h"),
    lambda c: c.hscan("h"),
    lambda c: c.hincrby("h", "f3", 2),
    lambda c: c.hrandfield("one"),
    lambda c: c.hset("one", "f", A),
    lambda c: c.hrandfield("one"),
    lambda c: c.hrandfield("one", 2),
    lambda c: c.hrandfield("one", 2, withvalues=True),
    lambda c: c.rpush("l", A, SHORT, B),
    lambda c: c.lpush("l", 7, A),
    lambda c: c.rpushx("l", B),
    lambda c: c.lpushx("nothing", B),
    lambda c: c.lrange("l", 0, -1),
    lambda c: c.lindex("l", 1),
    lambda c: c.lindex("l", 100),
    lambda c: c.lset("l", 0, B),
    lambda c: c.llen("l"),
    lambda c: c.lpop("l"),
    lambda c: c.rpop("l", 2),
    lambda c: c.lpop("nothing"),
    lambda c: c.lmove("l", "l2", "LEFT", "RIGHT"),
    lambda c: c.rpoplpush("l2", "l"),
    lambda c: c.blpop("l", 1),
    lambda c: c.rpush("l", A, B, A, B, A),
    lambda c: c.brpop(["nothing", "l"], 1),
    lambda c: c.blmove("l", "l2", 1),
    lambda c: c.brpoplpush("l", "l2", 1),
    lambda c: c.lmpop(2, "nothing", "l", direction="LEFT", count=2),
    lambda c: c.lmpop(1, "nothing", direction="LEFT"),
    lambda c: c.rpush("numbers", 3, 1, 2),
    lambda c: c.sort("numbers", get=["#", "s"], groups=True),
    lambda c: c.sort("numbers", desc=True),
    lambda c: c.sadd("set", A),
    lambda c: c.smembers("set"),
    lambda c: c.sismember("set", A),
    lambda c: c.zadd("zset", {A: 1.5}),
    lambda c: c.zrange("zset", 0, -1, withscores=True),
    lambda c: c.xadd("x", {"f": A}, id="1-1"),
    lambda c: c.xrange("x"),
    lambda c: c.type("s"),
    lambda c: c.exists("s", "nothing"),
    lambda c: c.rename("s", "renamed"),
    lambda c: c.get("renamed"),
    lambda c: c.execute_command("CONFIG GET", "databases"),
    lambda c: c.ping(),
]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("way", ["single", "pipeline", "transaction"])
def test_replies_are_those_of_the_plain_library(form: dict[str, Any], way: str, path: str, plain: redis.Redis) -> None:
    replies = []
    for db, kind in enumerate((redis.Redis, narrows.redis.Redis)):
        with kind(**options(path, db=db, **form)) as client:
            if way == "single":
                replies.append([call(client) for call in CALLS])
                continue
            with client.pipeline(transaction=way == "transaction") as pipe:
                for call in CALLS:
                    assert call(pipe) is pipe
                replies.append(pipe.execute())
    for i, (one, other) in enumerate(zip(*replies, strict=True)):
        assert one == other and type(one) is type(other), (i, one, other)
    with redis.Redis(**options(path, db=1)) as stored:
        encoded = [stored.get("renamed"), stored.hget("h", "f1"), stored.get("m5"), stored.get("s5")]
        assert all(value.startswith(MAGIC) and len(value) < 200 for value in encoded)
        assert stored.get("m2") == b"short" and stored.smembers("set") == {A.encode()}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("way", ["single", "pipeline", "transaction"])
def test_asyncio_replies_are_those_of_the_plain_library(form: dict[str, Any], way: str, path: str, plain: redis.Redis) -> None:
    async def run(kind: Any, db: int) -> list[Any]:
        async with kind(**async_options(path, db=db, **form)) as client:
            if way == "single":
                return [await call(client) for call in CALLS]
            async with client.pipeline(transaction=way == "transaction") as pipe:
                for call in CALLS:
                    assert call(pipe) is pipe
                return await pipe.execute()

    async def main() -> None:
        async with asyncio.timeout(LIMIT_S):
            theirs, ours = await run(redis.asyncio.Redis, 0), await run(narrows.redis.asyncio.Redis, 1)
        for i, (one, other) in enumerate(zip(theirs, ours, strict=True)):
            assert one == other and type(one) is type(other), (i, one, other)

    asyncio.run(main())


def async_options(path: str, **more: Any) -> dict[str, Any]:
    return {**options(path, **more), "retry": redis.asyncio.retry.Retry(NoBackoff(), 0)}


def test_commands_of_newer_servers(client: narrows.redis.Redis, plain: redis.Redis) -> None:
    """Where values stand in them; the server of the test may not know them."""
    known = set(plain.execute_command("COMMAND LIST"))
    asked: list[tuple[bytes, tuple[Any, ...], Any]] = [
        (b"msetex", ("MSETEX", 2, "a", A, "b", B, "EX", 100), 1),
        (b"hsetex", ("HSETEX", "h", "EX", 100, "FIELDS", 2, "f", A, "g", B), 1),
        (b"hgetex", ("HGETEX", "h", "EX", 100, "FIELDS", 1, "f"), [A.encode()]),
        (b"hgetdel", ("HGETDEL", "h", "FIELDS", 2, "f", "nothing"), [A.encode(), None]),
    ]
    for name, command, reply in asked:
        sent = client._narrows.prepare(command, {})
        written = [arg for arg in sent if isinstance(arg, bytes)]
        assert len(written) == (0 if isinstance(reply, list) else 2) and all(w.startswith(MAGIC) for w in written)
        if name in known:
            assert client.execute_command(*command) == reply


def test_values_of_plain_clients_are_read(client: narrows.redis.Redis, plain: redis.Redis) -> None:
    for i, raw in enumerate((b"", b"text", document(1), b"\x80pickle", b"NRW\x1a and so on", os.urandom(500))):
        plain.set(f"k{i}", raw)
        assert client.get(f"k{i}") == raw
        client.set(f"k{i}", raw)
        assert client.get(f"k{i}") == raw
    looks = narrows.Values().encode(document(3))
    client.set("looks", looks)
    assert client.get("looks") == looks and plain.get("looks") != looks
    noise = os.urandom(300)
    client.set("noise", noise)
    assert plain.get("noise") == noise, "what does not shrink stays as it is"


def test_a_dictionary_and_the_way_back(path: str, plain: redis.Redis) -> None:
    dictionary = narrows.train([document(i, 100) for i in range(300)])
    with narrows.redis.Redis(**options(path), values=Values(dictionary=dictionary)) as client:
        client.set("k", document(500, 100))
        assert len(plain.get("k")) < len(Values().encode(document(500, 100)))
        assert client.get("k") == document(500, 100)
        with client.pipeline() as pipe:
            client.values = Values("fixed:store", known=[dictionary])
            assert pipe.get("k").set("back", document(1)).execute()[0] == document(500, 100)
        assert plain.get("back") == document(1) and client.get("k") == document(500, 100)
    with narrows.redis.Redis(**options(path)) as other, pytest.raises(narrows.UnsupportedError, match="'k'.*dictionary"):
        other.get("k")


def damage(plain: redis.Redis) -> None:
    stored = bytearray(Values().encode(document(1)))
    stored[-1] ^= 1
    plain.set("bad", bytes(stored))
    plain.hset("h", mapping={"good": b"g", "bad": bytes(stored)})
    plain.rpush("l", bytes(stored))
    plain.set("good", b"g")


def test_damaged_values_name_their_key(client: narrows.redis.Redis, plain: redis.Redis) -> None:
    damage(plain)
    for call in (lambda: client.get("bad"), lambda: client.mget("good", b"bad"), lambda: client.getex("bad")):
        with pytest.raises(narrows.CorruptError, match="the key 'bad': the value is damaged"):
            call()
    for call in (lambda: client.hget("h", "bad"), lambda: client.hgetall("h"), lambda: client.hmget("h", ["good", "bad"])):
        with pytest.raises(narrows.CorruptError, match="the field 'bad' of the key 'h'"):
            call()
    for call in (lambda: client.lrange("l", 0, -1), lambda: client.blpop("l", 1)):
        with pytest.raises(narrows.CorruptError, match="the key 'l'"):
            call()
    # Every reply was read, so that the next commands get theirs.
    for transaction in (False, True):
        with client.pipeline(transaction=transaction) as pipe:
            pipe.get("good").get("bad").get("good")
            with pytest.raises(narrows.CorruptError, match="'bad'"):
                pipe.execute()
            replies = pipe.get("good").get("bad").incr(f"n{transaction}").execute(raise_on_error=False)
            assert replies[::2] == [b"g", 1] and isinstance(replies[1], narrows.CorruptError)
        with client.pipeline() as pipe:
            pipe.watch("good")
            with pytest.raises(narrows.CorruptError):
                pipe.get("bad")
            assert pipe.get("good") == b"g"
    assert client.get("good") == b"g"


def test_small_replies_do_not_fill_the_memory(path: str, plain: redis.Redis) -> None:
    values = Values(max_length=1 << 20)
    bomb = Values("fixed:constant").encode(bytes(1 << 20))
    false = bomb[:-1] + b"x"
    assert len(bomb) < 20
    plain.rpush("l", *[bomb] * 20)
    plain.hset("h", mapping={str(i): bomb for i in range(20)})
    plain.mset({f"k{i}": bomb for i in range(20)} | {f"f{i}": false for i in range(20)} | {"good": "g"})

    async def by_asyncio(transaction: bool) -> list[Any]:
        async with narrows.redis.asyncio.Redis(**async_options(path), values=values) as client:
            async with client.pipeline(transaction=transaction) as pipe:
                for i in range(20):
                    pipe.get(f"k{i}")
                return await pipe.execute(raise_on_error=False)

    with narrows.redis.Redis(**options(path), values=values) as client:
        for call in (
            lambda: client.lrange("l", 0, -1),
            lambda: client.hgetall("h"),
            lambda: client.mget([f"k{i}" for i in range(20)]),
        ):
            with pytest.raises(narrows.LimitError, match="ask for fewer at a time"):
                call()
        assert client.lrange("l", 0, 0) == [bytes(1 << 20)]
        for transaction in (False, True):
            with client.pipeline(transaction=transaction) as pipe:
                for i in range(20):
                    pipe.get(f"k{i}")
                ours = pipe.execute(raise_on_error=False)
                for replies in (ours, asyncio.run(by_asyncio(transaction))):
                    kinds = [type(reply) for reply in replies]
                    assert 0 < kinds.count(bytes) < 5 and set(kinds) == {bytes, narrows.LimitError}
                # Values that only say that they are long take as much time, and fail.
                for i in range(20):
                    pipe.get(f"f{i}")
                kinds = [type(reply) for reply in pipe.execute(raise_on_error=False)]
                assert 0 < kinds.count(narrows.CorruptError) < 5 and narrows.LimitError in kinds
                assert pipe.get("good").execute() == [b"g"]
    # Many values that are as long as others are no attack.
    plain.delete("l")
    with narrows.redis.Redis(**options(path), values=Values(max_length=1 << 10)) as client:
        client.rpush("l", *[document(i) for i in range(100)])
        assert client.lrange("l", 0, -1) == [document(i) for i in range(100)]


def test_a_reply_that_makes_no_sense_leaves_those_behind_it_to_their_commands() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, contextlib.ExitStack() as stack:

        def serve() -> None:
            accepted, _ = listener.accept()
            with accepted:
                while asked := accepted.recv(65536):
                    if b"MGET" in asked:
                        accepted.sendall(b"*1\r\n$1\r\na\r\n")
                        # Nobody waits for this one if the first reply ended the pipeline.
                        time.sleep(0.2)
                        accepted.sendall(b"$1\r\nx\r\n")
                    elif b"GET" in asked:
                        accepted.sendall(b"$1\r\ny\r\n")
                    else:
                        accepted.sendall(b"+OK\r\n" * asked.count(b"*"))

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        stack.callback(thread.join, LIMIT_S)
        client = stack.enter_context(
            narrows.redis.Redis(
                port=listener.getsockname()[1],
                socket_timeout=LIMIT_S,
                retry=Retry(NoBackoff(), 0),
                protocol=2,
            )
        )
        with client.pipeline(transaction=False) as pipe:
            replies = pipe.mget("a", "b").get("x").execute(raise_on_error=False)
        assert isinstance(replies[0], ValueError) and replies[1] == b"x"
        assert client.get("y") == b"y"


def test_what_was_popped_is_not_lost_by_a_bad_value(client: narrows.redis.Redis, plain: redis.Redis) -> None:
    damage(plain)
    stored = [client.values.encode(document(1)), plain.get("bad"), b"raw"]
    plain.rpush("q", *stored)
    with pytest.raises(narrows.CorruptError) as raised:
        client.lpop("q", 3)
    assert raised.value.stored == stored and not plain.exists("q")


def test_damaged_values_by_asyncio(path: str, plain: redis.Redis) -> None:
    damage(plain)

    async def main() -> None:
        async with asyncio.timeout(LIMIT_S), narrows.redis.asyncio.Redis(**async_options(path)) as client:
            with pytest.raises(narrows.CorruptError, match="the key 'bad'"):
                await client.get("bad")
            for transaction in (False, True):
                async with client.pipeline(transaction=transaction) as pipe:
                    with pytest.raises(narrows.CorruptError, match="'bad'"):
                        await pipe.get("good").get("bad").get("good").execute()
                    replies = await pipe.get("bad").get("good").execute(raise_on_error=False)
                    assert isinstance(replies[0], narrows.CorruptError) and replies[1] == b"g"
            async with client.pipeline() as pipe:
                await pipe.watch("good")
                with pytest.raises(narrows.CorruptError):
                    await pipe.get("bad")
                assert await pipe.get("good") == b"g"
            assert await client.get("good") == b"g"

    asyncio.run(main())


def test_text_that_is_none_is_an_error_and_no_wrong_reply(path: str, plain: redis.Redis) -> None:
    plain.set("binary", b"\xff\xfe")
    with narrows.redis.Redis(**options(path, decode_responses=True)) as client:
        for transaction in (False, True):
            with client.pipeline(transaction) as pipe, pytest.raises(UnicodeDecodeError):
                pipe.set("k", A).get("binary").get("k").execute()
            assert client.get("k") == A


def test_commands_on_stored_bytes_are_refused(client: narrows.redis.Redis, plain: redis.Redis) -> None:
    client.set("k", A)
    calls: list[Callable[[Any], Any]] = [
        lambda c: c.append("k", "x"),
        lambda c: c.getrange("k", 0, 3),
        lambda c: c.setrange("k", 0, "x"),
        lambda c: c.strlen("k"),
        lambda c: c.hstrlen("h", "f"),
        lambda c: c.lrem("l", 1, A),
        lambda c: c.lpos("l", A),
        lambda c: c.linsert("l", "BEFORE", A, B),
        lambda c: c.getbit("k", 1),
        lambda c: c.setbit("k", 1, 1),
        lambda c: c.bitcount("k"),
        lambda c: c.bitpos("k", 1),
        lambda c: c.bitop("AND", "a", "k"),
        lambda c: c.bitfield("k").get("u8", 0).execute(),
        lambda c: c.lcs("k", "k2"),
        lambda c: c.sort("l", alpha=True),
        lambda c: c.execute_command("strlen", "k"),
        lambda c: c.execute_command(b"STRLEN", "k"),
        lambda c: c.execute_command("STRLEN k"),
        lambda c: c.execute_command(" strlen\t", "k"),
        lambda c: c.execute_command(b"strlen k"),
        lambda c: c.execute_command(bytearray(b"STRLEN k")),
        lambda c: c.execute_command(memoryview(b"STRLEN"), "k"),
        lambda c: c.execute_command("LREM l 1", A),
        lambda c: c.lrem("l", 1, "i" * 48),
        lambda c: c.lpos("l", b"i" * 48),
        lambda c: c.linsert("l", "BEFORE", MAGIC, B),
        lambda c: c.lpos("l", MAGIC.decode() + "x"),
        lambda c: c.execute_command("LPOS", "l"),
        lambda c: c.execute_command("SET", "k", A, "IFEQ", B),
        lambda c: c.execute_command("SET", "k", A, b"ifdeq", "0" * 16),
        lambda c: c.execute_command("DELEX", "k", "IFEQ", A),
        lambda c: c.execute_command("DIGEST", "k"),
    ]
    with client.pipeline() as pipe:
        for call in calls:
            for who in (client, pipe):
                with pytest.raises(narrows.MisuseError, match="client.plain"):
                    call(who)
        assert len(pipe) == 0
    assert client.plain.strlen("k") == len(plain.get("k"))
    assert client.plain.setbit("bits", 7, 1) == 0 and client.plain.getbit("bits", 7) == 1
    assert client.get("bits") == b"\x01"


def test_commands_in_one_string(path: str, client: narrows.redis.Redis, plain: redis.Redis) -> None:
    client.set("k", A)
    client.hset("h", "f", A)
    assert plain.get("k").startswith(MAGIC)
    for command in ("GET k", "get\tk", " Get  k ", b"GET k", "HGET h f", b"hget h f"):
        assert client.execute_command(command) == A.encode(), command
    assert client.execute_command("HGET h", "f") == client.execute_command(b"HGET h", b"f") == A.encode()
    client.execute_command("SET other", B)
    client.execute_command("SET short word")
    assert plain.get("other").startswith(MAGIC) and plain.get("short") == b"word"
    assert client.execute_command("OBJECT ENCODING", "short") == plain.execute_command("OBJECT ENCODING", "short")
    with client.pipeline() as pipe:
        pipe.execute_command("GET k")
        pipe.execute_command("MGET k other")
        assert pipe.execute() == [A.encode(), [A.encode(), B.encode()]]

    async def main() -> None:
        async with asyncio.timeout(LIMIT_S), narrows.redis.asyncio.Redis(**async_options(path)) as other:
            assert await other.execute_command("GET k") == A.encode()
            with pytest.raises(narrows.MisuseError, match="client.plain"):
                await other.execute_command("STRLEN k")

    asyncio.run(main())


@pytest.mark.parametrize("least", [48, 64])
def test_what_every_client_stores_as_it_is_is_compared(least: int, path: str, plain: redis.Redis) -> None:
    """Such as the identifiers of jobs in a queue, which RQ looks for."""
    with pytest.raises(narrows.MisuseError):
        Values(min_length=47)
    ids = [f"{i:08}-0000-0000-0000-000000000000" for i in range(3)]
    longest = "i" * 47
    with narrows.redis.Redis(**options(path), values=Values(min_length=least)) as client:
        client.rpush("jobs", ids[0], longest, A, ids[1], 7)
        assert [client.lpos("jobs", value) for value in (*ids, longest, longest.encode(), 7)] == [0, 3, None, 1, 1, 4]
        assert client.linsert("jobs", "BEFORE", ids[1], B) == 6
        assert plain.lindex("jobs", 3).startswith(MAGIC) and client.lindex("jobs", 3) == B.encode()
        assert client.lset("jobs", 1, ids[2]) and client.lrem("jobs", 1, memoryview(ids[2].encode())) == 1
        with client.pipeline() as pipe:
            assert pipe.lrem("jobs", 0, ids[0]).lpos("jobs", ids[1]).execute() == [1, 2]
        assert client.lrange("jobs", 0, -1) == [A.encode(), B.encode(), ids[1].encode(), b"7"]


def test_what_the_library_builds_on_values(client: narrows.redis.Redis, path: str) -> None:
    """Locks, transactions with a watch, scripts, iterators, single connections, pools, URLs."""
    with client.lock("lock", timeout=LIMIT_S, blocking_timeout=1) as lock:
        assert lock.owned() and lock.extend(1)
    assert not client.exists("lock")
    client.set("k", A)

    def change(pipe: Any) -> None:
        value = pipe.get("k")
        pipe.multi()
        pipe.set("k", value + b"!")

    assert client.transaction(change, "k") == [True]
    assert client.get("k") == A.encode() + b"!"
    script = client.register_script("return redis.call('GET', KEYS[1])")
    assert script(keys=["k"]).startswith(MAGIC)
    client.hset("h", mapping={f"f{i}": A for i in range(10)})
    assert dict(client.hscan_iter("h")) == {b"f%d" % i: A.encode() for i in range(10)}
    with client.client() as single:
        single.values = client.values
        assert single.get("k") == client.get("k") and single.values is client.values
    values = Values(level=9)
    with narrows.redis.Redis.from_url(f"unix://{path}?socket_timeout=9", values=values) as other:
        assert other.values is values and other.get("k") == client.get("k")
    pool = redis.ConnectionPool(connection_class=redis.UnixDomainSocketConnection, path=path)
    with narrows.redis.Redis.from_pool(pool, values=values) as other:
        assert other.values is values and other.get("k") == client.get("k")


def test_what_the_asyncio_library_builds_on_values(path: str, plain: redis.Redis) -> None:
    async def main() -> None:
        values = Values(level=1)
        async with asyncio.timeout(LIMIT_S), narrows.redis.asyncio.Redis.from_url(f"unix://{path}", values=values) as client:
            assert client.values is values
            async with client.lock("lock", timeout=LIMIT_S, blocking_timeout=1) as lock:
                assert await lock.owned()
            await client.set("k", A)
            assert plain.get("k").startswith(MAGIC) and await client.plain.get("k") == plain.get("k")

            async def change(pipe: Any) -> None:
                value = await pipe.get("k")
                pipe.multi()
                pipe.set("k", value + b"!")

            assert await client.transaction(change, "k") == [True]
            assert await asyncio.gather(*(client.get("k") for _ in range(20))) == [A.encode() + b"!"] * 20
            with pytest.raises(narrows.MisuseError, match="client.plain"):
                await client.strlen("k")
            async with client.client() as single:
                assert single.values is values and await single.get("k") == A.encode() + b"!"

    asyncio.run(main())


def test_a_lost_connection_is_redis_own_error(path: str, plain: redis.Redis) -> None:
    with narrows.redis.Redis(**options(path)) as client:
        client.set("k", A)
        assert plain.client_kill_filter(_type="normal", skipme=True) > 0
        assert client.get("k") == client.execute_command(b"get", "k") == A.encode()
    with narrows.redis.Redis(unix_socket_path=path + ".not") as nobody, pytest.raises(redis.ConnectionError):
        nobody.get("k")


def test_django(path: str, plain: redis.Redis) -> None:
    django_redis = pytest.importorskip("django_redis")
    from django.conf import settings
    from django.core.cache import caches

    cache = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": f"unix://{path}"}
    ours = {"COMPRESSOR": "narrows.django_redis.NarrowsCompressor", "COMPRESSOR_OPTIONS": {"level": 6}}
    if not settings.configured:
        zlib = "django_redis.compressors.zlib.ZlibCompressor"
        known: dict[str, dict[str, Any]] = {
            "default": {**cache, "OPTIONS": ours},
            "before": {**cache},
            "zlib": {**cache, "OPTIONS": {"COMPRESSOR": zlib}},
            "after zlib": {**cache, "OPTIONS": {**ours, "COMPRESSOR_OPTIONS": {"before": zlib}}},
        }
        settings.configure(CACHES=known)
    ours_cache, before = caches["default"], caches["before"]
    before.set("old", A)
    assert ours_cache.get("old") == A and ours_cache.get("nothing") is None
    ours_cache.set_many({"a": A, "n": 5, "list": [A, B, SHORT]})
    assert ours_cache.get_many(["a", "n", "list"]) == {"a": A, "n": 5, "list": [A, B, SHORT]}
    assert ours_cache.incr("n") == 6
    caches["zlib"].set("compressed", [A, B])
    for key in ("compressed", "old", "a", "n"):
        assert caches["after zlib"].get(key) == {"compressed": [A, B], "old": A, "a": A, "n": 6}[key]
    caches["after zlib"].set("short", "")
    assert caches["after zlib"].get("short") == "" and plain.get(before.make_key("compressed"))[:1] == b"x"
    key = ours_cache.make_key("a")
    stored = bytearray(plain.get(key))
    assert stored.startswith(MAGIC) and len(stored) < 200
    stored[-1] ^= 1
    plain.set(key, bytes(stored))
    with pytest.raises(narrows.CorruptError):
        ours_cache.get("a")
    with contextlib.suppress(AttributeError):
        django_redis.get_redis_connection("default").close()
