"""GgufSource, a GGUF file or the first of several shards, and HubGguf, one on the Hub."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from functools import cached_property
from pathlib import Path, PurePosixPath

from ..errors import BadSource
from ..formats.disk import FileIdentity, text_digest, weights_digest
from ..formats.gguf.file import SHARD, GgufFile, Shard
from ..formats.gguf.header import MAX_HEADER, GgufHeader, MoreBytesNeeded, parse_header
from ..formats.gguf.inplace import refuse_changing
from ..formats.kind import kind_of, refusal
from . import ollama
from .hub import LARGEST, READ, BadAnswer, answers, cached_file
from .source import Origin

FIRST = 1 << 18
"""Bytes of a header that are requested first."""
AHEAD = 1 << 22
"""The most bytes that are requested ahead; otherwise three times as many as are there."""
KEPT = 1 << 24
"""Bytes behind the header that are kept: a plan reads its few small tensors several times."""
MOST_RANGES = 1000
"""Ranges behind the header until the file is fetched, which is quicker then."""
ENDINGS = (".gguf", ".bin", ".ggml", ".model", ".safetensors", ".part", ".download")
"""Ends of file names that are not a part of the model's name, as `.1-8B` of `Llama-3.1-8B` is."""
READABLE = ("gguf", "unknown", "text")
"""Kinds of files for which the reader of the header says what is wrong."""
RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18})")
"""The header `content-range` of an answer with a part of a file."""
PARTIAL_CONTENT = 206
"""The status of such an answer."""


