"""The schema of `data/*.toml`, how one version of one runtime reads a RoPE configuration, and functions to find one."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files
from typing import Any, Literal

import msgspec

from ..rope.errors import RecipeError

LLAMA_CPP = "llama-cpp"
ALIASES = {"llama.cpp": LLAMA_CPP, "gguf": LLAMA_CPP}

Status = Literal["exact", "rounded", "approximate", "differs", "ignored", "refused"]
"""Statuses of a verdict, best first; `runtimes.verdict.judge` explains each."""


class TypeRules(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How one `rope_type` is read.

    original: "key" (original_max_position_embeddings, else the declared context) or "max" (the declared context).
    factor: "key" or "max/original". attention_factor: its sources in order of precedence; "1" means that it is 1.
    times_attn_factor: whether the key attn_factor multiplies it. betas, truncate: whether these keys are read.
    neox_only: whether interleaved pairs are refused. formula_always: whether the formula, which divides by
    ln(original), is evaluated even where the attention factor has another source. window: a remark on the default
    context window where that is not the declared context. source: where the rules are stated.
    """

    original: Literal["key", "max"] = "key"
    factor: Literal["key", "max/original"] = "key"
    attention_factor: tuple[Literal["attention_factor", "mscale", "short_mscale", "formula", "1"], ...] = ("1",)
    times_attn_factor: bool = False
    betas: bool = True
    truncate: Literal["read", "read-flat", "ignored"] = "read"
    neox_only: bool = False
    formula_always: bool = False
    window: str = ""
    source: str = ""


class FamilyOverride(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A verdict of a runtime on some families that does not follow from its rules.

    families: their names, or "*" for all. status, reason: of the verdict. types: the rope types that it is about.
    source: where it is stated.
    """

    families: tuple[str, ...]
    status: Status
    reason: str
    types: tuple[str, ...]
    source: str = ""


class Runtime(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One row of the table of runtimes.

    name, version: as in `name@version`. through: the last version with the same rules, or empty. schemas: the
    dictionaries that it reads; the first that is present counts. theta: where it reads the base, "top" (the top-level
    key only) or "dict" (the dictionary, else the top level). types: rules per rope type. family_types: rules that
    replace those in `types` for a family. unsupported: status for a rope type without rules. type_key: the key of the
    rope type that it prefers. current: whether the version is in common use, so that `name` alone includes it.
    query_beta: where it reads the slope of query scaling by position, "rope" (the RoPE dictionary), "top"
    (`llama_4_scaling` at the top level) or nowhere. custom_code: whether it runs a modelling file of the checkpoint
    that uses today's attention interface. checked: whether the rules were run or read in its source.
    """

    name: str
    version: str
    display_name: str
    source: str
    schemas: tuple[Literal["rope_scaling", "rope_parameters"], ...]
    theta: Literal["top", "dict"]
    types: dict[str, TypeRules]
    through: str = ""
    current: bool = True
    unsupported: Literal["ignored", "refused"] = "refused"
    type_key: Literal["type", "rope_type"] = "rope_type"
    query_beta: Literal["rope", "top", ""] = ""
    custom_code: bool = False
    checked: Literal["run", "read"] = "read"
    family_overrides: tuple[FamilyOverride, ...] = ()
    family_types: dict[str, dict[str, TypeRules]] = {}

    @property
    def key(self) -> str:
        """The runtime as `name@version`, as `--runtime` takes it."""
        return f"{self.name}@{self.version}"

    def rules(self, family: str, kind: str) -> TypeRules | None:
        """The rules for a rope type in a family; None where the runtime has no code for that type."""
        return self.family_types.get(family, {}).get(kind) or self.types.get(kind)

    @property
    def nested(self) -> bool:
        """Whether the runtime reads `rope_parameters` per layer type."""
        return "rope_parameters" in self.schemas


def version_key(version: str) -> tuple[int, ...]:
    """A dotted version as a tuple of numbers, for comparisons; parts that are not numbers are left out."""
    return tuple(int(part) for part in version.split(".") if part.isdigit())


@cache
def runtimes() -> tuple[Runtime, ...]:
    """All runtimes of the package, by name and version. A file with `inherits` starts from the file that it names."""
    data = files("ropeconv.runtimes") / "data"
    raw = {entry.name[:-5]: tomllib.loads(entry.read_text("utf-8")) for entry in data.iterdir() if entry.is_file()}
    rows = [msgspec.convert(_inherit(name, raw), Runtime) for name in raw]
    return tuple(sorted(rows, key=lambda row: (row.name != "transformers", row.name, version_key(row.version))))


def _inherit(name: str, raw: dict[str, dict[str, Any]]) -> dict[str, Any]:
    own = dict(raw[name])
    parent = own.pop("inherits", None)
    if parent is None:
        return own
    base = _inherit(parent, raw)
    types = {**base["types"], **own.pop("types", {})}
    return {**base, **own, "types": types}


def newest(name: str) -> Runtime:
    """The newest version of a runtime that has rules."""
    return [row for row in runtimes() if row.name == name][-1]


def canonical(wanted: str) -> str:
    """`name` or `name@version` with aliases replaced and in lower case: llama.cpp and gguf are llama-cpp."""
    name, at, version = wanted.strip().partition("@")
    return ALIASES.get(name.lower(), name.lower()) + at + version


def find(wanted: str) -> tuple[Runtime, ...]:
    """The runtimes for `name` (all current versions, the newest last) or `name@version` (the one that covers it).

    Raises RecipeError for an unknown name, and for a version before the first known one.
    """
    name, _, version = canonical(wanted).partition("@")
    rows = [row for row in runtimes() if row.name == name]
    if not rows:
        others = ", ".join(ALIASES)
        known = dict.fromkeys(row.name for row in runtimes())
        names = ", ".join(f"{name} (or {others})" if name == LLAMA_CPP else name for name in known)
        raise RecipeError(f"--runtime {wanted}: no such runtime is known; known: {names}")
    if not version:
        return tuple(row for row in rows if row.current)
    covering = [row for row in rows if version_key(row.version)[:2] <= version_key(version)[:2]]
    if not covering:
        raise RecipeError(f"--runtime {wanted}: versions are known from {rows[0].version} on")
    return (covering[-1],)
