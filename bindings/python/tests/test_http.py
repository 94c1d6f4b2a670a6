"""The content coding `narrows`: Starlette behind uvicorn, asked by httpx and by others."""

import asyncio
import contextlib
import gzip
import os
import threading
import time
from collections.abc import Iterator

import httpx
import narrows
import narrows.asgi
import narrows.httpx
import pytest
import uvicorn
from conftest import text
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

# Longer than anything here takes.
LIMIT_S = 240
PAGE = b"<p>a line of a page that says the same again and again</p>\n" * 400


@contextlib.contextmanager
def serving(app) -> Iterator[str]:
    """A real server on a thread; its address."""
    # Without the bound the server waits for the end of every response.
    config = uvicorn.Config(app, port=0, log_level="error", lifespan="off", timeout_graceful_shutdown=5)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        end = time.monotonic() + LIMIT_S
        while not server.started:
            assert thread.is_alive() and time.monotonic() < end
            time.sleep(0.01)
        host, port = server.servers[0].sockets[0].getsockname()[:2]
        yield f"http://{host}:{port}"
    finally:
        server.should_exit = True
        thread.join(LIMIT_S)
        assert not thread.is_alive(), "the server does not end"


@pytest.fixture(scope="module")
def url(tmp_path_factory) -> Iterator[str]:
    path = tmp_path_factory.mktemp("files") / "page.html"
    path.write_bytes(PAGE)
    ask = threading.Event()

    async def page(request: Request) -> Response:
        return Response(PAGE, headers={"ETag": '"1"', "Vary": "Cookie", "Content-Type": "text/html"})

    async def large(request: Request) -> Response:
        return Response(PAGE * 100)

    async def noise(request: Request) -> Response:
        return Response(os.urandom(5000))

    async def pieces(request: Request) -> Response:
        async def body():
            for i in range(50):
                yield b"piece %d " % i * 10
        return StreamingResponse(body())

    async def talk(request: Request) -> Response:
        """Goes on when the client has what was sent."""
        async def body():
            yield b"the first part"
            async with asyncio.timeout(LIMIT_S):
                while not ask.is_set():
                    await asyncio.sleep(0.01)
            yield b", the second"
        ask.clear()
        return StreamingResponse(body())

    async def events(request: Request) -> Response:
        """Has nothing to say before the client has the headers."""
        async def body():
            for i in range(3):
                async with asyncio.timeout(LIMIT_S):
                    while not ask.is_set():
                        await asyncio.sleep(0.01)
                ask.clear()
                yield f"data: event {i}\n\n"
        ask.clear()
        return StreamingResponse(body(), media_type="text/event-stream", headers={"ETag": '"1"'})

    async def go(request: Request) -> Response:
        ask.set()
        return PlainTextResponse("ok")

    async def kept(request: Request) -> Response:
        name, _, value = request.query_params["header"].partition(":")
        return Response(PAGE, headers={name: value})

    async def nothing(request: Request) -> Response:
        return Response(status_code=204)

    routes = [
        Route("/page", page, methods=["GET", "HEAD"]),
        Route("/file", lambda r: FileResponse(path, headers={"ETag": '"1"'}), methods=["GET", "HEAD"]),
        Route("/short", lambda r: PlainTextResponse("short")),
        *(Route(f"/{f.__name__}", f) for f in (large, noise, pieces, talk, events, go, kept, nothing)),
    ]
    # The one nearer to the application comes first; the other leaves what is encoded alone.
    middleware = [Middleware(GZipMiddleware), Middleware(narrows.asgi.NarrowsMiddleware, level=6)]
    with serving(Starlette(routes=routes, middleware=middleware)) as address:
        yield address


@pytest.fixture
def client(url) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=url, transport=narrows.httpx.Transport(), timeout=LIMIT_S) as made:
        yield made


def without(url: str) -> httpx.Client:
    """A client that knows nothing of the coding, nor of proxies in the environment."""
    return httpx.Client(base_url=url, timeout=LIMIT_S, trust_env=False)


def raw(url: str, path: str, accept: str | None, method: str = "GET", **headers: str) -> httpx.Response:
    """What a client gets that asks for this and decodes nothing."""
    if accept is not None:
        headers["Accept-Encoding"] = accept
    with without(url) as plain, plain.stream(method, path, headers=headers) as response:
        response.body = b"".join(response.iter_raw())  # type: ignore[attr-defined]
        return response


