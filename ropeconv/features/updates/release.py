"""A release of the data about runtimes: its manifest, and the checks before it is used.

`make_release` makes both files of a release from files, and `open_release` returns the data that a
manifest is of. The manifest has a SHA-256 of all of it and of each file. It says that the data is
complete and is that of the manifest; who wrote the manifest it cannot say.
"""

import hashlib
from collections.abc import Mapping
from fnmatch import fnmatchcase

import msgspec

from ropeconv.errors import BadSource
from ropeconv.rope.errors import RopeconvError
from ropeconv.runtimes.drafts import DraftTable
from ropeconv.runtimes.gguf_readers import Reader
from ropeconv.runtimes.lab_file import LabFile, full_keys, full_records
from ropeconv.runtimes.programs import Program
from ropeconv.runtimes.runtime import RowFile, rows_of
from ropeconv.runtimes.stored import (
    ABOUT,
    FORM,
    PATTERNS,
    About,
    StoredData,
    check_hashes,
    decode_text,
    file_hash,
    read_shipped,
)

MANIFEST = "runtime-data.manifest.json"
LARGEST_MANIFEST = 1 << 20
LARGEST_DATA = 64 << 20
"""Bytes of a manifest and of the data that are read."""


class Manifest(msgspec.Struct, frozen=True):
    """The parts of a release. Fields of a later form are accepted, so that `form` can be read."""

    form: int
    """The form of the data, as `FORM` of a ropeconv that can use it."""

    version: str
    """The version of the data, such as 2026.11.29."""

    data: str = ""
    """The name of the file with the data, beside the manifest."""

    size: int = 0
    """The bytes of that file."""

    sha256: str = ""
    """Its SHA-256."""

    files: dict[str, str] = {}
    """The SHA-256 of each file in it, by its place."""


def data_name(version: str) -> str:
    """Return the name of the data of a release, of which each has its own.

    While a release is published, the manifest of the one before is still there with its data.
    """
    return f"runtime-data-{version}.json"


def make_release(files: Mapping[str, str]) -> tuple[bytes, bytes]:
    """Return the two files of a release of the runtime data: its manifest, and the data.

    The manifest is small: the version, and the size and SHA-256 of the data.

    Args:
        files: The content of each file by its place, such as `data/vllm.toml`.

    Raises:
        BadSource: This ropeconv could not use the data.
    """
    about = decode_text(ABOUT, files[ABOUT], About)
    hashes = {place: file_hash(text) for place, text in files.items()}
    data = StoredData(about.form, about.version, dict(files), hashes)
    check_data(data)

    content = _lines(data)
    digest = hashlib.sha256(content).hexdigest()
    name = data_name(about.version)
    manifest = Manifest(about.form, about.version, name, len(content), digest, hashes)
    return _lines(manifest), content


def _lines(content: Manifest | StoredData) -> bytes:
    """Return JSON that is the same for the same content, with a line for each field."""
    return msgspec.json.format(msgspec.json.encode(content, order="sorted"), indent=1) + b"\n"


def read_manifest(content: bytes, place: str) -> Manifest:
    """Return a manifest.

    Args:
        content: The file.
        place: Where it came from, for the message.

    Raises:
        BadSource: It is not a manifest.
        RopeconvError: It is of data for a later ropeconv.
    """
    try:
        manifest = msgspec.json.decode(content, type=Manifest)
    except ValueError as problem:
        raise BadSource(
            f"{place} is not the manifest of a release ({problem}); correct --from"
        ) from None
    if manifest.form > FORM:
        raise RopeconvError(
            f"the data {manifest.version} is for a later ropeconv (form {manifest.form}; this one"
            f" reads {FORM}); pip install --upgrade ropeconv"
        )
    if manifest.form < FORM:
        raise RopeconvError(
            f"the data {manifest.version} is for an earlier ropeconv (form {manifest.form}; this"
            f" one reads {FORM}); keep the data that ropeconv shipped with"
        )
    return manifest


def open_release(manifest: Manifest, content: bytes, place: str) -> StoredData:
    """Return the data of a release, after a comparison with the size and SHA-256 in its manifest.

    Args:
        manifest: The manifest.
        content: The file with the data.
        place: Where it came from, for messages.

    Raises:
        BadSource: It is not the data of the manifest, or this ropeconv cannot use it.
    """
    if len(content) != manifest.size:
        raise BadSource(
            f"{place} has {len(content):,} bytes, and its manifest says {manifest.size:,}; run the"
            " command again"
        )
    digest = hashlib.sha256(content).hexdigest()
    if digest != manifest.sha256:
        raise BadSource(
            f"{place} has the SHA-256 {digest}, and its manifest says {manifest.sha256}; run the"
            " command again"
        )
    try:
        data = msgspec.json.decode(content, type=StoredData)
    except ValueError as problem:
        raise BadSource(f"{place} is not the data of a release ({problem})") from None
    is_of_manifest = (
        data.form == manifest.form
        and data.version == manifest.version
        and data.hashes == manifest.files
    )
    if not is_of_manifest:
        raise BadSource(f"{place} is of another release than its manifest; run the command again")
    check_data(data)
    return data


def check_data(data: StoredData) -> None:
    """Raise BadSource if this ropeconv cannot use the data of a release.

    Every file of the data is read once, as in use.
    """
    checked_place = ABOUT  # the file that the message names
    try:
        check_hashes(data)
        for place, text in data.files.items():
            checked_place = place
            is_known = any(_matches(place, pattern) for pattern in PATTERNS)
            if not is_known:
                raise ValueError("ropeconv has no such file")
            _check_file(place, text)

        # the file ABOUT repeats the form and the version of the data
        stated = decode_text(ABOUT, data.files[ABOUT], About)
        if stated != About(form=data.form, version=data.version):
            raise ValueError("it is of another version")
    except (ValueError, KeyError) as problem:
        raise BadSource(
            f"the data {data.version} cannot be used: {checked_place}: {problem}; report it, and"
            " keep the data that you have"
        ) from None

    # without its file, a runtime that ropeconv knows would be unknown
    missing = sorted(read_shipped().keys() - data.files.keys())
    if missing:
        raise BadSource(
            f"the data {data.version} cannot be used: it lacks {missing[0]}; report it, and keep"
            " the data that you have"
        )


def _matches(place: str, pattern: str) -> bool:
    """Whether a place is one of a pattern, whose `*` stands for a part between slashes."""
    return place.count("/") == pattern.count("/") and fnmatchcase(place, pattern)


def _check_file(place: str, text: str) -> None:
    """Raise ValueError or KeyError if ropeconv cannot read a file of the data.

    Args:
        place: The path of the file in the data, such as data/vllm.toml or drafts.toml. Files that
            ropeconv does not know are refused before (`check_data`).
        text: The content of the file.
    """
    # each file is read with the function that reads it in use, and the result is not needed
    folder, _, _ = place.rpartition("/")
    if folder == "data":  # statements about a runtime
        rows_of(decode_text(place, text, RowFile))
    elif folder == "readers":  # the keys of GGUF files that a runtime reads
        for row in decode_text(place, text, RowFile).contents().values():
            msgspec.convert(row, Reader)
    elif folder == "lab":  # measurements of a runtime
        file = decode_text(place, text, LabFile)
        list(full_records(file))  # a generator checks a record when the record is taken
        full_keys(file)
    elif place == "drafts.toml":
        decode_text(place, text, DraftTable)
    elif place == "programs.toml":
        decode_text(place, text, dict[str, tuple[Program, ...]])
    elif place == "lab_models.json":
        decode_text(place, text, dict[str, tuple[str, str]])
