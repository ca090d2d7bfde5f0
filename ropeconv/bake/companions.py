"""Companions of an output, written beside it: its draft model, or a PEFT adapter.

A draft is extended with its target: to the same context, by the same method, from its own trained
length. It runs at the positions of its target. It was trained on fewer, often 2,048 (`max_len` in
https://github.com/SafeAILab/EAGLE/blob/main/eagle/train/main.py), with a base of its own; so the
factor is the context of the target over the trained length of the draft. Runtimes size its table by
its config: vLLM fails beyond it (https://github.com/vllm-project/vllm/issues/48894), or serves only
its length (vllm/config/vllm.py:3027-3051, 0.33.0), and SGLang refuses to start
(sglang/srt/configs/model_config.py:1292-1316, 0.5.23).

An adapter is copied, with the output as the base in adapter_config.json.
`PeftModel.from_pretrained(base, adapter)` takes any base, but `AutoPeftModel` and transformers load
the one that the adapter names, which has the RoPE of before (peft 0.21.2, peft/auto.py:114;
transformers 5.23.0, models/auto/auto_factory.py:317).
"""

import dataclasses
import filecmp
import json
import os
from functools import partial
from pathlib import Path

import msgspec

from ..errors import BadSource, Disagreement, UsageError
from ..formats import jsontext
from ..formats.disk import sha256
from ..formats.kind import is_gguf
from ..inspection.adapter import Adapter, misplaced_tensor, other_base, read_adapter
from ..inspection.inspection import Inspection, inspect_source
from ..inspection.receipts.companion import CompanionReceipt, read_companion
from ..inspection.receipts.receipt import FileRecord
from ..inspection.receipts.storage import write_receipt
from ..loader import read_json
from ..models.gguf import GgufSource
from ..models.open import open_source
from ..models.source import ADAPTER, RECEIPT, Origin, Source
from ..rope.errors import RopeconvError
from ..rope.lengths import SMALLEST_LENGTH, format_tokens
from ..rope.methods.method import LengthMethod, ScaledMethod
from ..rope.recipe import Recipe
from ..runtimes.drafts import draft_sizes, header_sizes
from ..runtimes.verdict import difference
from ..version import __version__
from .apply import make_plan
from .checkpoint import CheckpointPlan
from .companion_check import copies_digest
from .execution import ApplyOptions, execute_plan, refuse_early
from .file_checks import files_of, is_document
from .finished import member_digest
from .hidden import discard_stopped_run, is_empty
from .plan import FilePlan, Plan, PlannedFile, source_record

SUFFIX = "-draft"


def draft_out(out: Path) -> Path:
    """The place of the draft beside its target: `OUT-draft`, or `OUT-draft.gguf`."""
    return out.with_name(f"{out.stem}{SUFFIX}.gguf" if is_gguf(out) else f"{out.name}{SUFFIX}")


def draft_plan(reference: str, plan: Plan, trained: int | None = None) -> Plan:
    """Plan a draft model with the context of its target model, for speculative decoding.

    A draft is a small model that proposes tokens, which a larger model, the target, accepts or
    rejects. Both run at the same positions, so both are extended.

    Args:
        reference: Path or Hub id of the draft: an EAGLE head, or a smaller model.
        plan: The plan of the target, from `paired`.
        trained: Tokens that the draft was trained on; None for the length that it declares.

    Raises:
        UsageError: The draft needs no change, has another format, or the method of the target
            cannot be repeated for its RoPE.
        BadSource: The draft is for another target, or cannot be extended.
    """
    source = open_source(reference)
    if isinstance(source, GgufSource) != isinstance(plan.source, GgufSource):
        raise UsageError(
            f"--draft {reference} and its target must both be GGUF files, or both be checkpoints"
        )
    source.as_draft = True  # so that `inspect_source` accepts an EAGLE head
    inspection = inspect_source(source)
    if inspection.draft and isinstance(source, Source) and not plan.is_folder:
        raise UsageError(
            f"{reference} is {inspection.draft.says}, which ropeconv does not write as GGUF; leave"
            " --to gguf out, and convert it with llama.cpp's convert_hf_to_gguf.py"
            " --target-model-dir TARGET"
        )

    # warnings: another vocabulary, and a length that may not be the trained one
    warnings = []
    other_vocabulary = warn_of_vocabulary(source, inspection, plan.source)
    if other_vocabulary:
        warnings.append(other_vocabulary)
    doubtful_length = "" if trained else warn_of_length(inspection, plan)
    if doubtful_length:
        warnings.append(doubtful_length)

    # The options of the target, with another place. The receipt of the draft, the record of how it
    # was made, has the name and the digest of the target (`drafts_for`). The receipt of the target
    # has those of the draft (`draft`, see `name_draft`), so these are empty here.
    draft_options = dataclasses.replace(
        plan.target,
        out=draft_out(plan.out),
        draft="",
        draft_digest="",
        drafts_for=plan.out.name,
        drafts_for_digest=member_digest(plan.receipt()),
    )
    recipe = draft_recipe(inspection, plan, trained)
    planned_draft = make_plan(source, recipe, draft_options)
    return dataclasses.replace(planned_draft, warnings=(*warnings, *planned_draft.warnings))


