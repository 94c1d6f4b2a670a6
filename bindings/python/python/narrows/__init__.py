"""Data that crosses a narrow place, compressed as much as pays there.

Messages: ``MessageEnd`` is one end of a link with both its directions, ``MessageEncoder`` and ``MessageDecoder`` are the ends of one
direction; ``TopicWriter`` and ``TopicReader`` those of a topic with many readers; ``train`` makes a ``Dictionary``. Errors are ``NarrowsError``, one class for each kind.
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
    train,
)

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
    "Stats",
    "TopicReader",
    "TopicWriter",
    "Training",
    "TruncatedError",
    "UnsupportedError",
    "__version__",
    "train",
]
