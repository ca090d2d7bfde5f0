"""The projector of a vision model, which llama.cpp loads from a file beside the language model.

A projector has no RoPE that an extension changes. llama.cpp's own converter writes it.
"""

from __future__ import annotations

import shlex
from contextlib import suppress
from pathlib import Path

from ..convert.to_gguf.stock import (
    SCRIPT,
    StockConverter,
    find_converter,
    given_files,
    prepare_folder,
)
from ..errors import BadSource
from ..formats.disk import copy_file
from ..formats.drafts import draft_of
from ..formats.files import scratch
from ..formats.gguf.file import GgufFile
from ..models.projector import is_projector_of, projector_beside
from ..models.source import Source
from ..models.stored.checkpoint import DequantisedCheckpoint
from ..rope.errors import RopeconvError
from .gguf import ExportPlan
from .plan import Plan

PARTS = ("vision_config", "audio_config")
"""Keys of config.json with the settings of parts that a projector brings into the model."""
OUTTYPES = ("f32", "f16", "bf16", "q8_0")
"""Types that llama.cpp's converter writes."""


def has_projector(source: Source) -> bool:
    """Return whether a checkpoint has parts for images or sounds."""
    config = source.config()
    return any(isinstance(config.get(part), dict) for part in PARTS)


def projector_path(plan: Plan) -> Path:
    """Return where the projector of an output is written: beside it."""
    return plan.out.with_name(f"mmproj-{plan.out.stem}.gguf")


def find_projector(plan: Plan) -> Path | None:
    """Return the projector of an output: one beside it, or beside its source; None without one."""
    if plan.is_folder:
        return None
    written = projector_path(plan)
    # an output of another model may have left one of its name
    if isinstance(plan, ExportPlan) and is_projector_of(written, plan.source):
        return written
    return projector_beside(plan.source)


def projector_command(plan: ExportPlan) -> str:
    """Return the command that writes the projector of an output; empty where none is needed.

    It is llama.cpp's convert_hf_to_gguf.py, with its path if that is known.
    """
    if not has_projector(plan.source) or find_projector(plan) is not None:
        return ""
    converter = plan.converter
    if converter is None:
        # one that is installed, or that the environment variable ROPECONV_CONVERTER names; it
        # raises for a path that is not a converter, and then the command has only the name
        with suppress(RopeconvError):
            converter = find_converter()
    script = SCRIPT if converter is None else str(converter.script)

    # python convert_hf_to_gguf.py MODEL --mmproj --outfile mmproj-NAME.gguf
    words = ["python", script, plan.source.reference, "--mmproj", "--outfile"]
    return shlex.join([*words, str(projector_path(plan))])


def write_projector(plan: Plan) -> Path | None:
    """Let the converter that the user named write the projector of an output, unless it is there.

    One of another width was left by an output of another model, and is replaced.

    A projector is the part of a multimodal model that turns images into embeddings. llama.cpp reads
    it from a file of its own, mmproj-NAME.gguf.

    Returns:
        The file; None for a model without a projector, and without --converter.

    Raises:
        BadSource: The weights cannot be given to the converter.
        RopeconvError: It cannot convert this projector, or writes one for another model.
    """
    if not isinstance(plan, ExportPlan) or plan.target.converter is None:
        return None
    if not has_projector(plan.source):
        return None
    path = projector_path(plan)
    if is_projector_of(path, plan.source):
        return path

    converter = plan.converter
    assert converter is not None
    with draft_of(path) as temporary_path:  # it gets its name when it is complete
        _convert(plan, converter, temporary_path)
    return path


def _convert(plan: ExportPlan, converter: StockConverter, target: Path) -> None:
    """Convert the projector of a multimodal model, whose embeddings of images the model reads.

    Args:
        plan: The plan of the language model, a conversion to GGUF.
        converter: llama.cpp's converter.
        target: The file that is written.

    Raises:
        BadSource: The checkpoint is quantised.
        RopeconvError: The converter fails, or writes a projector of another width than that of the
            language model.
    """
    source = plan.source
    if isinstance(source, DequantisedCheckpoint):
        raise BadSource("llama.cpp's converter does not get quantised weights")
    outtype = plan.exported.outtype.lower()
    if outtype not in OUTTYPES:
        outtype = "f16"
    with scratch() as folder:
        names = given_files(source)
        checkpoint = prepare_folder(source, source.config(), folder, names, whole=True)
        converted = folder / target.name.strip(".")
        converter.convert(checkpoint, converted, outtype, projector=True)

        # the width of the language model, and that of the projector, if its file says it
        language_model = plan.exported.model
        language_arch = language_model.get("general.architecture")
        width = language_model.get(f"{language_arch}.embedding_length")
        projector = GgufFile.open(converted)
        is_projector = projector.get("general.architecture") == "clip"
        projected_width = projector.get("clip.vision.projection_dim")
        has_other_width = projected_width is not None and projected_width != width
        if not is_projector or has_other_width:
            raise RopeconvError(
                f"{converter.described} wrote a projector of another width than the model has;"
                " convert it from the original checkpoint"
            )
        copy_file(converted, target)
