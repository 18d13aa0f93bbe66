"""Texts of kernel files, kept as they are imported.

A kernel is compiled from functions in memory and, where `unroll` rewrites them, from their text;
its key is a digest of texts. A file that is edited in a running process must change neither.
"""

from __future__ import annotations

import linecache
import sys
from collections.abc import Iterable
from importlib.machinery import SOURCE_SUFFIXES, FileFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType


class _KeepingLoader(SourceFileLoader):
    """Loader that leaves the text of a module where `inspect` and `source_text` look for it."""

    def exec_module(self, module: ModuleType) -> None:
        text = self.get_source(self.name) or ""
        # Without a time of modification, the text is not read again.
        linecache.cache[self.path] = len(text), None, text.splitlines(keepends=True), self.path
        super().exec_module(module)


def keep_sources(folders: Iterable[str]) -> None:
    """Keep the texts of modules that are imported from these folders of packages from now on."""
    for folder in folders:
        sys.path_importer_cache[folder] = FileFinder(folder, (_KeepingLoader, SOURCE_SUFFIXES))


def source_text(path: str) -> str:
    """Text that a file was imported from; of a file that is not, its text now."""
    entry = linecache.cache.get(path)
    is_kept = entry is not None and len(entry) == 4 and entry[1] is None
    return "".join(linecache.getlines(path)) if is_kept else Path(path).read_text()