class HubShard(Shard):
    """A file of a repository at one commit; what is in the Hub's cache is read there.

    Args:
        repo_id: owner/name.
        place: The path of the file in the repository.
        commit: The commit of the repository.
        revision: The name of the commit that the user gave, None for the default branch.
    """

    def __init__(self, repo_id: str, place: str, commit: str, revision: str | None) -> None:
        """Name the file; nothing is requested yet.

        Args:
            repo_id: The repository, owner/name.
            place: The path of the file in it.
            commit: The commit at which it is read.
            revision: The branch, tag or commit that the user gave; None for the default branch.
        """
        self.repo_id = repo_id
        self.place = place
        self.commit = commit
        self.revision = revision
        self.reference = f"{repo_id}/{place}"
        self.name = PurePosixPath(place).name

        cached = cached_file(repo_id, place, commit)
        self._local = None if cached is None else Shard(cached)
        """The file in the Hub's cache; None until it is there, while it is read by range."""

        self._header: GgufHeader | None = None
        self._head = b""
        """The first bytes of the file, as far as they were requested for the header."""

        self._size = 0
        """The size of the file in bytes, by the first answer; 0 before."""

        self._ranges: dict[tuple[int, int], bytes] = {}
        """Parts behind the header, by first byte and the one after the last."""

        self._asked = 0
        """How many such parts were requested."""

    @classmethod
    def find(cls, repo_id: str, place: str, revision: str | None) -> HubShard:
        """Find a GGUF file on the Hub, at its present commit.

        Without an answer of the Hub, it is the commit of the file in the Hub's cache on this
        machine.

        Args:
            repo_id: The repository, owner/name.
            place: The path of the file in it.
            revision: Branch, tag or commit, None for the default branch.

        Raises:
            BadSource: Where the repository has no such file.
        """
        from huggingface_hub import get_hf_file_metadata, hf_hub_download, hf_hub_url
        from huggingface_hub.errors import EntryNotFoundError, OfflineModeIsEnabled

        cached = cached_file(repo_id, place, revision)
        with answers(repo_id):
            try:
                url = hf_hub_url(repo_id, place, revision=revision)
                commit = get_hf_file_metadata(url).commit_hash
            except OfflineModeIsEnabled:
                # the user wants the cache only: hf_hub_download reads it, or says what is missing
                path = hf_hub_download(repo_id, place, revision=revision, library_name="ropeconv")
                commit = _commit(Path(path))
            except EntryNotFoundError:  # the Hub has answered, and has no such file
                raise _absent_file(repo_id, place) from None
            except BadAnswer:  # something else than the Hub has answered
                raise
            except Exception:
                # there is no connection, which comes as many kinds of errors
                if cached is None:
                    raise
                commit = _commit(cached)
        if commit is None:
            raise BadSource(
                f"the Hub does not give a commit for {repo_id}/{place}; check HF_ENDPOINT, or give"
                " a local file"
            )
        return cls(repo_id, place, commit, revision)

    def header(self) -> GgufHeader:
        if self._local is not None:
            self._header = self._header or self._local.header()
        stop = FIRST
        while self._header is None:  # more of the file is asked for until its header is whole
            self._head += self._range(len(self._head), stop)
            try:
                self._header = parse_header(self._head, self._size, self.name)
            except MoreBytesNeeded as more:
                have = len(self._head)
                ahead = have + max(min(3 * have, AHEAD), have)
                stop = max(more.stop, min(ahead, self._size, MAX_HEADER))
        return self._header

    def read(self, start: int, stop: int) -> bytes:
        """Return the bytes start .. stop - 1 of the file, from the cache, or by an HTTP range."""
        # many small requests take longer than the whole file, which `path` downloads
        if self._local is None and self._asked >= MOST_RANGES:
            self.path()
        if self._local is not None:
            return self._local.read(start, stop)

        # the part that the requests for the header brought along
        from_head = self._head[start:stop]
        if len(from_head) == stop - start:
            return from_head

        # the rest by range, unless it was requested before
        interval = (start + len(from_head), stop)
        if interval not in self._ranges:
            content = self._range(*interval)
            self._asked += 1
            kept_bytes = sum(map(len, self._ranges.values()))
            if kept_bytes + len(content) > KEPT:  # memory has a limit
                self._ranges.clear()
            self._ranges[interval] = content
        return from_head + self._ranges[interval]

    def path(self) -> Path:
        """Return its path in the cache, after a download if it is not there.

        From then on it is read there, and what was read by range before is dropped.

        Raises:
            BadSource: Where it arrives with another header than was read by range.
        """
        if self._local is None:
            shard = Shard(self._fetch())
            if self._header is not None and shard.header() != self._header:
                raise BadSource(
                    f"{self.reference} changed during the download; run the command again"
                )
            self._local = shard
            self._head = b""
            self._ranges.clear()
        return self._local.path()

    def beside(self, name: str) -> HubShard:
        place = PurePosixPath(self.place).with_name(name)
        return HubShard(self.repo_id, str(place), self.commit, self.revision)

    def refuse_changed(self) -> None:
        if self._local is not None:
            self._local.refuse_changed()

    def _range(self, start: int, stop: int) -> bytes:
        """Request bytes start .. stop - 1 from the Hub; fewer come at the end of the file.

        Raises:
            BadSource: For other answers.
        """
        from huggingface_hub import hf_hub_url
        from huggingface_hub.errors import EntryNotFoundError
        from huggingface_hub.utils import build_hf_headers, hf_raise_for_status, http_backoff

        url = hf_hub_url(self.repo_id, self.place, revision=self.commit)
        headers = build_hf_headers(library_name="ropeconv")
        headers["Range"] = f"bytes={start}-{stop - 1}"
        with answers(self.reference):
            response = http_backoff("GET", url, headers=headers, timeout=READ)
            try:
                hf_raise_for_status(response)
            except EntryNotFoundError:
                raise _absent_file(self.repo_id, self.place) from None

            # A server may ignore the range, or give another part of the file or another file. The
            # header is "bytes 0-65535/4683073184": the first byte, the last one, and the size.
            content_range = RANGE.fullmatch(response.headers.get("content-range", ""))
            if content_range is None or response.status_code != PARTIAL_CONTENT:
                raise BadAnswer("is not the requested part of the file")
            first, last, size = map(int, content_range.groups())
            is_range = first == start and last == min(stop, size) - 1
            has_same_size = self._size in (0, size)  # 0 before the first answer
            is_same_file = has_same_size and size <= LARGEST
            is_whole = len(response.content) == last + 1 - first
            if not (is_range and is_same_file and is_whole):
                raise BadAnswer("is not the requested part of the file")

        self._size = size
        return bytes(response.content)

    def _fetch(self) -> Path:
        """Download the file, and return its path in the cache."""
        from huggingface_hub import get_hf_file_metadata, hf_hub_download, hf_hub_url

        with answers(self.reference, self._size):
            # The cache notes the commit of a branch, such as main, when a file is requested by the
            # branch. Without that note `owner/name` is not found offline. So the branch is used as
            # long as it is still at the commit.
            revision: str | None = self.commit
            if self.revision != self.commit:
                url = hf_hub_url(self.repo_id, self.place, revision=self.revision)
                commit_of_branch = get_hf_file_metadata(url).commit_hash
                if commit_of_branch == self.commit:
                    revision = self.revision
            path = hf_hub_download(
                self.repo_id, self.place, revision=revision, library_name="ropeconv"
            )
        return Path(path)


