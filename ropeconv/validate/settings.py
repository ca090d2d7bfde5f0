"""How a comparison runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..engines.transformers.device import DeviceSpec, device_spec


@dataclass(frozen=True)
class Settings:
    """How to compare.

    device, dtype, device_map: where and in which precision, as in `device_spec`. tokens: of each spread run (512, and
    less beside a run over every position; of GGUF the length of the sequence). length: of a run over every position, 0
    for none. chunk: tokens that the backbone sees at a time. seed: of the synthetic tokens. text: a file to read in
    their place. trust_remote_code: run code in the output that ropeconv has not written. config_reference: whether the
    source also runs with the method in its config.
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

    @property
    def spread(self) -> int:
        """Tokens of each spread run, of which there are five for every bucket: together some percent of a whole run."""
        return self.tokens or (min(512, max(64, self.length // 256)) if self.length else 512)

    def place(self, stored: str = "float32") -> DeviceSpec:
        """Where to run. stored: the checkpoint's own precision. Raises UsageError for a device that is not there."""
        return device_spec(self.device, self.dtype, self.device_map, stored)
