"""HubSource, a checkpoint on the Hub: planning reads its small files, applying fetches the others into the cache."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

from ..errors import BadSource
from ..formats.safetensors import Header, parse_header, read_header
from .folder import FolderSource
from .source import Source, SourceFile, whole

BLOCK = 1 << 16  # bytes asked for at a time


class HubSource(Source):
    """A repository, read through huggingface_hub and its cache; the first use fixes the commit for all later ones.

    repo_id: owner/name. revision: branch, tag or commit, None for the default branch.
    """

    kind = "hub"

    def __init__(self, repo_id: str, revision: str | None) -> None:
        self.repo_id, self.revision = repo_id, revision
        self.reference = repo_id if revision is None else f"{repo_id}@{revision}"
        self.name = repo_id.split("/")[-1]

    @cached_property
    def _listing(self) -> tuple[SourceFile, ...]:
        from huggingface_hub import HfApi
        from huggingface_hub.errors import OfflineModeIsEnabled

        try:
            info = HfApi(library_name="ropeconv").model_info(self.repo_id, revision=self.revision, files_metadata=True)
        except OfflineModeIsEnabled:
            return self._cached()
        self.commit = info.sha
        files = [SourceFile(s.rfilename, s.size or 0, _sha256(s)) for s in info.siblings or []]
        return tuple(sorted(files, key=lambda file: file.name))

    def _cached(self) -> tuple[SourceFile, ...]:
        from huggingface_hub import try_to_load_from_cache

        found = try_to_load_from_cache(self.repo_id, "config.json", revision=self.revision)
        if not isinstance(found, str):
            raise BadSource(
                f"{self.reference} is not in the cache and HF_HUB_OFFLINE is set; unset it, or download it once"
            )
        self.commit = Path(found).parent.name
        return FolderSource(Path(found).parent).files()

    @cached_property
    def headers(self) -> dict[str, Header]:
        """The headers of the model's safetensors files by name: from the cache, else from their first bytes."""
        sizes = {file.name: file.size for file in self.files()}
        return {name: self._header(name, sizes[name]) for name in self.weights()}

    def _header(self, name: str, size: int) -> Header:
        from huggingface_hub import HfFileSystem

        cached = self._local(name)
        if cached is not None:
            return read_header(cached)
        with HfFileSystem().open(self._place(name), "rb", block_size=BLOCK, cache_type="readahead") as file:
            return parse_header(file, size, name)

    def read(self, name: str, start: int, stop: int) -> bytes:
        from huggingface_hub import HfFileSystem

        if self._local(name) is not None:
            return super().read(name, start, stop)
        with HfFileSystem().open(self._place(name), "rb", cache_type="none") as file:
            return whole(file, name, start, stop)

    def _local(self, name: str) -> Path | None:
        from huggingface_hub import try_to_load_from_cache

        cached = try_to_load_from_cache(self.repo_id, name, revision=self.commit)
        return Path(cached) if isinstance(cached, str) else None

    def _place(self, name: str) -> str:
        return f"{self.repo_id}@{self.commit}/{name}"

    def files(self) -> tuple[SourceFile, ...]:
        return self._listing

    def path(self, name: str) -> Path:
        from huggingface_hub import hf_hub_download

        _ = self._listing
        if name == "config.json" and self.revision != self.commit:
            # by its branch once, so that the cache knows where the branch is when it is used offline
            path = Path(hf_hub_download(self.repo_id, name, revision=self.revision, library_name="ropeconv"))
            if path.parent.name == self.commit:
                return path
        return Path(hf_hub_download(self.repo_id, name, revision=self.commit, library_name="ropeconv"))


def _sha256(sibling: Any) -> str | None:
    lfs = getattr(sibling, "lfs", None)
    return None if lfs is None else str(lfs["sha256"] if isinstance(lfs, dict) else lfs.sha256)
