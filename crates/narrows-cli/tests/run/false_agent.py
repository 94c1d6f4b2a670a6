# Another user of a host takes its service port and says READY to every claim: HOST PORT USER.
# Prints "listening".
import os, socket, struct, sys, threading

host, port, user = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
os.setuid(user)
listener = socket.create_server((host, port), backlog=50)
print('listening', flush=True)


def message(kind, body):
    return struct.pack('<BH', kind, len(body)) + body


def lie(s):
    buffer, greeted = b'', False
    while True:
        try:
            got = s.recv(4096)
        except OSError:
            return
        if not got:
            return
        buffer += got
        if not greeted and len(buffer) >= 8:
            buffer, greeted = buffer[8:], True
            s.sendall(b'\x93NRUP\r\n\x1a' + message(1, b'\1\0\0\0'))
        while len(buffer) >= 3 and len(buffer) >= 3 + struct.unpack('<H', buffer[1:3])[0]:
            kind, length = struct.unpack('<BH', buffer[:3])
            body, buffer = buffer[3 : 3 + length], buffer[3 + length :]
            if kind == 2:
                s.sendall(message(3, body[:8] + b'k' * 16))


while True:
    threading.Thread(target=lie, args=(listener.accept()[0],), daemon=True).start()
