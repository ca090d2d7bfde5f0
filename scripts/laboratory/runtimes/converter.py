"""The lab's llama.cpp: its stock converter, and what the library computes from the keys that the
converter writes.
"""

import sys
import tarfile
from pathlib import Path

from ..environment import Environment, LabRuntime, installed, once, pip

TRANSFORMERS = "transformers==4.57.6"
"""What requirements/requirements-convert_legacy_llama.txt of that llama.cpp pins; it reads the
configs.
"""
PACKAGES = {"2026.10": "0.3.36"}
"""The release of llama-cpp-python that contains each version, of llama.cpp by year and month."""
PARTS = ("conversion", "gguf-py", "convert_hf_to_gguf.py", "src", "requirements")


def converter_tree(version: str, folder: Path) -> Path:
    """Return a folder with the llama.cpp that a source distribution has inside.

    It has the converter, and the sources that `converter_program` follows.

    Args:
        version: The version of llama-cpp-python.
        folder: The folder. One that an earlier run has made is used again.
    """

    def make(target: Path) -> None:
        package = f"llama-cpp-python=={version}"
        pip("download", "--no-deps", "--no-binary=llama-cpp-python", "-d", target, package)
        for archive in target.glob("*.tar.gz"):
            with tarfile.open(archive) as content:
                for member in content.getmembers():
                    _, _, path = member.name.partition("/vendor/llama.cpp/")
                    if path.split("/")[0] in PARTS:
                        member.name = path
                        content.extract(member, target, filter="data")
            archive.unlink()

    return once(folder, make)


def install(version: str, folder: Path) -> Environment:
    """The converter beside the pinned transformers. torch, numpy and PyYAML are those of this
    interpreter.
    """
    tree = converter_tree(PACKAGES[version], folder / "llama.cpp")
    config_reader = installed(folder / "transformers", TRANSFORMERS)
    return Environment(Path(sys.executable), (config_reader, tree / "gguf-py", tree))


RUNTIME = LabRuntime(
    name="llama-cpp",
    program="converter_program",
    versions=tuple(PACKAGES),
    quick=tuple(PACKAGES),
    install=install,
    how=(
        "llama.cpp via convert_hf_to_gguf.py: the keys that the converter of commit 0c1e570"
        " (llama-cpp-python 0.3.36) writes, and what the library's code makes of them, which was"
        " checked on logits"
    ),
)
