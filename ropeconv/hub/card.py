"""The model card: metadata inherited from the base model, and how the output was made, from its receipt.

https://huggingface.co/docs/hub/model-cards (base_model, base_model_relation).
"""

from __future__ import annotations

import importlib.util
from collections.abc import Collection
from typing import Any

from ..formats.scratch import scratch
from ..formats.template import render
from ..receipts import Receipt
from ..rope.bound import is_worse
from ..rope.methods import REGISTRY
from ..runtimes.grouping import grouped
from ..runtimes.rules import RUNS
from ..version import __version__
from .evaluations import draw, drawable, eval_results, shown
from .upload_set import UploadSet

INHERITED = ("license", "license_name", "license_link", "language", "datasets", "pipeline_tag")
MARK = "<!-- written by ropeconv -->"
PICTURE = "validation.png"
EVALUATION_PICTURE = "evaluation.png"


def inherited(text: str) -> dict[str, Any]:
    """The metadata of a base model's card that also holds for its derivatives. text: of the card, may be empty."""
    from huggingface_hub import ModelCard

    if not text.strip():
        return {}
    data = ModelCard(text, ignore_metadata_errors=True).data.to_dict()
    return {key: data[key] for key in INHERITED if data.get(key)} | {"tags": list(data.get("tags") or [])}


def card(
    what: UploadSet, repo_id: str, base_card: str, ggufs: list[str], command: str, pictures: Collection[str] = ()
) -> str:
    """The text of the card for `repo_id`.

    what: the files and their receipt. repo_id: owner/name. base_card: the text of the base model's card, may be empty.
    ggufs: names of GGUF files in the repository. command: the command line that made it. pictures: file names of those
    to show.
    """
    from huggingface_hub import ModelCardData

    receipt, base, known = what.receipt, what.source, inherited(base_card)
    method, title = REGISTRY[receipt.method], repo_id.split("/")[-1]
    measured = list(eval_results(receipt.evaluations))
    tags = dict.fromkeys([*known.pop("tags", []), "ropeconv", method.name, "long-context"])
    data = ModelCardData(
        **known,
        base_model=base or None,
        base_model_relation=("quantized" if ggufs else "finetune") if base else None,
        library_name="gguf" if ggufs else "transformers",
        tags=list(tags),
        **({"model_name": title, "eval_results": measured} if measured else {}),
    )
    return render(
        "card.md.jinja",
        metadata=data.to_yaml().strip(),
        mark=MARK,
        title=title,
        repo_id=repo_id,
        base=base,
        receipt=receipt,
        method=method,
        runtimes=grouped(receipt.runtimes),
        runs={row.runtime.split("@")[0] for row in receipt.runtimes if row.status in RUNS},
        ggufs=ggufs,
        context=what.context,
        command=command,
        version=__version__,
        validation=receipt.validation,
        worse=_worse(receipt),
        picture=PICTURE if PICTURE in pictures else "",
        evaluations=[shown(one) for one in receipt.evaluations],
        evaluation_picture=EVALUATION_PICTURE if EVALUATION_PICTURE in pictures else "",
        own_code=any(file.name.endswith(".py") for file in receipt.files),
    )


def _worse(receipt: Receipt) -> bool:
    """Whether the effective length is known to be worse than that of the source."""
    before = receipt.before
    return before is not None and before.reach != 0 and is_worse(receipt.effective_length, before.reach, before.context)


def drawn(receipt: Receipt) -> dict[str, bytes]:
    """The pictures of validation and evaluation for the card, as PNG by file name; none of them without matplotlib."""
    evaluation = drawable(receipt.evaluations)
    if importlib.util.find_spec("matplotlib") is None or not (receipt.validation or evaluation):
        return {}
    with scratch() as folder:
        if receipt.validation:
            from ..validate.report.page import write_plot
            from ..validate.rule.validation import Validation

            write_plot(Validation.from_dict(receipt.validation), folder / PICTURE)
        if evaluation is not None:
            draw(evaluation, folder / EVALUATION_PICTURE)
        return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}
