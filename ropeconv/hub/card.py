"""The model card: metadata inherited from the base model, and how the output was made and measured,
from its receipt.

https://huggingface.co/docs/hub/model-cards (base_model, base_model_relation),
https://github.com/huggingface/hub-docs/blob/main/modelcard.md?plain=1 (model-index)
"""

from __future__ import annotations

import dataclasses
import importlib.util
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..bake.checkpoint import CheckpointPlan, with_readme
from ..bake.companions import SUFFIX
from ..bake.plan import Plan
from ..convert.from_gguf.source import GgufCheckpoint
from ..errors import BadSource
from ..evaluate.cases import metric_of
from ..evaluate.result import GROWTH
from ..formats.disk import Advance
from ..formats.files import scratch
from ..formats.jsontext import JsonObject
from ..formats.package_data import render
from ..inspection.receipts.receipt import EvaluationRecord, MeasuredRecord, Receipt, StepRecord
from ..inspection.receipts.storage import commands, described_settings
from ..models.source import CARD, SOURCE_CARD
from ..rope.bound.reach import is_worse
from ..rope.errors import shown
from ..rope.methods.method import REGISTRY, Method
from ..runtimes.runtime import RUNS, UNTESTED, canonical
from ..version import __version__
from ..views.evaluation_plots import Curve, curve, differences, losses
from ..views.plan import method_title
from ..views.plot_style import Panel, figure, write
from ..views.results import evaluation_table
from ..views.support import problems, support
from .base_model import BaseModel, inherited, name_of, terms_of
from .options import PublishOptions
from .upload_set import UploadSet, planned, stated_metadata

if TYPE_CHECKING:
    from huggingface_hub import EvalResult


def eval_results(records: Sequence[EvaluationRecord]) -> Iterator[EvalResult]:
    """The entries of `model-index`: one for every number."""
    from huggingface_hub.repocard_data import EvalResult

    for record in records:
        for number in record.measured:
            yield EvalResult(
                task_type="text-generation",
                dataset_type="text",
                dataset_name=record.described_texts,
                dataset_args={"tokens_sha256": record.tokens_sha256},
                metric_type=number.metric,
                metric_name=(
                    f"{number.measure} at {number.column:,} tokens, {metric_of(number.metric).unit}"
                ),
                metric_value=round(number.value, 4),
            )


def finding(record: EvaluationRecord) -> str:
    """Return what the picture of an evaluation shows, in a sentence."""
    last = _growth(record)[-1]
    compared = (
        ""
        if last.difference is None
        else f", {abs(last.difference):.2f} {'less' if last.difference < 0 else 'more'}"
    )
    against = f"{compared} than {record.against}" if compared else ""
    return f"Loss by length: {last.value:.2f} nats per token at {last.column:,} tokens{against}"


def _growth(record: EvaluationRecord) -> list[MeasuredRecord]:
    return sorted(
        (cell for cell in record.measured if cell.measure == GROWTH), key=lambda cell: cell.column
    )


def draw(record: EvaluationRecord, path: Path) -> None:
    """Write the picture of an evaluation: losses of the output and of the other model, and their
    difference.

    Raises:
        RopeconvError: matplotlib is not installed.
    """
    cells = _growth(record)
    style = dict[str, Any](trained=record.trained, unit="nats per token")
    here = curve((cell.column, cell.value, cell.error) for cell in cells)
    apart = curve((cell.column, cell.difference, cell.margin) for cell in cells)
    curves = {"this model": here}
    title = f"Loss by length, {record.described_texts}"
    panels: list[Panel] = []
    if record.against and not np.isnan(apart.y).any():
        curves = {
            record.against: Curve(here.x, here.y - apart.y, np.full(len(here.x), np.nan))
        } | curves
        compared = f"Loss by length, compared with {record.against}"
        panels = [partial(differences, curves={"this model": apart}, title=compared, **style)]
    write(figure(partial(losses, curves=curves, title=title, **style), *panels), path)


def drawable(records: Sequence[EvaluationRecord]) -> EvaluationRecord | None:
    """The newest evaluation with growth; None where there is none."""
    return next((record for record in reversed(records) if _growth(record)), None)


