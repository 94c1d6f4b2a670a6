"""Data for the bench, of the half of a corpus that no constant was tuned on.

The halves are those of the lab (lab/narrows-lab/src/pools.rs): every second file in the order of the XXH3
hashes of their names. So that hash is here too, for names up to 240 bytes.
"""

from __future__ import annotations

import pathlib
import random

SKIPPED = ("readme", "license", "manifest", "sha", "sources")
# Bytes of a file at most, so that one large file is not all of its kind.
FILE_MAX = 700_000
PIECE_MIN, PIECE_MAX = 4 << 10, 1 << 20


def mixed(corpus: pathlib.Path, length: int) -> bytes:
    """Pieces of 4 KiB to 1 MiB of all kinds of the corpus, of noise and of zeros, in random order."""
    rng = random.Random(14)
    pools = [of_kind(folder) for folder in sorted(corpus.iterdir()) if folder.is_dir()]
    pools += [noise(1 << 20), bytes(PIECE_MAX)]
    made = bytearray()
    while len(made) < length:
        piece = int(PIECE_MIN * (PIECE_MAX / PIECE_MIN) ** rng.random())
        pool = rng.choice(pools)
        at = rng.randrange(max(len(pool) - piece, 1))
        made += pool[at : at + piece]
    return bytes(made[:length])


def noise(length: int) -> bytes:
    return random.Random(5).randbytes(length)


def of_kind(folder: pathlib.Path) -> bytes:
    """The beginnings of the unseen files of one kind; of an only file its second half."""
    files = sorted(wanted(folder), key=lambda p: (xxh3(str(p.relative_to(folder)).encode()), p))
    if len(files) == 1:
        only = files[0].read_bytes()
        return only[len(only) // 2 :]
    return b"".join(p.read_bytes()[:FILE_MAX] for p in files[1::2])


def wanted(folder: pathlib.Path) -> list[pathlib.Path]:
    found = [p for p in folder.rglob("*") if p.is_file()]
    return [p for p in found if not p.name.lower().startswith(SKIPPED)]


# --- XXH3, 64 bits, no seed ---

MASK = (1 << 64) - 1
PRIME_1 = 0x9E3779B185EBCA87
SECRET = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671fcb79e64eccc0e578825ad07dccff7221"
    "b8084674f743248ee03590e6813a264c3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8"
    "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364eac5ac8334d3ebc3c581a0fffa1363eb"
    "170ddd51b7f0da49d316552629d4689e2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e"
)


def xxh3(data: bytes) -> int:
    n = len(data)
    if not 1 <= n <= 240:
        raise ValueError(f"names have 1 to 240 bytes: {data!r}")
    if n < 4:
        h = (data[0] << 16 | data[n // 2] << 24 | data[-1] | n << 8) ^ (_u64(SECRET, 0) ^ _u64(SECRET, 4)) & 0xFFFFFFFF
        h = (h ^ h >> 33) * 0xC2B2AE3D27D4EB4F & MASK
        h = (h ^ h >> 29) * 0x165667B19E3779F9 & MASK
        return h ^ h >> 32
    if n <= 8:
        word = int.from_bytes(data[-4:], "little") + (int.from_bytes(data[:4], "little") << 32)
        h = word ^ _u64(SECRET, 8) ^ _u64(SECRET, 16)
        h ^= _rotate(h, 49) ^ _rotate(h, 24)
        h = h * 0x9FB21C651E98DF25 & MASK
        h ^= (h >> 35) + n
        h = h * 0x9FB21C651E98DF25 & MASK
        return h ^ h >> 28
    if n <= 16:
        low = _u64(data, 0) ^ _u64(SECRET, 24) ^ _u64(SECRET, 32)
        high = _u64(data, n - 8) ^ _u64(SECRET, 40) ^ _u64(SECRET, 48)
        swapped = int.from_bytes(low.to_bytes(8, "little"), "big")
        return _avalanche(n + swapped + high + _fold(low, high))
    h = n * PRIME_1
    if n <= 128:
        for i in reversed(range((n - 1) // 32 + 1)):
            h += _mix(data, 16 * i, 32 * i) + _mix(data, n - 16 * (i + 1), 32 * i + 16)
        return _avalanche(h)
    h = _avalanche(h + sum(_mix(data, 16 * i, 16 * i) for i in range(8)))
    h += sum(_mix(data, 16 * i, 16 * (i - 8) + 3) for i in range(8, n // 16))
    return _avalanche(h + _mix(data, n - 16, 136 - 17))


def _u64(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 8], "little")


def _rotate(x: int, by: int) -> int:
    return (x << by | x >> (64 - by)) & MASK


def _fold(a: int, b: int) -> int:
    product = a * b
    return product & MASK ^ product >> 64


def _mix(data: bytes, at: int, secret_at: int) -> int:
    return _fold(_u64(data, at) ^ _u64(SECRET, secret_at), _u64(data, at + 8) ^ _u64(SECRET, secret_at + 8))


def _avalanche(h: int) -> int:
    h &= MASK
    h = (h ^ h >> 37) * 0x165667919E3779F9 & MASK
    return h ^ h >> 32