def _commit(cached: Path) -> str:
    """Return the commit of a file in the Hub's cache: `models--NAME/snapshots/COMMIT/FILE`."""
    return cached.parts[cached.parts.index("snapshots") + 1]


def _absent_file(repo_id: str, place: str) -> BadSource:
    return BadSource(f"{repo_id} has no file {place}; check its name on the Hub")


class GgufSource(Origin):
    """A model in GGUF.

    Args:
        path: The file, or its first shard.
    """

    kind = "gguf"

    def __init__(self, path: Path) -> None:
        self._path = path
        self.reference = str(path)
        self.name = _model_name(path)

    @property
    def path(self) -> Path:
        """The path of the file, or of its first shard with the others beside it."""
        return self._path

    @cached_property
    def file(self) -> GgufFile:
        """The file with its headers.

        Raises:
            BadSource: For damaged files, and for those that are changed in place.
        """
        if kind_of(self._path) not in READABLE:
            raise BadSource(refusal(self._path, "the path of a GGUF file"))
        refuse_changing(self._path)
        try:
            file = GgufFile.open(self._path)
        finally:
            # a change that began meanwhile explains a damaged header
            refuse_changing(self._path)
        file.refuse_changed()
        return file

    @cached_property
    def identity(self) -> str:
        parts = []
        for shard, header in zip(self.file.shards, self.file.headers, strict=True):
            ranges = [
                (header.data_start + tensor.offset, tensor.size)
                for tensor in header.tensors.values()
            ]
            digest = weights_digest(shard.path(), header.data_start, ranges)
            parts.append(f"{shard.name} {digest}")
        return text_digest(*parts)

    def place_to_change(self) -> Path:
        """Return the path of the file, for a change in place.

        Raises:
            BadSource: For a file in Ollama's store or in the Hub's cache, which are named by the
                digest of their content.
        """
        ollama.refuse_change(self._path, self.reference)
        place = self._path.resolve().parent
        if place.name == "blobs" and place.parent.name.startswith("models--"):
            raise BadSource(
                f"{self._path} is in the Hub's cache, where each file is named by its digest, so "
                "--in-place would break it; write a new file with -o"
            )
        return self._path

    def identities(self, unread: Collection[str] = ()) -> Mapping[Path, FileIdentity | None]:
        return {shard.path(): shard.identity for shard in self.file.shards}


class OllamaGguf(GgufSource):
    """A model in Ollama's store.

    Args:
        stored: The model that its name stands for.
    """

    def __init__(self, stored: ollama.StoredModel) -> None:
        super().__init__(stored.path)
        self.reference = stored.name.typed
        self.name = stored.name.stem


class HubGguf(GgufSource):
    """A model in GGUF on the Hub.

    Its headers are read by range; its `path` and its tensors are fetched into the cache.

    Args:
        first: The file, or its first shard.
    """

    def __init__(self, first: HubShard) -> None:
        self.first = first
        self.commit = first.commit
        self.reference = first.reference
        self.name = _model_name(Path(first.name))

    @property
    def path(self) -> Path:
        return self.file.path

    @cached_property
    def file(self) -> GgufFile:
        """The file with its headers.

        Raises:
            BadSource: For damaged files, and for what a Hub should not answer.
        """
        return GgufFile.of(self.first)

    @cached_property
    def identity(self) -> str:
        return text_digest(self.first.repo_id, self.first.commit, self.first.place)

    def place_to_change(self) -> Path:
        raise BadSource(
            f"{self.reference} is on the Hub, and --in-place needs a local file; write a new file"
            " with -o"
        )

    def identities(self, unread: Collection[str] = ()) -> Mapping[Path, FileIdentity | None]:
        return {}


def _model_name(path: Path) -> str:
    """Return the name of a model by its file, for the names of outputs."""
    match = SHARD.match(path.name)
    if match:
        return match["stem"]
    if ollama.is_blob(path):
        return ollama.blob_stem(path)
    if path.suffix.lower() in ENDINGS:
        return path.stem
    return path.name