MARK = "<!-- written by ropeconv -->"
PICTURE = "validation.png"
EVALUATION_PICTURE = "evaluation.png"
COMMANDS = ("vllm", "sglang", "tgi", "mlx-lm")
"""Runtimes whose command a card has; run.jinja has the commands."""


def card(
    upload: UploadSet,
    repo_id: str,
    base: BaseModel,
    ggufs: Sequence[str] = (),
    pictures: Collection[str] = (),
    options: PublishOptions = PublishOptions(),
) -> str:
    """Return the text of the card.

    Args:
        upload: The files and their receipt.
        repo_id: owner/name, or the name of a local folder.
        base: The base model.
        ggufs: Names of GGUF files in the repository.
        pictures: File names of those to show.
        options: The options of publishing: `revision`, the branch that the card is on, and
            `branches`.

    Raises:
        BadSource: The receipt names an unknown method.
    """
    receipt = upload.receipt
    weights = upload.quantised
    branch = options.revision
    step = receipt.extension
    title = repo_id.split("/")[-1]
    method = REGISTRY.get(step.method)
    if method is None:
        raise BadSource(
            f"the receipt names the method {shown(step.method)}, which is unknown here; run apply"
            " again"
        )
    evaluation = drawable(receipt.evaluations)
    authors = re.sub(r",? https?://[^\s;,]+", "", method.paper).strip("- ")
    return render(
        "card.md.jinja",
        metadata=_head(upload, title, base, bool(ggufs)),
        mark=MARK,
        title=title,
        repo_id=repo_id,
        revision=f', revision="{branch}"' if branch else "",
        base=base.name,
        commit=receipt.first.commit or "",
        license=base.known.get("license"),
        receipt=receipt,
        before=step.before,
        method=method,
        method_title=method_title(method),
        paper=next(iter(re.findall(r"https?://[^\s;,]+", method.paper)), ""),
        settings="; ".join(filter(None, (authors, _settings(method, step)))),
        runtimes=support(receipt.runtimes),
        problems=problems(receipt.runtimes),
        accepted=_accepted(receipt),
        local="/" not in repo_id,
        companion=companion(receipt, repo_id),
        kv_cache=upload.kv_cache,
        purpose=upload.purpose,
        schedule=upload.schedule,
        branches=options.branches,
        commands_of_runtimes={
            name: _run_command(name, repo_id, upload, branch)
            for name in COMMANDS
            if not (branch and name == "mlx-lm")
        },
        runs={row.runtime.split("@")[0] for row in receipt.runtimes if row.status in RUNS},
        ggufs=ggufs,
        weights=weights,
        context=upload.context,
        commands=commands(receipt),
        version=__version__,
        validation=receipt.validation,
        worse=is_worse(receipt.effective_length, receipt.before.reach, receipt.before.context),
        picture=PICTURE if PICTURE in pictures else "",
        evaluations=[evaluation_table(record) for record in receipt.evaluations],
        evaluation_picture=EVALUATION_PICTURE if EVALUATION_PICTURE in pictures else "",
        evaluation_finding=finding(evaluation) if evaluation else "",
        own_code=any(file.name.endswith(".py") for file in receipt.files),
    )


def _run_command(runtime: str, repo_id: str, upload: UploadSet, branch: str | None) -> str:
    """The command of a runtime for a repository; empty where it does not run such a model."""
    command = render(
        "run.jinja",
        runtime=runtime,
        path=repo_id,
        context=upload.context,
        modelfile=None,
        draft=None,
        purpose=upload.purpose,
    ).strip()
    return f"{command} --revision {branch}" if command and branch else command


def _head(upload: UploadSet, title: str, base: BaseModel, is_gguf: bool) -> str:
    """The YAML at the head of a card: what is known of the base model, and what the output adds.
    title: its name.
    """
    from huggingface_hub.repocard_data import ModelCardData

    known = {**base.known}
    weights = upload.quantised
    measured = list(eval_results(upload.receipt.evaluations))
    tags = dict.fromkeys(
        [*known.pop("tags", []), "ropeconv", upload.receipt.extension.method, "long-context"]
    )
    known.pop("base_model", None)
    data = ModelCardData(
        **known,
        base_model=base.name or None,
        # the Hub has no word for the weights of the base model: "finetune" would say that they were
        # trained
        base_model_relation="quantized" if base.name and (is_gguf or weights) else None,
        library_name="gguf" if is_gguf else "mlx" if weights == "mlx" else "transformers",
        tags=list(tags),
        **({"model_name": title, "eval_results": measured} if measured else {}),
    )
    return str(data.to_yaml()).strip()


