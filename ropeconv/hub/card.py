"""The model card: metadata inherited from the base model, and how the output was made and measured,
from its receipt.

`card` writes the text of one, `card_pictures` draws its pictures, and `with_card` puts one into a
plan.

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
from ..bake.next_steps import options_of, runtime_to_show
from ..bake.plan import Plan
from ..convert.from_gguf.source import GgufCheckpoint
from ..errors import BadSource
from ..formats.disk import Advance
from ..formats.files import scratch
from ..formats.jsontext import JsonObject
from ..formats.package_data import render
from ..inspection.receipts.metrics import GROWTH, metric_of
from ..inspection.receipts.receipt import (
    EvaluationRecord,
    MeasuredRecord,
    Receipt,
    RuntimeRecord,
    StepRecord,
)
from ..inspection.receipts.storage import commands, describe_settings
from ..inspection.support import problems, support
from ..models.source import CARD, SOURCE_CARD
from ..rope.bound.reach import is_worse
from ..rope.errors import shown
from ..rope.methods.method import REGISTRY, Method
from ..runtimes.runtime import GOOD, RUNS, UNTESTED, canonical
from ..version import __version__
from ..views.curves import Curve, curve, differences, losses
from ..views.plan import method_title
from ..views.plot_style import Panel, figure, write
from ..views.results import evaluation_table
from .base_model import BaseModel, inheritable_metadata, name_of, terms_of
from .options import Branch, PublishOptions
from .upload_set import UploadSet, gguf_metadata, planned_upload

if TYPE_CHECKING:
    from huggingface_hub import EvalResult

MARK = "<!-- written by ropeconv -->"
PICTURE = "validation.png"
EVALUATION_PICTURE = "evaluation.png"
RUNTIMES_WITH_COMMAND = ("vllm", "sglang", "tgi", "mlx-lm")
"""Runtimes whose command a card has; run.jinja has the commands."""
WITHOUT_REVISION = ("mlx-lm",)
"""Those that run the main branch only: `--revision` is not an option of mlx_lm.server."""
LINK = re.compile(r"https?://[^\s;,]+")
LINK_AFTER_COMMA = re.compile(rf",? {LINK.pattern}")


def card(
    upload: UploadSet,
    repo_id: str,
    base: BaseModel,
    ggufs: Sequence[str] = (),
    pictures: Collection[str] = (),
    options: PublishOptions = PublishOptions(),
) -> str:
    """Return the text of a model card: metadata in YAML, and what people should know in Markdown.

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
    title = repo_id.split("/")[-1]
    values: dict[str, object] = {
        "metadata": _metadata(upload, title, base, is_gguf=bool(ggufs)),
        "mark": MARK,
        "title": title,
        "version": __version__,
        "repo_id": repo_id,
        "base": base.name,
        "license": base.known.get("license"),
        "ggufs": ggufs,
    }
    values |= _about_change(upload, base)
    values |= _about_running(upload, repo_id, options)
    values |= _about_runtimes(upload.receipt)
    values |= _about_results(upload.receipt, pictures)
    return render("card.md.jinja", **values)


