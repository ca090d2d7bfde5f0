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
                    "gguf": family.gguf.arch if family.gguf else None,
                    "refuse": family.refuse or None,
                    "since": family.since,
                }
                for family in families()
            ]
        )
        return
    rows = [
        (f.name, f.title, ", ".join(f.model_types), ", ".join(f.writing.types), f.gguf.arch if f.gguf else "")
        for f in known
    ]
    output.table("Families", ("name", "models", "model_type", "rope types of its class", "--to gguf as"), rows)
    output.table("Refused", ("name", "models", "why"), [(f.name, f.title, f.refuse) for f in refused])


def archs_command(as_json: JsonOption = False) -> None:
    """List the GGUF architectures, and what llama.cpp takes for each beside theta, linear and YaRN."""
    from ..runtimes.llamacpp import arch_table

    table, output = arch_table(), Output(as_json)
    found = [
        {
            "name": arch.name,
            "family": arch.family or None,
            "rope_freqs": arch.freqs or "refused",
            "factor_lists": arch.factors or "refused",
            "betas": arch.betas,
            "carriers": list(arch.carriers),
        }
        for arch in table.arch.values()
    ]
    if as_json:
        output.data({"llama_cpp": table.version, "source": table.source, "archs": found})
        return
    words = ("name", "rope_freqs", "factor_lists")
    rows = [(*(str(row[word]) for word in words), "yes" if a.betas else "", ", ".join(a.carriers))
            for row, a in zip(found, table.arch.values(), strict=True)]  # fmt: skip
    output.table(table.title, ("arch", "rope_freqs", "long and short lists", "betas", "--carrier"), rows)


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
