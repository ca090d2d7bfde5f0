"""FolderSource, a checkpoint folder on disk, and ConfigSource, a config.json alone."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path

from ..errors import BadSource, shown
from ..formats.identity import FileIdentity, identity
from ..formats.index import safe_name
from ..formats.regular import check_regular
from .links import check_link
from .source import MOST_FILES, Source, SourceFile


class FolderSource(Source):
    """A folder with config.json and safetensors; hidden files and folders in it are ignored.

    root: the folder. reference: how messages name it, by default its path.
    """

    def __init__(self, root: Path, reference: str | None = None) -> None:
        self.root = root
        self.reference = reference or str(root)
        self.name = root.resolve().name
        self._seen: dict[str, FileIdentity | None] = {}

    @cached_property
    def _files(self) -> tuple[SourceFile, ...]:
        found = []
        for name in self._names():
            path = self.root / name
            if not path.exists():
                continue
            check_link(path, self.root)
            status = path.stat()
            check_regular(status.st_mode, path)
            found.append(SourceFile(name, status.st_size))
            self._seen[name] = identity(path)
            if len(found) > MOST_FILES:
                raise BadSource(
                    f"{self.reference} has more than {MOST_FILES:,} files; give the folder of one checkpoint"
                )
        return tuple(sorted(found, key=lambda file: file.name))

    def _names(self) -> Iterator[str]:
        """Names of the files that are not hidden. Linked folders are not entered."""
        for folder, subfolders, names in os.walk(self.root):
            subfolders[:] = [name for name in subfolders if not name.startswith(".")]
            for name in names:
                if not name.startswith("."):
                    yield Path(folder, name).relative_to(self.root).as_posix()

    def files(self) -> tuple[SourceFile, ...]:
        """All files, sorted by name. Raises BadSource for links that lead outside, and for FIFOs and devices."""
        return self._files

    def path(self, name: str) -> Path:
        """The local path of a file. Raises BadSource for a name or a link that leads outside the folder."""
        if not safe_name(name):
            raise BadSource(
                f"{self.reference} has no file {shown(name)}, which is outside it; do not trust this checkpoint"
            )
        path = self.root / name
        check_link(path, self.root)
        return path

    def seen(self) -> Mapping[Path, FileIdentity | None]:
        return {self.root / file.name: self._seen[file.name] for file in self._files}

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
        self._seen = {file: identity(file)}

    def files(self) -> tuple[SourceFile, ...]:
        return (SourceFile("config.json", self.file.stat().st_size),)

    def path(self, name: str) -> Path:
        return self.file

    def seen(self) -> Mapping[Path, FileIdentity | None]:
        return self._seen
