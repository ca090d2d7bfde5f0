"""FolderSource, a checkpoint folder on disk, and ConfigSource, a config.json alone."""

from __future__ import annotations

import os
from functools import cached_property
from pathlib import Path

from ..errors import BadSource
from ..formats.index import safe_name
from .source import Source, SourceFile


class FolderSource(Source):
    """A folder with config.json and safetensors; hidden files and folders in it are ignored.

    root: the folder. reference: how messages name it, by default its path.
    """

    def __init__(self, root: Path, reference: str | None = None) -> None:
        self.root = root
        self.reference = reference or str(root)
        self.name = root.resolve().name

    @cached_property
    def _files(self) -> tuple[SourceFile, ...]:
        found = []
        for folder, subfolders, names in os.walk(self.root):
            subfolders[:] = [name for name in subfolders if not name.startswith(".")]
            for name in names:
                path = Path(folder, name)
                if name.startswith(".") or not path.exists():
                    continue
                found.append(SourceFile(path.relative_to(self.root).as_posix(), path.stat().st_size))
        return tuple(sorted(found, key=lambda file: file.name))

    def files(self) -> tuple[SourceFile, ...]:
        return self._files

    def path(self, name: str) -> Path:
        """The local path of a file. Raises BadSource for a name that leads outside the folder."""
        if not safe_name(name):
            raise BadSource(f"{self.reference} has no file {name!r}, which is outside it; do not trust this checkpoint")
        return self.root / name

    def local_paths(self) -> tuple[Path, ...]:
        return tuple(self.root / file.name for file in self._files)

    def tensor_names(self) -> tuple[str, ...] | None:
        """Names of all tensors, from the headers of all shards, which are checked."""
        return tuple(name for header in self.headers.values() for name in header.tensors)


class ConfigSource(Source):
    """A config.json without weights: only the config is planned and written."""

    kind = "config"

    def __init__(self, file: Path) -> None:
        self.file = file
        self.reference = str(file)
        self.name = file.stem if file.name != "config.json" else file.resolve().parent.name
        if file.suffix != ".json":
            raise BadSource(f"{file} is a file that is not a config.json; give a checkpoint folder or a Hub id")

    def files(self) -> tuple[SourceFile, ...]:
        return (SourceFile("config.json", self.file.stat().st_size),)

    def path(self, name: str) -> Path:
        return self.file

    def local_paths(self) -> tuple[Path, ...]:
        return (self.file,)
