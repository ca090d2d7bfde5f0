"""Where the data about runtimes is read from: the package, or what `ropeconv update-data` stored.

`runtime_data` returns the content of one place such as `data/vllm.toml`, and `current_data` says
which data is used. Both know the data of the package, and that of the user where it is newer.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TypeVar

import msgspec
import tomli

from ..environment import user_folder
from ..errors import DamagedPackage
from ..formats.package_data import PACKAGE, package_data, package_errors
from ..rope.errors import RopeconvError

FORM = 2
"""The form of the data that this ropeconv reads: the files that there are and their fields."""

SHIPPED = PACKAGE / "runtimes"
ABOUT = "about.toml"
STORED = "runtime-data.json"
PATTERNS = (
    ABOUT,
    "data/*.toml",
    "lab/*.json",
    "readers/*.toml",
    "drafts.toml",
    "programs.toml",
    "lab_models.json",
)
"""The files of the data, below `ropeconv/runtimes`."""

T = TypeVar("T")


class About(msgspec.Struct, frozen=True):
    """Which data it is: the content of `about.toml`."""

    form: int
    """As FORM."""

    version: str
    """The day of its release, such as 2026.11.29, and a number where a day has several."""


class StoredData(msgspec.Struct, frozen=True):
    """A whole set of data as one file: what a release of the data is, and what the user has.

    Fields of a later form are accepted, so that `form` can be read of any.
    """

    form: int
    """As FORM."""

    version: str
    """As in `About`."""

    files: dict[str, str]
    """The content of each file by its place, such as `data/vllm.toml`."""

    hashes: dict[str, str]
    """The SHA-256 of each file."""

    source: str = ""
    """The URL that it came from; empty in a release."""


class CurrentData(msgspec.Struct, frozen=True):
    """The data that is used."""

    about: About
    stored: StoredData | None
    """The data of the user, if that is used; None for the data of the package."""

    note: str = ""
    """Why the data of the user is not used, as a sentence; empty where there is none."""


def file_hash(text: str) -> str:
    """Return the SHA-256 of a file."""
    return hashlib.sha256(text.encode()).hexdigest()


def data_version(version: str) -> tuple[int, ...]:
    """Return a version of the data as numbers that can be compared."""
    return tuple(int(part) for part in version.split(".") if part.isdigit())


def stored_path() -> Path:
    """Return the file with the data of the user; it may not exist.

    Raises:
        RopeconvError: The user has no home.
    """
    return user_folder("data") / STORED


@cache
def current_data() -> CurrentData:
    """Return the newest data about runtimes: of the package, or downloaded by the user.

    Its `stored` has the downloaded data, and is None if the data of the package is used. A `note`
    then says why downloaded data is not used.

    Raises:
        DamagedPackage: The downloaded data cannot be read.
    """
    of_package = package_data(SHIPPED / ABOUT, About)

    # nothing was downloaded, or the user has no home
    try:
        path = stored_path()
        content = path.read_bytes()
    except (RopeconvError, OSError):
        return CurrentData(of_package, stored=None)

    # the package is newer
    downloaded = _decode(path, content)
    if data_version(downloaded.version) <= data_version(of_package.version):
        note = f"{path} has older data ({downloaded.version}), which is not used"
        return CurrentData(of_package, stored=None, note=note)

    # another ropeconv has downloaded it: `form` is the number of its schema, and FORM the number of
    # the schema that this version reads
    if downloaded.form != FORM:
        note = f"{path} has data for another version of ropeconv, which is not used"
        return CurrentData(of_package, stored=None, note=note)

    about = About(form=downloaded.form, version=downloaded.version)
    return CurrentData(about, stored=downloaded)


def _decode(path: Path, content: bytes) -> StoredData:
    """Return the data of the user, checked by its hashes."""
    try:
        stored = msgspec.json.decode(content, type=StoredData)
        check_hashes(stored)
    except ValueError as problem:
        raise _damaged(path, problem) from None
    return stored


def check_hashes(data: StoredData) -> None:
    """Raise ValueError where a file is not the one that the hashes are of."""
    if data.files.keys() != data.hashes.keys():
        raise ValueError("its files are not those that its hashes are of")
    for place, text in data.files.items():
        if file_hash(text) != data.hashes[place]:
            raise ValueError(f"{place} has another SHA-256")


def _damaged(path: Path, problem: object) -> DamagedPackage:
    """Return the error for data of the user that cannot be used."""
    return DamagedPackage(
        f"{path} is damaged ({problem}); run `ropeconv update-data` again, or `ropeconv update-data"
        " --reset` for the data that ropeconv shipped with"
    )


def runtime_files(folder: str, suffix: str) -> list[str]:
    """Return the places of the files in a folder of the data, such as `lab`, sorted by name."""
    stored = current_data().stored
    if stored is None:
        paths = [path.relative_to(SHIPPED) for path in (SHIPPED / folder).glob(f"*{suffix}")]
    else:
        paths = [Path(place) for place in stored.files]
    found = [path for path in paths if path.parent == Path(folder) and path.suffix == suffix]
    return [path.as_posix() for path in sorted(found, key=lambda path: path.stem)]


def has_runtime_file(place: str) -> bool:
    """Whether the data has a file."""
    stored = current_data().stored
    if stored is None:
        return (SHIPPED / place).is_file()
    return place in stored.files


def runtime_data(place: str, kind: type[T]) -> T:
    """Return the content of a file of the data, such as `data/vllm.toml`.

    Raises:
        DamagedPackage: With the file and the field.
    """
    stored = current_data().stored
    if stored is None:
        return package_data(SHIPPED / place, kind)
    with data_errors(place):
        return decode_text(place, stored.files[place], kind)


@contextmanager
def data_errors(place: str) -> Iterator[None]:
    """Turn errors about a file of the data into DamagedPackage, with the file and the field."""
    if current_data().stored is None:
        with package_errors(SHIPPED / place):
            yield
        return
    try:
        yield
    except (ValueError, KeyError) as problem:
        raise _damaged(stored_path(), f"{place}: {problem}") from None


def decode_text(place: str, text: str, kind: type[T]) -> T:
    """Return the content of a TOML or JSON file. Raises ValueError for another form."""
    if place.endswith(".toml"):
        return msgspec.convert(tomli.loads(text), kind)
    return msgspec.json.decode(text, type=kind)


def read_shipped() -> Mapping[str, str]:
    """Return the files of the package by their places."""
    files = {}
    for pattern in PATTERNS:
        for path in sorted(SHIPPED.glob(pattern)):
            files[path.relative_to(SHIPPED).as_posix()] = path.read_text("utf-8")
    return files
