"""The model card: metadata inherited from the base model, and how the output was made, from its receipt.

https://huggingface.co/docs/hub/model-cards (base_model, base_model_relation).
"""

from __future__ import annotations

import importlib.util
from collections.abc import Collection, Sequence

from ..errors import BadSource
from ..errors import shown as quoted
from ..formats.scratch import scratch
from ..formats.template import render
from ..receipts import Receipt
from ..receipts.commands import commands
from ..rope.bound import is_worse
from ..rope.methods import REGISTRY
from ..runtimes.grouping import grouped
from ..runtimes.rules import RUNS
from ..version import __version__
from .base_model import BaseModel, relation
from .evaluations import draw, drawable, eval_results, shown
from .upload_set import UploadSet

MARK = "<!-- written by ropeconv -->"
PICTURE = "validation.png"
EVALUATION_PICTURE = "evaluation.png"


def card(
    what: UploadSet, repo_id: str, base: BaseModel, ggufs: Sequence[str] = (), pictures: Collection[str] = ()
) -> str:
    """The text of the card for `repo_id`.

    what: the files and their receipt. repo_id: owner/name. base: the base model. ggufs: names of GGUF files in the
    repository. pictures: file names of those to show. Raises BadSource for a receipt with a method that is not known.
    """
    from huggingface_hub import ModelCardData

    receipt, known, weights = what.receipt, {**base.known}, what.quantised
    step, title = receipt.extension, repo_id.split("/")[-1]
    method = REGISTRY.get(step.method)
    if method is None:
        raise BadSource(f"the receipt names the method {quoted(step.method)}, which is not known here; run apply again")
    measured = list(eval_results(receipt.evaluations))
    tags = dict.fromkeys([*known.pop("tags", []), "ropeconv", method.name, "long-context"])
    known.pop("base_model", None)
    data = ModelCardData(
        **known,
        base_model=base.name or None,
        base_model_relation=relation(what, ggufs) if base.name else None,
        library_name="gguf" if ggufs else "mlx" if weights == "mlx" else "transformers",
        tags=list(tags),
        **({"model_name": title, "eval_results": measured} if measured else {}),
    )
    return render(
        "card.md.jinja",
        metadata=data.to_yaml().strip(),
        mark=MARK,
        title=title,
        repo_id=repo_id,
        base=base.name,
        commit=receipt.first.commit or "",
        license=base.known.get("license"),
        receipt=receipt,
        before=step.before,
        method=method,
        runtimes=grouped(receipt.runtimes, receipt.source.family),
        runs={row.runtime.split("@")[0] for row in receipt.runtimes if row.status in RUNS},
        ggufs=ggufs,
        weights=weights,
        context=what.context,
        commands=commands(receipt),
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
    return is_worse(receipt.effective_length, before.reach, before.context)


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
