"""Encodes the arguments of commands, and decodes replies, for clients of both kinds."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

from redis.client import EMPTY_RESPONSE, NEVER_DECODE

from .._errors import CorruptError, LimitError, NarrowsError
from .._narrows import Values
from ._commands import Args, Decoding, check, reading, ruled

# Under this name a command's arguments reach the function that decodes its reply, ...
_ARGS = "narrows_args"
# ... and under this one the bytes of the replies that it belongs to.
_TOTAL = "narrows_total"
# Decoded bytes for a stored one, in all values of a reply that has more than `max_length`: lists of short
# values seldom shrink to a tenth, while 14 hostile bytes decode to 64 MiB.
_RATIO_MAX = 100
# Shorter values are stored as they are by every client, whatever its `Values`, but for those that begin
# as encoded ones.
_LENGTH_MIN_MIN = 48
_MAGIC = b"NRV\x1a"


class Failure:
    """An error in the place of a reply. Raised at once it would leave the replies of a pipeline's other
    commands unread.
    """

    __slots__ = ("error",)

    def __init__(self, error: Exception) -> None:
        self.error = error


class Total:
    """Bytes of all values of one reply or of one pipeline, which are in memory at once."""

    __slots__ = ("raw", "stored")

    def __init__(self) -> None:
        self.stored = self.raw = 0

    def decode(self, values: Values, stored: bytes) -> bytes:
        self.stored += len(stored)
        most = values.max_length + _RATIO_MAX * self.stored
        if self.raw > most:
            raise LimitError(
                f"the values of the reply have more than {most} bytes; ask for fewer at a time, or raise max_length"
            )
        try:
            value = values.decode(stored)
        except CorruptError:
            # It took the time of a whole one.
            self.raw += min(_length_of(stored), values.max_length)
            raise
        self.raw += len(value)
        return value


class Codec:
    """Of one client and its pipelines."""

    def __init__(self, client: Any, values: Values) -> None:
        encoder = client.get_encoder()
        self.values = values
        self.is_text: bool = encoder.decode_responses
        self._encoding, self._errors = encoder.encoding, encoder.encoding_errors
        for name, reads in reading():
            client.set_response_callback(name, self._callback(reads, client.response_callbacks.get(name)))

    # --- commands ---

    def prepare(self, args: tuple[Any, ...], options: dict[str, Any]) -> tuple[Any, ...]:
        """The arguments to send; adds to the options what the reply needs."""
        found = ruled(args) if args else None
        if found is None:
            return args
        args, rule = found
        if rule.refuses is not None and (rule.compares is None or not self._is_as_it_is(args, rule.compares)):
            check(rule, args)
        # SET returns a value only if it is asked to.
        if rule.reads is not None and (args[0] != "SET" or options.get("get")):
            options[_ARGS] = args
            if self.is_text:
                options[NEVER_DECODE] = []
        if rule.writes is None:
            return args
        sent = list(args)
        for place in rule.writes(args):
            if place < len(sent):
                sent[place] = self._encoded(sent[place])
        return tuple(sent)

    def _is_as_it_is(self, args: Args, place: int) -> bool:
        """Whether all clients store the value there as it is."""
        value = args[place] if place < len(args) else None
        if isinstance(value, (int, float)):
            value = str(value)
        if isinstance(value, str):
            value = value.encode(self._encoding, self._errors)
        if not isinstance(value, (bytes, memoryview)):
            return False
        stored = bytes(value)
        return len(stored) < _LENGTH_MIN_MIN and not stored.startswith(_MAGIC)

    def _encoded(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.values.encode(value.encode(self._encoding, self._errors))
        # Numbers stay numbers; redis refuses everything else.
        return self.values.encode(value) if isinstance(value, (bytes, memoryview)) else value

    # --- replies ---

    def _callback(self, reads: Callable[[Decoding, Any, Args], Any], before: Any) -> Callable[..., Any]:
        def decode(reply: Any, **options: Any) -> Any:
            args = options.pop(_ARGS, None)
            total = options.pop(_TOTAL, None)
            if args is not None:
                options.pop(NEVER_DECODE, None)
            try:
                if before is not None:
                    reply = before(reply, **options)
                return reply if args is None else reads(_Reply(self, total or Total()), reply, args)
            except Exception as error:
                if isinstance(error, NarrowsError):
                    # Of what was popped this is all that is left.
                    error.stored = reply
                return Failure(error)

        return decode

    def text(self, other: Any) -> Any:
        """What redis returns for everything that is no value."""
        if not self.is_text:
            return other
        if isinstance(other, bytes):
            return other.decode(self._encoding, self._errors)
        if isinstance(other, dict):
            return {self.text(key): self.text(value) for key, value in other.items()}
        if isinstance(other, (list, tuple, set)):
            return type(other)(map(self.text, other))
        return other

    def of_transaction(self, reply: Any, commands: Iterable[tuple[Args, dict[str, Any]]]) -> Any:
        """The replies of a transaction, which was read as bytes: those with values stay so."""
        if not isinstance(reply, list):
            return self.text(reply)
        asked = [options for _, options in commands if EMPTY_RESPONSE not in options]
        if len(asked) != len(reply):
            return reply
        return [one if NEVER_DECODE in options else self.text(one) for one, options in zip(reply, asked, strict=True)]


class _Reply:
    """Decodes what one command was answered."""

    __slots__ = ("_codec", "_total", "text")

    def __init__(self, codec: Codec, total: Total) -> None:
        self._codec, self._total, self.text = codec, total, codec.text

    def value(self, stored: Any, key: Any, field: Any = None) -> Any:
        if not isinstance(stored, bytes):
            return stored
        codec = self._codec
        try:
            value = self._total.decode(codec.values, stored)
        except NarrowsError as error:
            place = f"the key {_shown(key)}"
            if field is not None:
                place = f"the field {_shown(field)} of {place}"
            told = copy.copy(error)
            told.args = (f"{place}: {error}",)
            raise told from None
        return codec.text(value)


def joined(commands: Iterable[tuple[Args, dict[str, Any]]]) -> None:
    """Of the commands of a pipeline: all their replies are in memory at once."""
    total = Total()
    for _, options in commands:
        if _ARGS in options:
            options[_TOTAL] = total


def _length_of(stored: bytes) -> int:
    """The length in the header of a value."""
    length = 0
    for i, byte in enumerate(stored[5:10]):
        length |= (byte & 0x7F) << 7 * i
        if byte < 0x80:
            break
    return length


def raised(reply: Any) -> Any:
    if type(reply) is Failure:
        raise reply.error
    return reply


def settled(replies: list[Any], raise_on_error: bool) -> list[Any]:
    """The replies of a pipeline: the first failure is raised, or all are in their places, as those of the
    server.
    """
    if raise_on_error:
        for reply in replies:
            raised(reply)
    return [reply.error if type(reply) is Failure else reply for reply in replies]


def _shown(name: Any) -> str:
    return repr(name.decode("utf-8", "backslashreplace") if isinstance(name, bytes) else name)
