"""A PEFT adapter beside an output: the same files, with the output as the base in adapter_config.json.

`PeftModel.from_pretrained(base, adapter)` takes any base, but `AutoPeftModel` and `transformers` load the one that
adapter_config.json names, which has the RoPE of before (peft 0.21.2, peft/auto.py:114; transformers 5.23.0,
models/auto/auto_factory.py:317).
"""

from __future__ import annotations

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

from ..errors import BadSource, UsageError
from ..formats import jsontext
from ..inspection.adapter import Adapter, misplaced_tensor, read_adapter
from ..inspection.inspection import inspect_source
from ..models.open import open_source
from ..models.source import ADAPTER
from ..rope.errors import RopeconvError
from .checkpoint import CheckpointPlan
from .plan import Plan


def adapter_out(out: Path) -> Path:
    """The place of the adapter beside its base: `OUT-adapter`."""
    return out.with_name(f"{out.name}-adapter")


def check_adapter(reference: str, plan: Plan, force: bool) -> Adapter:
    """Return the adapter at a path or Hub id, for the output of a plan.

    Raises UsageError for another folder and for factors in weights; BadSource for an adapter that has no
    place in the source; RopeconvError where its place is taken and not `force`.
    """
    source, place = open_source(reference), adapter_out(plan.out)
    assert isinstance(plan, CheckpointPlan)
    adapter = read_adapter(source)
    if adapter is None:
        raise UsageError(f"--adapter {reference} has no {ADAPTER}, so it is not a PEFT adapter; give its folder")
    misplaced = misplaced_tensor(adapter, inspect_source(plan.source))
    if misplaced:
        raise BadSource(f"--adapter {reference} {misplaced}; give the adapter of this model")
    if plan.result.fold is not None:
        raise UsageError("--adapter adds to weights that --encoding weights scales; choose another encoding")
    if place.exists() and not force:
        raise RopeconvError(f"{place} exists already; replace it with --force, or choose another place with -o")
    if place.exists() and not is_earlier(place, adapter, plan.out):
        raise RopeconvError(f"{place} is not an earlier output; move it away, or choose another place with -o")
    return adapter


def is_earlier(place: Path, adapter: Adapter, out: Path) -> bool:
    """Whether a place holds nothing but an adapter for `out`, as `write_adapter` writes it."""
    earlier = read_adapter(open_source(str(place))) if (place / ADAPTER).is_file() else None
    names = {file.name for file in adapter.source.files()}
    return earlier is not None and earlier.base == str(out) and {file.name for file in earlier.source.files()} <= names


def write_adapter(adapter: Adapter, out: Path) -> Path:
    """Write the adapter with the output `out` as its base, and return its place."""
    place, text = adapter_out(out), adapter.source.text(ADAPTER) or ""
    config = {**adapter.config, "base_model_name_or_path": str(out)}
    if "revision" in config:
        config["revision"] = None
    with TemporaryDirectory(prefix=f".{place.name}-", dir=place.parent) as temporary:
        folder = Path(temporary, place.name)
        for file in adapter.source.files():
            target = folder / file.name
            target.parent.mkdir(parents=True, exist_ok=True)
            if file.name == ADAPTER:
                target.write_text(jsontext.dump(config, text), "utf-8")
            else:
                adapter.source.copy(file.name, target)
        if place.exists():
            shutil.rmtree(place)
        folder.rename(place)
    return place
