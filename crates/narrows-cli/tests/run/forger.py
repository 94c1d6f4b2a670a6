# Claims connections that are not under Narrows at its end, as an attacker would (format.md section
# 11). SERVER_PORT SERVICE_PORT of 127.0.0.2. Prints "fine", or what went wrong.
import ipaddress, socket, struct, sys

SERVER, SERVICE = ('127.0.0.2', int(sys.argv[1])), ('127.0.0.2', int(sys.argv[2]))
GREETING = b'\x93NRUP\r\n\x1a'
TCP_TIMESTAMP = 24


def message(kind, body):
    return struct.pack('<BH', kind, len(body)) + body


def address(a):
    return ipaddress.IPv6Address('::ffff:' + a[0]).packed + struct.pack('<H', a[1])


class Channel:
    def __init__(self, source):
        self.s = socket.create_connection(SERVICE, source_address=(source, 0), timeout=30)
        self.s.sendall(GREETING + message(1, bytes([1, 0, 0, 0])))
        assert self.take(8) == GREETING
        assert self.next()[0] == 1

    def take(self, n):
        got = b''
        while len(got) < n:
            part = self.s.recv(n - len(got))
            assert part, 'the channel ended'
            got += part
        return got

    def next(self):
        kind, length = struct.unpack('<BH', self.take(3))
        return kind, self.take(length)

    def claim(self, id, client, clock, nonce=b'n' * 16):
        body = struct.pack('<Q', id) + address(client.getsockname()) + address(client.getpeername())
        self.s.sendall(message(2, body + struct.pack('<I', clock & 0xffffffff) + nonce))

    def expect(self, kind, id, rest=None):
        got = self.next()
        # It may have asked before it was told that it need not.
        while got[0] == QUERY != kind:
            got = self.next()
        assert got[0] == kind and struct.unpack('<Q', got[1][:8])[0] == id, got
        assert rest is None or got[1][8:] == rest, got


def connection():
    s = socket.create_connection(SERVER, timeout=30)
    return s, s.getsockopt(socket.IPPROTO_TCP, TCP_TIMESTAMP)


def check(s, line):
    s.sendall(line)
    got = b''
    while len(got) < len(line):
        part = s.recv(65536)
        assert part, 'the connection ended'
        got += part
    assert got == line.upper(), got


READY, NO, WITHDRAW, QUERY, ANSWER = 3, 4, 5, 6, 7
line = b'plain \xf9NRMK\r\n'

# From another address than the connection's.
s, clock = connection()
other = Channel('127.0.0.3')
other.claim(1, s, clock)
other.expect(NO, 1, b'\x03')
# With the wrong clock, and then, too late, with the right one.
own = Channel('127.0.0.1')
own.claim(1, s, clock + 5000)
own.expect(NO, 1, b'\x02')
own.claim(2, s, clock)
own.expect(NO, 2, b'\x02')
check(s, line)
s.close()

# With the right clock, which the same user can read: nothing is switched, since the marker never
# comes.
s, clock = connection()
own.claim(3, s, clock)
own.expect(READY, 3)
check(s, b'some words\n')
s.sendall(b'\xf9NRMK')
own.expect(QUERY, 3, struct.pack('<Q', 11))
own.s.sendall(message(ANSWER, struct.pack('<QQB', 3, 11, 0)))
s.sendall(b' was no marker\n')
want = b'\xf9NRMK was no marker\n'.upper()
got = b''
while len(got) < len(want):
    got += s.recv(100)
assert got == want, got
# The same claim from another address, and another claim.
other.claim(2, s, clock)
other.expect(NO, 2, b'\x03')
own.claim(4, s, clock, b'm' * 16)
own.expect(NO, 4, b'\x06')
# Floods of invalid messages about it: the connection must work on.
own.s.sendall(message(ANSWER, struct.pack('<QQB', 3, 1 << 40, 0)) * 10000)
own.s.sendall(message(WITHDRAW, struct.pack('<Q', 3)))
check(s, b'\xf9NRMK\r\n')
s.close()

# A port on which no program under Narrows listens.
l = socket.create_server(('127.0.0.2', 0))
s = socket.create_connection(l.getsockname(), timeout=30)
own.claim(5, s, 0)
own.expect(NO, 5, b'\x01')

# Rubbish.
for rubbish in [b'GET / HTTP/1.1\r\n\r\n', bytes(1000), GREETING + b'\xff' * 100, GREETING + message(3, bytes(24))]:
    r = socket.create_connection(SERVICE, timeout=30)
    r.sendall(rubbish)
    try:
        assert r.recv(100) == b'', 'rubbish was answered'
    except ConnectionResetError:
        pass
s, clock = connection()
check(s, line)
s.close()
print('fine')
