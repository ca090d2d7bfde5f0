"""HubSource, a checkpoint on the Hub: planning reads small files, applying fetches the others.

`answers` sets limits on what a Hub, or a mirror of it, answers, which are checked before
huggingface_hub uses an answer. huggingface_hub takes file names in its cache from headers, waits
for as long as an answer asks it to, and reads bodies without an end.
https://huggingface.co/docs/huggingface_hub/package_reference/utilities (`set_client_factory`).
"""

from __future__ import annotations

import importlib
import re
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from ..errors import BadSource
from ..formats.disk import sha256, text_digest
from ..formats.safetensors import Header, parse_header, read_header, safe_name
from ..rope.errors import RopeconvError, shown
from .folder import FolderSource
from .source import MOST_FILES, Source, SourceFile, read_exactly

if TYPE_CHECKING:
    from httpx2 import Request, Response
    from huggingface_hub import ModelInfo

CONNECT = 10.0
"""Seconds until a connection is there."""
READ = 60.0
"""Seconds until the next bytes come."""
ANSWER_BYTES = 16 << 20
ANSWER_SECONDS = 60.0
"""Limits of an answer about a repository, and of any answer without a length."""
PATIENCE = 60.0
"""Seconds from which on a download must not be slow."""
SLOWEST = 1024
"""The fewest bytes per second that a download then has."""
LONGEST_WAIT = 60
"""Seconds that a busy Hub may ask to wait."""
COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
ETAG = re.compile(r'(?:W/)?"?(?!\.+"?$)[^/\\\x00-\x1f"]{1,200}"?')
PART = re.compile(r"bytes=(\d{1,18})-(\d{1,18})")
"""A request for a part of a file."""
HEADERS = {"x-repo-commit": COMMIT, "x-linked-etag": ETAG, "etag": ETAG}
"""Headers of files that become names in the cache, and what they may be."""
WAITS = ("retry-after", "ratelimit")
TOO_MANY = 429
"""The status of an answer to one request too many."""
patience = 0
"""How often a request is sent again while the Hub is too busy: in runs of many units."""

_largest = ContextVar("_largest", default=ANSWER_BYTES)
"""Bytes of a file whose length an answer does not give."""


class BadAnswer(RopeconvError):
    """An answer that is larger, slower or of another form than it may be.

    The message begins with the verb.
    """


@contextmanager
def answers(reference: str, size: int = 0) -> Iterator[None]:
    """Guard the calls to huggingface_hub in a block against a slow Hub and wrong answers.

    Requests have a time limit, and answers a limit of their size. An answer that huggingface_hub
    does not understand is raised as a message for the user.

    Args:
        reference: The repository, for the message.
        size: The size in bytes of a file that is downloaded, from the listing; 0 for other calls.

    Raises:
        BadSource: For answers that huggingface_hub does not understand.
    """
    # the limits are once for all in the clients of huggingface_hub (`_response_hook`), which read
    # the largest answer of this block from `_largest`
    limit()
    previous = _largest.set(max(ANSWER_BYTES, size))
    try:
        yield
    except BadAnswer as problem:
        raise BadSource(
            f"the Hub's answer about {reference} {problem}; try again later, or check HF_ENDPOINT"
        ) from None
    # huggingface_hub trusts the Hub: an answer of another form (of a proxy, or a mirror) fails
    # anywhere in its code, with any of these
    except (
        AssertionError,
        AttributeError,
        LookupError,
        OSError,
        RuntimeError,
        TypeError,
        ValueError,
    ) as problem:
        if not _is_from_answer(problem):  # an error of ropeconv, or of the system
            raise
        raise BadSource(
            f"the Hub's answer about {reference} is malformed ({type(problem).__name__}); check"
            " HF_ENDPOINT, or try again later"
        ) from None
    finally:
        _largest.reset(previous)


def _is_from_answer(problem: Exception) -> bool:
    """Whether an error happened inside the library and is neither its own nor the system's."""
    if isinstance(problem, OSError) and problem.errno is not None:  # as a full disk
        return False
    if _of_library(type(problem).__module__):
        return False
    for frame, _ in traceback.walk_tb(problem.__traceback__):
        if _of_library(str(frame.f_globals.get("__name__"))):
            return True
    return False


def _of_library(module: str) -> bool:
    """Whether a module is one of huggingface_hub."""
    return module.partition(".")[0] == "huggingface_hub"


def limit() -> None:
    """Set the limits for all requests of huggingface_hub in this process.

    It allows that since its version 1.0. The limits are added to the clients that the program
    around this package makes with a factory of its own.
    """
    import huggingface_hub
    from huggingface_hub.utils import _http

    current = getattr(_http, "_GLOBAL_CLIENT_FACTORY", None)
    if current is not None and not isinstance(current, LimitedClients):
        huggingface_hub.set_client_factory(LimitedClients(current))


