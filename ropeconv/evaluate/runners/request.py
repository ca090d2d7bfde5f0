"""Opening: what the user named, for `open_runner`."""

from __future__ import annotations

from dataclasses import dataclass

from ..row import Row


@dataclass(frozen=True)
class Opening:
    """What the user named.

    model: a checkpoint, a GGUF file, or an output of `apply`. rows: from --methods; empty where that is not given.
    against: the source of an output. servers: URLs, or NAME=URL. device, dtype, device_map: as in `device_spec`. chunk:
    tokens that a model reads at a time. family: that the model is of, whatever its model_type. trust_remote_code: run
    code of a checkpoint that ropeconv has not written, and load pickled weights.
    """

    model: str
    rows: list[Row]
    against: str = ""
    servers: tuple[str, ...] = ()
    device: str = "auto"
    dtype: str = "auto"
    device_map: str = ""
    chunk: int = 4096
    family: str = ""
    trust_remote_code: bool = False