def test_who_asks_gets_it(url) -> None:
    for accept in ("narrows", "gzip, Narrows;q=0.5", "narrows; q=1.0,*"):
        response = raw(url, "/page", accept)
        assert response.headers["content-encoding"] == "narrows"
        assert narrows.decompress(response.body) == PAGE
        assert int(response.headers["content-length"]) == len(response.body) < len(PAGE) / 10
        assert "Accept-Encoding" in response.headers.get_list("vary", True) and response.headers["etag"] == 'W/"1"'


def test_nobody_else_does(url) -> None:
    for accept in ("identity", "*", "narrows;q=0", "narrows; q=0.000", "narrowsx", "gzip"):
        response = raw(url, "/page", accept)
        assert response.headers.get("content-encoding") == ("gzip" if accept == "gzip" else None)
        assert "Accept-Encoding" in response.headers.get_list("vary", True), "a cache would mix them"
        if accept != "gzip":
            assert response.body == PAGE and response.headers["etag"] == '"1"'


def test_what_stays_as_it_is(url) -> None:
    for path in ("/short", "/noise", "/nothing", "/kept?header=Cache-Control:no-transform", "/kept?header=Content-Range:x"):
        response = raw(url, path, "narrows")
        assert "content-encoding" not in response.headers, path
    assert raw(url, "/kept?header=Content-Encoding:own", "narrows").headers["content-encoding"] == "own"
    part = raw(url, "/file", "narrows", Range="bytes=10-19")
    assert part.status_code == 206 and part.body == PAGE[10:20]


@pytest.mark.parametrize("path", ["/page", "/large", "/file", "/short", "/noise", "/pieces", "/nothing"])
def test_httpx_gets_the_same_as_without(url, client, path) -> None:
    with without(url) as plain:
        ours, theirs = client.get(path), plain.get(path)
    assert ours.status_code == theirs.status_code
    assert ours.content == theirs.content or path == "/noise"
    assert "narrows" not in ours.headers.get("content-encoding", "")
    assert client.head("/page").status_code == 200

    async def main() -> None:
        transport = narrows.httpx.AsyncTransport()
        async with httpx.AsyncClient(base_url=url, transport=transport, timeout=LIMIT_S) as made:
            got = await made.get(path)
            assert got.content == theirs.content or path == "/noise"

    asyncio.run(main())


def test_a_stream_arrives_as_it_is_sent(client) -> None:
    with client.stream("GET", "/talk") as response:
        pieces = response.iter_bytes()
        assert next(pieces) == b"the first part"
        assert client.get("/go").text == "ok"
        assert b"".join(pieces) == b", the second"


@pytest.mark.parametrize("make", [narrows.httpx.Transport, lambda: None])
def test_events_are_there_before_the_next_one(url, make) -> None:
    transport = make()
    with httpx.Client(base_url=url, transport=transport, timeout=LIMIT_S, trust_env=False) as client:
        with client.stream("GET", "/events") as response:
            assert response.headers["content-type"].startswith("text/event-stream")
            assert response.headers["etag"] == ('W/"1"' if transport else '"1"')
            pieces = response.iter_bytes()
            for i in range(3):
                assert client.get("/go").text == "ok"
                assert next(pieces) == b"data: event %d\n\n" % i
            assert b"".join(pieces) == b""


def sent_by(*messages, accept: bytes = b"narrows", method: str = "GET") -> list:
    """What the middleware sends, of an application that sends these."""
    sent = []

    async def app(scope, receive, send) -> None:
        for message in messages:
            await send(message)

    async def send(message) -> None:
        sent.append(message)

    scope = {"type": "http", "method": method, "headers": [(b"accept-encoding", accept)]}
    asyncio.run(narrows.asgi.NarrowsMiddleware(app)(scope, None, send))
    return sent


