"""`ropeconv methods`, `families`, `runtimes`: what there is, from the same data that the tool runs on."""

from __future__ import annotations

from ..rope.methods import REGISTRY
from .options import JsonOption
from .output import Output


def methods_command(as_json: JsonOption = False) -> None:
    """List the methods, with their parameters and papers."""
    output = Output(as_json)
    if as_json:
        output.data(
            [{"name": n, "flag": m.flag(), "summary": m.summary, "reference": m.reference} for n, m in REGISTRY.items()]
        )
        return
    rows = [(method.flag(), method.summary, method.reference) for method in REGISTRY.values()]
    output.table("Methods", ("flag", "what", "source"), rows)


def families_command(as_json: JsonOption = False) -> None:
    """List the model families, and what each can take."""
    from ..families import families

    output = Output(as_json)
    known = [family for family in families() if not family.refuse]
    refused = [family for family in families() if family.refuse]
    if as_json:
        output.data(
            [
                {
                    "name": family.name,
                    "title": family.title,
                    "model_types": list(family.model_types),
                    "rope_types": [] if family.refuse else list(family.writing.types),
                    "layout": family.layout,
                    "refuse": family.refuse or None,
                    "since": family.since,
                }
                for family in families()
            ]
        )
        return
    rows = [(f.name, f.title, ", ".join(f.model_types), ", ".join(f.writing.types)) for f in known]
    output.table("Families", ("name", "models", "model_type", "rope types of its class"), rows)
    output.table("Refused", ("name", "models", "why"), [(f.name, f.title, f.refuse) for f in refused])


def runtimes_command(as_json: JsonOption = False) -> None:
    """List the runtimes whose reading of a config is known."""
    from ..runtimes import runtimes

    output = Output(as_json)
    if as_json:
        output.data(
            [
                {"runtime": r.key, "title": r.title, "types": sorted(r.types), "checked": r.checked, "source": r.source}
                for r in runtimes()
            ]
        )
        return
    rows = [(r.key, r.title, ", ".join(r.types), r.checked, r.source) for r in runtimes()]
    output.table("Runtimes", ("--runtime", "what", "rope types", "known by", "source"), rows)
