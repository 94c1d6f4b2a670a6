# needs: memcached python3
# scenarios: small large many
# A server with libevent and four threads.
case $role in
server)
    $RUN memcached -l "$ADDR" -p "$PORT" -U 0 -t 4 -m 256 -I 8m -u nobody &
    up "$PORT"
    ;;
client)
    cat >client.py <<'PY'
import concurrent.futures, os, random, socket, sys
at, scenario = (os.environ["ADDR"], int(os.environ["PORT"])), sys.argv[1]
def talk(seed, size, count):
    mine, right = random.Random(seed), 0
    with socket.create_connection(at, timeout=50) as s:
        f = s.makefile("rwb")
        for i in range(count):
            data = mine.randbytes(size)
            f.write(b"set k%d-%d 0 0 %d\r\n%b\r\n" % (seed, i, size, data))
            f.write(b"get k%d-%d\r\n" % (seed, i))
            f.flush()
            stored, head = f.readline(), f.readline()
            got = f.read(size)
            rest = f.read(len(b"\r\nEND\r\n"))
            right += (stored, got, rest) == (b"STORED\r\n", data, b"\r\nEND\r\n")
    return right
clients, size, count = {"small": (1, 10, 100), "large": (4, 1 << 20, 8), "many": (100, 1000, 50)}[scenario]
with concurrent.futures.ThreadPoolExecutor(clients) as pool:
    right = sum(pool.map(lambda i: talk(i, size, count), range(clients)))
print(right, "of", clients * count)
sys.exit(right != clients * count)
PY
    exits 0 $RUN python3 client.py $scenario
    ;;
esac
