"""Links in a source: those within it and into the Hub's cache are followed, others only where the user asks for it."""

from __future__ import annotations

import os
from pathlib import Path

from ..errors import BadSource

FOLLOW = "ROPECONV_FOLLOW_LINKS"


def check_link(path: Path, root: Path) -> None:
    """Raises BadSource for a file that is somewhere else: an output would hold a copy, and may be published.

    The Hub's cache keeps `models--owner--name/snapshots/COMMIT/file` as a link into `models--owner--name/blobs`. path:
    of the file. root: the folder of the checkpoint, which may be a link itself.
    """
    if os.environ.get(FOLLOW) == "1":
        return
    here, target = root.resolve(), path.resolve()
    if here not in target.parents and not any(blobs in target.parents for blobs in _blobs(here)):
        raise BadSource(
            f"{path} leads to {target}, outside the checkpoint, whose content would be copied; put the file there "
            f"itself, or set {FOLLOW}=1 if you made that link"
        )


def _blobs(here: Path) -> list[Path]:
    """The folder of contents that belongs to a snapshot in the Hub's cache; empty for other folders."""
    inside = [here, *here.parents]
    return [
        commit.parent.parent / "blobs"
        for commit in inside
        if commit.parent.name == "snapshots" and commit.parent.parent.name.startswith("models--")
    ]
