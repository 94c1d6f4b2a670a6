"""Where values stand in the commands of Redis, and in what it answers.

Commands that are not named here pass as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol

from .._errors import MisuseError

Args = Sequence[Any]


class Decoding(Protocol):
    """What a reply is decoded with: values, and everything else."""

    def value(self, stored: Any, key: Any, field: Any = None) -> Any: ...
    def text(self, other: Any) -> Any: ...


class Rule(NamedTuple):
    """Of one command."""

    # Places of values among the arguments, of which the first is the command's name.
    writes: Callable[[Args], Iterable[int]] | None = None
    # Makes the reply that the application gets.
    reads: Callable[[Decoding, Any, Args], Any] | None = None
    # Why it is refused, or None for these arguments.
    refuses: Callable[[Args], str | None] | None = None
    # Place of the argument that the server compares with values: with one that is stored as it is by
    # every client, the command is not refused.
    compares: int | None = None


def ruled(args: tuple[Any, ...]) -> tuple[tuple[Any, ...], Rule] | None:
    """The rule of a command, and its arguments: the first is the name by which redis finds what it does
    with replies.
    """
    name = args[0]
    if type(name) is str and (rule := _RULES.get(name)) is not None:
        return args, rule
    # redis splits the first argument in this way.
    if isinstance(name, str):
        words = name.encode().split()
    elif isinstance(name, (bytes, bytearray)) and b" " in name:
        words = bytes(name).split()
    else:
        words = [bytes(name)] if isinstance(name, (bytes, bytearray, memoryview)) else []
    if not words:
        return None
    name = words[0].decode("latin-1").upper()
    rule = _RULES.get(name)
    return None if rule is None else ((name, *words[1:], *args[1:]), rule)


def reading() -> Iterable[tuple[str, Callable[[Decoding, Any, Args], Any]]]:
    """All commands whose replies have values."""
    return ((name, rule.reads) for name, rule in _RULES.items() if rule.reads is not None)


def check(rule: Rule, args: Args) -> None:
    reason = rule.refuses(args) if rule.refuses is not None else None
    if reason is not None:
        raise MisuseError(
            f"{args[0]} {reason}, which may be an encoded value; use it by `client.plain`, "
            "for keys to which only `plain` writes"
        )


# --- places of values ---


def _at(place: int) -> Callable[[Args], Iterable[int]]:
    return lambda args: (place,)


def _from(first: int, step: int = 1) -> Callable[[Args], Iterable[int]]:
    return lambda args: range(first, len(args), step)


def _pairs_counted(args: Args) -> Iterable[int]:
    """MSETEX number key value ... options"""
    return range(3, 2 + 2 * int(args[1]), 2)


def _fields_counted(args: Args) -> Iterable[int]:
    """HSETEX key options FIELDS number field value ..."""
    at = next((i for i, arg in enumerate(args) if i > 1 and _word(arg) == "FIELDS"), None)
    if at is None or at + 1 >= len(args):
        return ()
    return range(at + 3, at + 2 + 2 * int(args[at + 1]), 2)


def _word(arg: Any) -> str:
    if isinstance(arg, bytes):
        arg = arg.decode("latin-1")
    return arg.upper() if isinstance(arg, str) else ""


# --- replies ---


def _one(codec: Decoding, reply: Any, args: Args) -> Any:
    return codec.value(reply, args[1])


def _one_or_list(codec: Decoding, reply: Any, args: Args) -> Any:
    if isinstance(reply, list):
        return [codec.value(value, args[1]) for value in reply]
    return codec.value(reply, args[1])


def _of_keys(codec: Decoding, reply: Any, args: Args) -> Any:
    return [codec.value(value, key) for value, key in zip(reply, args[1:], strict=True)]


def _of_field(codec: Decoding, reply: Any, args: Args) -> Any:
    return codec.value(reply, args[1], args[2])


def _of_fields(codec: Decoding, reply: Any, args: Args) -> Any:
    return reply if reply is None else [codec.value(v, args[1], f) for v, f in zip(reply, args[2:], strict=True)]


def _of_fields_counted(codec: Decoding, reply: Any, args: Args) -> Any:
    """HGETDEL and HGETEX: the fields are the last arguments."""
    if not isinstance(reply, list):
        return reply
    return [codec.value(v, args[1], f) for v, f in zip(reply, args[len(args) - len(reply) :], strict=True)]


def _hash(codec: Decoding, reply: Any, args: Args) -> Any:
    if isinstance(reply, dict):
        return {codec.text(f): codec.value(v, args[1], f) for f, v in reply.items()}
    return reply


def _scanned(codec: Decoding, reply: Any, args: Args) -> Any:
    cursor, found = reply
    # Without values these are fields.
    return cursor, _hash(codec, found, args) if isinstance(found, dict) else codec.text(found)


def _random_fields(codec: Decoding, reply: Any, args: Args) -> Any:
    if len(args) < 4:
        return codec.text(reply)
    if reply and isinstance(reply[0], list):
        return [[codec.text(f), codec.value(v, args[1], f)] for f, v in reply]
    return [codec.value(x, args[1]) if i % 2 else codec.text(x) for i, x in enumerate(reply)]


def _popped(codec: Decoding, reply: Any, args: Args) -> Any:
    """BLPOP and BRPOP: key and value."""
    if not reply:
        return reply
    return type(reply)((codec.text(reply[0]), codec.value(reply[1], reply[0])))


def _popped_several(codec: Decoding, reply: Any, args: Args) -> Any:
    """LMPOP and BLMPOP: key and values."""
    if not reply:
        return reply
    return [codec.text(reply[0]), [codec.value(v, reply[0]) for v in reply[1]]]


def _sorted(codec: Decoding, reply: Any, args: Args) -> Any:
    if isinstance(reply, (list, tuple)):
        return type(reply)(_sorted(codec, value, args) for value in reply)
    return codec.value(reply, args[1])


# --- what would read or change stored bytes ---


def _always(reason: str) -> Callable[[Args], str | None]:
    return lambda args: reason


def _set_if(args: Args) -> str | None:
    if len(args) > 3 and not {_word(arg) for arg in args[3:]}.isdisjoint(("IFEQ", "IFNE", "IFDEQ", "IFDNE")):
        return "with a condition compares the stored bytes"
    return None


def _sort_alpha(args: Args) -> str | None:
    return "with ALPHA compares the stored bytes" if "ALPHA" in map(_word, args[2:]) else None


_COMPARES = Rule(refuses=_always("compares with the stored bytes"))
_FINDS = "of a value of 48 bytes or more compares with the stored bytes"
_READS = Rule(refuses=_always("reads a part of the stored bytes"))
_COUNTS = Rule(refuses=_always("counts the stored bytes"))
_CHANGES = Rule(refuses=_always("changes the stored bytes"))

_RULES: dict[str, Rule] = {
    "SET": Rule(_at(2), _one, _set_if),
    "SETEX": Rule(_at(3)),
    "PSETEX": Rule(_at(3)),
    "SETNX": Rule(_at(2)),
    "GETSET": Rule(_at(2), _one),
    "MSET": Rule(_from(2, 2)),
    "MSETNX": Rule(_from(2, 2)),
    "MSETEX": Rule(_pairs_counted),
    "GET": Rule(reads=_one),
    "GETDEL": Rule(reads=_one),
    "GETEX": Rule(reads=_one),
    "MGET": Rule(reads=_of_keys),
    "HSET": Rule(_from(3, 2)),
    "HMSET": Rule(_from(3, 2)),
    "HSETNX": Rule(_at(3)),
    "HSETEX": Rule(_fields_counted),
    "HGET": Rule(reads=_of_field),
    "HMGET": Rule(reads=_of_fields),
    "HGETALL": Rule(reads=_hash),
    "HVALS": Rule(reads=_one_or_list),
    "HGETDEL": Rule(reads=_of_fields_counted),
    "HGETEX": Rule(reads=_of_fields_counted),
    "HRANDFIELD": Rule(reads=_random_fields),
    "HSCAN": Rule(reads=_scanned),
    "LPUSH": Rule(_from(2)),
    "RPUSH": Rule(_from(2)),
    "LPUSHX": Rule(_from(2)),
    "RPUSHX": Rule(_from(2)),
    "LSET": Rule(_at(3)),
    "LINDEX": Rule(reads=_one),
    "LRANGE": Rule(reads=_one_or_list),
    "LPOP": Rule(reads=_one_or_list),
    "RPOP": Rule(reads=_one_or_list),
    "BLPOP": Rule(reads=_popped),
    "BRPOP": Rule(reads=_popped),
    "LMPOP": Rule(reads=_popped_several),
    "BLMPOP": Rule(reads=_popped_several),
    "LMOVE": Rule(reads=_one),
    "BLMOVE": Rule(reads=_one),
    "LMOVEM": Rule(reads=_one_or_list),
    "BLMOVEM": Rule(reads=_one_or_list),
    "RPOPLPUSH": Rule(reads=_one),
    "BRPOPLPUSH": Rule(reads=_one),
    "SORT": Rule(reads=_sorted, refuses=_sort_alpha),
    "SORT_RO": Rule(reads=_sorted, refuses=_sort_alpha),
    "APPEND": _CHANGES,
    "SETRANGE": _CHANGES,
    "SETBIT": _CHANGES,
    "BITFIELD": _CHANGES,
    "BITOP": _READS,
    "GETRANGE": _READS,
    "SUBSTR": _READS,
    "GETBIT": _READS,
    "BITFIELD_RO": _READS,
    "BITCOUNT": _COUNTS,
    "BITPOS": _READS,
    "STRLEN": _COUNTS,
    "HSTRLEN": _COUNTS,
    "LCS": _COMPARES,
    "LPOS": Rule(refuses=_always(_FINDS), compares=2),
    "LREM": Rule(refuses=_always(_FINDS), compares=3),
    "LINSERT": Rule(_at(4), refuses=_always(_FINDS), compares=3),
    "DIGEST": _READS,
    "DELEX": _COMPARES,
}
