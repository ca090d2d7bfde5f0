"""Which planner a source needs."""

from __future__ import annotations

from pathlib import Path

from ..encode.fold.placement import Side
from ..encode.fold.shards import FoldDtype
from ..errors import UsageError
from ..rope.recipe import Recipe
from ..sources import Source
from ..sources.gguf import GgufSource
from .checkpoint import checkpoint_plan
from .export import export_plan
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
    to: str = "",
    outtype: str = "auto",
    pre: str = "",
    side: Side = "k",
    allow_approximate: bool = False,
    fold_dtype: FoldDtype = "stored",
) -> Plan:
    """Decides everything: schedule, encoding, verdicts, files.

    Raises BadSource for a damaged source, UnsupportedBake for what cannot be expressed, RopeconvError for a
    model that is scaled already without `replace_scaling`.
    """
    if to not in ("", "gguf", "safetensors"):
        raise UsageError(f"--to {to} is not known; choose gguf or safetensors")
    if isinstance(source, GgufSource) or to == "gguf":
        others = [name for name in runtimes if not name.startswith("llama-cpp")]
        if others:
            raise UsageError(f"--runtime {others[0]} does not read GGUF the way llama.cpp does; leave --runtime out")
        if isinstance(source, Source):
            return export_plan(source, recipe, out, encoding, carrier, replace_scaling, outtype, pre, allow_approximate)
        if to == "safetensors" or pre or outtype != "auto":
            raise UsageError("a GGUF file stays as it is quantised; leave --to, --outtype and --pre out")
        return gguf_plan(source, recipe, out, encoding, carrier, replace_scaling, allow_approximate)
    if carrier or pre or outtype != "auto":
        raise UsageError("--carrier, --outtype and --pre are for GGUF; add --to gguf, or leave them out")
    return checkpoint_plan(
        source, recipe, out, encoding, runtimes, replace_scaling, all_files, side, allow_approximate, fold_dtype
    )
