# needs: file:/usr/bin/python3 file:/usr/lib/python3/dist-packages/uvloop/__init__.py
# scenarios: get sum abort raw refused late
# asyncio on libuv, at both ends.
case $role in
server)
    cat >lab.py <<'PY'
import asyncio, hashlib, os, socket, sys

sys.path.append("/usr/lib/python3/dist-packages")
import uvloop

AT = os.environ["ADDR"], int(os.environ["PORT"])
BIG = os.environ["DATA"] + "/big"


async def answer(reader, writer):
    word = await reader.readline()
    if word == b"sum\n":
        seen = hashlib.sha256()
        while part := await reader.read(65536):
            seen.update(part)
        writer.write(seen.hexdigest().encode())
    elif word == b"get\n":
        with open(BIG, "rb") as f:
            writer.write(f.read())
    elif word == b"abort\n":
        writer.write(b"x" * 1000)
        await writer.drain()
        await reader.readline()
        return writer.transport.abort()
    await writer.drain()
    writer.close()


async def serve():
    async with await asyncio.start_server(answer, *AT) as server:
        await server.serve_forever()


async def ask(word, data=b""):
    reader, writer = await asyncio.open_connection(*AT)
    writer.write(word + b"\n" + data)
    await writer.drain()
    if data:
        writer.write_eof()
    answered = await reader.read()
    writer.close()
    return answered


async def talk(what):
    with open(BIG, "rb") as f:
        big = f.read()
    digest = hashlib.sha256(big).hexdigest()
    loop = asyncio.get_running_loop()
    if what == "get":
        return hashlib.sha256(await ask(b"get")).hexdigest() == digest
    if what == "sum":
        few = hashlib.sha256(big[:200000]).hexdigest().encode()
        all_of = await asyncio.gather(*[ask(b"sum", big[:200000]) for _ in range(50)])
        return (await ask(b"sum", big)).decode() == digest, set(all_of) == {few}
    if what == "abort":
        reader, writer = await asyncio.open_connection(*AT)
        writer.write(b"abort\n")
        got = await reader.readexactly(1000)
        writer.write(b"now\n")
        try:
            return len(got), await reader.read()
        except OSError as error:
            return len(got), type(error).__name__
    if what == "raw":
        s = socket.socket()
        s.setblocking(False)
        await loop.sock_connect(s, AT)
        await loop.sock_sendall(s, b"get\n")
        size = 0
        while part := await loop.sock_recv(s, 100000):
            size += len(part)
        return size == len(big)
    if what == "late":
        try:
            await asyncio.wait_for(ask(b"sum"), 0.3)
        except asyncio.TimeoutError:
            return "late"
    try:
        await asyncio.open_connection(AT[0], int(os.environ["PORT2"]))
    except OSError as error:
        return type(error).__name__


uvloop.install()
if sys.argv[1] == "serve":
    asyncio.run(serve())
print(asyncio.run(talk(sys.argv[1])))
PY
    $RUN /usr/bin/python3 lab.py serve &
    up "$PORT"
    ;;
client) exits 0 $RUN /usr/bin/python3 lab.py $scenario ;;
esac
