"""Makes a release of the data about runtimes: `python -m scripts.release_data FOLDER [VERSION]`.

It writes the version into `ropeconv/runtimes/about.toml` (today, or with a number behind it where
that is taken), and both files of the release into FOLDER. Users get it by `ropeconv update-data`
from the assets of the release `runtime-data` of the repository, or from FOLDER by `--from`.
"""

import argparse
import hashlib
import re
import sys
from datetime import UTC, datetime
from pathlib import Path

from ropeconv.features.updates.release import MANIFEST, data_name, make_release
from ropeconv.formats.drafts import together, write_file
from ropeconv.formats.package_data import package_data
from ropeconv.runtimes.stored import ABOUT, SHIPPED, About, data_version, read_shipped


def next_version(before: str, today: str) -> str:
    """Return today as a version, with a number behind it where it is not later than the last."""
    version = today
    number = 1
    while data_version(version) <= data_version(before):
        version = f"{today}.{number}"
        number += 1
        if number > 1000:
            raise SystemExit(f"{before} is later than today ({today}); correct {ABOUT}")
    return version


def release(folder: Path, version: str) -> str:
    """Write a release into a folder, and its version into the package.

    Args:
        folder: The folder.
        version: The version.

    Returns:
        The SHA-256 of the manifest.
    """
    files = dict(read_shipped())
    files[ABOUT] = re.sub(r'^version = ".*"$', f'version = "{version}"', files[ABOUT], flags=re.M)
    manifest, data = make_release(files)  # before anything is written
    with together():
        write_file(folder / MANIFEST, manifest)
        write_file(folder / data_name(version), data)
        write_file(SHIPPED / ABOUT, files[ABOUT])
    return hashlib.sha256(manifest).hexdigest()


def main(arguments: list[str]) -> None:
    """Make a release, and print its version and the SHA-256 of its manifest."""
    parser = argparse.ArgumentParser(prog="python -m scripts.release_data", description=__doc__)
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("version", nargs="?", metavar="VERSION")
    given = parser.parse_args(arguments)
    before = package_data(SHIPPED / ABOUT, About).version
    version = given.version or next_version(before, datetime.now(UTC).strftime("%Y.%m.%d"))
    if data_version(version) <= data_version(before):
        raise SystemExit(f"{version} is not later than {before}, the last release")
    print(f"{version}: SHA-256 of {MANIFEST}: {release(given.folder, version)}")


if __name__ == "__main__":
    main(sys.argv[1:])
