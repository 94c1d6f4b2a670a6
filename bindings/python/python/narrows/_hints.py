"""Hints: how much the values of an array may change, and how much time smaller chunks may cost.

One place for all that take them: ``narrows.array``, ``narrows.zarr``, ``narrows.hdf5``. They are read
here, checked, and written to the small dictionary that a store keeps.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Literal, SupportsFloat, SupportsIndex, TypeAlias

from ._errors import MisuseError

if TYPE_CHECKING:
    from ._narrows import ArrayEncoder

Number: TypeAlias = SupportsFloat | SupportsIndex
Share: TypeAlias = Number | str
Range: TypeAlias = tuple[Number | None, Number | None]
Mode: TypeAlias = Literal["fast", "balanced", "archive"]

MODES = ("fast", "balanced", "archive")
# Hints that are shares.
SHARES = ("rel", "range_rel")
_UNITS = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "ki": 2.0**10, "mi": 2.0**20, "gi": 2.0**30}
_RATE = re.compile(r"([0-9.]+)\s*([kmg]i?)?b?(/s)?", re.IGNORECASE)
# Values beside a bound that a store may name: more make each chunk slow.
_FILLS_MAX = 256
# The fill value of NetCDF's library, and that of CF's tables as f4 and as f8: arrays have them where nobody
# states a fill value. The HDF5 filter keeps the same.
_MISSING = (9.969209968386869e36, 100000002004087734272.0, 1e20)


@dataclass(frozen=True)
class Hints:
    """Hints that are valid. Nothing stated, or an error of 0, means exact; all that are stated hold at
    once.

    - ``abs``: abs(x - y) <= abs.
    - ``range_rel``: abs(x - y) <= range_rel times the range of the values of each chunk.
    - ``rel``, ``floor``: abs(x - y) <= max(rel abs(x), floor).
    - ``digits``: significant decimal digits: abs(x - y) <= 0.5 10^(1-digits) abs(x).
    - ``bits``: significant bits behind the leading one: abs(x - y) <= 2^-(bits+1) abs(x).
    - ``fill``: values that stay as they are. Not-a-numbers with their bits, infinities and -0.0 always
      do.
    - ``exact``: ranges of values, both ends included, that stay as they are.
    - ``mode``, ``encode_rate``: what matters; bytes per second that one core must encode at least.
    - ``whole_chunks``: chunks are written whole and once. Without it what was rounded once stays as it is
      when a part of its chunk is written later, which costs some of the ratio.
    """

    abs: float | None = None
    range_rel: float | None = None
    rel: float | None = None
    floor: float | None = None
    digits: int | None = None
    bits: int | None = None
    fill: tuple[float, ...] = ()
    exact: tuple[tuple[float, float], ...] = ()
    mode: str = "balanced"
    encode_rate: float | None = None
    whole_chunks: bool = False

    @classmethod
    def of(
        cls,
        *,
        abs: Number | None = None,
        rel: Share | None = None,
        floor: Number | None = None,
        digits: int | None = None,
        bits: int | None = None,
        range_rel: Share | None = None,
        fill: Number | Iterable[Number] | None = None,
        exact: Range | Iterable[Range] | None = None,
        mode: str = "balanced",
        encode_rate: Number | str | None = None,
        whole_chunks: bool = False,
    ) -> Hints:
        """Reads hints as a caller writes them. ``MisuseError`` or ``TypeError`` if one has no sense."""
        if mode not in MODES:
            raise MisuseError(f"no mode is called {mode!r}; there are fast, balanced and archive")
        if floor is not None and rel is None:
            raise MisuseError("floor= is the least error that rel= allows; state rel= too, or abs=")
        hints = cls(
            abs=_error("abs", abs),
            range_rel=_error("range_rel", _share("range_rel", range_rel)),
            rel=_error("rel", _share("rel", rel)),
            floor=_error("floor", floor),
            digits=_count("digits", digits, 1, 324),
            bits=_count("bits", bits, 0, 1074),
            fill=_fills(fill),
            exact=_ranges(exact),
            mode=mode,
            encode_rate=read_rate(encode_rate),
            whole_chunks=_flag("whole_chunks", whole_chunks),
        )
        for name in SHARES:
            share = getattr(hints, name)
            if share is not None and share >= 1:
                raise MisuseError(f"{name}={share} allows 0 for every value; a share is below 1, or 100 %")
        return hints

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Hints:
        """Reads what ``to_dict`` wrote; a name that is unknown is refused."""
        known = {field.name for field in fields(cls)}
        if unknown := sorted(set(stored) - known):
            raise MisuseError(f"hints called {', '.join(unknown)} are unknown; upgrade narrows")
        # Arrays that were made with such shares are still to be read.
        shares = {name: stored.get(name) for name in SHARES}
        large: dict[str, Any] = {n: v for n, v in shares.items() if isinstance(v, (int, float)) and v >= 1}
        return replace(cls.of(**{**stored, **dict.fromkeys(large, 0.5)}), **large)

    def to_dict(self) -> dict[str, Any]:
        """What is stated, as values of JSON."""
        told: dict[str, Any] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if value == field.default:
                continue
            if field.name == "fill":
                value = list(value)
            elif field.name == "exact":
                value = [[None if math.isinf(end) else end for end in pair] for pair in value]
            told[field.name] = value
        return told

    @property
    def is_lossless(self) -> bool:
        stated = (self.abs, self.range_rel, self.rel, self.digits, self.bits)
        return (
            all(hint is None for hint in stated)
            or self.abs == 0
            or self.range_rel == 0
            or (self.rel == 0 and not self.floor)
        )

    def exactly(self) -> Hints:
        """The same without a bound."""
        return Hints(mode=self.mode, encode_rate=self.encode_rate)

    def keeping(self, *values: Number) -> Hints:
        """The same, and these values stay as they are too."""
        return replace(self, fill=_fills((*self.fill, *values)))

    def keeping_missing(self, dtype: Any) -> Hints:
        """The same, and values stay by which floats are known to miss something, if there is a bound."""
        missing = [value for value in _MISSING if value not in self.fill]
        if self.is_lossless or dtype.kind not in "fc" or len(self.fill) + len(missing) > _FILLS_MAX:
            return self
        return self.keeping(*missing)

    def encoder(self) -> ArrayEncoder:
        """An encoder without memory."""
        from ._narrows import ArrayEncoder

        return ArrayEncoder(
            abs=self.abs,
            range_rel=self.range_rel,
            rel=self.rel,
            floor=self.floor,
            digits=self.digits,
            bits=self.bits,
            fills=list(self.fill),
            exact=list(self.exact),
            mode=self.mode,
            encode_rate=self.encode_rate,
            rewritable=not self.whole_chunks,
        )


def _number(name: str, value: Any) -> float:
    if isinstance(value, (str, bytes, bool)):
        raise TypeError(f"{name}= is a number, not {value!r}")
    try:
        return float(value)
    except OverflowError:
        raise MisuseError(f"{name}={value} is beyond the numbers of 64 bits") from None
    except (TypeError, ValueError):
        raise TypeError(f"{name}= is a number, not {value!r}") from None


def _error(name: str, value: Any) -> float | None:
    if value is None:
        return None
    number = _number(name, value)
    if not math.isfinite(number) or number < 0:
        raise MisuseError(f"{name}={value} is no bound: it is a finite number, 0 or more; 0 means exact")
    # Without the sign of -0.0.
    return number + 0.0


def _share(name: str, value: Any) -> Any:
    """``"1%"`` as .01."""
    if isinstance(value, str):
        try:
            number, sign, rest = value.partition("%")
            if not rest.strip():
                return float(number) / (100 if sign else 1)
        except ValueError:
            pass
        raise MisuseError(f"{name}={value!r} is no share; write 0.01 or '1%'")
    return value


def _count(name: str, value: Any, low: int, high: int) -> int | None:
    if value is None:
        return None
    try:
        count = value.__index__()
    except (AttributeError, TypeError):
        raise TypeError(f"{name}= is a whole number, not {value!r}") from None
    if isinstance(value, bool) or not low <= count <= high:
        raise MisuseError(f"{name}={value} is not a whole number from {low} to {high}")
    return int(count)


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{name}= is True or False, not {value!r}")
    return value


def _fills(values: Any) -> tuple[float, ...]:
    if values is None:
        return ()
    if isinstance(values, (str, bytes)):
        raise TypeError(f"fill= is a number or several, not {values!r}")
    try:
        each = list(values)
    except TypeError:
        each = [values]
    # What is not finite stays as it is anyway, and JSON has no name for it.
    numbers = dict.fromkeys(number for value in each if math.isfinite(number := _number("fill", value)))
    if len(numbers) > _FILLS_MAX:
        raise MisuseError(f"fill= has {len(numbers)} values, more than {_FILLS_MAX}; state a range by exact=")
    return tuple(numbers)


def _ranges(ranges: Any) -> tuple[tuple[float, float], ...]:
    if ranges is None:
        return ()
    shape = "exact= is a range (low, high), where None is no end, or several of them"
    try:
        each = [tuple(pair) if isinstance(pair, (list, tuple)) else pair for pair in ranges]
    except TypeError:
        raise TypeError(f"{shape}; not {ranges!r}") from None
    if len(each) == 2 and not any(isinstance(pair, tuple) for pair in each):
        each = [tuple(each)]
    if len(each) > _FILLS_MAX:
        raise MisuseError(f"exact= has {len(each)} ranges, more than {_FILLS_MAX}")
    found = []
    for pair in each:
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise TypeError(f"{shape}; not {pair!r}")
        low = -math.inf if pair[0] is None else _number("exact", pair[0])
        high = math.inf if pair[1] is None else _number("exact", pair[1])
        if not low <= high:
            raise MisuseError(f"exact= has the range {pair}, whose low end is not below its high one")
        found.append((low, high))
    return tuple(found)


def read_rate(value: Any) -> float | None:
    """A rate in bytes per second, from a number or a text such as ``"200MB/s"``."""
    if value is None:
        return None
    if isinstance(value, str):
        match = _RATE.fullmatch(value.strip())
        try:
            if match is None:
                raise ValueError
            value = float(match[1]) * _UNITS[(match[2] or "").lower()]
        except ValueError:
            raise MisuseError(f"encode_rate={value!r} is no rate; write 200e6 or '200MB/s'") from None
    number = _number("encode_rate", value)
    if not math.isfinite(number) or number <= 0:
        raise MisuseError(f"encode_rate={value} is no rate: it is in bytes per second, above 0")
    return number


def pass_on(for_xarray: Any, for_zarr: Any, fill: Any) -> tuple[dict[str, Any], Any]:
    """The fill values that xarray and zarr are to get, by their names, and all that stay exact."""
    named = {"_FillValue": for_xarray, "fill_value": for_zarr}
    passed = {name: value for name, value in named.items() if value is not None}
    if not passed:
        return passed, fill
    return passed, (*_fills(fill), *(half for value in passed.values() for half in halves(value)))


def halves(value: Any) -> list[Any]:
    """Those of a complex number; others are one."""
    is_complex = isinstance(value, complex) or getattr(getattr(value, "dtype", None), "kind", "") == "c"
    return [value.real, value.imag] if is_complex else [value]
