"""HubSource, a checkpoint on the Hub: planning reads its small files, applying fetches the others into the cache."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path

from ..errors import BadSource
from ..formats.digest import sha256, text_digest
from ..formats.safetensors import Header, parse_header, read_header
from .folder import FolderSource
from .hub_client import READ, answers
from .hub_listing import LARGEST, read_listing
from .source import Source, SourceFile, whole

BLOCK = 1 << 16  # bytes asked for at a time
AT_ONCE = 8  # requests for sizes, and for headers
CONFIGS = ("config.json", "params.json")
"""Files of which every checkpoint has one, in the HF layout and in Meta's."""


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

        api = HfApi(library_name="ropeconv")
        try:
            with answers(self.reference):
                info = api.model_info(self.repo_id, revision=self.revision, files_metadata=True, timeout=READ)
        except OfflineModeIsEnabled:
            return self._cached()
        listed = read_listing(info, self.reference)
        self.commit = listed.commit
        sizes = self._sizes([file.name for file in listed.files if file.size is None])
        files = [SourceFile(file.name, sizes.get(file.name, file.size or 0), file.sha256) for file in listed.files]
        return tuple(sorted(files, key=lambda file: file.name))

    def _sizes(self, names: list[str]) -> dict[str, int]:
        """The sizes of files that a listing does not give, each from its own request. Raises BadSource without one."""
        from huggingface_hub import get_hf_file_metadata, hf_hub_url

        def size(name: str) -> int:
            with answers(self.reference):
                found = get_hf_file_metadata(hf_hub_url(self.repo_id, name, revision=self.commit), timeout=READ).size
            if found is None or not 0 <= found <= LARGEST:
                raise BadSource(
                    f"the Hub gives no size of {name} of {self.reference}; unset HF_ENDPOINT, or download it with "
                    "`hf download` and name its folder"
                )
            return int(found)

        with ThreadPoolExecutor(AT_ONCE) as pool:
            return dict(zip(names, pool.map(size, names), strict=True))

    def _cached(self) -> tuple[SourceFile, ...]:
        from huggingface_hub import try_to_load_from_cache

        cached = (try_to_load_from_cache(self.repo_id, name, revision=self.revision) for name in CONFIGS)
        found = next((path for path in cached if isinstance(path, str)), None)
        if found is None:
            raise BadSource(
                f"{self.reference} is not in the cache and HF_HUB_OFFLINE is set; unset it, or download it once"
            )
        self.commit = Path(found).parent.name
        return FolderSource(Path(found).parent).files()

    @cached_property
    def identity(self) -> str:
        self.files()  # which fixes the commit
        return text_digest(self.repo_id, self.commit or "")

    def header(self, name: str) -> Header:
        """The header of a safetensors file: from the cache, else from its first bytes. name: as in `files`."""
        from huggingface_hub import HfFileSystem

        cached = self._local(name)
        if cached is not None:
            return read_header(cached)
        size = self._listed(name).size
        with (
            answers(self.reference, size),
            HfFileSystem().open(self._place(name), "rb", block_size=BLOCK, cache_type="readahead") as file,
        ):
            return parse_header(file, size, name)

    def _each_header(self, names: Sequence[str]) -> Iterator[tuple[str, Header]]:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            for first in range(0, len(names), AT_ONCE):  # not all at once: what comes may be too large
                some = names[first : first + AT_ONCE]
                yield from zip(some, pool.map(self.header, some), strict=True)

    def read(self, name: str, start: int, stop: int) -> bytes:
        from huggingface_hub import HfFileSystem

        if self._local(name) is not None:
            return super().read(name, start, stop)
        with (
            answers(self.reference, self._listed(name).size),
            HfFileSystem().open(self._place(name), "rb", cache_type="none") as file,
        ):
            return whole(file, name, start, stop)

    def _local(self, name: str) -> Path | None:
        from huggingface_hub import try_to_load_from_cache

        cached = try_to_load_from_cache(self.repo_id, name, revision=self.commit)
        return Path(cached) if isinstance(cached, str) else None

    def _listed(self, name: str) -> SourceFile:
        return next((file for file in self.files() if file.name == name), SourceFile(name, 0))

    def _place(self, name: str) -> str:
        return f"{self.repo_id}@{self.commit}/{name}"

    def files(self) -> tuple[SourceFile, ...]:
        return self._listing

    def path(self, name: str) -> Path:
        """The path of a file in the cache. Raises BadSource where it arrives with another content than is listed."""
        from huggingface_hub import hf_hub_download

        listed = self._listed(name)
        if name in CONFIGS and self.revision != self.commit:
            # by its branch once, so that the cache knows where the branch is when it is used offline
            with answers(self.reference, listed.size):
                path = Path(hf_hub_download(self.repo_id, name, revision=self.revision, library_name="ropeconv"))
            if path.parent.name == self.commit:
                return path
        known = self._local(name)
        if known is not None:
            return known
        with answers(self.reference, listed.size):
            path = Path(hf_hub_download(self.repo_id, name, revision=self.commit, library_name="ropeconv"))
        if listed.sha256 is not None and sha256(path) != listed.sha256:
            path.resolve().unlink()
            path.unlink(missing_ok=True)
            raise BadSource(f"{name} of {self.reference} arrived with another sha256 than the Hub lists; run again")
        return path
