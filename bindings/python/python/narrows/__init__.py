"""Adaptive compression for data that crosses a network.

Streams: ``open`` and ``NarrowsFile`` work as ``gzip.open`` and ``gzip.GzipFile``; ``compress`` and
``decompress`` process whole streams in memory; ``wrap_socket`` makes each direction of a connection
a stream. Messages: ``MessageEnd`` is one end of a link with both directions; ``MessageEncoder`` and
``MessageDecoder`` are the two ends of one direction; ``TopicWriter`` and ``TopicReader`` are those
of a topic with many readers; ``train`` makes a ``Dictionary``. All errors are ``NarrowsError``,
with one class for each kind.
"""

from ._errors import (
    CorruptError,
    IoError,
    LimitError,
    MisuseError,
    NarrowsError,
    TruncatedError,
    UnsupportedError,
)
from ._file import NarrowsFile, open
from ._narrows import (
    DICTIONARY_MAX,
    DICTIONARY_MIN,
    MESSAGE_MAX,
    Adoption,
    Dictionary,
    MessageDecoder,
    MessageEncoder,
    MessageEnd,
    Stats,
    TopicReader,
    TopicWriter,
    Training,
    __version__,
    compress,
    decompress,
    train,
)
from ._socket import NarrowsSocket, wrap_socket

__all__ = [
    "DICTIONARY_MAX",
    "DICTIONARY_MIN",
    "MESSAGE_MAX",
    "Adoption",
    "CorruptError",
    "Dictionary",
    "IoError",
    "LimitError",
    "MessageDecoder",
    "MessageEncoder",
    "MessageEnd",
    "MisuseError",
    "NarrowsError",
    "NarrowsFile",
    "NarrowsSocket",
    "Stats",
    "TopicReader",
    "TopicWriter",
    "Training",
    "TruncatedError",
    "UnsupportedError",
    "__version__",
    "compress",
    "decompress",
    "open",
    "train",
    "wrap_socket",
]