def companion(receipt: Receipt, repo_id: str) -> str:
    """The draft of a target, or the target of a draft, as a link in Markdown; empty without one.

    repo_id: owner/name, or the name of a local folder. On the Hub the draft of owner/NAME is
    owner/NAME-draft.
    """
    name = receipt.target.draft or receipt.target.drafts_for
    if not name or "/" not in repo_id:
        return name and f"[{name}](../{name})"
    other = f"{repo_id}{SUFFIX}" if receipt.target.draft else repo_id.removesuffix(SUFFIX)
    return name if other == repo_id else f"[{other}](https://huggingface.co/{other})"


def _accepted(receipt: Receipt) -> str:
    """Return the untested runtimes for which an output was written with --allow-untested; empty
    without any.
    """
    target = receipt.extension.target
    if not target.allow_untested:
        return ""
    named = {canonical(name).partition("@")[0] for name in target.runtimes or ("transformers",)}
    newest = {row.runtime.partition("@")[0]: row for row in receipt.runtimes}
    rows = [row for name, row in newest.items() if name in named and row.status == UNTESTED]
    return " and ".join(row.display_name or row.runtime for row in rows)


def _settings(method: type[Method], step: StepRecord) -> str:
    """The parameters of the recipe of a bake that are not those by default, for display."""
    defaults = {item.name: item.default for item in dataclasses.fields(method)}
    parameters = step.recipe.get("parameters", {})
    changed = {
        name: value
        for name, value in parameters.items()
        if value != defaults.get(name, value is None)
    }
    recipe: JsonObject = {"method": step.method, "parameters": changed}
    for name in ("on_top", "original_context"):  # over which length a factor is
        if name in step.recipe:
            recipe[name] = step.recipe[name]
    return described_settings(recipe, step.before.original_context, step.before.context)


def drawn(receipt: Receipt) -> dict[str, bytes]:
    """The pictures of validation and evaluation for the card, as PNG by file name; none of them
    without matplotlib.
    """
    evaluation = drawable(receipt.evaluations)
    if importlib.util.find_spec("matplotlib") is None or not (receipt.validation or evaluation):
        return {}
    with scratch() as folder:
        if receipt.validation:
            from ..validate.validation import Validation
            from ..views.plot_style import write_pictures
            from ..views.validation_plots import validation_pictures

            write_pictures(
                validation_pictures(Validation.from_dict(receipt.validation)), folder / PICTURE
            )
        if evaluation is not None:
            draw(evaluation, folder / EVALUATION_PICTURE)
        return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def with_card(plan: Plan) -> Plan:
    """Return a plan whose folder gets a model card as README.md; plans of GGUF files stay
    unchanged.
    """
    if not isinstance(plan, CheckpointPlan) or any(
        (file.name, file.action) == (CARD, "write") for file in plan.files
    ):
        return plan
    return with_readme(plan, partial(_write, plan))


def _write(plan: CheckpointPlan, target: Path, advance: Advance) -> None:
    """Write the card, which is made only now, since the metadata of the source's own card may need
    fetching.
    """
    text = plan.source.text(SOURCE_CARD) or plan.source.text(CARD) or ""
    stated = (
        stated_metadata(plan.source.inner.file) if isinstance(plan.source, GgufCheckpoint) else {}
    )
    upload = replace(planned(plan), card=text, known=stated)
    known = stated | inherited(text)
    licence, forbids = terms_of(str(known.get("license") or ""))
    name, commit = name_of(upload, PublishOptions())
    base = BaseModel(name, known, licence=licence, forbids=forbids, commit=commit)
    advance(
        target.write_bytes(
            card(upload, f"{plan.source.name}-{plan.recipe.method.label}", base).encode()
        )
    )
