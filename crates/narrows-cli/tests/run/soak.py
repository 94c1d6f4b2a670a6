"""Many asyncio clients and one server: echoes of random sizes in random pieces, each end of stream in order."""

import asyncio
import hashlib
import random
import sys

CONNECTIONS = int(sys.argv[1])


async def serve(reader, writer):
    seen = hashlib.sha256()
    while part := await reader.read(random.randint(1, 200000)):
        seen.update(part)
        writer.write(part)
        await writer.drain()
    writer.write(seen.digest())
    await writer.drain()
    writer.close()


async def talk(port, seed):
    mine = random.Random(seed)
    data = mine.randbytes(mine.choice([1, 10, 5000, 70000, 400000]))
    reader, writer = await asyncio.open_connection("127.0.0.1", port)

    async def send():
        at = 0
        while at < len(data):
            n = mine.randint(1, 100000)
            writer.write(data[at : at + n])
            await writer.drain()
            at += n
        writer.write_eof()

    task = asyncio.create_task(send())
    got = await reader.read(-1)
    await task
    writer.close()
    return got == data + hashlib.sha256(data).digest()


async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", 0, backlog=4096)
    port = server.sockets[0].getsockname()[1]
    right = await asyncio.gather(*(talk(port, i) for i in range(CONNECTIONS)))
    print(sum(right), "right")


asyncio.run(main())
