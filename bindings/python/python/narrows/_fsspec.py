"""Tells fsspec of the compression ``narrows`` and the extension ``nrw``, whichever is imported first.
fsspec has no entry point for it, and is not imported for programs that do not use it.
"""

from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from ._file import open

_MODULE = "fsspec.compression"


def register() -> None:
    module = sys.modules.get(_MODULE)
    if module is None:
        sys.meta_path.insert(0, _BehindFsspec())
    else:
        _tell(module)


def _tell(module: ModuleType) -> None:
    add, known = getattr(module, "register_compression", None), getattr(module, "compr", {})
    # Somebody may have registered their own.
    if add is not None and "narrows" not in known:
        add("narrows", open, "nrw", force=True)


class _BehindFsspec(MetaPathFinder):
    """Tells it when it is imported after narrows."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if fullname != _MODULE:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(fullname)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def run_and_tell(module: ModuleType) -> None:
                run(module)
                _tell(module)

            # A loader of its own for each spec; the rest of it stays as it is.
            spec.loader.exec_module = run_and_tell  # type: ignore[method-assign]
        return spec
