"""Encodes a .npy file by other libraries, each in chunks, and prints a line of JSON for each.

peers.py FILE CHUNK_BYTES ROUNDS [--abs BOUND] [--only NAME,..] [--fill VALUE ...]

Each decoded chunk is compared: bit for bit, or with the bound, where what is no number or a fill has
to stay as it is. A library that is not installed is left out. One thread; times are the sum over
chunks of the fastest round.
"""

import json
import sys
import time

try:
    import numpy as np
except ImportError:
    sys.exit(f"{sys.executable} has no numpy; name a Python that has it and the libraries: --peers PYTHON")


def library(name):
    try:
        return __import__(name, fromlist=["_"])
    except Exception:  # Whatever keeps a library from loading, it cannot be measured.
        return None


def zstd():
    codec = library("numcodecs.zstd")
    if codec:
        codec = codec.Zstd(level=3)
        return codec.encode, lambda wire, like: np.frombuffer(codec.decode(wire), like.dtype)


def xz():
    lzma = library("lzma")
    if lzma:
        encode = lambda a: lzma.compress(a.tobytes(), preset=6)
        return encode, lambda wire, like: np.frombuffer(lzma.decompress(wire), like.dtype)


def blosc2():
    blosc2 = library("blosc2")
    if blosc2:
        blosc2.set_nthreads(1)
        options = {"codec": blosc2.Codec.ZSTD, "clevel": 5, "filters": [blosc2.Filter.SHUFFLE], "nthreads": 1}
        encode = lambda a: blosc2.compress2(a.tobytes(), typesize=a.itemsize, **options)
        return encode, lambda wire, like: np.frombuffer(blosc2.decompress2(wire, nthreads=1), like.dtype)


def pco():
    pcodec = library("pcodec")
    if pcodec:
        config = pcodec.ChunkConfig(compression_level=8, enable_8_bit=True)
        simple = pcodec.standalone
        encode = lambda a: simple.simple_compress(a.reshape(-1), config)
        return encode, lambda wire, like: simple.simple_decompress(wire)


def four(a):
    """At most four axes, as fpzip and zfp have them."""
    return a.reshape((-1,) + a.shape[-3:]) if a.ndim > 4 else a


def fpzip():
    fpzip = library("fpzip")
    if fpzip:
        encode = lambda a: fpzip.compress(four(a), precision=0, order="C")
        return encode, lambda wire, like: fpzip.decompress(wire, order="C")


def zfp(bound=None):
    zfpy = library("zfpy")
    if zfpy:
        options = {} if bound is None else {"tolerance": bound}
        return lambda a: zfpy.compress_numpy(four(a), **options), lambda wire, like: zfpy.decompress_numpy(wire)


def sz3(bound):
    pysz = library("pysz")
    if pysz:

        def encode(a):
            # Axes of length 1 only hinder its predictors.
            a = a.reshape([d for d in a.shape if d != 1] or [1])
            config = pysz.szConfig(a.shape)
            config.errorBoundMode = pysz.szErrorBoundMode.ABS
            config.absErrorBound = bound
            return pysz.sz.compress(a, config)[0]

        def decode(wire, like):
            shape = tuple(d for d in like.shape if d != 1) or (1,)
            return pysz.sz.decompress(wire, like.dtype, shape)[0]

        return encode, decode


def sperr(bound):
    """No wheel is known; the name stands for the row that is left out."""
    return None


LOSSLESS = {"zstd 3": zstd, "xz 6": xz, "Blosc2 zstd 5, shuffle": blosc2, "pco 8": pco, "fpzip": fpzip, "zfp": zfp}
LOSSY = {"SZ3": sz3, "zfp": zfp, "SPERR": sperr}


def chunks(a, length):
    """Rows of the slowest axis, as in a file of chunks."""
    if a.ndim == 0 or a.size == 0:
        return [a]
    rows = max(1, length // max(1, a[:1].nbytes))
    return [np.ascontiguousarray(a[i : i + rows]) for i in range(0, len(a), rows)]


def filled(a, keep):
    """Fills replaced by the mean: what users of SZ3 do by hand, at the cost of a mask not counted here."""
    b = a.copy()
    b[keep] = a[~keep].mean(dtype=np.float64) if (~keep).any() else 0
    return b


def measure(peer, pieces, rounds, bound, keeps):
    encode, decode = peer
    row = {"raw": 0, "wire": 0, "encode_s": [], "decode_s": [], "violations": 0, "worst": 0.0}
    for piece, keep in zip(pieces, keeps):
        encode_s, decode_s = [], []
        for _ in range(rounds):
            begun = time.perf_counter()
            wire = encode(piece)
            encoded = time.perf_counter()
            decoded = decode(wire, piece)
            decode_s.append(time.perf_counter() - encoded)
            encode_s.append(encoded - begun)
        row["encode_s"].append(encode_s)
        row["decode_s"].append(decode_s)
        row["raw"] += piece.nbytes
        row["wire"] += min(memoryview(wire).nbytes, piece.nbytes + 16)
        decoded = np.asarray(decoded).reshape(piece.shape)
        same = decoded.view(f"u{piece.itemsize}") == piece.view(f"u{piece.itemsize}")
        if bound is None:
            row["violations"] += int((~same).sum())
            continue
        with np.errstate(all="ignore"):
            error = np.abs(decoded.astype(np.float64) - piece.astype(np.float64))
        good = np.where(keep, same, error <= bound)
        row["violations"] += int((~good).sum())
        finite = error[~keep & np.isfinite(error)]
        row["worst"] = max(row["worst"], float(finite.max(initial=0.0)))
    return row


def main():
    path, length, rounds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    options = dict(zip(sys.argv[4::2], sys.argv[5::2]))
    bound = float(options["--abs"]) if "--abs" in options else None
    fills = [float(v) for v in options.get("--fill", "").split(",") if v]
    only = options.get("--only", "").split(",")
    array = np.load(path, mmap_mode="r")
    array = array.astype(array.dtype.newbyteorder("="))
    pieces = chunks(array, length)
    is_float = array.dtype.kind == "f"
    for name, start in (LOSSLESS if bound is None else LOSSY).items():
        if only != [""] and name.split()[0] not in only:
            continue
        if not is_float and (name in ("fpzip", "zfp") or bound is not None):
            continue
        try:
            peer = start() if bound is None else start(bound)
            if not peer:
                continue
            keep = [np.zeros(p.shape, bool) for p in pieces]
            if is_float:
                keep = [~np.isfinite(p) | np.isin(p, np.array(fills, p.dtype)) for p in pieces]
            print(json.dumps({"peer": name, **measure(peer, pieces, rounds, bound, keep)}), flush=True)
            if bound is not None and any(k.any() for k in keep):
                mean = [filled(p, k) for p, k in zip(pieces, keep)]
                none = [np.zeros(p.shape, bool) for p in pieces]
                print(json.dumps({"peer": f"{name} filled", **measure(peer, mean, rounds, bound, none)}), flush=True)
        except Exception as error:
            print(json.dumps({"peer": name, "error": str(error)[:200]}), flush=True)


main()
