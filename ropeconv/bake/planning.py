"""Which planner a source needs."""

from __future__ import annotations

from pathlib import Path

from ..errors import UsageError
from ..rope.recipe import Recipe
from ..sources import Source
from ..sources.gguf import GgufSource
from .checkpoint import checkpoint_plan
from .gguf import gguf_plan
from .plan import Plan


def make_plan(
    source: Source | GgufSource,
    recipe: Recipe,
    out: Path | None = None,
    encoding: str = "auto",
    runtimes: tuple[str, ...] = (),
    replace_scaling: bool = False,
    all_files: bool = False,
    carrier: str = "",
) -> Plan:
    """Decides everything: schedule, encoding, verdicts, files.

    Raises BadSource for a damaged source, UnsupportedBake for what cannot be expressed, RopeconvError for a
    model that is scaled already without `replace_scaling`.
    """
    if isinstance(source, GgufSource):
        others = [name for name in runtimes if not name.startswith("llama-cpp")]
        if others:
            raise UsageError(f"--runtime {others[0]} does not read GGUF the way llama.cpp does; leave --runtime out")
        return gguf_plan(source, recipe, out, encoding, carrier, replace_scaling)
    if carrier:
        raise UsageError("--carrier is for GGUF; leave it out")
    return checkpoint_plan(source, recipe, out, encoding, runtimes, replace_scaling, all_files)