class LimitedClients:
    """Makes clients with the limits.

    Args:
        make: The factory of clients without them.
    """

    def __init__(self, make: Callable[[], Any]) -> None:
        self.make = make

    def __call__(self) -> Any:
        """A client of httpx."""
        client = self.make()
        httpx = importlib.import_module(type(client.timeout).__module__.partition(".")[0])
        client.timeout = httpx.Timeout(READ, connect=CONNECT, pool=None)
        # so that a body is as large as its length says
        client.headers["Accept-Encoding"] = "identity"
        hooks = dict(client.event_hooks)
        hooks["response"] = [*hooks["response"], _response_hook(httpx)]
        client.event_hooks = hooks
        client.send = _wait_and_repeat(client.send, httpx.ByteStream)
        return client


def _wait_and_repeat(send: Callable[..., Response], whole: type) -> Callable[..., Response]:
    """Wrap the `send` of a client, to wait as long as a busy Hub asks and to send again."""

    def again(request: Request, **options: object) -> Response:
        for number in range(patience):
            response = send(request, **options)
            if response.status_code != TOO_MANY or not isinstance(request.stream, whole):
                return response
            response.close()
            time.sleep(min(_seconds_to_wait(response, 2**number), LONGEST_WAIT))
        return send(request, **options)

    return again


def _seconds_to_wait(response: Response, otherwise: float) -> float:
    """Return the seconds after which a busy Hub wants the request again."""
    after = re.fullmatch(r"\d{1,6}", response.headers.get("retry-after", ""))
    if after:
        return float(after[0])
    reset = re.search(r"\bt=(\d{1,6})", response.headers.get("ratelimit", ""))
    if reset:
        return float(reset[1])
    return otherwise


def _response_hook(httpx: Any) -> Callable[[Response], None]:
    """Return a function that checks the headers of a response, and limits the bytes of its body.

    httpx calls it with each response, before the body is read.

    Args:
        httpx: The module, which is passed since it takes long to import.
    """

    class LimitedStream(httpx.SyncByteStream):  # type: ignore[misc]
        """A body that ends.

        Args:
            stream: The body.
            most: The bytes that it may have; None for any number.
            download: Whether it is a file, and no answer about a repository.
        """

        def __init__(self, stream: Any, most: int | None, download: bool) -> None:
            self.stream = stream
            self.most = most
            self.download = download

        def __iter__(self) -> Iterator[bytes]:
            """Yield the parts of the body; raise BadAnswer for one that is too long or slow."""
            begun = time.monotonic()
            received = 0
            for part in self.stream:
                received += len(part)
                seconds = time.monotonic() - begun
                if self.most is not None and received > self.most:
                    raise BadAnswer(f"is longer than {self.most:,} bytes")

                # a file may take hours, but not crawl; an answer about a repository must be quick
                if self.download:
                    if seconds > PATIENCE and received < SLOWEST * seconds:
                        raise BadAnswer(f"is slower than {SLOWEST:,} bytes per second")
                elif seconds > ANSWER_SECONDS:
                    raise BadAnswer(f"takes longer than {ANSWER_SECONDS:.0f} seconds")
                yield part

        def close(self) -> None:
            self.stream.close()

    def check_and_limit(response: Response) -> None:
        _check_headers(response)
        # answers about repositories are JSON below /api/; everything else is a file
        download = "/api/" not in response.url.path
        response.stream = LimitedStream(response.stream, _most_bytes(response, download), download)

    return check_and_limit


def _check_headers(response: Response) -> None:
    """Check the headers of an answer of the Hub, and remove waits that are too long from them.

    Raises:
        BadAnswer: A header has a value that the Hub never sends.
    """
    # commit and hash of a file (OWNER/NAME/resolve/COMMIT/FILE) become names of files in the cache,
    # where "../.." would lead out of it
    if "/resolve" in response.url.path:
        for name, pattern in HEADERS.items():
            value = response.headers.get(name)
            if value and not pattern.fullmatch(value):
                raise BadAnswer(
                    f"has {shown(value)} in its header {name}, which is not a hash or a commit"
                )

    # huggingface_hub sleeps as long as these headers of a rate limit say, be it a year
    for name in WAITS:
        numbers = re.findall(r"\d+", response.headers.get(name, ""))
        if any(int(number) > LONGEST_WAIT for number in numbers):
            del response.headers[name]
    if response.headers.get("content-encoding", "identity") != "identity":
        raise BadAnswer("is compressed, although the request forbids it")


