"""The projector beside a model, which brings images and sounds into the language model."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from ..errors import BadSource
from ..formats.gguf.file import GgufFile
from .gguf import GgufSource, HubGguf
from .schema import text_config
from .source import Origin, Source

MOST_READ = 32
"""The most files whose headers are read to find a projector."""
BEST_TYPES = ("f16", "bf16", "f32")
"""Types in the names of projectors that are the same but for their weights, the usual one first."""
WIDTHS = ("clip.vision.projection_dim", "clip.audio.projection_dim")
"""Keys with the width of what a projector gives, of which each has one: convert_hf_to_gguf.py
writes the width of the model's embeddings, and llama.cpp reads it (tools/mtmd/clip-impl.h).
"""


def projector_beside(source: Origin) -> Path | None:
    """Return the projector of a local model: a file of its folder with `mmproj` in its name.

    One for another model is told by its width, which is that of the model's embeddings. None where
    no file fits.
    """
    place = _folder(source)
    if place is None or not place.is_dir():
        return None
    named = sorted(path for path in place.glob("*.gguf") if "mmproj" in path.name.lower())
    fitting = [path for path in named[:MOST_READ] if _fits(path, _width(source))]
    return min(fitting, key=_rank, default=None)


def is_projector_of(path: Path, source: Origin) -> bool:
    """Return whether a file is a projector for a model, by the width of the model's embeddings."""
    return path.is_file() and _fits(path, _width(source))


def _folder(source: Origin) -> Path | None:
    """Return the folder in which the projector of a model would be; None for a model on the Hub."""
    if isinstance(source, HubGguf) or source.commit:
        return None
    if isinstance(source, GgufSource):
        return source.path.parent
    return Path(source.reference)


def _width(source: Origin) -> int | None:
    """Return the width of the embeddings of a model; None where it does not state one."""
    width = None
    with suppress(BadSource):
        if isinstance(source, GgufSource):
            arch = source.file.get("general.architecture")
            width = source.file.get(f"{arch}.embedding_length")
        elif isinstance(source, Source):
            config = source.config()
            part = text_config(config) or config
            width = part.get("hidden_size")
    return width if isinstance(width, int) else None


def _fits(path: Path, width: int | None) -> bool:
    """Whether a file is a projector for embeddings of a width; not where one does not say it."""
    try:
        file = GgufFile.open(path)
        if file.get("general.architecture") != "clip":
            return False
        widths = [file.get(key) for key in WIDTHS]
    except (BadSource, OSError):
        return False
    return width is not None and width in widths


def _rank(path: Path) -> tuple[int, str]:
    """Return the place of a projector among those of one model."""
    words = path.stem.lower().replace("_", "-").replace(".", "-").split("-")
    ranks = [place for place, name in enumerate(BEST_TYPES) if name in words]
    return min(ranks, default=len(BEST_TYPES)), path.name
