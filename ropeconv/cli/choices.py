"""Types of options with few values, which `--help` lists, the shell completes, and the parser checks."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Literal

ENCODE = Path(__file__).parent.parent / "encode"
CARRIER = "carrier"
TRAINING = Path(__file__).parent.parent / "training" / "data"


def encoding_names() -> tuple[str, ...]:
    """The values of `--encoding`, from the file names of the encodings, since importing these would import numpy."""
    found = ("checkpoint/encodings", "gguf/encodings")
    names = [sorted(path.stem for path in (ENCODE / folder).glob("[a-z]*.py")) for folder in found]
    return ("auto", *names[0], *names[1], CARRIER)


def trainer_names() -> tuple[str, ...]:
    """The values of `--for`, from the file names of the trainers."""
    return tuple(sorted(path.stem for path in TRAINING.glob("*.toml")))


if TYPE_CHECKING:
    EncodingName = str
    TrainerName = str
else:
    EncodingName = Literal.__getitem__(encoding_names())
    TrainerName = Literal.__getitem__(trainer_names())


class Format(Enum):
    """The formats of an output, as an Enum, since typer takes no list of Literals."""

    safetensors = "safetensors"
    gguf = "gguf"


Device = Literal["auto", "cuda", "cpu", "off"]
DualChunk = Literal["keep", "drop"]
Dtype = Literal["auto", "float32", "bfloat16", "float16"]
FoldDtype = Literal["stored", "f32"]
FoldInto = Literal["q", "k", "qk"]
LogNKind = Literal["clamped", "full"]
Reference = Literal["patched", "config", "dequantised"]