def warn_of_length(inspection: Inspection, plan: Plan) -> str:
    """Return a warning on an EAGLE head whose trained length is in doubt; empty for other drafts.

    A head is a draft of one or few layers that reads the hidden states of its target, at the same
    positions. Its config often declares the length of the target, although the head was trained on
    shorter texts.

    Args:
        inspection: The inspection of the draft.
        plan: The plan of the target.
    """
    spec = inspection.first_spec  # the RoPE of the draft
    is_head = inspection.draft is not None  # `draft` is the kind of head; None for a whole model
    if not is_head or spec.scaled:
        return ""

    # "declared": the trained length is only known from max_position_embeddings in config.json;
    # "header": from the context_length of a GGUF file
    is_only_declared = spec.original_context_source in ("declared", "header")
    has_length_of_target = spec.context == plan.source_spec.context
    if not is_only_declared or not has_length_of_target:
        return ""
    return (
        f"{inspection.source.reference} declares the {spec.context:,} tokens of its target, and"
        " heads are often trained on fewer, such as 2,048; give that length with"
        " --draft-original-context"
    )


def draft_recipe(inspection: Inspection, plan: Plan, trained: int | None = None) -> Recipe:
    """Return the recipe that extends a draft model to the context of its target model.

    The recipe has the method of the target. For a target with `--yarn 4` (32k to 128k) and a draft
    that was trained on 2,048 tokens, it is YaRN with factor 64.

    Args:
        inspection: The inspection of the draft.
        plan: The plan of the target.
        trained: Tokens that the draft was trained on; None for the length that it declares.

    Raises:
        UsageError: The draft has that context already, or the method has no factor and the draft
            has another RoPE than the target.
    """
    recipe = plan.recipe
    context = plan.schedule.context
    spec = inspection.spec
    _refuse_length(inspection, context, trained)

    # the length of the draft from which the method starts
    on_top = recipe.on_top and spec.scaled
    if trained is not None:  # the user gave the length
        start_length = trained
    elif on_top:
        start_length = spec.context
    else:  # the length before any scaling
        start_length = inspection.first_spec.original_context

    method = recipe.method
    if isinstance(method, ScaledMethod):
        # --yarn and others get a new factor
        method = _scale_to(method, start_length, context)
    elif isinstance(method, LengthMethod):
        # --theta-for and others name the context, which is the same for the draft
        pass
    else:
        # a file of frequencies, for example, fits only a draft with the RoPE of the target
        _refuse_other_rope(inspection, plan, start_length)

    # `--context` of the draft: where the target has it, or where the user gave a trained length
    explicit_context = None
    if recipe.context is not None or trained is not None:
        explicit_context = context
    return dataclasses.replace(
        recipe, method=method, context=explicit_context, original_context=trained, on_top=on_top
    )


def _scale_to(method: ScaledMethod, start_length: int, context: int) -> ScaledMethod:
    """Return a method with the factor from one length to another: `--yarn 4` or `--yarn 128k`."""
    factor = context / start_length
    has_few_digits = round(factor, 2) == factor
    can_be_length = context >= SMALLEST_LENGTH  # smaller numbers are read as factors
    if can_be_length and not has_few_digits:  # --yarn 128k reads better than --yarn 5.333333
        return dataclasses.replace(method, factor=format_tokens(context))
    return dataclasses.replace(method, factor=factor)


