"""Inspects a source that is open, for every front. It imports nothing that runs a model."""

from dataclasses import replace

from ..convert.gguf_encoding import judge_file
from ..inspection.inspection import ConfigInspection, Inspection, inspect_source
from ..models.gguf import GgufSource
from ..models.source import Source


def inspect_opened(source: Source | GgufSource) -> Inspection:
    """Inspect a source, with the verdict of each runtime.

    A draft model of speculative decoding is accepted too (`as_draft`).

    Args:
        source: From `open_source`.

    Raises:
        BadSource: For a damaged source, and for one whose RoPE is not known.
    """
    source.as_draft = True
    inspection = inspect_source(source)
    if isinstance(source, GgufSource):
        return replace(inspection, reader_verdicts=judge_file(source.file))
    if isinstance(inspection, ConfigInspection):
        # judges the config for every runtime; one that cannot be read is refused here
        inspection.planned.judge_all()
    return inspection