def _about_change(upload: UploadSet, base: BaseModel) -> dict[str, object]:
    """Return the values of the card's template about the method and how the output was made.

    An example: {"method_title": "YaRN", "paper": "https://arxiv.org/abs/2309.00071", ...}.

    Args:
        upload: The files of the output, with their receipt.
        base: The base model, which the card names as the one that was changed.

    Raises:
        BadSource: The receipt names a method that this version of ropeconv does not have.
    """
    # an output may be the result of several runs of ropeconv, one of which extended the context
    receipt = upload.receipt
    extension_step = receipt.extension
    method = REGISTRY.get(extension_step.method)
    if method is None:
        raise BadSource(
            f"the receipt names the method {shown(extension_step.method)}, which is unknown here;"
            " run apply again"
        )

    # `method.paper` is such as "Peng et al. 2023, https://arxiv.org/abs/2309.00071"
    links = LINK.findall(method.paper)
    paper = links[0] if links else ""
    authors = LINK_AFTER_COMMA.sub("", method.paper).strip("- ")
    settings = [authors, _settings(method, extension_step)]

    # Several runs start from the base model, which is the source of the first one. The commit is
    # that of the first source, which is another repository than a base model that the user names.
    first_step = receipt.steps[0]
    first_source = receipt.first
    is_base = first_source.repository == base.name
    before = first_step.before
    is_unchanged = method.name == "as-is"
    has_new_length = not is_unchanged or upload.context > before.context

    # whether retrieval may be lost at a shorter distance than in the source of the last run
    last_source_rope = receipt.before
    has_shorter_reach = is_worse(
        receipt.effective_length, last_source_rope.reach, last_source_rope.context
    )
    return {
        "receipt": receipt,
        "method": method,
        "method_title": method_title(method),
        "paper": paper,
        "settings": "; ".join(part for part in settings if part),
        "before": before,  # the RoPE of the base model
        "after": extension_step.before.after,
        "is_unchanged": is_unchanged,
        "has_new_length": has_new_length,
        "context": upload.context,
        "worse": has_shorter_reach,
        "commit": first_source.commit or "",
        "commit_of": "" if is_base else first_source.repository,
        "commands": commands(receipt),
    }


def _about_running(upload: UploadSet, repo_id: str, options: PublishOptions) -> dict[str, object]:
    """Return the values of the card's template about commands, memory and files.

    An example: {"commands_of_runtimes": {"vllm": "vllm serve owner/name ..."}, "memory": ..., ...}.

    Args:
        upload: The files of the model, and facts about them.
        repo_id: owner/name on the Hub, or the name of a local folder.
        options: The options of publishing: the card names the branch (`revision`).
    """
    branch = options.revision
    is_local_folder = "/" not in repo_id

    # the commands that serve the model
    run_commands = {}
    for runtime in RUNTIMES_WITH_COMMAND:
        if branch and runtime in WITHOUT_REVISION:
            continue
        run_commands[runtime] = _run_command(runtime, repo_id, upload, branch)

    return {
        "revision": f', revision="{branch}"' if branch else "",
        "branches": options.branches,
        "local": is_local_folder,
        "companion": companion(upload.receipt, repo_id),
        "kv_cache": upload.kv_cache,
        "memory": upload.memory,
        "purpose": upload.purpose,
        # diffusion language models run with a schedule of denoising steps
        "schedule": upload.diffusion_options,
        # the quantisation of the weights, such as "awq"; empty for weights that are not quantised
        "weights": upload.quantised,
        "commands_of_runtimes": run_commands,
        "edited_weights": upload.edited_weights,
        "with_options": _servers_with_options(upload.receipt),
        "own_code": any(file.name.endswith(".py") for file in upload.receipt.files),
    }


def _about_runtimes(receipt: Receipt) -> dict[str, object]:
    """Return the values of the template about runtimes."""
    running = [row.runtime for row in receipt.runtimes if row.status in RUNS]
    return {
        "runtimes": support(receipt.runtimes),
        "problems": problems(receipt.runtimes),
        "read_alike": _all_read_alike(receipt),
        "accepted": _accepted_runtimes(receipt),
        "runs": {name.partition("@")[0] for name in running},
    }


def _about_results(receipt: Receipt, pictures: Collection[str]) -> dict[str, object]:
    """Return the values of the template about validation and evaluations."""
    evaluation = newest_with_growth(receipt.evaluations)
    return {
        "validation": receipt.validation,
        "picture": PICTURE if PICTURE in pictures else "",
        "evaluations": [evaluation_table(record) for record in receipt.evaluations],
        "evaluation_picture": EVALUATION_PICTURE if EVALUATION_PICTURE in pictures else "",
        "evaluation_finding": growth_sentence(evaluation) if evaluation else "",
    }


def _newest_rows(receipt: Receipt) -> dict[str, RuntimeRecord]:
    """Return the verdict on the newest version of each runtime, by its name."""
    newest = {}
    for row in receipt.runtimes:  # each runtime's from the oldest version to the newest
        newest[row.runtime.partition("@")[0]] = row
    return newest


