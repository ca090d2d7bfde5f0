"""A cache of the answers of the probe, since asking takes longer than copying some gigabytes.

An answer is a function of the config's bytes and of the code that read them. The key covers both: the text, the
versions of transformers and torch, the files of transformers that hold the model's RoPE, and the probe itself.
Only the answer is cached; it is compared with the schedule each time.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import json
import os
from pathlib import Path
from typing import Any

from .answer import parsed


class ProbeCache:
    """Answers by key, as files of a folder: `ropeconv/checks` in the user's cache. It can be deleted at any time."""

    def __init__(self, folder: Path | None = None) -> None:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        self.folder = folder or Path(base) / "ropeconv" / "checks"

    @staticmethod
    def key(config_text: str, model_type: str, context: int, stands_for: str = "") -> str:
        """The key of the answer to a config; empty, so that nothing is cached, where transformers has no files on disk.

        config_text: the whole config.json. model_type: of the model whose code reads it. context: in tokens.
        stands_for: as for `Probe.ask`.
        """
        digest = hashlib.sha256(f"{context}\n{stands_for}\n{config_text}".encode())
        for ours in (Path(__file__).with_name("program.py"), Path(__file__).parents[2] / "pretrained.py"):
            digest.update(ours.read_bytes())
        try:
            for package in ("transformers", "torch"):
                digest.update(importlib.metadata.version(package).encode())
            found = importlib.util.find_spec("transformers")
            root = Path(found.origin).parent if found and found.origin else Path()
            models = sorted((root / "models" / model_type).glob("*.py"))
            for path in (root / "modeling_rope_utils.py", root / "configuration_utils.py", *models):
                status = path.stat()
                digest.update(f"{path.name} {status.st_size} {status.st_mtime_ns}".encode())
        except (OSError, importlib.metadata.PackageNotFoundError):
            return ""
        return digest.hexdigest()

    def get(self, key: str) -> dict[str, Any] | None:
        """The cached answer of a key; None without one and for an empty key."""
        if not key:
            return None
        try:
            answer = parsed((self.folder / f"{key}.json").read_text("utf-8"))
        except (OSError, ValueError):
            return None
        return answer if answer is not None and "modules" in answer else None

    def put(self, key: str, answer: dict[str, Any]) -> None:
        """Caches an answer, unless it is an error or the key is empty. A cache that cannot be written is ignored."""
        if not key or "error" in answer:
            return
        path = self.folder / f"{key}.json"
        draft = path.with_suffix(f".{os.getpid()}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            draft.write_text(json.dumps(answer), "utf-8")
            draft.replace(path)
        except OSError:
            return
