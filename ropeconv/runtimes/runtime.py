"""What a runtime file holds: how one version of one runtime reads a RoPE configuration."""

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
"""What a runtime does with an output, best first; `runtimes.verdict.judge` says what each means."""


class TypeRules(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How one `rope_type` is read.

    original: "key" (original_max_position_embeddings, else the declared context) or "max" (the declared context).
    factor: "key" or "max/original". attention_factor: sources in order of precedence; "1" means none.
    times_attn_factor: the key attn_factor multiplies it. betas, truncate: whether those keys are read.
    neox_only: refused for interleaved pairs. formula_always: the formula, which divides by ln(original), is evaluated
    even where the attention factor comes from elsewhere. window: the default context window, when that surprises.
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
    """Families that this runtime treats in a way of its own.

    families: their names, or "*" for all. types: the rope types concerned.
    """

    families: tuple[str, ...]
    status: Status
    reason: str
    types: tuple[str, ...]
    source: str = ""


class Runtime(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One row of the table of runtimes.

    schemas: the dictionaries it looks at, the first present wins. theta: "top" (only the top-level key), "dict" (the
    dictionary, else the top level). family_types: rules that replace those in `types` for a family. unsupported: what
    becomes of a type it has no rules for. current: whether people are expected to run it today. query_beta: where it
    finds the slope of a query scale by position: the RoPE dictionary, `llama_4_scaling` at the top level, or nowhere.
    custom_code: whether it runs a modelling file of the checkpoint, and its attention interface is the one of today.
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
        """`name@version`, as `--runtime` takes it."""
        return f"{self.name}@{self.version}"

    def rules(self, family: str, kind: str) -> TypeRules | None:
        """How this runtime reads a rope type in a family; None where it knows no such type."""
        return self.family_types.get(family, {}).get(kind) or self.types.get(kind)

    @property
    def nested(self) -> bool:
        """Whether parameters per layer type are understood."""
        return "rope_parameters" in self.schemas


def version_key(version: str) -> tuple[int, ...]:
    """Dotted numbers, comparable."""
    return tuple(int(part) for part in version.split(".") if part.isdigit())


@cache
def runtimes() -> tuple[Runtime, ...]:
    """Every row, by name and version. A file with `inherits` starts from the row it names."""
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
    """The last row of that name."""
    return [row for row in runtimes() if row.name == name][-1]


def canonical(wanted: str) -> str:
    """`name` or `name@version` with the name as the table has it: llama.cpp and gguf are llama-cpp."""
    name, at, version = wanted.strip().partition("@")
    return ALIASES.get(name.lower(), name.lower()) + at + version


def find(wanted: str) -> tuple[Runtime, ...]:
    """Rows for `name` (all that are current, the newest last) or `name@version` (the row that covers it).

    Raises RecipeError for a name or version without a row.
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
