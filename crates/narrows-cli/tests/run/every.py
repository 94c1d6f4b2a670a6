"""Every socket option and every ioctl request, including numbers without a meaning: the answers of a
connected TCP socket, one line for each.

The test runs it plain and under `narrows run --loopback` and compares the lines. Of values that differ
between connections only the length is printed. Numbers are those of Linux; a later kernel knows more of
them and gives the same answers on both sides. With "nobody" it becomes that user first.
"""

import ctypes
import errno
import os
import socket
import struct
import sys

libc = ctypes.CDLL(None, use_errno=True)
CLIENT, SERVER = "127.0.0.2", "127.0.0.1"

LEVELS = [
    # Level, the prefix of its options' names, its options.
    ("SOCKET", 1, range(0, 100)),
    # From 64 on these are tables of packet filters, but for SO_ORIGINAL_DST; asking for some loads modules into the kernel.
    ("IP", 0, [*range(0, 64), 80]),
    ("TCP", 6, range(0, 64)),
    ("IPV6", 41, [*range(0, 64), *range(66, 100)]),
    ("UDP", 17, [1, 100, 103]),
    ("RAW", 255, [1]),
    ("NETLINK", 270, [1, 3]),
    ("TLS", 282, [1, 2]),
    ("XDP", 283, [1, 7]),
    ("MPTCP", 284, [1, 2, 3, 4]),
    ("VSOCK", 287, [1]),
]

# Values that differ with the connection or the time.
VARYING = {
    ("SOCKET", 8),  # SO_RCVBUF: grows automatically
    ("SOCKET", 7),  # SO_SNDBUF
    ("SOCKET", 28),  # SO_PEERNAME
    ("SOCKET", 49),  # SO_INCOMING_CPU
    ("SOCKET", 55),  # SO_MEMINFO
    ("SOCKET", 56),  # SO_INCOMING_NAPI_ID
    ("SOCKET", 57),  # SO_COOKIE
    ("TCP", 11),  # TCP_INFO
    ("TCP", 24),  # TCP_TIMESTAMP
    ("TCP", 26),  # TCP_CC_INFO
    ("TCP", 12),  # TCP_QUICKACK: switches off automatically
    ("TCP", 28),  # TCP_SAVED_SYN
    ("IP", 9),  # IP_PKTOPTIONS
    ("IP", 52),  # IP_PROTOCOL: for TCP it returns the port
    ("IPV6", 6),  # IPV6_2292PKTOPTIONS
}


def names():
    prefixes = {"SOCKET": "SO_", "IP": "IP_", "TCP": "TCP_", "IPV6": "IPV6_"}
    known = {}
    for level, prefix in prefixes.items():
        for name in dir(socket):
            if name.startswith(prefix) and isinstance(getattr(socket, name), int):
                known.setdefault((level, int(getattr(socket, name))), name)
    return known


NAMES = names()


def pair(family, address):
    with socket.socket(family) as listener:
        listener.bind((SERVER if family == socket.AF_INET else address, 0))
        listener.listen(4)
        client = socket.socket(family)
        if family == socket.AF_INET:
            client.bind((address, 0))
        client.connect(listener.getsockname())
        server, _ = listener.accept()
    return client, server


def said(answer):
    return "0" if answer == 0 else errno.errorcode.get(ctypes.get_errno(), str(ctypes.get_errno()))


def get(s, level, option, room, fill=0):
    buffer = ctypes.create_string_buffer(bytes([fill]) * max(room, 1), max(room, 1))
    size = ctypes.c_uint(room)
    answer = libc.getsockopt(s.fileno(), level, option, buffer, ctypes.byref(size))
    return said(answer), size.value if answer == 0 else None, buffer.raw[: min(size.value, room)] if answer == 0 else b""


def put(s, level, option, value):
    return said(libc.setsockopt(s.fileno(), level, option, value, len(value)))


def told(answer, varies):
    word, size, value = answer
    return word if word != "0" else f"{size}" if varies else f"{size} {value.rstrip(bytes(1)).hex() or '-'}"


def got(s, name, level, option):
    varies = (name, option) in VARYING
    return [told(get(s, level, option, room), varies) for room in (0, 1, 4, 8, 28, 256)]


# Values to set, in turn; each is read back.
VALUES = [b"", b"\1", struct.pack("i", 1), struct.pack("i", 0), struct.pack("i", 2), struct.pack("i", -1), struct.pack("q", 1), bytes(16), b"reno\0", struct.pack("i", 1 << 16)]


def set_and_got(s, name, level, option):
    varies = (name, option) in VARYING
    return [(put(s, level, option, value), told(get(s, level, option, 16), varies)) for value in VALUES]


def close(ends):
    # Only after both were asked: the answer of one depends on the other.
    for s in ends:
        s.close()