def _all_read_alike(receipt: Receipt) -> bool:
    """Whether all runtimes that have the model compute its RoPE from the config."""
    statuses = {row.status for row in _newest_rows(receipt).values()}
    return bool(statuses) and statuses <= {*GOOD, "unsupported"}


def _servers_with_options(receipt: Receipt) -> str:
    """Return the servers that need an option, in words; empty without any."""
    rows = _newest_rows(receipt).values()
    return " and ".join(row.display_name for row in rows if row.options)


def list_branch(plan: Plan, repo_id: str, name: str) -> Branch:
    """Return a branch as the card of the main branch lists it, with the command that serves it.

    The command is that of the runtime in the next steps of its output, where a card has one.

    Args:
        plan: The plan of the output that is published on the branch.
        repo_id: owner/name of the repository.
        name: The name of the branch.
    """
    upload = planned_upload(plan)
    shown = runtime_to_show(plan)
    newest = _newest_rows(upload.receipt)
    supporting = [
        runtime
        for runtime in RUNTIMES_WITH_COMMAND
        if runtime in newest and newest[runtime].status in RUNS
    ]
    command = ""
    for runtime in (shown, *supporting):
        is_usable = runtime in RUNTIMES_WITH_COMMAND and runtime not in WITHOUT_REVISION
        if is_usable and not command:
            command = _run_command(runtime, repo_id, upload, name)
    return Branch(name, upload.context, command)


def _run_command(runtime: str, repo_id: str, upload: UploadSet, branch: str | None) -> str:
    """Return the command that serves a repository in a runtime; "" if the runtime cannot run it.

    Args:
        runtime: The name of the runtime.
        repo_id: owner/name, or the name of a local folder.
        upload: The files of the model.
        branch: The branch that they are on; None for the usual one.
    """
    text = render(
        "run.jinja",
        runtime=runtime,
        path=f"{repo_id} --revision {branch}" if branch else repo_id,
        context=upload.context,
        modelfile=None,
        draft=None,
        purpose=upload.purpose,
        options=options_of(upload.receipt.runtimes, runtime),
        cache_option="",  # that of --cache-type is for one machine, and the card is for all
    )
    return text.strip()


def _metadata(upload: UploadSet, title: str, base: BaseModel, is_gguf: bool) -> str:
    """Return the YAML at the head of a card: the base model's, and what the output adds to it.

    https://huggingface.co/docs/hub/model-cards lists the keys that the Hub reads.

    Args:
        upload: The files of the output, with their receipt.
        title: The name of the model.
        base: The base model, whose licence and languages hold for the output too.
        is_gguf: Whether the repository has GGUF files.
    """
    from huggingface_hub.repocard_data import ModelCardData

    # what holds for the base model holds for the output too; two of its keys are made here
    known = {**base.known}
    known.pop("base_model", None)
    base_tags = known.pop("tags", [])
    tags = [*base_tags, "ropeconv", upload.receipt.extension.method, "long-context"]

    if is_gguf:
        library = "gguf"
    elif upload.quantised == "mlx":
        library = "mlx"
    else:
        library = "transformers"

    # the Hub has no word for the weights of the base model: "finetune" would say that they were
    # trained
    relation = None
    if base.name and (is_gguf or upload.quantised):
        relation = "quantized"

    # ModelCardData refuses `eval_results` without a `model_name`, and writes a name without results
    evaluated: dict[str, Any] = {}
    measured = list(eval_results(upload.receipt.evaluations))
    if measured:
        evaluated = {"model_name": title, "eval_results": measured}

    data = ModelCardData(
        **known,
        base_model=base.name or None,
        base_model_relation=relation,
        library_name=library,
        tags=list(dict.fromkeys(tags)),
        **evaluated,
    )
    return str(data.to_yaml()).strip()


