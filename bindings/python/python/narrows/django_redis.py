"""A compressor for the cache of ``django-redis``::

    CACHES = {"default": {
        "BACKEND": "django_redis.cache.RedisCache",
        "LOCATION": "redis://127.0.0.1:6379/1",
        "OPTIONS": {
            "COMPRESSOR": "narrows.django_redis.NarrowsCompressor",
            "COMPRESSOR_OPTIONS": {"level": 6},
        },
    }}
"""

from __future__ import annotations

from typing import Any

from django_redis.compressors.base import BaseCompressor

from ._narrows import Values

__all__ = ["NarrowsCompressor"]


class NarrowsCompressor(BaseCompressor):  # type: ignore[misc]
    """Encodes what the serializer has made. ``COMPRESSOR_OPTIONS`` are the arguments of ``Values``.

    Values that were stored without a compressor are read as they are. A damaged one raises
    ``narrows.CorruptError``, which django-redis passes on.
    """

    def __init__(self, options: dict[str, Any]) -> None:
        super().__init__(options)
        self._values = Values(**options.get("COMPRESSOR_OPTIONS", {}))

    def compress(self, value: bytes) -> bytes:
        return self._values.encode(value)

    def decompress(self, value: bytes) -> bytes:
        return self._values.decode(value)
