"""ApplyOptions: how a plan is executed."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ApplyOptions:
    """How a plan is executed.

    link: hard-link unchanged files. force: replace an earlier output. checksum: hash copied weights as well, for the
    receipt. staged: leave out files that are copied unchanged, for a caller that takes them from the source. fsync:
    wait until everything is on the disk before it takes its final name.
    """

    link: bool = False
    force: bool = False
    checksum: bool = False
    staged: bool = False
    fsync: bool = True