def test_headers_wait_only_where_the_body_decides() -> None:
    def start(status: int = 200, **headers: str):
        named = [(k.replace("_", "-").encode(), v.encode()) for k, v in headers.items()]
        return {"type": "http.response.start", "status": status, "headers": named}

    for status in (204, 206, 304):
        assert len(sent_by(start(status))) == 1
    for kept in ({"Content_Encoding": "own"}, {"Cache_Control": "no-transform"}):
        assert len(sent_by(start(**kept))) == 1
    (got,) = sent_by(start(304, ETag='"1"'))
    assert got["headers"] == [(b"etag", b'W/"1"'), (b"vary", b"Accept-Encoding")]
    for accept in (b"gzip", b"identity", b"*"):
        for method in ("GET", "HEAD"):
            (got,) = sent_by(start(ETag='"1"'), accept=accept, method=method)
            assert got["headers"] == [(b"etag", b'"1"'), (b"vary", b"Accept-Encoding")]
    assert sent_by(start(Content_Type="text/plain")) == []
    (got,) = sent_by(start(Content_Type="Text/Event-Stream; charset=utf-8", Content_Length="9"))
    assert dict(got["headers"])[b"content-encoding"] == b"narrows" and b"content-length" not in dict(got["headers"])
    # One short piece: the headers have promised the coding.
    body = {"type": "http.response.body", "body": b"data: x\n\n"}
    events = sent_by(start(Content_Type="text/event-stream"), body)
    assert narrows.decompress(events[1]["body"]) == b"data: x\n\n"
    assert [m["type"] for m in sent_by(start(), {"type": "http.response.trailers"})] == [
        "http.response.start", "http.response.trailers",
    ]  # fmt: skip


def test_head_agrees_with_get(url) -> None:
    for path in ("/page", "/file", "/kept?header=Cache-Control:no-transform"):
        for accept in ("narrows", "identity"):
            get, head = raw(url, path, accept), raw(url, path, accept, "HEAD")
            assert head.body == b"" and head.status_code == 200
            assert head.headers.get("etag") == get.headers.get("etag"), (path, accept)
            # Starlette's own middleware says it twice.
            assert {*head.headers.get_list("vary", True)} == {*get.headers.get_list("vary", True)}, (path, accept)
            # What only the body tells may be missing.
            for name in ("content-length", "content-encoding"):
                assert head.headers.get(name, "") in ("", get.headers.get(name)), (path, accept, name)
    assert raw(url, "/page", "narrows", "HEAD").headers["etag"] == 'W/"1"'
    first = raw(url, "/file", "narrows", "HEAD")
    assert first.headers["etag"] == 'W/"1"' and "content-length" not in first.headers


def test_head_of_a_short_body_stays_as_it_is() -> None:
    headers = [(b"content-length", b"7"), (b"etag", b'"1"')]
    start = {"type": "http.response.start", "status": 200, "headers": headers}
    for method, body in (("HEAD", b""), ("GET", b"a short")):
        sent = sent_by(start, {"type": "http.response.body", "body": body}, method=method)
        assert sent[0]["headers"] == [*headers, (b"vary", b"Accept-Encoding")] and sent[1]["body"] == body


def test_who_wants_the_bytes_as_they_are_gets_them(client) -> None:
    assert client.get("/page", headers={"Accept-Encoding": "identity"}).headers["content-length"] == str(len(PAGE))


def test_damaged_bodies_are_told(chance) -> None:
    body = text(chance, 3000)
    wire = narrows.compress(body)
    flipped = bytearray(wire)
    flipped[len(wire) // 2] ^= 1
    sent: list[bytes] = []

    def answer(request: httpx.Request) -> httpx.Response:
        assert request.headers["accept-encoding"].startswith("narrows, ")
        status = 304 if request.url.path == "/304" else 200
        return httpx.Response(status, headers={"Content-Encoding": "narrows"}, content=sent[-1])

    with httpx.Client(transport=narrows.httpx.Transport(httpx.MockTransport(answer))) as client:
        for wrong in (b"", wire[:-1], wire[:50], flipped, wire + b"x", wire + wire, b"no stream at all"):
            sent.append(bytes(wrong))
            with pytest.raises(httpx.DecodingError):
                client.get("http://test/")
        sent.append(b"")
        assert client.get("http://test/304").content == b"" and client.head("http://test/").content == b""
        sent.append(wire)
        assert client.get("http://test/").content == body


def test_several_codings() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        wire = narrows.compress(gzip.compress(PAGE))
        return httpx.Response(200, headers={"Content-Encoding": "gzip, narrows"}, stream=httpx.ByteStream(wire))

    with httpx.Client(transport=narrows.httpx.Transport(httpx.MockTransport(answer))) as client:
        response = client.get("http://test/")
        assert response.content == PAGE and response.headers["content-encoding"] == "gzip"


def test_bodies_are_decoded_piece_by_piece() -> None:
    wire = narrows.compress(bytes(50_000_000))

    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, headers={"Content-Encoding": "narrows"}, content=wire)

    with httpx.Client(transport=narrows.httpx.Transport(httpx.MockTransport(answer))) as client:
        with client.stream("GET", "http://test/") as response:
            lengths = [len(piece) for piece in response.iter_raw()]
    assert sum(lengths) == 50_000_000 and max(lengths) <= 65_536