def _refuse_length(inspection: Inspection, context: int, trained: int | None) -> None:
    """Raise UsageError for a draft that is as long as its target, or is said to be."""
    if trained is not None:
        if 0 < trained < context:
            return
        raise UsageError(
            f"--draft-original-context {trained}: the draft is extended to the {context:,} tokens"
            " of its target; give the fewer tokens that it was trained on"
        )
    declared = inspection.spec.context
    if declared >= context:
        raise UsageError(
            f"--draft {inspection.source.reference} declares {declared:,} tokens already, which"
            f" covers the {context:,} of its target; leave --draft out and use it unchanged, or"
            " give the length that it was trained on with --draft-original-context"
        )


def _refuse_other_rope(inspection: Inspection, plan: Plan, length: int) -> None:
    """Raise UsageError where a method without a factor was made for another RoPE or length."""
    recipe = plan.recipe
    original = plan.schedule.original_context
    why = difference(plan.before.current(), plan.before, recipe.start(inspection.spec))
    if length != original:
        why = f"it was trained on {length:,} tokens, not {original:,}"
    if why:
        raise UsageError(
            f"{recipe.method.flag()} cannot be repeated for --draft {inspection.source.reference}"
            f" ({why}); choose a method with a factor, such as --yarn"
        )


def paired(plan: Plan) -> Plan:
    """Return the plan of a target model whose receipt also names the draft model beside it.

    The draft of an output OUT is OUT-draft. The receipt is the record of how OUT was made. In a
    folder, it is a file that is written last. In a GGUF file, it is a key of the header, so its
    length changes the file, and the file is planned again.

    Args:
        plan: The plan of the target in speculative decoding.

    Raises:
        UsageError: The target is changed in place, so a draft has no place beside it.
    """
    if plan.target.in_place:
        raise UsageError(
            "--draft makes an output beside its target, and --in-place makes none; give -o instead"
        )
    target = dataclasses.replace(plan.target, out=plan.out, draft=draft_out(plan.out).name)
    if plan.is_folder:
        return dataclasses.replace(plan, target=target)
    assert isinstance(plan.source, Source | GgufSource)
    return make_plan(plan.source, plan.recipe, target)  # its header has the receipt


def name_draft(plan: Plan, draft: Plan) -> Plan:
    """Return the plan of a target model whose receipt also has the digest of its draft model.

    Args:
        plan: The plan of the target, from `paired`.
        draft: The plan of its draft.
    """
    digest = member_digest(draft.receipt())
    target = dataclasses.replace(plan.target, out=plan.out, draft_digest=digest)
    if plan.is_folder:
        return dataclasses.replace(plan, target=target)
    assert isinstance(plan.source, Source | GgufSource)
    return make_plan(plan.source, plan.recipe, target)  # its header has the receipt


def warn_of_vocabulary(draft: Source | GgufSource, inspection: Inspection, target: Origin) -> str:
    """Return a warning if a draft model has another vocabulary than its target; empty otherwise.

    The target accepts or rejects the tokens that the draft proposes, so both need the same
    vocabulary. Some runtimes run a smaller model with another vocabulary, so this is a warning. An
    EAGLE head reads the hidden states of its target, so other sizes are an error.

    Args:
        draft: A smaller model, or an EAGLE head.
        inspection: The inspection of the draft.
        target: The target model.

    Raises:
        BadSource: A head has other sizes than its target.
    """
    is_head = inspection.draft is not None  # `draft` is the kind of head; None for a whole model
    if not is_head and isinstance(draft, GgufSource):
        # llama.cpp compares the tokens of two whole models itself (common/speculative.cpp,
        # common_speculative_are_compatible)
        return ""

    sizes_of_target = _shared_sizes(target)
    for key, size in _shared_sizes(draft).items():
        target_size = sizes_of_target.get(key)
        is_unknown = not size or not target_size  # a config lacks the key
        if is_unknown or size == target_size:
            continue

        # a head: all sizes must be those of the target
        if is_head:
            raise BadSource(
                f"--draft {draft.reference} is for a model with {key} {size}, and"
                f" {target.reference} has {key} {target_size}; give the draft of this target"
            )
        # a smaller model: only the vocabulary must be that of the target
        if key == "vocab_size":
            return (
                f"{draft.reference} has {key} {size}, and its target has {key} {target_size};"
                " vLLM refuses such a pair"
            )
    return ""