def _most_bytes(response: Response, download: bool) -> int | None:
    """Return the most bytes that a body may have; None where its length is given."""
    if not download:
        return ANSWER_BYTES
    part = PART.fullmatch(response.request.headers.get("range", ""))
    if part and response.is_success:
        first, last = part.groups()
        return int(last) + 1 - int(first)
    if response.headers.get("content-length"):
        return None
    return _largest.get()


LARGEST = 1 << 50
"""Bytes of the largest file that is believed."""

Size = Annotated[int, msgspec.Meta(ge=0, le=LARGEST)]
Sha256 = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]


class ListedFile(msgspec.Struct, frozen=True):
    """A file of a repository."""

    name: Annotated[str, msgspec.Meta(max_length=4096)]
    size: Size | None = None
    """In bytes, None where the Hub does not say."""

    sha256: Sha256 | None = None
    """The digest of a large file."""


class Listing(msgspec.Struct, frozen=True):
    """A repository at a commit, which is None where a mirror does not give it."""

    commit: Annotated[str, msgspec.Meta(pattern=f"^{COMMIT.pattern}$")] | None
    files: Annotated[tuple[ListedFile, ...], msgspec.Meta(max_length=MOST_FILES)]


def read_listing(info: ModelInfo, reference: str) -> Listing:
    """Return the commit and the files of a repository, from an answer of the Hub that is checked.

    Args:
        info: A ModelInfo of huggingface_hub, whose fields have whatever types the answer had.
        reference: For messages.

    Raises:
        BadSource: For wrong types, impossible sizes, and names that are outside the repository or
            there twice.
    """
    try:
        files = [
            {"name": row.rfilename, "size": row.size, "sha256": row.lfs and row.lfs.sha256}
            for row in info.siblings or ()
        ]
        listing = msgspec.convert({"commit": info.sha, "files": files}, Listing)
    except (msgspec.ValidationError, AttributeError, KeyError, TypeError) as problem:
        raise BadSource(
            f"the Hub's list of the files of {reference} is malformed ({problem}); check"
            " HF_ENDPOINT, or try again later"
        ) from None

    # the names become paths below an output: "../../.bashrc" must not
    names: set[str] = set()
    for file in listing.files:
        if not safe_name(file.name) or not file.name.isprintable():
            raise BadSource(
                f"{reference} has a file named {shown(file.name)}, outside its folder; do not"
                " trust it"
            )
        if file.name in names:
            raise BadSource(f"{reference} lists {file.name} twice; do not trust it")
        names.add(file.name)
    return listing


BLOCK = 1 << 16  # bytes asked for at a time
AT_ONCE = 8  # requests for sizes, and for headers
CONFIGS = ("config.json", "params.json")
"""Files of which every checkpoint has one, in the HF layout and in Meta's."""


def cached_file(repo_id: str, name: str, revision: str | None) -> Path | None:
    """Return the path of a file in the Hub's cache; None if it is not there."""
    from huggingface_hub import try_to_load_from_cache

    cached = try_to_load_from_cache(repo_id, name, revision=revision)
    return Path(cached) if isinstance(cached, str) else None


