"""How a comparison runs, and what its caller hears of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Settings:
    """How to compare.

    device, dtype, device_map: where and in which precision; "auto" takes what is there, and on an accelerator the
    checkpoint's own. tokens: of each spread run (512, and less beside a short run over every position). length: of a
    run over every position, 0 for none. chunk: tokens that the backbone sees at a time. text: a file to read instead of
    synthetic tokens. third: whether the source also runs with the method said through its config.
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
    third: bool = False

    @property
    def spread(self) -> int:
        """Tokens of each spread run, of which there are five for every bucket: together some percent of a whole run."""
        return self.tokens or (min(512, max(64, self.length // 256)) if self.length else 512)


@dataclass(frozen=True)
class Watch:
    """What the caller wants to hear. stopped: whether to end the run in progress and judge what is there."""

    note: Callable[[str], None] = lambda message: None
    total: Callable[[int], None] = lambda tokens: None
    advance: Callable[[int], None] = lambda tokens: None
    stopped: Callable[[], bool] = lambda: False