def options(family, address, what):
    for name, level, numbers in LEVELS:
        for option in numbers:
            known = NAMES.get((name, option), "")
            ends = pair(family, address)
            for end, s in zip(("client", "server"), ends):
                print(f"{what} get {name} {option} {known} {end}: {got(s, name, level, option)}")
                print(f"{what} set {name} {option} {known} {end}: {set_and_got(s, name, level, option)}")
            close(ends)


# Querying requests, for sockets and other files, with the interface `lo` named in the argument.
ASKING = {
    "FIONREAD": 0x541B,
    "TIOCOUTQ": 0x5411,
    "SIOCOUTQNSD": 0x894B,
    "SIOCATMARK": 0x8905,
    "FIOGETOWN": 0x8903,
    "SIOCGPGRP": 0x8904,
    "SIOCGSTAMP": 0x8906,
    "SIOCGSTAMPNS": 0x8907,
    "SIOCGSTAMP_NEW": 0x80108906,
    "SIOCGSTAMPNS_NEW": 0x80108907,
    "SIOCGIFNAME": 0x8910,
    "SIOCGIFCONF": 0x8912,
    "SIOCGIFFLAGS": 0x8913,
    "SIOCGIFADDR": 0x8915,
    "SIOCGIFDSTADDR": 0x8917,
    "SIOCGIFBRDADDR": 0x8919,
    "SIOCGIFNETMASK": 0x891B,
    "SIOCGIFMETRIC": 0x891D,
    "SIOCGIFMEM": 0x891F,
    "SIOCGIFMTU": 0x8921,
    "SIOCGIFENCAP": 0x8925,
    "SIOCGIFHWADDR": 0x8927,
    "SIOCGIFSLAVE": 0x8929,
    "SIOCGIFINDEX": 0x8933,
    "SIOCGIFPFLAGS": 0x8935,
    "SIOCGIFCOUNT": 0x8938,
    "SIOCGIFTXQLEN": 0x8942,
    "SIOCETHTOOL": 0x8946,
    "SIOCGMIIPHY": 0x8947,
    "SIOCGARP": 0x8954,
    "SIOCGRARP": 0x8961,
    "SIOCGIFMAP": 0x8970,
    "SIOCGHWTSTAMP": 0x89B1,
    "SIOCUNIXFILE": 0x89E0,
    "SIOCPROTOPRIVATE+1": 0x89E1,
    "TCGETS": 0x5401,
    "TIOCGWINSZ": 0x5413,
    "TIOCSTI": 0x5412,
    "FIOQSIZE": 0x5460,
    "FIGETBSZ": 0x2,
    "BLKGETSIZE": 0x1260,
    "FS_IOC_GETFLAGS": 0x80086601,
}
# Changing requests, with an argument of zeros: what they would change has no name, or is the
# descriptor. Without those on routes, where zeros name one.
CHANGING = {
    "FIONBIO": 0x5421,
    "FIOASYNC": 0x5452,
    "FIOCLEX": 0x5451,
    "FIONCLEX": 0x5450,
    "FIOSETOWN": 0x8901,
    "SIOCSPGRP": 0x8902,
    "SIOCRTMSG": 0x890D,
    "SIOCSIFFLAGS": 0x8914,
    "SIOCSIFADDR": 0x8916,
    "SIOCSIFNETMASK": 0x891C,
    "SIOCDIFADDR": 0x8936,
    "SIOCDARP": 0x8953,
    "SIOCSARP": 0x8955,
}


def ioctls(family, address, what):
    for requests, argument in ((ASKING, b"lo" + bytes(254)), (CHANGING, bytes(256))):
        for name, request in requests.items():
            ends = pair(family, address)
            for end, s in zip(("client", "server"), ends):
                buffer = ctypes.create_string_buffer(argument, len(argument))
                answer = libc.ioctl(s.fileno(), ctypes.c_ulong(request), buffer)
                word = answer if answer >= 0 else said(answer)
                value = "-" if "STAMP" in name or answer < 0 else buffer.raw.rstrip(bytes(1)).hex()
                nowhere = said(libc.ioctl(s.fileno(), ctypes.c_ulong(request), ctypes.c_void_p(8)))
                print(f"{what} ioctl {name} {end}: {word} {value} {nowhere}")
            close(ends)


def main():
    if sys.argv[1:] == ["nobody"]:
        # Like a daemon that root started.
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
    options(socket.AF_INET, CLIENT, "v4")
    ioctls(socket.AF_INET, CLIENT, "v4")
    try:
        pair(socket.AF_INET6, "::1")
    except OSError:
        return
    options(socket.AF_INET6, "::1", "v6")
    ioctls(socket.AF_INET6, "::1", "v6")


main()