class HubSource(Source):
    """A repository, read through huggingface_hub and its cache.

    The first use fixes the commit for all later ones.

    Args:
        repo_id: owner/name.
        revision: Branch, tag or commit, None for the default branch.
    """

    kind = "hub"

    def __init__(self, repo_id: str, revision: str | None) -> None:
        self.repo_id = repo_id
        self.revision = revision
        self.reference = repo_id if revision is None else f"{repo_id}@{revision}"
        self.name = repo_id.split("/")[-1]

    @cached_property
    def _listing(self) -> tuple[SourceFile, ...]:
        """The files of the repository at one commit, which the Hub is asked for once."""
        from huggingface_hub import HfApi
        from huggingface_hub.errors import OfflineModeIsEnabled

        api = HfApi(library_name="ropeconv")
        try:
            with answers(self.reference):
                info = api.model_info(
                    self.repo_id, revision=self.revision, files_metadata=True, timeout=READ
                )
        except OfflineModeIsEnabled:
            return self._files_in_cache()
        # from here on all files are read at this commit, also if the branch moves
        listing = read_listing(info, self.reference)
        self.commit = listing.commit

        # mirrors of the Hub leave some sizes out
        without_size = [file.name for file in listing.files if file.size is None]
        requested_sizes = self._sizes(without_size)
        files = []
        for file in listing.files:
            size = requested_sizes[file.name] if file.size is None else file.size
            files.append(SourceFile(file.name, size, file.sha256))
        return tuple(sorted(files, key=lambda file: file.name))

    def _sizes(self, names: list[str]) -> dict[str, int]:
        """Return the sizes of files that a listing does not give, each from its own request.

        The Hub gives all sizes; mirrors of it (HF_ENDPOINT) leave some out.

        Raises:
            BadSource: For a file without one.
        """
        from huggingface_hub import get_hf_file_metadata, hf_hub_url

        def size(name: str) -> int:
            url = hf_hub_url(self.repo_id, name, revision=self.commit)
            with answers(self.reference):
                length = get_hf_file_metadata(url, timeout=READ).size
            if length is None or not 0 <= length <= LARGEST:
                raise BadSource(
                    f"the Hub does not give the size of {name} of {self.reference}; unset"
                    " HF_ENDPOINT, or run `hf download` and pass the folder"
                )
            return int(length)

        with ThreadPoolExecutor(AT_ONCE) as pool:
            return dict(zip(names, pool.map(size, names), strict=True))

    def _files_in_cache(self) -> tuple[SourceFile, ...]:
        """Return the files of the commit that the cache has, without asking the Hub."""
        cached = [cached_file(self.repo_id, name, self.revision) for name in CONFIGS]
        config = next((path for path in cached if path is not None), None)
        if config is None:
            raise BadSource(
                f"{self.reference} is not in the cache and HF_HUB_OFFLINE is set; unset it, or"
                " download it once"
            )
        self.commit = config.parent.name
        return FolderSource(config.parent).files()

    @cached_property
    def identity(self) -> str:
        self.files()  # fixes the commit
        return text_digest(self.repo_id, self.commit or "")

    def header(self, name: str) -> Header:
        """Return the header of a safetensors file: from the cache, else from its first bytes."""
        from huggingface_hub import HfFileSystem

        cached = self.local(name)
        if cached is not None:
            return read_header(cached)

        # HfFileSystem requests a block at a time; most headers fit into the first one
        size = self._entry(name).size
        place = self._place(name)
        with answers(self.reference, size):
            opened = HfFileSystem().open(place, "rb", block_size=BLOCK, cache_type="readahead")
            with opened as file:
                return parse_header(file, size, name)

    def _each_header(self, names: Sequence[str]) -> Iterator[tuple[str, Header]]:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            # not all at once: together they may be too large
            for first in range(0, len(names), AT_ONCE):
                some = names[first : first + AT_ONCE]
                yield from zip(some, pool.map(self.header, some), strict=True)

    def read(self, name: str, start: int, stop: int) -> bytes:
        from huggingface_hub import HfFileSystem

        if self.local(name) is not None:
            return super().read(name, start, stop)
        with (
            answers(self.reference, self._entry(name).size),
            HfFileSystem().open(self._place(name), "rb", cache_type="none") as file,
        ):
            return read_exactly(file, name, start, stop)

    def local(self, name: str) -> Path | None:
        return cached_file(self.repo_id, name, self.commit)

    def _entry(self, name: str) -> SourceFile:
        """Return a file of the listing; an empty one for a name that it does not have."""
        return next((file for file in self.files() if file.name == name), SourceFile(name, 0))

    def _place(self, name: str) -> str:
        """Return the path of a file for HfFileSystem."""
        return f"{self.repo_id}@{self.commit}/{name}"

    def files(self) -> tuple[SourceFile, ...]:
        return self._listing

    def path(self, name: str) -> Path:
        """Return the path of a file in the cache, after a download if it is not there.

        Raises:
            BadSource: Where it arrives with another content than is listed.
        """
        # huggingface_hub finds a branch offline only if some file was downloaded by the name of the
        # branch: the cache then has refs/BRANCH with its commit. So config.json is downloaded by
        # the branch, and all other files by the commit.
        entry = self._entry(name)
        names_branch = self.revision != self.commit
        if name in CONFIGS and names_branch:
            path = self._download(name, self.revision, entry.size)
            commit_of_path = path.parent.name  # .../snapshots/COMMIT/config.json
            if commit_of_path == self.commit:
                return path
            # the branch has moved since, and the file of the older commit is needed

        cached = self.local(name)
        if cached is not None:
            return cached
        path = self._download(name, self.commit, entry.size)
        if entry.sha256 is not None and sha256(path) != entry.sha256:
            # both the blob and the link to it, else the next run would find the damaged file
            path.resolve().unlink()
            path.unlink(missing_ok=True)
            raise BadSource(
                f"{name} of {self.reference} does not match the sha256 that the Hub lists; run the"
                " command again"
            )
        return path

    def _download(self, name: str, revision: str | None, size: int) -> Path:
        """Fetch a file into the cache, and return its path there."""
        from huggingface_hub import hf_hub_download

        with answers(self.reference, size):
            return Path(
                hf_hub_download(self.repo_id, name, revision=revision, library_name="ropeconv")
            )
