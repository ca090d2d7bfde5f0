"""The files of a repository as the Hub lists them, with types and values checked."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from ..errors import BadSource, shown
from ..formats.index import safe_name
from .hub_client import COMMIT
from .source import MOST_FILES

LARGEST = 1 << 50
"""Bytes of the largest file that is believed."""

Size = Annotated[int, msgspec.Meta(ge=0, le=LARGEST)]
Sha256 = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]


class ListedFile(msgspec.Struct, frozen=True):
    """A file of a repository. size: in bytes, None where the Hub does not say. sha256: of large files."""

    name: Annotated[str, msgspec.Meta(max_length=4096)]
    size: Size | None = None
    sha256: Sha256 | None = None


class Listing(msgspec.Struct, frozen=True):
    """A repository at a commit, which is None where a mirror does not give it."""

    commit: Annotated[str, msgspec.Meta(pattern=f"^{COMMIT.pattern}$")] | None
    files: Annotated[tuple[ListedFile, ...], msgspec.Meta(max_length=MOST_FILES)]


def read_listing(info: Any, reference: str) -> Listing:
    """The listing in an answer of the Hub.

    info: a ModelInfo of huggingface_hub, whose fields have whatever types the answer had. reference: for messages.
    Raises BadSource for wrong types, impossible sizes, and names that are not inside the repository or there twice.
    """
    try:
        rows = [{"name": row.rfilename, "size": row.size, "sha256": _sha256(row)} for row in info.siblings or ()]
        listing = msgspec.convert({"commit": info.sha, "files": rows}, Listing)
    except (msgspec.ValidationError, AttributeError, KeyError, TypeError) as problem:
        raise BadSource(
            f"the Hub's list of the files of {reference} cannot be understood ({problem}); check HF_ENDPOINT, or try "
            "again later"
        ) from None
    seen: set[str] = set()
    for file in listing.files:
        if not safe_name(file.name) or not file.name.isprintable():
            raise BadSource(f"{reference} holds a file named {shown(file.name)}, outside itself; do not trust it")
        if file.name in seen:
            raise BadSource(f"{reference} lists {file.name} twice; do not trust it")
        seen.add(file.name)
    return listing


def _sha256(row: Any) -> Any:
    lfs = getattr(row, "lfs", None)
    return lfs.get("sha256") if isinstance(lfs, dict) else getattr(lfs, "sha256", None)