def test_other_messages_and_wrong_use() -> None:
    """Websockets and lifespans pass; so does what an application sends out of turn."""
    seen = []

    async def app(scope, receive, send) -> None:
        seen.append((scope["type"], sorted(scope.get("extensions", ()))))
        if scope["type"] == "http":
            await send({"type": "http.response.start", "status": 200, "headers": [], "trailers": True})
            await send({"type": "http.response.body", "body": PAGE})
            await send({"type": "http.response.trailers", "headers": []})

    sent = []

    async def main() -> None:
        async def send(message) -> None:
            sent.append(message)

        ours = narrows.asgi.NarrowsMiddleware(app)
        for kind in ("lifespan", "websocket"):
            await ours({"type": kind}, None, send)
        scope = {"type": "http", "method": "GET", "headers": [(b"Accept-Encoding", b"narrows")]}
        await ours({**scope, "extensions": {"http.response.pathsend": {}, "http.response.trailers": {}}}, None, send)

    asyncio.run(main())
    assert seen == [("lifespan", []), ("websocket", []), ("http", ["http.response.trailers"])]
    assert [m["type"].rpartition(".")[2] for m in sent] == ["start", "body", "trailers"]
    assert narrows.decompress(sent[1]["body"]) == PAGE
    for wrong in ({"policy": "best"}, {"level": 77}):
        with pytest.raises(narrows.MisuseError):
            narrows.asgi.NarrowsMiddleware(app, **wrong)


def test_what_the_application_sent_stays_its_own() -> None:
    """The same message for every request; and headers that would contradict the encoded body."""
    headers = [(b"Content-Length", b"%d" % len(PAGE)), (b"Repr-Digest", b"sha-256=:x:"), (b"Content-MD5", b"x")]
    start = {"type": "http.response.start", "status": 200, "headers": headers}
    before = {**start, "headers": list(headers)}

    async def app(scope, receive, send) -> None:
        await send(start)
        await send({"type": "http.response.body", "body": PAGE})

    def ask(accept: bytes) -> tuple[dict[bytes, bytes], bytes]:
        sent = []

        async def send(message) -> None:
            sent.append(message)

        scope = {"type": "http", "method": "GET", "headers": [(b"accept-encoding", accept)]}
        asyncio.run(narrows.asgi.NarrowsMiddleware(app)(scope, None, send))
        return {k.lower(): v for k, v in sent[0]["headers"]}, sent[1]["body"]

    for _ in range(2):
        told, body = ask(b"narrows")
        assert told[b"content-encoding"] == b"narrows" and narrows.decompress(body) == PAGE
        assert not {b"repr-digest", b"content-md5"} & told.keys(), "they are about other bytes"
        told, body = ask(b"gzip")
        assert b"content-encoding" not in told and body == PAGE and start == before
    headers[0] = (b"Transfer-Encoding", b"chunked")
    told, body = ask(b"narrows")
    assert told[b"content-encoding"] == b"narrows" and b"content-length" not in told, "two lengths of one message"


@pytest.mark.parametrize("length", [len(PAGE) - 1, len(PAGE) + 1, 2 * len(PAGE)])
@pytest.mark.parametrize("pieces", [1, 3])
def test_a_part_of_a_response_is_not_sent_as_the_whole(length, pieces) -> None:
    """As of a file that gets shorter while it is sent: servers compare lengths, which are gone with the coding."""
    async def app(scope, receive, send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % length)]})
        for i in range(pieces):
            body = PAGE if i == 0 else b""
            await send({"type": "http.response.body", "body": body, "more_body": i + 1 < pieces})

    with serving(narrows.asgi.NarrowsMiddleware(app)) as address:
        with httpx.Client(base_url=address, transport=narrows.httpx.Transport(), timeout=LIMIT_S) as client:
            with pytest.raises(httpx.HTTPError):
                client.get("/")
