"""A client of Redis whose values are encoded, for the real library ``redis``.

It is used as ``redis.Redis``, and finds what plain clients have written::

    client = narrows.redis.Redis(values=narrows.Values(dictionary=dictionary))
    client.set("user:1", document)
    client.get("user:1")

``narrows.redis.asyncio`` has the same for asyncio.
"""

from __future__ import annotations

from typing import Any

from .._extras import missing

try:
    import redis
except ModuleNotFoundError as error:
    raise missing(error, __name__, "redis", "redis>=6") from None
from redis.client import NEVER_DECODE

from .._narrows import Values
from ._codec import Codec, joined, raised, settled

__all__ = ["Pipeline", "Redis", "Values"]


class Redis(redis.Redis):
    """``redis.Redis``, with values encoded by ``values``, by default ``Values()``.

    Strings, elements of lists and fields of hashes are values. Keys, members of sets, streams,
    messages and what scripts do stay as they are. Commands that would work with the stored bytes of a
    value, such as ``STRLEN``, raise ``MisuseError``; ``plain`` has them.

    A value that is damaged raises ``narrows.CorruptError`` or another of the errors of
    ``Values.decode``, which names the key; in a pipeline it stands in the place of the reply. Its
    ``stored`` is the reply as it came: what a command such as ``LPOP`` took is not lost by one bad value.

    The values of a reply, and of all replies of a pipeline, are in memory at once: more bytes than
    ``max_length`` of ``values`` and a hundred times the stored ones raise ``narrows.LimitError``.
    """

    def __init__(self, *args: Any, values: Values | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._narrows = Codec(self, values or Values())

    @classmethod
    def from_url(cls, url: str, *, values: Values | None = None, **kwargs: Any) -> Redis:
        return _with(super().from_url(url, **kwargs), values)

    @classmethod
    def from_pool(cls, connection_pool: redis.ConnectionPool, *, values: Values | None = None) -> Redis:
        return _with(super().from_pool(connection_pool), values)

    @property
    def values(self) -> Values:
        """What encodes and decodes. May be replaced at any time, for pipelines too."""
        return self._narrows.values

    @values.setter
    def values(self, values: Values) -> None:
        self._narrows.values = values

    @property
    def plain(self) -> redis.Redis:
        """A client of the same server that reads and writes stored bytes."""
        return redis.Redis(connection_pool=self.connection_pool)

    def execute_command(self, *args: Any, **options: Any) -> Any:
        sent = self._narrows.prepare(args, options)
        return raised(super().execute_command(*sent, **options))  # type: ignore[no-untyped-call]

    def pipeline(self, transaction: bool = True, shard_hint: Any = None) -> Pipeline:
        return Pipeline(self._narrows, self.connection_pool, self.response_callbacks, transaction, shard_hint)

    def client(self) -> Redis:
        return _with(super().client(), self.values)  # type: ignore[no-untyped-call]

    def lock(self, *args: Any, **kwargs: Any) -> Any:
        # A script compares the stored token.
        return self.plain.lock(*args, **kwargs)


def _with(client: Any, values: Values | None) -> Redis:
    assert isinstance(client, Redis)
    if values is not None:
        client.values = values
    return client


class Pipeline(redis.client.Pipeline):
    """As ``redis.client.Pipeline``; made by ``Redis.pipeline``."""

    def __init__(self, codec: Codec, *args: Any) -> None:
        self._narrows = codec
        self._asked: list[Any] = []
        super().__init__(*args)

    def execute_command(self, *args: Any, **options: Any) -> Any:
        sent = self._narrows.prepare(args, options)
        return raised(super().execute_command(*sent, **options))  # type: ignore[no-untyped-call]

    def execute(self, raise_on_error: bool = True) -> list[Any]:
        return settled(super().execute(raise_on_error), raise_on_error)

    def _execute_transaction(self, connection: Any, commands: Any, raise_on_error: bool) -> Any:
        self._asked = commands
        joined(commands)
        return super()._execute_transaction(connection, commands, raise_on_error)

    def _execute_pipeline(self, connection: Any, commands: Any, raise_on_error: bool) -> Any:
        joined(commands)
        return super()._execute_pipeline(connection, commands, raise_on_error)  # type: ignore[no-untyped-call]

    def parse_response(self, connection: Any, command_name: Any, **options: Any) -> Any:
        # "_": what a transaction answers, among it values that are no text.
        if command_name != "_" or not self._narrows.is_text:
            return super().parse_response(connection, command_name, **options)  # type: ignore[no-untyped-call]
        reply = super().parse_response(connection, command_name, **{**options, NEVER_DECODE: []})  # type: ignore[no-untyped-call]
        return self._narrows.of_transaction(reply, self._asked)
