"""The model card: metadata inherited from the base, and what was done, in the receipt's own words.

https://huggingface.co/docs/hub/model-cards (base_model, base_model_relation).
"""

from __future__ import annotations

import importlib.util
import tempfile
from pathlib import Path
from typing import Any

from ..formats.template import render
from ..rope.methods import REGISTRY
from ..runtimes.runtime import runtimes
from ..version import __version__

INHERITED = ("license", "license_name", "license_link", "language", "datasets", "pipeline_tag")
MARK = "<!-- written by ropeconv -->"
PICTURE = "validation.png"
RUNS = ("exact", "rounded", "approximate")


def inherited(text: str) -> dict[str, Any]:
    """Metadata of a base's card that holds for what is made from it."""
    from huggingface_hub import ModelCard

    if not text.strip():
        return {}
    data = ModelCard(text, ignore_metadata_errors=True).data.to_dict()
    return {key: data[key] for key in INHERITED if data.get(key)} | {"tags": list(data.get("tags") or [])}


def card(
    receipt: dict[str, Any], repo_id: str, base: str, base_card: str, ggufs: list[str], command: str, picture: str = ""
) -> str:
    """The card's text.

    base: the repository that it was made from, or empty. command: what was typed. picture: the name of one to show.
    """
    from huggingface_hub import ModelCardData

    known = inherited(base_card)
    method = REGISTRY[receipt["recipe"]["method"]]
    tags = dict.fromkeys([*known.pop("tags", []), "ropeconv", method.name, "long-context"])
    data = ModelCardData(
        **known,
        base_model=base or None,
        base_model_relation=("quantized" if ggufs else "finetune") if base else None,
        library_name="gguf" if ggufs else "transformers",
        tags=list(tags),
    )
    titles = {runtime.key: runtime.title for runtime in runtimes()}
    said = receipt["runtimes"]
    words = list(said.items()) if isinstance(said, dict) else [(one["runtime"], one["verdict"]) for one in said]
    return render(
        "card.md.jinja",
        metadata=data.to_yaml().strip(),
        mark=MARK,
        title=repo_id.split("/")[-1],
        repo_id=repo_id,
        base=base,
        receipt=receipt,
        method=method,
        runtimes=[(titles.get(name, name), word) for name, word in words],
        runs={name.split("@")[0] for name, word in words if word in RUNS},
        ggufs=ggufs,
        context=_context(receipt),
        command=command,
        version=__version__,
        validation=receipt.get("validation"),
        picture=picture,
        own_code=any(file["name"].endswith(".py") for file in receipt.get("files", ())),
    )


def drawn(receipt: dict[str, Any]) -> dict[str, bytes]:
    """The picture that the card shows, by its name; none without a validation, or without matplotlib."""
    if not receipt.get("validation") or importlib.util.find_spec("matplotlib") is None:
        return {}
    from ..validate.report.page import write_plot
    from ..validate.rule.result import Validation

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / PICTURE
        write_plot(Validation.from_dict(receipt["validation"]), path)
        return {PICTURE: path.read_bytes()}


def _context(receipt: dict[str, Any]) -> int:
    said = receipt["schedule"]
    return int(said["context"]) if isinstance(said, dict) else int(receipt.get("context", 0))