def eval_results(records: Sequence[EvaluationRecord]) -> Iterator[EvalResult]:
    """Yield the entries of `model-index`: one for every number."""
    from huggingface_hub.repocard_data import EvalResult

    for record in records:
        for number in record.measured:
            unit = metric_of(number.metric).unit
            yield EvalResult(
                task_type="text-generation",
                dataset_type="text",
                dataset_name=record.described_texts,
                # huggingface_hub puts results with one dataset type, config, split and revision
                # together, under the name of the first. So results on other texts need another
                # revision.
                dataset_revision=record.tokens_sha256,
                dataset_args={"tokens_sha256": record.tokens_sha256},
                metric_type=number.metric,
                metric_name=f"{number.measure} at {number.column:,} tokens, {unit}",
                metric_args={"runtime": record.runtime, "dtype": record.dtype},
                metric_value=round(number.value, 4),
            )


def companion(receipt: Receipt, repo_id: str) -> str:
    """Return a link to the draft model of a target model, or from a draft to its target, or "".

    On the Hub the draft of owner/NAME is owner/NAME-draft.

    Args:
        receipt: The receipt of the target or draft.
        repo_id: owner/name, or the name of a local folder.

    Returns:
        The link in Markdown; only the name where the link would lead to the repository itself.
    """
    name = receipt.target.draft or receipt.target.drafts_for
    if not name:
        return ""
    if "/" not in repo_id:
        return f"[{name}](../{name})"

    if receipt.target.draft:
        other = f"{repo_id}{SUFFIX}"
    else:
        other = repo_id.removesuffix(SUFFIX)
    if other == repo_id:  # the draft is published under a name without the suffix
        return name
    return f"[{other}](https://huggingface.co/{other})"


def _accepted_runtimes(receipt: Receipt) -> str:
    """Return the untested runtimes that --allow-untested has accepted; or empty.

    Such as "SGLang and vLLM", for a warning in the card.
    """
    target = receipt.extension.target
    if not target.allow_untested:
        return ""

    # the runtimes that the output was made for; "vllm@0.20" is a version of vllm
    accepted = set()
    for named in target.runtimes or ("transformers",):
        name, _, _ = canonical(named).partition("@")
        accepted.add(name)

    # the receipt has a row for each range of versions, and the last of a runtime is its newest
    newest = {}
    for row in receipt.runtimes:
        name, _, _ = row.runtime.partition("@")
        newest[name] = row

    untested = []
    for name, row in newest.items():
        if name in accepted and row.status == UNTESTED:
            untested.append(row.display_name or row.runtime)
    return " and ".join(untested)


def _settings(method: type[Method], step: StepRecord) -> str:
    """Return the settings of a bake that differ from the defaults of its method, for display."""
    defaults = {item.name: item.default for item in dataclasses.fields(method)}
    changed = {}
    for name, value in step.recipe.get("parameters", {}).items():
        if name not in defaults or value != defaults[name]:
            changed[name] = value

    recipe: JsonObject = {"method": step.method, "parameters": changed}
    for name in ("on_top", "original_context"):  # they say over which length a factor is
        if name in step.recipe:
            recipe[name] = step.recipe[name]
    return describe_settings(recipe, step.before.original_context, step.before.context)


def card_pictures(receipt: Receipt) -> dict[str, bytes]:
    """Return the pictures of validation and evaluation for the card, as PNG by file name.

    There are none without matplotlib, and for an output that was neither validated nor evaluated.
    """
    evaluation = newest_with_growth(receipt.evaluations)
    if not receipt.validation and evaluation is None:
        return {}
    if importlib.util.find_spec("matplotlib") is None:
        return {}

    with scratch() as folder:
        if receipt.validation:
            _draw_validation(receipt.validation, folder / PICTURE)
        if evaluation is not None:
            draw(evaluation, folder / EVALUATION_PICTURE)
        return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def _draw_validation(validation: JsonObject, path: Path) -> None:
    """Write the pictures of a validation, as the receipt has it."""
    # these modules need numpy and more, which a card without pictures does not
    from ..validate.validation import Validation
    from ..views.plot_style import write_pictures
    from ..views.validation_plots import validation_pictures

    pictures = validation_pictures(Validation.from_dict(validation))
    write_pictures(pictures, path)


