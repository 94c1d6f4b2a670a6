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

from django.utils.module_loading import import_string
from django_redis.compressors.base import BaseCompressor

from ._narrows import Values

__all__ = ["NarrowsCompressor"]


class NarrowsCompressor(BaseCompressor):  # type: ignore[misc]
    """Encodes what the serializer has made. ``COMPRESSOR_OPTIONS`` are the arguments of ``Values``, and
    ``before``: the compressor that the values have which are stored already, such as
    ``"django_redis.compressors.zlib.ZlibCompressor"``.

    Values that were stored without a compressor are read as they are. A damaged one raises
    ``narrows.CorruptError``, which django-redis passes on.
    """

    def __init__(self, options: dict[str, Any]) -> None:
        super().__init__(options)
        own = dict(options.get("COMPRESSOR_OPTIONS", {}))
        before = own.pop("before", None)
        self._before = import_string(before)(options) if before else None
        self._values = Values(**own)

    def compress(self, value: bytes) -> bytes:
        return self._values.encode(value)

    def decompress(self, value: bytes) -> bytes:
        raw = self._values.decode(value)
        if raw is not value or self._before is None:
            return raw
        # Raises the error by which django-redis knows that the value is as it was.
        decompressed: bytes = self._before.decompress(value)
        return decompressed
