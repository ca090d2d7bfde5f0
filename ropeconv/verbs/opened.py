"""Inspects a source that is open, for every front. It imports nothing that runs a model."""

from dataclasses import replace

from ..convert.gguf_encoding import judge_file
from ..inspection.inspection import ConfigInspection, Inspection, inspect_source
from ..models.gguf import GgufSource
from ..models.source import Source


def inspect_opened(source: Source | GgufSource) -> Inspection:
    """Inspect an opened model: its RoPE, its problems, and what each runtime does with it.

    Args:
        source: The model, from `open_source`. Its field `as_draft` is set to True.

    Raises:
        BadSource: The model is damaged, or its RoPE is not known.
    """
    # Draft models for speculative decoding are inspected too. Without this they are refused.
    source.as_draft = True

    inspection = inspect_source(source)
    if isinstance(source, GgufSource):
        return replace(inspection, reader_verdicts=judge_file(source.file))
    if isinstance(inspection, ConfigInspection):
        # compute the verdicts of all runtimes now, so that a config that cannot be read is refused
        inspection.planned.judge_all()
    return inspection
