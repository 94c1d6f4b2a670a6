"""What a person reads who imports a part of this module whose library is not there."""

from __future__ import annotations


def missing(error: ModuleNotFoundError, part: str, extra: str, requirement: str) -> ModuleNotFoundError:
    """The error to raise for that of an ``import``: that one itself if another module is missing.

    The requirement is the one of the extra in ``pyproject.toml``.
    """
    library = requirement.partition(">")[0]
    # pyzmq has the module zmq.
    if error.name != library.removeprefix("py"):
        return error
    text = f"{part} needs {library}: pip install '{requirement}', or install narrows with its extra [{extra}]"
    return ModuleNotFoundError(text, name=error.name)
