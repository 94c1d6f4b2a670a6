# Run by root: becomes another user, and tells root's agent that it accepted a connection that is
# root's, then one of its own. Prints "fine" if only the second is believed. Argument: SERVICE_PORT
# of 127.0.0.2.
import ipaddress, os, socket, struct, sys

SERVICE = int(sys.argv[1])
GREETING = b'\x93NRUP\r\n\x1a'


def message(kind, body):
    return struct.pack('<BH', kind, len(body)) + body


def addresses(s):
    ends = (s.getsockname(), s.getpeername())
    return b''.join(ipaddress.IPv6Address('::ffff:' + a[0]).packed + struct.pack('<H', a[1]) for a in ends)


def connection():
    client = socket.create_connection(listener.getsockname())
    clock = struct.pack('<I', client.getsockopt(socket.IPPROTO_TCP, 24) & 0xffffffff)
    return client, listener.accept()[0], clock


listener = socket.create_server(('127.0.0.2', 0))
roots = connection()
os.setgid(65534)
os.setuid(65534)
own = connection()

line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
line.settimeout(30)
line.connect(f'\0narrows-agent:0:127.0.0.2:{SERVICE}')
line.send(bytes([1, 1]))
assert line.recv(100) == bytes([1, 1])
line.send(bytes([2]) + struct.pack('<H', listener.getsockname()[1]))
channel = socket.create_connection(('127.0.0.2', SERVICE), timeout=30)
channel.sendall(GREETING + message(1, bytes([1, 0, 0, 0])))
for id, (client, server, clock) in [(1, roots), (2, own)]:
    line.send(struct.pack('<BQ', 4, id) + addresses(client) + clock)
    channel.sendall(message(2, struct.pack('<Q', id) + addresses(client) + clock + b'n' * 16))
heard = line.recv(100)
assert heard[0] == 2 and struct.unpack('<Q', heard[1:9])[0] == 2, heard
print('fine')
