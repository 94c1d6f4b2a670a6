"""Chunks of arrays: exact ones bit for bit, lossy ones by NumPy's own arithmetic, and no damage unseen."""

import array
import ctypes
import math
import multiprocessing
import os
import pickle
import subprocess
import sys
import threading
from fractions import Fraction

import numpy as np
import pytest

import narrows
from narrows._hints import Hints

DTYPES = ["b1", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8", "c8", "c16"]
BOUNDS = [
    {"abs": 0.01},
    {"abs": 3},
    {"rel": 1e-3},
    {"rel": "1%", "floor": 1e-2},
    {"digits": 3},
    {"bits": 9},
    {"range_rel": 1e-3},
    {"rel": 1e-2, "abs": 0.05},
    {"rel": 1e-2, "floor": 1e-3, "digits": 2, "abs": 1},
]


def field(dtype: str, shape: tuple[int, ...], seed: int = 1) -> np.ndarray:
    """Smooth values with noise, in the range of the type."""
    rng = np.random.default_rng(seed)
    count = math.prod(shape)
    x = np.arange(count)
    values = 40 * np.sin(x / 30) + np.cumsum(rng.standard_normal(count)) / 10
    kind = np.dtype(dtype).kind
    if kind == "b":
        return (values > 0).reshape(shape)
    if kind == "u":
        values = np.clip(values + 100, 0, 255)
    if kind == "i":
        values = np.clip(values, -128, 127)
    if kind == "c":
        return (values + 1j * values[::-1]).astype(dtype).reshape(shape)
    return values.astype(dtype).reshape(shape)


def parts(a: np.ndarray) -> np.ndarray:
    """The numbers that a bound speaks of, as binary64 or Python's integers: halves of complex ones."""
    if a.dtype.kind == "c":
        a = a.reshape(-1).view(a.real.dtype)
    return a.reshape(-1).astype("f8") if a.dtype.kind == "f" else a.reshape(-1).astype(object)


def within(x: float, y: float, hints: dict, span: float) -> bool:
    """Whether y may stand for x, in exact arithmetic."""
    x, y = Fraction(x), Fraction(y)
    limits = []
    if "abs" in hints:
        limits.append(Fraction(float(hints["abs"])))
    if "range_rel" in hints:
        limits.append(Fraction(hints["range_rel"]) * Fraction(span))
    if "rel" in hints:
        rel = hints["rel"]
        rel = Fraction(float(rel[:-1]) / 100 if isinstance(rel, str) else rel)
        limits.append(max(rel * abs(x), Fraction(hints.get("floor", 0))))
    if "digits" in hints:
        limits.append(Fraction(1, 2) * Fraction(10) ** (1 - hints["digits"]) * abs(x))
    if "bits" in hints:
        limits.append(Fraction(1, 2 ** (hints["bits"] + 1)) * abs(x))
    return abs(x - y) <= min(limits)


def same(a: np.ndarray, b: np.ndarray) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


@pytest.mark.parametrize("dtype", [*DTYPES, ">f4", ">f8", ">i2", ">u8", ">f2", ">c16"])
def test_exact_whatever_the_layout(dtype: str) -> None:
    a = field(dtype, (24, 18)).astype(dtype)
    cube = field(dtype, (3, 4, 5, 6)).astype(dtype)
    for view in (a, np.asfortranarray(a), a.T, a[::2, 1::3], a[::-1], a[:0], a[3:4, :1], a[2], a[2, 3], np.array(a[2, 3]), cube, cube.T):
        chunk = narrows.array.compress(view)
        back = narrows.array.decompress(chunk)
        assert same(back, np.asarray(view))
        assert back.flags.writeable
        told = narrows.array.info(chunk)
        assert (np.dtype(told.dtype), told.shape, told.raw_len) == (view.dtype, view.shape, view.nbytes)
        assert told.wire_len == len(chunk) and told.worst_abs is None
    fortran = narrows.array.decompress(narrows.array.compress(np.asfortranarray(a)))
    assert fortran.flags.f_contiguous


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("hints", BOUNDS, ids=str)
def test_bounds_hold(dtype: str, hints: dict) -> None:
    for shape in ((), (1,), (97,), (23, 31), (5, 7, 11), (0, 3)):
        a = field(dtype, shape, len(shape))
        chunk = narrows.array.compress(a, **hints)
        back = narrows.array.decompress(chunk)
        assert back.dtype == a.dtype and back.shape == a.shape
        if dtype == "b1":
            assert same(a, back)
            continue
        x, y = parts(a), parts(back)
        span = float(x.max() - x.min()) if len(x) else 0.0
        assert all(within(p, q, hints, span) for p, q in zip(x, y, strict=True))
        told = narrows.array.info(chunk)
        if told.worst_abs is not None and len(x):
            assert max(abs(Fraction(p) - Fraction(q)) for p, q in zip(x, y, strict=True)) <= Fraction(told.worst_abs)


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
@pytest.mark.parametrize("hints", [{}, *BOUNDS], ids=str)
def test_special_values_keep_their_bits(dtype: str, hints: dict) -> None:
    """Random bit patterns hold every payload, denormal and infinity."""
    rng = np.random.default_rng(3)
    a = field(dtype, (4000,))
    bits = a.view(f"u{a.itemsize}")
    random = np.frombuffer(rng.bytes(1000 * a.itemsize), bits.dtype)
    at = rng.permutation(4000)
    bits[at[:1000]] = random
    a[at[1000:1100]] = [math.nan, math.inf, -math.inf, -0.0] * 25
    fill = np.dtype(dtype).type(60000 if dtype == "f2" else 1e20)
    a[at[1100:1400]] = fill
    b = narrows.array.decompress(narrows.array.compress(a, fill=1e20 if dtype != "f2" else 60000, exact=[(5, 6)], **hints))
    kept = ~np.isfinite(a) | (a == fill) | ((a == 0) & np.signbit(a)) | ((a >= 5) & (a <= 6))
    assert same(a[kept], b[kept])
    if not hints:
        assert same(a, b)
        return
    finite = np.isfinite(a)
    x, y = a[finite].astype("f8"), b[finite].astype("f8")
    valid = x[x != float(fill)]
    span = float(valid.max() - valid.min())
    assert all(within(p, q, hints, span) for p, q in zip(x, y, strict=True))


@pytest.mark.parametrize("dtype", ["i4", "i8", "u8"])
@pytest.mark.parametrize("hints", [{}, {"abs": 1}, {"abs": 1e3}, {"rel": 0.1}, {"abs": 0.5}], ids=str)
def test_extremes_of_integers(dtype: str, hints: dict) -> None:
    limits = np.iinfo(dtype)
    rng = np.random.default_rng(5)
    a = rng.integers(limits.min, limits.max, 3000, dtype, endpoint=True)
    a[:20] = [limits.min, limits.max] * 10
    back = narrows.array.decompress(narrows.array.compress(a, **hints))
    if not hints or hints == {"abs": 0.5}:
        assert same(a, back)
    else:
        assert all(within(int(p), int(q), hints, 0) for p, q in zip(a, back, strict=True))


def test_all_hints_hold_at_once_and_nought_means_exact() -> None:
    a = field("f4", (5000,))
    for exact in ({"abs": 0}, {"rel": 0}, {"rel": 0, "abs": 1}, {"abs": 0, "digits": 1}, {"range_rel": 0}, {"abs": 1e-30}):
        assert same(a, narrows.array.decompress(narrows.array.compress(a, **exact)))
    loose, both = (narrows.array.compress(a, **h) for h in ({"abs": 0.1}, {"abs": 0.1, "rel": 1e-4}))
    assert len(loose) < len(both) < len(narrows.array.compress(a))
    # A floor above the absolute bound leaves that alone.
    assert len(narrows.array.compress(a, abs=0.1, rel=1e-4, floor=1)) == len(loose)


@pytest.mark.parametrize(
    "hints",
    [
        {"abs": -1},
        {"abs": math.nan},
        {"abs": math.inf},
        {"rel": -0.1},
        {"rel": 1},
        {"range_rel": "200%"},
        {"rel": "many"},
        {"floor": 1},
        {"digits": 0},
        {"digits": 400},
        {"bits": -1},
        {"bits": 2000},
        {"mode": "best"},
        {"encode_rate": 0},
        {"encode_rate": "fast"},
        {"exact": (2, 1)},
        {"exact": (math.nan, 1)},
        {"fill": range(1000)},
        {"abs": 10**400},
    ],
    ids=str,
)
def test_hints_without_sense_are_refused(hints: dict) -> None:
    with pytest.raises(narrows.MisuseError, match=next(iter(hints))):
        narrows.array.compress(np.zeros(3), **hints)


@pytest.mark.parametrize(
    "hints", [{"abs": "1"}, {"digits": 2.5}, {"fill": "1e20"}, {"exact": 3}, {"exact": [(1, 2, 3)]}, {"abs": [1, 2]}, {"abs": True}], ids=str
)
def test_hints_of_wrong_types_are_refused(hints: dict) -> None:
    with pytest.raises((TypeError, narrows.MisuseError)):
        narrows.array.compress(np.zeros(3), **hints)


def test_hints_survive_as_json() -> None:
    import json

    hints = Hints.of(
        abs=np.float32(0.5), rel="2%", floor=1e-9, digits=3, bits=4, fill=[1e20, math.nan], exact=[(None, -3), (1, 2)],
        mode="archive", encode_rate="1.5MB/s",
    )  # fmt: skip
    stored = json.loads(json.dumps(hints.to_dict(), allow_nan=False))
    assert Hints.from_dict(stored) == hints
    assert hints.rel == 0.02 and hints.fill == (1e20,) and hints.exact == ((-math.inf, -3.0), (1.0, 2.0)) and hints.encode_rate == 1.5e6
    assert Hints().to_dict() == {}
    assert Hints.of(exact=(1, None)).exact == ((1.0, math.inf),)
    with pytest.raises(narrows.MisuseError, match="upgrade"):
        Hints.from_dict({"later": 1})
    # Refused today, but arrays that have it are read.
    assert Hints.from_dict({"rel": 2, "range_rel": 0.5}).to_dict() == {"rel": 2, "range_rel": 0.5}


@pytest.mark.parametrize("dtype", ["M8[ns]", "m8[s]", ">M8[us]"])
def test_dates(dtype: str) -> None:
    a = np.arange(10**9, 10**9 + 5000).astype(dtype)
    a[7::100] = "NaT"
    assert same(a, narrows.array.decompress(narrows.array.compress(a), dtype=a.dtype))
    rough = narrows.array.decompress(narrows.array.compress(a[::2], abs=4), dtype=a.dtype)
    assert (np.isnat(rough) == np.isnat(a[::2])).all()
    assert abs(rough.astype("i8") - a[::2].astype("i8")).max() <= 4


def test_records_are_exact_and_get_their_names_back() -> None:
    a = np.zeros(1000, [("t", "M8[s]"), ("OO", "f4"), ("n", ">i2", (2,))])
    a["OO"] = field("f4", (1000,))
    chunk = narrows.array.compress(a, abs=10)
    assert same(a, narrows.array.decompress(chunk, dtype=a.dtype))
    assert narrows.array.info(chunk).dtype == "|V16"
    with pytest.raises(TypeError):
        narrows.array.compress(np.zeros(3, [("a", "O")]))


@pytest.mark.parametrize(
    "a",
    [
        np.array(["a", "bb"]),
        np.array([b"a"]),
        np.array([1, None]),
        np.array([1.0, 2], "g"),
        np.ma.masked_array([1.0, 2], [0, 1]),
        np.zeros(3, "V0"),
        (ctypes.c_void_p * 3)(),
        [1.0, 2.0],
        "text",
        None,
    ],
    ids=lambda a: type(a).__name__,
)
def test_what_is_no_number_is_refused(a: object) -> None:
    with pytest.raises(TypeError, match="no numbers|mask|64 bits|buffer|bytes"):
        narrows.array.compress(a)


def test_other_buffers() -> None:
    for a in (array.array("d", range(99)), array.array("l", range(99)), memoryview(b"abc" * 50), (ctypes.c_float * 30)(1.5), b""):
        assert same(np.asarray(memoryview(a)), narrows.array.decompress(narrows.array.compress(a)))
    assert narrows.array.decompress(narrows.array.compress(bytearray(b"abc" * 50))).tobytes() == b"abc" * 50


def test_without_numpy() -> None:
    code = """
import sys
sys.modules["numpy"] = None
import array, narrows
raw = array.array("f", range(600))
chunk = narrows.array.compress(memoryview(raw).cast("B").cast("f", (20, 30)), abs=0.1)
back = narrows.array.decompress(chunk)
view = memoryview(back)
assert (back.dtype, back.shape, back.order, view.format, view.shape) == ("<f4", (20, 30), "C", "f", (20, 30))
assert all(abs(view[i // 30, i % 30] - i) <= 0.1 for i in range(600))
assert narrows.array.info(chunk).abs == 0.1
try:
    narrows.array.decompress(chunk, dtype="f4")
except TypeError as error:
    assert "NumPy" in str(error)
else:
    raise AssertionError
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize("hints", [{}, {"abs": 0.5}], ids=str)
def test_every_damaged_byte_is_noticed(hints: dict) -> None:
    a = field("f4", (12, 13))
    chunk = narrows.array.compress(a, **hints)
    good = narrows.array.decompress(chunk)
    for length in range(len(chunk)):
        with pytest.raises(narrows.NarrowsError):
            narrows.array.decompress(chunk[:length])
    unseen = []
    for at in range(len(chunk)):
        for change in (1, 2, 4, 8, 16, 32, 64, 128, 255):
            bad = bytearray(chunk)
            bad[at] ^= change
            try:
                back = narrows.array.decompress(bad, max_length=1 << 20)
            except narrows.NarrowsError:
                continue
            if not same(good, back):
                unseen.append((at, change, back.dtype, back.shape))
    assert not unseen


def test_limits() -> None:
    chunk = narrows.array.compress(np.zeros(10_000))
    with pytest.raises(narrows.LimitError):
        narrows.array.decompress(chunk, max_length=79_999)
    assert len(narrows.array.decompress(chunk, max_length=80_000)) == 10_000
    huge = np.broadcast_to(np.float64(1), (1 << 28,))
    with pytest.raises(narrows.LimitError, match="cut the array"):
        narrows.array.compress(huge)


def test_an_encoder_remembers_and_can_be_sent() -> None:
    encoder = narrows.array.Encoder(abs=0.01)
    assert encoder.pipeline is None
    chunks = [encoder.encode(field("f4", (64, 64), seed)) for seed in range(10)]
    assert encoder.pipeline is not None and 1 <= encoder.trials < 5
    other = pickle.loads(pickle.dumps(encoder))
    assert other.hints == encoder.hints and other.trials == 0
    assert other.encode(field("f4", (64, 64), 0)) == chunks[0]
    assert "abs=0.01" in repr(encoder)


def test_sixteen_threads_share_an_encoder() -> None:
    encoder = narrows.array.Encoder(rel=1e-3)
    arrays = [field("f4", (40, 50), seed) for seed in range(16)]
    failed = []

    def work(a: np.ndarray) -> None:
        try:
            for _ in range(12):
                b = narrows.array.decompress(encoder.encode(a))
                assert (abs(b.astype("f8") - a) <= 1e-3 * abs(a.astype("f8"))).all()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(a,)) for a in arrays]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not failed


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_process_goes_on() -> None:
    """Forks while other threads encode: what they held must not block the child."""
    encoder = narrows.array.Encoder(abs=0.01)
    a = field("f4", (50, 50))
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            narrows.array.decompress(encoder.encode(a))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        context = multiprocessing.get_context("fork")
        for _ in range(5):
            child = context.Process(target=_in_child, args=(encoder, a))
            child.start()
            child.join(60)
            assert child.exitcode == 0
    finally:
        stop.set()
        for thread in threads:
            thread.join(60)


def _in_child(encoder: narrows.array.Encoder, a: np.ndarray) -> None:
    back = narrows.array.decompress(encoder.encode(a))
    os._exit(0 if abs(back - a).max() < 0.011 else 1)
