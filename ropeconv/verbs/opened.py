"""Inspects a source that is open, for every front. It imports nothing that runs a model."""

from dataclasses import replace

from ..convert.gguf_encoding import judge_file
from ..inspection.inspection import ConfigInspection, Inspection, inspect_source
from ..models.gguf import GgufSource
from ..models.source import Source


def inspect_opened(source: Source | GgufSource) -> Inspection:
    """Inspect a source, with the verdict of each runtime.

    Args:
        source: From `open_source`. It is marked as accepted also if it is a draft model for
            speculative decoding (`as_draft`).

    Raises:
        BadSource: For a damaged source, and for one whose RoPE is not known.
    """
    source.as_draft = True
    inspection = inspect_source(source)
    if isinstance(source, GgufSource):
        return replace(inspection, reader_verdicts=judge_file(source.file))
    if isinstance(inspection, ConfigInspection):
        # Verdicts are computed when they are first used. Here they are computed for all runtimes,
        # so that a config that cannot be read is refused now.
        inspection.planned.judge_all()
    return inspection
