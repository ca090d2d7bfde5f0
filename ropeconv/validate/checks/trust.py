"""Whether the code in an output may be run: code that ropeconv writes may, other code needs permission."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ...encode.checkpoint.encodings.buffers import MODULE, SETTINGS, class_keys, modelling
from ...families.config import STORED_ROPE
from ...families.registry import by_name
from ...formats.regular import read_text
from ...pretrained import CODE, MAP, entries, foreign, kernels, parsed
from ...rope.log_n import LogN

ADAPTER = "adapter_config.json"


def needs_trust(folder: Path, allowed: bool) -> bool:
    """Whether loading a folder needs trust_remote_code. Raises BadSource for unknown code without permission.

    folder: the checkpoint. allowed: whether the user has passed --trust-remote-code. Code is known where everything in
    the folder from which transformers takes code is equal to what `--encoding buffers` writes for this config.
    """
    config = parsed(folder / "config.json")
    classes = config.get(MAP)
    if not allowed and (place := next(kernels(config), "")):
        raise foreign(folder, f"its config.json takes code from {place!r}")
    if not classes or (not str(config.get("model_type", "")).endswith(STORED_ROPE) and not allowed):
        return False  # transformers runs its own classes then
    if not allowed and (what := next(_unlike_ours(folder, config), "")):
        raise foreign(folder, what)
    return True


def _unlike_ours(folder: Path, config: dict[str, Any]) -> Iterator[str]:
    """Yields what of the code of a checkpoint, or of its naming, is not what the encoding `buffers` writes."""
    family = by_name().get(str(config["model_type"]).removesuffix(STORED_ROPE))
    if family is None or family.code is None:
        yield f"there is none for {config['model_type']!r}"
        return
    for key, value in class_keys(family).items():
        if config.get(key) != value:
            yield f"{key} of its config.json is {str(config.get(key))[:200]}"
    path, settings = folder / f"{MODULE}.py", config.get(SETTINGS)
    try:
        wanted = modelling(family, _log_n(settings))
        same = path.is_file() and path.stat().st_size == len(wanted.encode()) and read_text(path, path.name) == wanted
    except (AttributeError, TypeError, ValueError):
        yield f"{SETTINGS} of its config.json is {str(settings)[:200]}"
        return
    if not same:
        yield f"{path.name} is another one"
    yield from _other_code(folder)


def _log_n(settings: object) -> LogN | None:
    """The log-n that the settings in a config state. Raises TypeError, ValueError or AttributeError for others."""
    if not isinstance(settings, dict) or not settings.keys() <= {"attention_factor", "log_n"}:
        raise TypeError(settings)
    rule = settings.get("log_n")
    if rule is None:
        return None
    if (
        rule.keys() != {"kind", "length"}
        or rule["kind"] not in ("clamped", "full")
        or not isinstance(rule["length"], int)
    ):
        raise ValueError(rule)
    return LogN(rule["kind"], rule["length"])


def _other_code(folder: Path) -> Iterator[str]:
    """Yields what else in a folder transformers may run, or load on top of the model."""
    for place, subfolders, names in os.walk(folder):
        for name in (*subfolders, *names):
            path = Path(place, name)
            if name in subfolders and path.is_symlink():
                yield f"{path.relative_to(folder)} is a link to another folder"
            elif name in names and path.suffix in CODE and path != folder / f"{MODULE}.py":
                yield f"{path.relative_to(folder)} is not its own"
    for path in folder.glob("*config*.json"):
        if path.name == ADAPTER:
            yield f"{path.name} names an adapter"
        elif path.name != "config.json" and any(key == MAP for key, _ in entries(parsed(path))):
            yield f"{path.name} has an auto_map"
