"""The schema of `archs.toml`, one entry per GGUF architecture, and the functions that load it.

`find_arch` returns the entry of an architecture.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from difflib import get_close_matches
from functools import cache
from typing import Any, Literal, Protocol

import msgspec

from ...errors import BadSource
from ...formats.gguf.file import GgufFile
from ...formats.package_data import package_data
from ...models.schema import ADVICE_FOR_IMAGE_MODELS
from ...rope.errors import shown
from ...rope.schedule import QueryScaling

DENOISERS = {
    "aura",
    "cosmos",
    "flux",
    "hidream",
    "hyvid",
    "ltxv",
    "lumina2",
    "qwen_image",
    "sd1",
    "sd3",
    "sdxl",
    "wan",
}
"""Architectures of image and video models in GGUF.

IMG_ARCH_LIST of loader.py, https://github.com/city96/ComfyUI-GGUF.
"""


class HeaderKeys(Protocol):
    """An object with the keys of a GGUF header, such as Header, GgufFile or GgufModel."""

    def get(self, key: str, default: object = None) -> Any:
        """Return the value of a key by its full name, decoded; `default` where it is absent."""


class ArchWindow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The sliding window layers of an architecture."""

    present: str
    """Where layers have a window.

    "always", "key" (with attention.sliding_window), "unless 0" (where that is not 0), or a number
    of layers.
    """

    interval: int = 0
    """Every n-th layer has no window; 0 where all layers have one."""

    scaling: Literal["same", "base", "plain"] = "same"
    """The scaling of these layers.

    The same as elsewhere; only its attention factor and ramp ("base"); or none ("plain").
    """

    rotates: Literal["both", "window"] = "both"
    """Whether all layers rotate, or only those with a window."""

    theta: float | None = None
    """The default of their base; None for that of other layers."""

    own_theta: bool = True
    """Whether rope.freq_base_swa is read."""

    pattern: Literal["any", "flags", "none"] = "any"
    """How attention.sliding_window_pattern is read.

    As the interval or as one flag per layer ("any"), as flags that are required, or not at all.
    """

    dense_first: bool = False
    """Whether the first layer of each interval has no window, and not the last."""

    size: int = 0
    """The window in tokens, whatever the key says; 0 to read the key."""

    chunked: bool = False
    """Whether the windows are chunks."""

    own_factor: bool = False
    """Whether these layers have a copy of rope.scaling.factor, which counts under the type none."""


