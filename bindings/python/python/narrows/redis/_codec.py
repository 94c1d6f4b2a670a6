"""Encodes the arguments of commands, and decodes replies, for clients of both kinds."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

from redis.client import EMPTY_RESPONSE, NEVER_DECODE

from .._errors import NarrowsError
from .._narrows import Values
from ._commands import Args, check, reading, ruled

# Under this name a command's arguments reach the function that decodes its reply.
_ARGS = "narrows_args"
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

    def _callback(self, reads: Callable[[Codec, Any, Args], Any], before: Any) -> Callable[..., Any]:
        def decode(reply: Any, **options: Any) -> Any:
            args = options.pop(_ARGS, None)
            if args is not None:
                options.pop(NEVER_DECODE, None)
            try:
                if before is not None:
                    reply = before(reply, **options)
                return reply if args is None else reads(self, reply, args)
            except (NarrowsError, UnicodeDecodeError) as error:
                return Failure(error)

        return decode

    def value(self, stored: Any, key: Any, field: Any = None) -> Any:
        if not isinstance(stored, bytes):
            return stored
        try:
            value = self.values.decode(stored)
        except NarrowsError as error:
            place = f"the key {_shown(key)}"
            if field is not None:
                place = f"the field {_shown(field)} of {place}"
            told = copy.copy(error)
            told.args = (f"{place}: {error}",)
            raise told from None
        return value.decode(self._encoding, self._errors) if self.is_text else value

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
