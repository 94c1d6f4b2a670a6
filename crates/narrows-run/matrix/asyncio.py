# needs: python3
# scenarios: echo many refused
"""asyncio at both ends: echoes with a half close, many connections of random sizes in random pieces, refusal."""

import asyncio
import hashlib
import os
import random
import sys

role, scenario = sys.argv[1:3]
ADDR, PORT, PORT2 = os.environ["ADDR"], int(os.environ["PORT"]), int(os.environ["PORT2"])
PATIENCE_S = 50


async def answer(reader, writer):
    seen = hashlib.sha256()
    try:
        while part := await reader.read(random.randint(1, 200_000)):
            seen.update(part)
            writer.write(part)
            await writer.drain()
        writer.write(seen.digest())
        await writer.drain()
    finally:
        writer.close()


async def serve():
    server = await asyncio.start_server(answer, ADDR, PORT, backlog=4096)
    open("ready", "w").close()
    async with server:
        await server.serve_forever()


async def talk(seed, size):
    mine = random.Random(seed)
    data = mine.randbytes(size)
    reader, writer = await asyncio.open_connection(ADDR, PORT)

    async def send():
        at = 0
        while at < len(data):
            n = mine.randint(1, 100_000)
            writer.write(data[at : at + n])
            await writer.drain()
            at += n
        writer.write_eof()

    task = asyncio.create_task(send())
    got = await reader.read(-1)
    await task
    writer.close()
    return got == data + hashlib.sha256(data).digest()


async def ask():
    if scenario == "refused":
        try:
            await asyncio.open_connection(ADDR, PORT2)
        except OSError as e:
            print(type(e).__name__, e.errno)
        return
    count, sizes = (20, [4 << 20]) if scenario == "echo" else (1000, [1, 10, 5_000, 70_000])
    mine = random.Random(7)
    talks = (talk(i, mine.choice(sizes)) for i in range(count))
    right = await asyncio.wait_for(asyncio.gather(*talks), PATIENCE_S)
    print(sum(right), "of", count, "right")
    sys.exit(not all(right))


asyncio.run(serve() if role == "server" else ask())
