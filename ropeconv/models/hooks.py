"""FamilyHooks: behaviour of a single family, which no field of its TOML file describes.

The class `Hooks` in `data/NAME.py` belongs to the family NAME. Other families have the behaviour of FamilyHooks.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cache
from importlib import import_module
from importlib.resources import files
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from ..formats.jsontext import JsonObject
    from ..rope.schedule import QueryScaling
    from .family import Kind, Layers


class FamilyHooks:
    """The usual behaviour, of which a subclass overrides what its family does differently.

    `part` is the text part of a config throughout.

    Attributes:
        keys: Config keys that the hooks read, with their types from `models.schema`.
        types_key: Config key of the list of layer types.
        blocks: Names of the attention blocks of a layer, in place of their numbers.
        no_attention_factor: Why only the attention factor 1 is possible; empty for families without that limit.
    """

    keys: ClassVar[Mapping[str, object]] = {}
    types_key: ClassVar[str] = "layer_types"
    blocks: ClassVar[tuple[str, ...]] = ()
    no_attention_factor: ClassVar[str] = ""

    def head_dim(self, hidden: int, heads: int) -> int:
        """Return the width of a head for a config that does not state it."""
        return hidden // heads

    def layer_names(self, part: JsonObject, layers: Layers, count: int) -> list[str] | None:
        """Return the layer types of a config that does not list them; None to derive them from `layers`."""
        return None

    def layer_kinds(self, part: JsonObject, kinds: tuple[Kind, ...]) -> tuple[Kind, ...]:
        """Return the kinds of the layers. kinds: by their types."""
        return kinds

    def window_size(self, part: JsonObject, size: int | None) -> int | None:
        """Return the tokens that a layer with a window sees. size: by the fields of the family."""
        return size

    def kv_heads(self, part: JsonObject, count: int, kind: Kind) -> int:
        """Return the number of heads of keys and values of a layer. count: as the config states it."""
        return count

    def value_width(self, part: JsonObject, width: int) -> int:
        """Return the width of a head of values. width: of a head of keys."""
        return width

    def repeats_keys(self, part: JsonObject) -> bool:
        """Return whether `Cache.repeated_by` caches keys and values for every query head."""
        return False

    def runs(self, part: JsonObject, layer: int) -> int:
        """Return how often a layer runs in one forward pass. layer: its number, which counts attention blocks."""
        return 1

    def nope_query_scaling(self, part: JsonObject) -> QueryScaling | None:
        """Return the query scaling of the layers that do not rotate; None without one."""
        return None

    def gguf_variant(self, tensors: Collection[str]) -> tuple[tuple[str, ...], JsonObject]:
        """Return `Gguf.names` and `Gguf.config` that a GGUF file with these tensors has beside the usual ones."""
        return (), {}


@cache
def hooks_of(family: str) -> FamilyHooks:
    """Return the hooks of a family of the package by its name."""
    if not (files("ropeconv.models") / "data" / f"{family}.py").is_file():
        return FamilyHooks()
    hooks: FamilyHooks = import_module(f"ropeconv.models.data.{family}").Hooks()
    return hooks
