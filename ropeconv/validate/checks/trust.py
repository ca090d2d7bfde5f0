"""Whether the code in a checkpoint may be run: code that ropeconv writes may, other code needs permission."""

from __future__ import annotations

import json
from pathlib import Path

from ...encode.checkpoint.encodings.buffers import MODULE, SETTINGS, modelling
from ...errors import BadSource
from ...families.config import STORED_ROPE
from ...families.family import by_name
from ...rope.log_n import LogN


def needs_trust(folder: Path, allowed: bool) -> bool:
    """Whether loading a folder needs trust_remote_code. Raises BadSource for unknown code without permission.

    folder: the checkpoint. allowed: whether the user has passed --trust-remote-code. Code is known where it is equal to
    what `--encoding buffers` writes for this config.
    """
    config = json.loads((folder / "config.json").read_text("utf-8"))
    kind, classes = str(config.get("model_type", "")), config.get("auto_map")
    if not classes or (not kind.endswith(STORED_ROPE) and not allowed):
        return False  # transformers runs its own classes then
    if allowed or _is_ours(folder, kind, classes, config.get(SETTINGS)):
        return True
    raise BadSource(
        f"{folder} brings code that is not what ropeconv writes; read it, and pass --trust-remote-code to run it"
    )


def _is_ours(folder: Path, kind: str, classes: object, settings: object) -> bool:
    family = by_name().get(kind.removesuffix(STORED_ROPE))
    if family is None or family.code is None or not isinstance(classes, dict) or not isinstance(settings, dict):
        return False
    if any(not str(target).startswith(f"{MODULE}.") for target in classes.values()):
        return False
    rule, file = settings.get("log_n"), folder / f"{MODULE}.py"
    wanted = modelling(family, LogN(rule["kind"], rule["length"]) if rule else None)
    return file.is_file() and file.read_text("utf-8") == wanted
