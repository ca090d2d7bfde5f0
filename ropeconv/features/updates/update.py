"""Later data for the installed ropeconv. Begin with `update_data`.

The data of the user is one file, which gets its name when it is complete, checked and on the disk.
A command that was killed before leaves the data as it was, and the same command begins again.
"""

import hashlib
import os
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from ropeconv.environment import redacted
from ropeconv.errors import BadSource, DamagedPackage, UsageError
from ropeconv.formats.disk import sync_folder
from ropeconv.formats.drafts import write_file
from ropeconv.formats.package_data import package_data
from ropeconv.runtimes.stored import (
    ABOUT,
    SHIPPED,
    About,
    current_data,
    data_version,
    file_hash,
    read_shipped,
    stored_path,
)

from .download import beside, check_place, fetch
from .release import LARGEST_DATA, LARGEST_MANIFEST, MANIFEST, Manifest, open_release, read_manifest

VARIABLE = "ROPECONV_DATA_URL"
DEFAULT = f"https://github.com/ropeconv/ropeconv/releases/download/runtime-data/{MANIFEST}"


@dataclass(frozen=True)
class DataUpdate:
    """The outcome of `update_data`."""

    before: str
    """The version that was used."""

    available: str
    """The version of the release."""

    changes: dict[str, str]
    """"new", "changed" or "removed" by the place of each file that is not as before."""

    source: str
    """The place of the manifest."""

    sha256: str
    """The SHA-256 of the manifest."""

    stored: str = ""
    """The file that was written; empty where none was."""

    @property
    def is_newer(self) -> bool:
        """Whether the release is later than what was used."""
        return data_version(self.available) > data_version(self.before)

    def to_dict(self) -> dict[str, Any]:
        """Return the outcome as JSON-ready data."""
        return {
            "before": self.before,
            "available": self.available,
            "newer": self.is_newer,
            "changes": self.changes,
            "source": self.source,
            "sha256": self.sha256,
            "stored": self.stored or None,
        }


def manifest_place(given: str) -> str:
    """Return the place of the manifest: the given one, else that of the environment, else ours."""
    return given or os.environ.get(VARIABLE) or DEFAULT


def update_data(given: str = "", sha256: str = "", check: bool = False) -> DataUpdate:
    """Fetch a release of the data and store it for the user, if it is later than what is used.

    Args:
        given: The place of the manifest; empty for ROPECONV_DATA_URL, or that of the project.
        sha256: The SHA-256 that the manifest must have; empty for any.
        check: Read only the manifest, and store nothing.

    Raises:
        RopeconvError: There is no answer, or the data is for another version of ropeconv.
        BadSource: The release is damaged, or is not the pinned one.
        UsageError: The place is not safe, or the SHA-256 is not one.
    """
    place = manifest_place(given)
    pin = _parse_pin(sha256)
    check_place(place, pinned=bool(pin))

    # the manifest, which is small
    content = fetch(place, LARGEST_MANIFEST)
    digest = hashlib.sha256(content).hexdigest()
    if pin and digest != pin:
        raise BadSource(
            f"{redacted(place)} has the SHA-256 {digest}, not that of --sha256; nothing was stored"
        )
    manifest = read_manifest(content, redacted(place))

    # how the release differs from the data that is used now
    about, files = _used()
    update = DataUpdate(
        before=about.version,
        available=manifest.version,
        changes=_changes(files, manifest),
        source=redacted(place),
        sha256=digest,
    )
    if check or not update.is_newer:
        return update

    # the data, which is stored with the place that it is from
    data_place = beside(place, manifest.data)
    data_content = fetch(data_place, min(manifest.size, LARGEST_DATA))
    data = open_release(manifest, data_content, redacted(data_place))
    with_source = msgspec.structs.replace(data, source=redacted(place))
    path = stored_path()
    write_file(path, msgspec.json.encode(with_source))
    current_data.cache_clear()
    return replace(update, stored=str(path))


def _parse_pin(sha256: str) -> str:
    """Return a SHA-256 in lower case. Raises UsageError where it is not one."""
    pin = sha256.strip().lower()
    if pin and (len(pin) != 64 or not set(pin) <= set("0123456789abcdef")):
        raise UsageError(f"--sha256 {sha256} is not a SHA-256; give its 64 hexadecimal digits")
    return pin


def _used() -> tuple[About, dict[str, str]]:
    """Return the version that is used, and the SHA-256 of each of its files.

    Damaged data of the user counts as not there, so that it can be replaced.
    """
    try:
        current = current_data()
        about = current.about
        if current.stored is not None:
            return about, current.stored.hashes
    except DamagedPackage:
        about = package_data(SHIPPED / ABOUT, About)
    return about, {place: file_hash(text) for place, text in read_shipped().items()}


def _changes(files: dict[str, str], manifest: Manifest) -> dict[str, str]:
    """Return what a release changes, such as {"data/vllm.toml": "changed"}.

    Args:
        files: The SHA-256 of each file that is used.
        manifest: The manifest of the release.
    """
    changes = {}
    for place in sorted({*files, *manifest.files}):
        if place not in files:
            changes[place] = "new"
        elif place not in manifest.files:
            changes[place] = "removed"
        elif files[place] != manifest.files[place]:
            changes[place] = "changed"
    return changes


def reset_data() -> tuple[str, bool]:
    """Remove the runtime data that `update-data` has stored, so that the shipped data counts again.

    Returns:
        The version that ropeconv shipped with, and whether there was a file to remove.

    Raises:
        OSError: The file cannot be removed.
    """
    path = stored_path()
    was_there = path.exists()
    if was_there:
        path.unlink()
        sync_folder(path.parent)
    current_data.cache_clear()
    return package_data(SHIPPED / ABOUT, About).version, was_there
