"""``narrows.redis`` for asyncio: ``Redis`` and ``Pipeline`` of ``redis.asyncio`` whose values are encoded."""

from __future__ import annotations

from typing import Any

import redis
import redis.asyncio
import redis.asyncio.client
from redis.client import NEVER_DECODE

from .._narrows import Values
from ._codec import Codec, joined, raised, settled

__all__ = ["Pipeline", "Redis", "Values"]


class Redis(redis.asyncio.Redis):
    """``redis.asyncio.Redis``, with values encoded by ``values``; the rest as for ``narrows.redis.Redis``."""

    def __init__(self, *args: Any, values: Values | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._narrows = Codec(self, values or Values())

    @classmethod
    def from_url(cls, url: str, *args: Any, values: Values | None = None, **kwargs: Any) -> Redis:
        return _with(super().from_url(url, *args, **kwargs), values)

    @classmethod
    def from_pool(cls, connection_pool: redis.asyncio.ConnectionPool, *, values: Values | None = None) -> Redis:
        return _with(super().from_pool(connection_pool), values)

    @property
    def values(self) -> Values:
        """What encodes and decodes. May be replaced at any time, for pipelines too."""
        return self._narrows.values

    @values.setter
    def values(self, values: Values) -> None:
        self._narrows.values = values

    @property
    def plain(self) -> redis.asyncio.Redis:
        """A client of the same server that reads and writes stored bytes."""
        return redis.asyncio.Redis(connection_pool=self.connection_pool)

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        sent = self._narrows.prepare(args, options)
        return raised(await super().execute_command(*sent, **options))  # type: ignore[no-untyped-call]

    def pipeline(self, transaction: bool = True, shard_hint: Any = None) -> Pipeline:
        return Pipeline(self._narrows, self.connection_pool, self.response_callbacks, transaction, shard_hint)

    def client(self) -> Redis:
        return _with(super().client(), self.values)

    def lock(self, *args: Any, **kwargs: Any) -> Any:
        # A script compares the stored token.
        return self.plain.lock(*args, **kwargs)


def _with(client: Any, values: Values | None) -> Redis:
    assert isinstance(client, Redis)
    if values is not None:
        client.values = values
    return client


class Pipeline(redis.asyncio.client.Pipeline):
    """As ``redis.asyncio.client.Pipeline``; made by ``Redis.pipeline``."""

    def __init__(self, codec: Codec, *args: Any) -> None:
        self._narrows = codec
        self._asked: list[Any] = []
        super().__init__(*args)

    def execute_command(self, *args: Any, **options: Any) -> Any:
        answer = super().execute_command(*self._narrows.prepare(args, options), **options)
        return self if answer is self else self._at_once(answer)

    @staticmethod
    async def _at_once(answer: Any) -> Any:
        return raised(await answer)

    async def execute(self, raise_on_error: bool = True) -> list[Any]:
        return settled(await super().execute(raise_on_error), raise_on_error)

    async def _execute_transaction(self, connection: Any, commands: Any, raise_on_error: bool) -> Any:
        self._asked = commands
        joined(commands)
        return await super()._execute_transaction(connection, commands, raise_on_error)

    async def _execute_pipeline(self, connection: Any, commands: Any, raise_on_error: bool) -> Any:
        joined(commands)
        return await super()._execute_pipeline(connection, commands, raise_on_error)

    async def parse_response(self, connection: Any, command_name: Any, **options: Any) -> Any:
        # "_": what a transaction answers, among it values that are no text.
        if command_name != "_" or not self._narrows.is_text:
            return await super().parse_response(connection, command_name, **options)
        reply = await super().parse_response(connection, command_name, **{**options, NEVER_DECODE: []})
        return self._narrows.of_transaction(reply, self._asked)