def _shared_sizes(model: Origin) -> dict[str, object]:
    """Return the sizes that a draft and its target must share: {"hidden_size": 4096, ...}."""
    if isinstance(model, Source):
        return draft_sizes(model.config())
    if isinstance(model, GgufSource):
        return header_sizes(model.file)
    return {}


@dataclasses.dataclass(frozen=True)
class AdapterPlan(FilePlan):
    """The files of an adapter."""

    base: CheckpointPlan
    """The plan of the output that it belongs to."""

    warning: str = ""
    """A sentence on an adapter that names another base model; else empty."""

    @property
    def digest(self) -> str:
        """The sha256 over the files that are copied, by which the receipt of the output names it.

        It is empty where the sha256 of a file is not known without a download.
        """
        digests = {}
        for file in self.files:
            if file.action != "copy":
                continue
            origin = self.origin(file)  # the local file; None on the Hub
            if file.sha256 is not None:
                digests[file.name] = file.sha256
            elif origin is not None:
                digests[file.name] = sha256(origin)
            else:
                return ""
        return copies_digest(digests)

    def companion(self) -> CompanionReceipt:
        """The receipt of the adapter, still without the records of its files."""
        return CompanionReceipt(
            ropeconv=__version__,
            companion="adapter",
            source=source_record(self.source),
            output=self.base.out.name,
            recipe=self.base.recipe.to_dict(),
            schedule=self.base.schedule.digest,
            context=self.base.schedule.context,
        )


def adapter_plan(reference: str, plan: Plan) -> AdapterPlan:
    """Plan a copy of a LoRA adapter whose config names an output of ropeconv as the base model.

    The copy of the adapter for an output OUT is OUT-adapter.

    Args:
        reference: Path or Hub id of the adapter.
        plan: The plan of the output, a checkpoint.

    Raises:
        UsageError: `reference` is not an adapter, or the output has the attention factor in its
            weights.
        BadSource: The adapter is for a model with other matrices.
        RopeconvError: OUT-adapter exists and has other files.
    """
    assert isinstance(plan, CheckpointPlan)
    source = open_source(reference)
    adapter = read_adapter(source)
    if adapter is None:
        raise UsageError(
            f"--adapter {reference} has no {ADAPTER}, so it is not a PEFT adapter; give its folder"
        )
    # a clause on a matrix of another shape than in the model, such as "is for a ...q_proj.weight of
    # 4,096 x 4,096, and that of BASE is 2,048 x 2,048"; empty if all shapes fit
    shape_difference = misplaced_tensor(adapter, inspect_source(plan.source))
    if shape_difference:
        raise BadSource(f"--adapter {reference} {shape_difference}; give the adapter of this model")
    scales_weights = plan.result.fold is not None
    if scales_weights:
        raise UsageError(
            "--adapter adds to weights that --encoding weights scales; choose another encoding"
        )

    out = plan.out.with_name(f"{plan.out.name}-adapter")
    planned = AdapterPlan(
        source=adapter.source,
        out=out,
        files=_files_of_adapter(adapter, plan.out),
        skipped=(),
        base=plan,
        warning=other_base(adapter, plan.source),
    )

    # a free place: refuse it now if it cannot be written
    is_taken = os.path.lexists(out) and not is_empty(out)
    if not is_taken:
        refuse_early(planned, force=False)
        return planned
    # a taken place may only have the same adapter, from an earlier run of the command
    if not has_files(planned):
        raise RopeconvError(f"{out} exists; remove it, or choose another place with -o")
    return planned


def _files_of_adapter(adapter: Adapter, base: Path) -> tuple[PlannedFile, ...]:
    """Return the files of an adapter: its own, and a config that names another base model.

    Args:
        adapter: The adapter as the user gave it.
        base: The output that becomes its base model.
    """
    config = adapter.config | {"base_model_name_or_path": str(base)}
    if "revision" in config:
        config["revision"] = None  # a revision of the earlier base
    text = jsontext.dump(config, adapter.source.text(ADAPTER) or "")
    files = [PlannedFile("write", ADAPTER, len(text.encode()), text=text)]

    copies, _ = adapter.source.files_to_copy()
    for file in copies:
        if file.name != ADAPTER:
            files.append(
                PlannedFile(action="copy", name=file.name, size=file.size, sha256=file.sha256)
            )
    return tuple(files)


