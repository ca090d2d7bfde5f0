"""Settings: the options of a validation."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from ..engines.transformers.device import DeviceSpec, device_spec


@dataclass(frozen=True)
class Settings:
    """Options of a validation.

    device, dtype, device_map: as in `device_spec`. tokens: of each spread run (by default 512, fewer with `length`);
    for GGUF the length of the sequence. length: tokens of a run over every position, 0 for none. chunk: tokens that the
    backbone reads at a time. seed: of the synthetic tokens. text: a file to read in their place. trust_remote_code: run
    code of the output, of tokenizers and of kernels that ropeconv has not written, and load pickled weights.
    config_reference: also run the source with the method in its config. dequantised: run the source of a GGUF file in
    transformers, with its weights dequantised.
    """

    device: str = "auto"
    dtype: str = "auto"
    device_map: str = ""
    tokens: int | None = None
    length: int = 0
    chunk: int = 4096
    seed: int = 0
    text: Path | None = None
    trust_remote_code: bool = False
    config_reference: bool = False
    dequantised: bool = False

    @property
    def spread(self) -> int:
        """Tokens of each spread run: `tokens`, else 512, or with `length` fewer, to take some percent of its time."""
        return self.tokens or (min(512, max(64, self.length // 256)) if self.length else 512)

    def place(self, stored: str = "float32") -> DeviceSpec:
        """Device and precision. stored: the precision of the checkpoint. Raises UsageError as `device_spec` does."""
        at = device_spec(self.device, self.dtype, self.device_map, stored)
        return replace(at, pickles=self.trust_remote_code)
