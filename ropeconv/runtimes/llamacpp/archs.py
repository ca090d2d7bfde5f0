"""The schema of `archs.toml`, one entry per GGUF architecture, and the functions that read it."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files
from typing import Literal

import msgspec

from ...errors import BadSource, shown


class Window(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The sliding window layers of an architecture; the beginning of archs.toml explains the fields."""

    present: str
    interval: int = 0
    scaling: Literal["same", "base", "plain"] = "same"
    rotates: Literal["both", "window"] = "both"
    theta: float | None = None
    own_theta: bool = True
    pattern: Literal["any", "flags", "none"] = "any"
    dense_first: bool = False
    size: int = 0
    chunked: bool = False


class PositionScale(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A query scale 1 + beta ln(1 + floor(p / length)), which no key changes."""

    beta: float
    length: int


class Arch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One GGUF architecture; the beginning of archs.toml explains the fields.

    assumed: not of the table: only the keys that llama.cpp reads for every architecture are known.
    """

    pairs: Literal["norm", "neox", "mrope", "imrope"]
    name: str = ""
    family: str = ""
    sections: Literal["", "required", "optional"] = ""
    freqs: Literal["", "used", "ignored"] = ""
    factors: Literal["", "always", "longrope", "ignored"] = ""
    full_rotation: bool = False
    fixed: bool = False
    betas: bool = False
    beta_fast: float = 32.0
    ext_factor: bool = False
    log_multiplier: bool = False
    same_mscale: bool = False
    alpha: bool = False
    mla: bool = False
    softmax: bool = False
    theta_key: str = "rope.freq_base"
    no_attention_factor: bool = False
    nope_interval: int = 0
    nope_first: bool = False
    nope_with_window: bool = False
    nope_query_scaling: PositionScale | None = None
    leading_dense: bool = False
    full_attention_interval: int = 0
    finetuned: bool = False
    kv_layers: str = ""
    halved: bool = False
    pattern: bool = False
    only_layers: int = 0
    window: Window | None = None
    query_length: Literal["", "rope.scaling.original_context_length", "attention.temperature_length"] = ""
    carriers: tuple[str, ...] = ()
    assumed: bool = False


class ArchTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The architectures of one version of llama.cpp, by name.

    source: where they were read. without_rope: what those have that do not rotate. drafts: those of models that guess
    tokens for another model, with the name of the method.
    """

    version: str
    display_name: str
    source: str
    without_rope: dict[str, str]
    drafts: dict[str, str]
    arch: dict[str, Arch]

    @property
    def key(self) -> str:
        """The runtime as `name@version`, as in `Verdict.runtime`."""
        return f"llama-cpp-gguf@{self.version}"


@cache
def arch_table() -> ArchTable:
    """The table of the package, archs.toml."""
    text = (files("ropeconv.runtimes.llamacpp") / "archs.toml").read_text("utf-8")
    table = msgspec.convert(tomllib.loads(text), ArchTable)
    named = {name: msgspec.structs.replace(arch, name=name) for name, arch in table.arch.items()}
    return msgspec.structs.replace(table, arch=named)


def find_arch(name: object) -> Arch:
    """An architecture by its value of general.architecture. Raises BadSource for one that is not in the table."""
    table = arch_table()
    if not isinstance(name, str) or name not in table.arch:
        raise BadSource(
            f"the architecture {shown(name)} is not in the table of {table.display_name}, and guessing how it rotates "
            "would be wrong sooner or later; take one of: " + ", ".join(table.arch)
        )
    return table.arch[name]