class SharedKeys(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where layers without keys of their own take them from: before the first such layer."""

    window: int
    """How many layers before it, for layers with a window."""

    other: int
    """How many layers before it, for the other layers."""


class Arch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How llama.cpp reads the RoPE of one GGUF architecture."""

    pairs: Literal["norm", "neox", "mrope", "imrope"]
    """Which dimensions rotate together.

    (2i, 2i + 1) with "norm", (i, i + r/2) with "neox"; "mrope" and "imrope" as neox with sections
    of positions, in blocks and interleaved.
    """

    name: str = ""
    """The value of general.architecture."""

    family: str = ""
    """The model family whose checkpoints are converted to it; empty without one."""

    sections: Literal["", "required", "optional"] = ""
    """Whether rope.dimension_sections is read; where it is optional, the pairs are then "mrope"."""

    freqs: Literal["", "used", "ignored"] = ""
    """The use of rope_freqs.weight.

    It is used, loaded and then ignored, or the file is refused.
    """

    factors: Literal["", "always", "longrope", "ignored"] = ""
    """The use of rope_factors_long.weight and rope_factors_short.weight.

    They are used always, or only with the scaling type longrope, or loaded and then ignored, or the
    file is refused.
    """

    full_rotation: bool = False
    """Whether the file is refused unless every dimension rotates."""

    fixed: bool = False
    """Whether it rotates with the base 10000 and reads no key."""

    betas: bool = False
    """Whether it reads yarn_beta_fast and yarn_beta_slow."""

    beta_fast: float = 32.0
    """The default of yarn_beta_fast."""

    ext_factor: bool = False
    """Whether it reads yarn_ext_factor and yarn_attn_factor."""

    log_multiplier: bool = False
    """Whether it reads yarn_log_multiplier as mscale_all_dim."""

    same_mscale: bool = False
    """Whether yarn_log_multiplier is mscale as well, which is 1 otherwise."""

    alpha: bool = False
    """Whether it reads rope.scaling.alpha, which makes the base theta alpha^(d/(d - 2))."""

    mla: bool = False
    """Whether it has multi-head latent attention."""

    softmax: bool = False
    """Whether the attention factor and mscale_all_dim scale all logits.

    yarn_log_multiplier is then a tenth of mscale_all_dim.
    """

    theta_key: str = "rope.freq_base"
    """The key with the base of the layers that an extension changes."""

    no_attention_factor: bool = False
    """Whether the attention factor is always 1."""

    norm_after_rope: bool = False
    """Whether queries and keys are normalised after the rotation, which cancels any factor."""

    nope_interval: int = 0
    """Every n-th layer does not rotate; 0 where all rotate."""

    nope_first: bool = False
    """Whether that is the first of n layers, and not the last."""

    nope_with_window: bool = False
    """Whether the interval counts only where layers have windows."""

    nope_query_scaling: QueryScaling | None = None
    """The query scaling by position of the layers that do not rotate, which no key gives."""

    leading_dense: bool = False
    """Whether the first leading_dense_block_count layers rotate also without a window."""

    full_attention_interval: int = 0
    """Only every n-th layer has attention, unless attention.recurrent_layers says otherwise."""

    finetuned: bool = False
    """Whether rope.scaling.finetuned = false turns RoPE off."""

    kv_layers: str = ""
    """Only so many layers have keys and values; or the key with the number of those without."""

    shared_kv: SharedKeys | None = None
    """Where the layers behind these take keys and values from."""

    heads_by_layer: bool = False
    """Whether the graph reads attention.head_count_kv of each layer, or that of the first for all.
    """

    halved: bool = False
    """Whether the declared width is twice the one that rotates."""

    pattern: bool = False
    """Whether attention.rope_pattern says which layers rotate."""

    only_layers: int = 0
    """The number of layers without which it does not rotate; 0 for any."""

    window: ArchWindow | None = None
    """The layers with a sliding window; None without such layers."""

    query_length: Literal[
        "", "rope.scaling.original_context_length", "attention.temperature_length"
    ] = ""
    """The key with the length of a query scaling; empty without scaling.

    It is 1 + attention.temperature_scale ln(1 + floor(p / length)) at the position p.
    """

    carriers: tuple[str, ...] = ()
    """Other architectures that compute the same network."""

    assumed: bool = False
    """Whether it is not in the table, so that only keys of every architecture are known."""

    draft: str = ""
    """The kind of draft model, as in drafts.toml; empty for whole models."""

    refused_with: str = ""
    """A key that makes it a model of other layers, which are not known; empty without one."""


class ArchTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The architectures of one version of llama.cpp, by name."""

    version: str
    display_name: str
    source: str
    """The place where they were read."""

    encoders: tuple[str, ...]
    """Architectures that give embeddings, and no next token."""

    diffusion: dict[str, Literal["blocks", "time"]]
    """Architectures that fill in masks, with the rule of llama-diffusion-cli for their schedule."""

    cacheless: tuple[str, ...]
    """Architectures for which llama.cpp makes no key-value cache."""

    states: tuple[str, ...]
    """Architectures whose layers keep a state of all tokens before, such as that of Mamba.

    Layers without heads in others, such as those of Nemotron NAS, keep nothing.
    """

    without_rope: dict[str, str]
    """Architectures that do not rotate, with what they have instead."""

    drafts: dict[str, str]
    """Architectures of drafts without a RoPE of their own, with the name of the method."""

    draft_arch: dict[str, Arch]
    """Architectures of drafts with a RoPE of their own."""

    arch: dict[str, Arch]

    @property
    def key(self) -> str:
        """The runtime as `name@version`, as in `Verdict.runtime`."""
        return f"llama-cpp-gguf@{self.version}"


@cache
def arch_table() -> ArchTable:
    """Return the table of the package, archs.toml."""
    table = package_data("runtimes/llamacpp/archs.toml", ArchTable)
    return msgspec.structs.replace(
        table, arch=_with_names(table.arch), draft_arch=_with_names(table.draft_arch)
    )


def _with_names(archs: dict[str, Arch]) -> dict[str, Arch]:
    return {name: msgspec.structs.replace(arch, name=name) for name, arch in archs.items()}


_ASSUMING: ContextVar[bool] = ContextVar("assuming", default=False)
ASSUMED_KEY = "ropeconv.assumed_arch"
"""The key of outputs that were made with `assumed_keys`."""


@contextmanager
def assumed_keys(allowed: bool = True) -> Iterator[None]:
    """Let `find_arch` accept unknown architectures inside, where `allowed`.

    They have the keys that llama.cpp reads for all of them.
    """
    before = _ASSUMING.set(allowed or _ASSUMING.get())
    try:
        yield
    finally:
        _ASSUMING.reset(before)


def find_arch(name: object, assumed: bool = False) -> Arch:
    """Return an architecture by its value of general.architecture.

    Args:
        name: The value.
        assumed: Whether an unknown one is accepted; it is also accepted inside of `assumed_keys`.

    Raises:
        BadSource: For one without RoPE, for a draft model without RoPE of its own, and for an
            unknown one.
    """
    table = arch_table()
    if not isinstance(name, str) or not name:
        raise BadSource(f"general.architecture is {shown(name)}; download the file again")
    if name in table.arch:
        return table.arch[name]
    if name in table.draft_arch:
        return table.draft_arch[name]

    # architectures that llama.cpp knows, and that have nothing to extend
    if name in table.without_rope:
        raise BadSource(
            f"{name} uses {table.without_rope[name]} instead of RoPE, so it cannot be extended"
        )
    if name in table.drafts:
        raise BadSource(
            f"{name} files contain a draft model ({table.drafts[name]}), which proposes tokens for"
            " another model; extend that model instead"
        )

    # An architecture of a newer llama.cpp. Most architectures have the pairs (i, i + r/2) of
    # "neox", and the keys of an assumed one do not depend on its pairs.
    is_accepted = assumed or _ASSUMING.get()  # the second is set inside of `assumed_keys`
    if is_accepted:
        return Arch(pairs="neox", name=name, assumed=True)

    near = get_close_matches(name, table.arch, 1)
    hint = f" (the nearest name is {near[0]})" if near else ""
    raise BadSource(
        f"the architecture {shown(name)} is not in the table of {table.display_name}{hint};"
        " --assume-arch-keys writes theta, linear and yarn into the keys that llama.cpp reads for"
        " all of them"
    )


def arch_of_header(keys: HeaderKeys) -> Arch:
    """Return the architecture of a header.

    Raises as `find_arch`, and for layers that are not known.
    """
    arch = find_arch(keys.get("general.architecture"), bool(keys.get(ASSUMED_KEY)))
    if arch.refused_with and keys.get(f"{arch.name}.{arch.refused_with}"):
        raise BadSource(
            f"it is a {arch.name} file with {arch.name}.{arch.refused_with}, whose attention"
            " ropeconv does not know; extend the model that it drafts for, and leave the draft"
            " unchanged"
        )
    return arch


def other_kind(file: GgufFile) -> str:
    """Return why a file is not a language model, with the fix; empty for a model.

    The text follows the name of the file in a sentence.
    """
    # general.type is newer than many files, so that each kind is known by another sign too
    kind = file.get("general.type")
    arch = file.get("general.architecture")

    if kind == "adapter" or file.get("adapter.type") is not None:
        return (
            "is a LoRA adapter, which has no RoPE of its own; extend the model that it belongs to"
        )
    if kind == "mmproj" or arch == "clip":
        return (
            "is a multimodal projector (mmproj), which is not extended; give the file of the"
            " language model beside it"
        )
    if arch == "controlvector":
        return (
            "is a control vector, which has no RoPE of its own; extend the model that it steers,"
            " and give the vector to that unchanged"
        )
    if arch in DENOISERS:  # architectures of image and video models
        return f"has the architecture {arch}; {ADVICE_FOR_IMAGE_MODELS}"
    if kind == "imatrix" or any(name.endswith(".in_sum2") for name in file.tensors):
        return "is an importance matrix and no model; give the model itself"
    if arch is None:
        return "has no general.architecture, so it is not a language model"
    if not file.tensors:
        return "contains only a vocabulary and no weights; pass the model itself"

    # a whole model may have layers for further tokens too, behind its own
    further = file.get(f"{arch}.nextn_predict_layers", 0)
    has_first_layer = any(name.startswith("blk.0.") for name in file.tensors)
    if isinstance(further, int) and further and not has_first_layer:
        return (
            "holds only layers that predict further tokens (MTP), a draft for another file; extend"
            " that file, and leave the draft unchanged"
        )
    return ""