def has_files(plan: AdapterPlan) -> bool:
    """Return whether the place of an adapter has its files already, byte for byte.

    Other files may be there only where no runtime loads them.
    """
    planned = {file.name for file in plan.files}
    added = set(files_of(plan.out)) - planned - {RECEIPT}
    if not all(is_document(name) for name in added):
        return False
    return not _unlike_plan(plan, plan.out)


def _unlike_plan(plan: AdapterPlan, folder: Path) -> str:
    """Return the name of the first file in a folder that is not as planned; empty without one."""
    for file in plan.files:
        place = folder / file.name
        origin = plan.origin(file)
        if not place.is_file():
            return file.name
        # against the text in the plan, or against the file that it is copied from
        if origin is None and place.read_bytes() != (file.text or "").encode():
            return file.name
        if origin is not None and not filecmp.cmp(origin, place, shallow=False):
            return file.name
    return ""


def _check_adapter(plan: AdapterPlan, folder: Path) -> None:
    """Raise Disagreement if a written adapter is not the user's adapter with the output as its
    base.

    Args:
        plan: The plan of the adapter.
        folder: The folder with its files, before it gets its name.
    """
    name = _unlike_plan(plan, folder)
    if name:
        raise Disagreement(
            f"{name} of the adapter {plan.out.name} is not as planned; check the disk, and report"
            " it if that is sound; the adapter was not kept"
        )
    # its config, such as {"r": 16, "base_model_name_or_path": "./out"}, must name the output as the
    # base; all but the base and its revision must be as the user gave it
    assert isinstance(plan.source, Source)
    written = read_json(folder / ADAPTER)
    given = json.loads(plan.source.text(ADAPTER) or "{}")
    names_output = written.get("base_model_name_or_path", "") == str(plan.base.out)
    for key in ("base_model_name_or_path", "revision"):
        written.pop(key, None)
        given.pop(key, None)
    has_same_settings = written == given
    if not names_output or not has_same_settings:
        raise Disagreement(
            f"the adapter {plan.out.name} names another base than {plan.base.out}, or has other"
            " settings than the given one; report it; the adapter was not kept"
        )


def write_adapter(plan: AdapterPlan, fsync: bool = True) -> None:
    """Write the folder of an adapter, OUT-adapter: its weights, its config, and ropeconv.json.

    ropeconv.json is the receipt: it lists the files with their digests, and is written last. If the
    weights and the config are there already, as when the same command runs twice, they are kept.

    Raises Disagreement where the written adapter is not as planned, and what `execute_plan` raises.
    """
    if has_files(plan):
        # an earlier run may have been killed after the files, and before the receipt or the end
        _complete_receipt(plan, fsync)
        discard_stopped_run(plan.out)
    else:
        check = partial(_check_adapter, plan)  # called with the folder before it gets its name
        execute_plan(plan, ApplyOptions(checksum=True, fsync=fsync), check)


def _complete_receipt(plan: AdapterPlan, fsync: bool) -> None:
    """Write ropeconv.json of an adapter whose files are there, unless it is there too, and right.

    The receipt in it lists each file with its size and digest, and names the output (a checkpoint)
    that the adapter is for. An adapter is a companion of that output.
    """
    records = []
    for file in plan.files:
        place = plan.out / file.name
        record = FileRecord(
            name=file.name,
            action=file.action,
            size=place.stat().st_size,
            sha256=sha256(place),
            origin=file.origin or None,  # the receipt has null for a file that is not a copy
        )
        records.append(record)
    receipt_without_files = plan.companion()
    right_receipt = msgspec.structs.replace(receipt_without_files, files=tuple(records))

    try:
        present_receipt = read_companion(plan.out)  # None if the folder has no receipt
    except BadSource:  # a damaged receipt is replaced
        present_receipt = None
    if present_receipt != right_receipt:
        write_receipt(plan.out, right_receipt, fsync)
