"""StepRecord: a bake, as receipts carry it along through later bakes of its output."""

from __future__ import annotations

from typing import Any, Literal

import msgspec


class BeforeRecord(msgspec.Struct, frozen=True):
    """The RoPE of the source. All but `after` are its own.

    rope: its form, and after: that of the output, as `describe` has them. context: declared tokens. original_context:
    those it was trained for. effective_length: as in the receipt, of the source. reach: the same, looked for as far as
    the context of the output.
    """

    rope: str
    after: str
    attention_factor: float
    context: int
    original_context: int
    effective_length: int | None
    reach: int | None


class TargetRecord(msgspec.Struct, frozen=True):
    """The target of an output, with which its plan can be made again from the recipe and the source.

    to: "safetensors" or "gguf". The other fields are those of `Target`, `GgufTarget` and `FoldTarget`, as they were
    asked for: an encoding may be "auto".
    """

    to: Literal["safetensors", "gguf"]
    encoding: str = "auto"
    runtimes: tuple[str, ...] = ()
    outtype: str | None = None
    pre: str | None = None
    carrier: str | None = None
    fold_into: Literal["q", "k", "qk"] | None = None
    fold_dtype: Literal["stored", "f32"] | None = None
    allow_approximate: bool = False
    all_files: bool = False
    replace: bool = False
    assume_arch_keys: bool = False
    quantized_by: str | None = None
    dual_chunk: Literal["keep", "drop"] | None = None


class StepRecord(msgspec.Struct, frozen=True):
    """A bake. recipe, target, before: as in its receipt."""

    recipe: dict[str, Any]
    target: TargetRecord
    before: BeforeRecord

    @property
    def method(self) -> str:
        """Name of the recipe's method."""
        return str(self.recipe.get("method", ""))