def draw(record: EvaluationRecord, path: Path) -> None:
    """Write the picture of an evaluation: the losses of two models by length.

    The second panel is the difference of the two; it is left out where a length has none.

    Args:
        record: The evaluation, in which this model may be compared with another one.
        path: The PNG file.

    Raises:
        RopeconvError: matplotlib is not installed.
    """
    # the loss of this model by length, and its difference to the other model
    cells = _growth(record)
    loss = curve((cell.column, cell.value, cell.error) for cell in cells)
    difference = curve((cell.column, cell.difference, cell.margin) for cell in cells)
    some_are_missing = np.isnan(difference.y).any()
    has_differences = bool(record.against) and not some_are_missing

    # the loss of the other model is loss - difference; its own error is not known
    curves = {"this model": loss}
    if has_differences:
        no_errors = np.full(len(loss.x), np.nan)
        other = Curve(loss.x, loss.y - difference.y, no_errors)
        curves = {record.against: other, "this model": loss}

    # the first panel has both losses, the second one the difference
    unit = "nats per token"
    first = partial(
        losses,
        curves=curves,
        trained=record.trained,
        title=f"Loss by length, {record.described_texts}",
        unit=unit,
    )
    panels: list[Panel] = [first]
    if has_differences:
        second = partial(
            differences,
            curves={"this model": difference},
            trained=record.trained,
            title=f"Loss by length, compared with {record.against}",
            unit=unit,
        )
        panels.append(second)
    write(figure(*panels), path)


def newest_with_growth(records: Sequence[EvaluationRecord]) -> EvaluationRecord | None:
    """Return the newest evaluation that measured losses by length; None where there is none."""
    for record in reversed(records):
        if _growth(record):
            return record
    return None


def growth_sentence(record: EvaluationRecord) -> str:
    """Return what the picture of an evaluation shows."""
    last = _growth(record)[-1]
    sentence = f"Loss by length: {last.value:.2f} nats per token at {last.column:,} tokens"
    if last.difference is None:
        return sentence
    word = "less" if last.difference < 0 else "more"
    return f"{sentence}, {abs(last.difference):.2f} {word} than {record.against}"


def _growth(record: EvaluationRecord) -> list[MeasuredRecord]:
    """Return the losses by length of an evaluation, from the shortest length to the longest."""
    cells = [cell for cell in record.measured if cell.measure == GROWTH]
    return sorted(cells, key=lambda cell: cell.column)


def with_card(plan: Plan) -> Plan:
    """Return a plan whose folder gets a model card as README.md.

    Plans of GGUF files stay unchanged, and plans that write a README.md already.
    """
    if not isinstance(plan, CheckpointPlan):
        return plan
    if any(file.name == CARD and file.action == "write" for file in plan.files):
        return plan
    return with_readme(plan, partial(_write_card, plan))


def _write_card(plan: CheckpointPlan, target: Path, advance: Advance) -> None:
    """Write the model card of an output folder, with metadata from the card of the source.

    Called when the folder is written. A plan has no card yet, since the card of the source may need
    a download.

    Args:
        plan: The plan of the folder.
        target: The file for the card.
        advance: Called with the number of bytes written.
    """
    # the metadata of the source, from its card or from the keys of a GGUF file
    source = plan.source
    source_card = source.text(SOURCE_CARD) or source.text(CARD) or ""
    gguf_keys: JsonObject = {}
    if isinstance(source, GgufCheckpoint):
        gguf_keys = gguf_metadata(source.inner.file)

    # the files of the folder; nothing is uploaded, but the card describes the same list
    files = replace(planned_upload(plan), card=source_card, card_metadata=gguf_keys)

    # what the source says about its base model and the licence, without a request to the Hub
    base_name, base_commit = name_of(files, PublishOptions())
    metadata = gguf_keys | inheritable_metadata(source_card)
    licence_sentence, forbids_derivatives = terms_of(str(metadata.get("license") or ""))
    base = BaseModel(
        name=base_name,
        known=metadata,
        licence=licence_sentence,
        forbids=forbids_derivatives,
        commit=base_commit,
    )

    title = f"{source.name}-{plan.recipe.method.label}"
    text = card(files, title, base)
    advance(target.write_bytes(text.encode()))
