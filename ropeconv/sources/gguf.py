"""GgufSource: a GGUF file, or the first of several shards."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cached_property
from pathlib import Path

from ..errors import BadSource
from ..formats.gguf import GgufFile
from ..formats.gguf.file import SHARD
from ..formats.gguf.journal import refuse_changing
from ..formats.identity import FileIdentity
from .hub_client import answers
from .source import Origin


class GgufSource(Origin):
    """A model in GGUF. path: the file, or its first shard."""

    kind = "gguf"

    def __init__(self, path: Path) -> None:
        self.path = path
        self.reference = str(path)
        match = SHARD.match(path.name)
        self.name = match["stem"] if match else path.stem

    @classmethod
    def from_hub(cls, repo_id: str, revision: str | None, name: str) -> GgufSource:
        """A file of a Hub repository and its other shards, fetched into the Hub's cache, all of one commit.

        repo_id: owner/name. revision: branch, tag or commit, None for the default branch. name: of the file.
        """
        from huggingface_hub import hf_hub_download

        with answers(repo_id):
            path = Path(hf_hub_download(repo_id, name, revision=revision, library_name="ropeconv"))
            commit = path.parts[path.parts.index("snapshots") + 1]
            match = SHARD.match(path.name)
            for number in range(2, int(match["count"]) + 1 if match else 0):
                shard = f"{match['stem']}-{number:05}-of-{match['count']}.gguf" if match else ""
                hf_hub_download(repo_id, str(Path(name).with_name(shard)), revision=commit, library_name="ropeconv")
        source = cls(path)
        source.reference, source.commit = f"{repo_id}/{name}", commit
        return source

    @cached_property
    def file(self) -> GgufFile:
        """The file with its headers. Raises BadSource for damaged files, and for those that are changed in place."""
        if not self.path.is_file():
            raise BadSource(f"{self.path} does not exist; give the path of a GGUF file")
        refuse_changing(self.path)
        try:
            found = GgufFile.open(self.path)
        finally:
            refuse_changing(self.path)  # rather than what is wrong with a header that was read meanwhile
        found.refuse_changed()
        return found

    def seen(self, unread: Collection[str] = ()) -> Mapping[Path, FileIdentity | None]:
        return dict(zip(self.file.paths, self.file.seen, strict=True))
