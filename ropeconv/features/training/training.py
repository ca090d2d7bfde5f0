"""Files with which trainers fine-tune an output of `apply`.

`baked_output` reads the facts from the receipt of the output, and `make_snippet` writes the file.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from ropeconv.bake.plan import Plan
from ropeconv.errors import BadSource, UsageError
from ropeconv.formats.jsontext import JsonObject, parse
from ropeconv.formats.package_data import package_data, package_files, render
from ropeconv.inspection.kv_cache import config_cache
from ropeconv.inspection.memory.machine import size
from ropeconv.inspection.memory.shape import ModelShape, config_shape
from ropeconv.inspection.receipts.folder import valid_receipt
from ropeconv.inspection.receipts.receipt import FineTuningRecord, Receipt
from ropeconv.models.config import reads_both_directions, text_part
from ropeconv.models.family import Family
from ropeconv.models.gguf import GgufSource
from ropeconv.models.open import open_source
from ropeconv.models.purpose import checkpoint_purpose
from ropeconv.models.registry import by_name
from ropeconv.models.source import Source
from ropeconv.rope.errors import RopeconvError, command_line, shown
from ropeconv.rope.forms import temperature_attention_factor
from ropeconv.rope.recipe import flags
from ropeconv.rope.spec import RopeSpec
from ropeconv.rope.summary import Summary
from ropeconv.runtimes.drafts import draft_kind
from ropeconv.runtimes.read_config import read_spec
from ropeconv.runtimes.runtime import RUNS, runtimes

from .memory import (
    SEQUENCES,
    GpuPlan,
    MemorySettings,
    TrainingTask,
    accumulation,
    fit_gpus,
    is_counted,
    logits_note,
    parameter_count,
    tokens_note,
    training_memory,
)


@dataclass(frozen=True)
class TrainingFacts:
    """A baked checkpoint, for a trainer."""

    path: str
    """The folder or Hub id that the trainer loads."""

    method: str
    """The name of the method."""

    context: int
    """The length of the sequences that it is trained on, in tokens."""

    trained: int
    """The tokens that its source was trained with."""

    model_type: str
    """The `model_type` of its config.json."""

    spec: RopeSpec
    """The RoPE of its config.json."""

    two_lists: bool
    """Whether short sequences have other frequencies."""

    own_code: bool
    """Whether it needs `trust_remote_code`."""

    encoder: bool
    """Whether it has no logits of the next token."""

    verdicts: Mapping[str, tuple[str, str]]
    """Status and reason for each row of transformers, by the key of the row."""

    declared: int = 0
    """The tokens that it declares, where `context` is less; else 0."""

    fine_tuning: FineTuningRecord | None = None
    """The training that the method needs at this length; None in receipts that do not say it."""

    shape: ModelShape | None = None
    """The numbers that decide the memory of training; None where the config leaves them out."""

    parameters: int = 0
    """The parameters of the model; 0 where they are not known."""

    tied: bool = False
    """Whether embedding and head are one matrix; False where that is not known."""

    def with_context(self, context: int) -> "TrainingFacts":
        """Return the same output, trained on shorter sequences than it declares.

        Args:
            context: The length of the sequences in tokens.

        Raises:
            UsageError: It is longer than the output declares.
        """
        if context > self.context:
            raise UsageError(
                f"--context {context} is more than the {self.context:,} tokens that {self.path}"
                " declares; bake that length first, with `ropeconv apply`"
            )
        return replace(self, context=context, declared=self.declared or self.context)

    def verdict(self, version: str) -> tuple[str, str]:
        """Return the status of a version of transformers and its reason.

        Args:
            version: The version, empty for the newest known one.
        """
        rows = [row for row in runtimes() if row.name == "transformers"]  # the newest last
        if version:
            rows = [row for row in rows if row.covers(version)]
        if not rows:
            return "unknown", "not tested"
        row = rows[0] if version else rows[-1]
        return self.verdicts.get(row.key, ("unknown", "not tested"))


def baked_output(source: Source | GgufSource, path: str = "") -> TrainingFacts:
    """Return the facts about an output of `ropeconv apply`, from its receipt.

    Args:
        source: The output.
        path: The path or id that the trainer loads, where that is another one.

    Raises:
        UsageError: It is a GGUF file or a draft, or has no receipt of these files.
        BadSource: The receipt names an unknown family.
    """
    if isinstance(source, GgufSource):
        raise UsageError(
            "trainers do not load GGUF files; apply the method to the checkpoint and give that"
            " output"
        )
    receipt, family = _receipt_and_family(source)

    # parsed here instead of by `source.config()`, which would look for the family of its
    # model_type: an output with code of ropeconv has a model_type of its own
    config = parse(source.text("config.json") or "{}", "config.json")
    draft = draft_kind(config, source.tensor_names() or (), source.name)
    if draft:
        raise UsageError(
            f"{source.reference} is {draft.says} for speculative decoding; give the output of its"
            " target"
        )

    # the name under which the trainer loads it: trainers take no revision, as in NAME@main
    if not path:
        path = source.reference
        if source.kind == "hub":
            path, _, _ = path.partition("@")

    # Phi-3's class derives its attention factor from the declared length, which then is a bit more
    # than the length that the user has asked for
    declared = 0
    if receipt.asked_context:
        declared = receipt.schedule.context
    shape = config_shape(config, family, config_cache(config, family))
    return TrainingFacts(
        path=path,
        method=receipt.extension.method,
        context=receipt.context,
        declared=declared,
        trained=receipt.schedule.original_context,
        model_type=str(config.get("model_type", "")),
        spec=read_spec(config, family),
        two_lists=receipt.schedule.short_inv_freq is not None,
        own_code="auto_map" in config,
        encoder=family.encoder or reads_both_directions(config, text_part(config, family), family),
        verdicts={row.runtime: (row.status, row.reason) for row in receipt.runtimes},
        fine_tuning=receipt.fine_tuning,
        shape=shape,
        parameters=_count_parameters(source, config, shape),
        tied=_has_tied_head(source, config),
    )


def _receipt_and_family(source: Source) -> tuple[Receipt, Family]:
    """Return the receipt of an output of ropeconv, which fits its files, and its model family.

    Raises:
        UsageError: It has none, or its files were changed since.
        BadSource: The receipt names an unknown family.
    """
    receipt = valid_receipt(source)
    if receipt is None:
        raise UsageError(
            f"{source.reference} is not an output of ropeconv, or was changed since; run `ropeconv"
            " apply` first, and give the folder that it wrote"
        )
    family = by_name().get(receipt.family)
    if family is None:
        raise BadSource(
            f"the receipt names the unknown family {shown(receipt.family)}; run `ropeconv apply`"
            " again"
        )
    return receipt, family


def _count_parameters(source: Source, config: JsonObject, shape: ModelShape | None) -> int:
    """Return the parameters of a checkpoint, from its tensors or its config; 0 for neither.

    It is 0 too for models whose training the formulas do not count.
    """
    if shape is None or not is_counted(shape):
        return 0
    count = sum(math.prod(tensor.shape) for tensor in source.tensors.values())
    if count:
        return count
    return parameter_count(shape, _has_tied_head(source, config))


def _has_tied_head(source: Source, config: JsonObject) -> bool:
    """Return whether embedding and head are one matrix, by the tensors or else the config."""
    if source.tensors:
        return not any(name.endswith("lm_head.weight") for name in source.tensors)
    return bool(config.get("tie_word_embeddings"))


class Fact(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A statement on a trainer."""

    says: str

    source: str
    """File and line in the release, or what was executed."""

    run: bool = False
    """Whether it was executed."""


class Rotary(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Rotary code of a trainer, which replaces that of transformers."""

    model_types: tuple[str, ...]
    """The model types for which it does."""

    rope_types: tuple[str, ...]
    """The rope types that it computes, with one list of factors."""

    source: str
    """File and line in the release."""


class Formula(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A formula that a trainer's own options express."""

    kind: str
    """The kind of the form, as in `Form`."""

    fixed: dict[str, float] = {}
    """Numbers of the form that no option sets."""

    whole: tuple[str, ...] = ()
    """Numbers of the form whose options are whole numbers."""

    partial: bool = True
    """Whether it can rotate a part of each head."""


class Trainer(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A release of a trainer."""

    name: str
    """The value of `--for`."""

    title: str
    """The name for people."""

    version: str
    """The release that was read."""

    file: str
    """The name to save its snippet under; `templates/training/FILE.jinja` makes it."""

    command: str
    """The command that runs it."""

    length: str
    """Its option for the length of sequences."""

    untouched: tuple[str, ...]
    """Its options that would scale RoPE again."""

    facts: tuple[Fact, ...]
    """Its handling of RoPE and lengths."""

    transformers: str = ""
    """The newest version of transformers that it allows; empty for any."""

    no_code: str = ""
    """Why checkpoints with a modelling file of their own are refused; empty where they are not."""

    rotary: tuple[Rotary, ...] = ()
    """Its own rotary code."""

    formulas: tuple[Formula, ...] = ()
    """Formulas of its options, where it does not read RoPE from config.json."""

    memory: MemorySettings | None = None
    """How it saves memory; None where the snippet sets RoPE only."""

    @property
    def library(self) -> str:
        """The version of transformers that it runs."""
        if self.transformers:
            return f"transformers {self.transformers}"
        return "the newest transformers"


@cache
def trainers() -> dict[str, Trainer]:
    """Return all trainers by name, sorted."""
    rows = []
    for entry in package_files("features/training/trainers", ".toml"):
        rows.append(package_data(entry, Trainer))
    rows.sort(key=lambda row: row.name)
    return {row.name: row for row in rows}


@dataclass(frozen=True)
class Snippet(Summary):
    """The file of a trainer for a checkpoint."""

    trainer: Trainer

    baked: TrainingFacts
    """The checkpoint."""

    text: str
    """The text of the file."""

    status: str
    """The result of the trainer's transformers for the checkpoint."""

    notes: tuple[str, ...]
    """Sentences for the user."""

    gpus: GpuPlan | None = None
    """The settings for the GPUs that were named; None where none were."""

    @property
    def sentence(self) -> str:
        """The trainer and the model of the file, in words."""
        trainer = f"{self.trainer.title} {self.trainer.version}"
        return f"{trainer} trains {self.model} on {self.context:,} tokens with its RoPE."

    @property
    def model(self) -> str:
        """The folder or Hub id that the trainer loads."""
        return self.baked.path

    @property
    def method(self) -> str:
        """The name of the method in the checkpoint."""
        return self.baked.method

    @property
    def context(self) -> int:
        """The length of the training sequences in tokens."""
        return self.baked.context

    @property
    def file(self) -> str:
        """The name to save the text under."""
        return self.trainer.file

    @property
    def command(self) -> str:
        """The command that runs it."""
        return _command(self.trainer, self.gpus)

    def summary(self) -> dict[str, str]:
        """Return the values that are shown, by name."""
        return {
            "sentence": self.sentence,
            "model": self.model,
            "method": self.method,
            "context": f"{self.context:,} tokens",
            "status": self.status,
            "notes": "\n".join(self.notes),
            "file": self.file,
            "command": self.command,
            "text": self.text,
        }

    def to_dict(self) -> JsonObject:
        """Return the training config as JSON-ready data, with the values that it was made from."""
        baked = self.baked
        trainer = self.trainer
        return {
            "trainer": trainer.name,
            "version": trainer.version,
            "transformers": trainer.transformers or None,
            "status": self.status,
            "model": baked.path,
            "method": baked.method,
            "context": baked.context,
            "trained": baked.trained,
            "rope_type": baked.spec.form.kind,
            "trust_remote_code": baked.own_code,
            "length": trainer.length,
            "untouched": list(trainer.untouched),
            "file": trainer.file,
            "command": self.command,
            "text": self.text,
            "notes": list(self.notes),
            "fine_tuning": msgspec.to_builtins(baked.fine_tuning),
            "gpus": self._gpus_document(),
        }

    def _gpus_document(self) -> JsonObject | None:
        """Return the settings for the named GPUs as JSON-ready data; None without any."""
        plan = self.gpus
        if plan is None:
            return None
        return {
            "gpus": plan.gpus,
            "context_parallel": plan.context_parallel,
            "offload": plan.offload,
            "accumulation": plan.accumulation,
            "bytes": plan.memory.total,
            "limit": plan.limit,
            "usable": plan.usable,
        }


def make_snippet(trainer: Trainer, baked: TrainingFacts, gpus: int = 0, memory: int = 0) -> Snippet:
    """Return the file that trains a checkpoint at its whole context, with the baked RoPE.

    Args:
        trainer: The trainer.
        baked: The checkpoint.
        gpus: The GPUs that the training is to fit; 0 where they are not named.
        memory: The memory of one of them in bytes; 0 where it is not named.

    Raises:
        UsageError: The trainer does not use so many GPUs, or its file sets RoPE only.
        RopeconvError: The trainer would compute another RoPE than the baked one, it fails on the
            checkpoint, or the checkpoint is an encoder.
    """
    name = f"{trainer.title} {trainer.version}"
    reason = _why_not_trainable(trainer, baked)
    if reason:
        repair = _repair(trainer, baked)
        raise RopeconvError(
            f"{name} cannot train this checkpoint with its RoPE: {reason}; {repair}"
        )

    # how the training is divided over the GPUs; where the user named none, the file is for one
    plan = _divide_over_gpus(trainer, baked, gpus, memory)
    division: dict[str, Any] = {
        "gpus": 1,
        "context_parallel": 1,
        "offload": False,
        "accumulation": accumulation(),
        "memory": "",
    }
    if plan is not None:
        division = {
            "gpus": plan.gpus,
            "context_parallel": plan.context_parallel,
            "offload": plan.offload,
            "accumulation": plan.accumulation,
            "memory": plan.sentence,
        }

    # the template of the trainer, filled in: `context` is the length of the sequences, where the
    # config may declare more
    has_flash_attention = baked.shape is None or not baked.shape.eager
    _, _, folder_name = baked.path.rstrip("/").rpartition("/")
    text = render(
        f"training/{trainer.file}.jinja",
        **division,
        trainer=name,
        command=_command(trainer, plan),
        flash=has_flash_attention,
        model=baked.path,
        output=f"{folder_name}-trained",
        method=baked.method,
        context=baked.context,
        declared=baked.declared or baked.context,
        own_code=baked.own_code,
        spec=baked.spec,
        mscale=_mscale(baked.spec),
    )
    # Megatron and NeMo compute RoPE by formulas from their own options. `_why_not_trainable` has
    # found that these express this one. Other trainers compute it as their transformers does.
    if trainer.formulas:
        status = "exact"
    else:
        status, _ = baked.verdict(trainer.transformers)
    notes = _notes(trainer, baked, status) + _memory_notes(trainer, baked, plan)
    return Snippet(trainer=trainer, baked=baked, text=text, status=status, notes=notes, gpus=plan)


def _divide_over_gpus(
    trainer: Trainer, checkpoint: TrainingFacts, gpus: int, memory: int
) -> GpuPlan | None:
    """Return how training is divided over the GPUs that the user named; None where none are named.

    Args:
        trainer: The trainer.
        checkpoint: The checkpoint.
        gpus: How many GPUs; 0 where they are not named.
        memory: The memory of one of them in bytes; 0 where it is not named.

    Raises:
        UsageError: As `make_snippet` does.
        RopeconvError: The training does not fit, or its memory is not known.
    """
    if not gpus and not memory:
        return None
    abilities = trainer.memory  # how the trainer saves memory; None where its file does not say it
    if abilities is None:
        raise UsageError(
            f"the file for {trainer.title} sets RoPE only, and you set the parallelism; leave"
            " --memory and --gpus out"
        )
    if not memory:
        raise UsageError("--gpus needs the memory of one GPU; give --memory too, such as 80GB")
    uses_several_gpus = abilities.shards or abilities.context_parallel
    if gpus > 1 and not uses_several_gpus:
        raise UsageError(
            f"{trainer.title} trains on one GPU; leave --gpus out, or use another --for"
        )
    shape = checkpoint.shape
    if shape is None or not checkpoint.parameters or not _counts_experts(trainer, shape):
        raise RopeconvError(
            f"the config of {checkpoint.path} does not say what training it takes with"
            f" {trainer.title}; leave --memory and --gpus out"
        )
    task = TrainingTask(
        shape=shape,
        parameters=checkpoint.parameters,
        context=checkpoint.context,
        abilities=abilities,
        gpus=gpus or 1,
        limit=memory,
        tied=checkpoint.tied,
    )
    return fit_gpus(task)


def _counts_experts(trainer: Trainer, shape: ModelShape) -> bool:
    """Return whether the memory is known for the experts of a model, or it has none."""
    if not shape.experts:
        return True
    return trainer.memory is not None and trainer.memory.experts


def _command(trainer: Trainer, plan: GpuPlan | None) -> str:
    """Return the command that runs the file, on several GPUs where it needs other words for that.

    Axolotl and LLaMA-Factory start a process for each GPU.
    """
    if trainer.name != "trl":
        return trainer.command
    if plan is None or plan.gpus == 1:
        return trainer.command

    # the weights are divided over all GPUs (FSDP), and each sequence over some of them
    words = ["accelerate launch", f"--num_processes {plan.gpus}", "--mixed_precision bf16"]
    words += ["--use_fsdp", "--fsdp_version 2", "--fsdp_auto_wrap_policy TRANSFORMER_BASED_WRAP"]
    if plan.context_parallel > 1:
        groups = plan.gpus // plan.context_parallel
        words.append("--use_parallelism_config")
        words.append(f"--parallelism_config_cp_size {plan.context_parallel}")
        words.append(f"--parallelism_config_dp_shard_size {groups}")
    return f"{' '.join(words)} {trainer.file}"


def _memory_notes(
    trainer: Trainer, checkpoint: TrainingFacts, plan: GpuPlan | None
) -> tuple[str, ...]:
    """Return sentences for the user on the memory that the training takes, and on its tokens.

    Args:
        trainer: The trainer.
        checkpoint: The checkpoint.
        plan: How the training is divided over the GPUs that the user named; None without any.
    """
    shape = checkpoint.shape
    if trainer.memory is None or shape is None:
        return ()
    notes = [logits_note(shape, checkpoint.context)]

    # on the GPUs that the user named, else on a single one
    if plan is not None:
        words = (
            f"on each GPU it takes about {plan.memory.sentence} of {size(plan.limit)}, so that at"
            " least a tenth stays free"
        )
        if plan.context_parallel > 1:
            words += f", with each sequence divided over {plan.context_parallel} GPUs"
        if plan.offload:
            words += "; the states between layers are in the memory of the host"
        notes.append(words)
    elif checkpoint.parameters and _counts_experts(trainer, shape):
        on_one_gpu = training_memory(
            shape, checkpoint.parameters, checkpoint.context, flash=trainer.memory.flash
        )
        notes.append(
            f"on one GPU it takes about {on_one_gpu.sentence}; --memory 80GB --gpus 8 makes a file"
            " for your GPUs"
        )

    if shape.eager:
        notes.append(
            "transformers keeps the attention scores of this model, which grow with the square of"
            " the length; train on shorter sequences"
        )
    sequences = plan.sequences if plan is not None else SEQUENCES
    notes.append(tokens_note(checkpoint.context, sequences))
    return tuple(notes)


def _mscale(spec: RopeSpec) -> float:
    """Return the option mscale of a trainer that gives a model its attention factor A.

    Such a trainer computes A = 0.1 mscale ln(factor) + 1, and YaRN has mscale 1.
    """
    growth = temperature_attention_factor(getattr(spec.form, "factor", 1.0)) - 1
    return (spec.attention_factor - 1) / (growth or 1)  # a factor of 1 has no growth


def _repair(trainer: Trainer, checkpoint: TrainingFacts) -> str:
    """Return the advice where a trainer cannot train a checkpoint: the other trainers that can."""
    others = []
    for other in trainers().values():
        if other is not trainer and not _why_not_trainable(other, checkpoint):
            others.append(f"--for {other.name}")
    if others:
        return f"use {' or '.join(others)}"
    return "write it another way (`ropeconv apply --explain` lists the support)"


def _notes(trainer: Trainer, checkpoint: TrainingFacts, status: str) -> tuple[str, ...]:
    """Return sentences for the user of a training config.

    Args:
        trainer: The trainer, such as Axolotl.
        checkpoint: The checkpoint to train.
        status: How well the trainer's transformers computes the RoPE of the checkpoint: "exact",
            or "unknown" if it was not tested.
    """
    notes = []
    # with --context, the sequences of the training are shorter than the length in config.json
    if checkpoint.declared > checkpoint.context:
        notes.append(
            f"the output declares {checkpoint.declared:,} tokens, and positions from"
            f" {checkpoint.context:,} on are not trained"
        )

    # whether the method needs training at this length
    need = checkpoint.fine_tuning
    is_extended = need is not None and need.factor > 1  # beyond the trained context
    if need is not None and is_extended:
        works_untrained = not need.sentence  # `sentence` says why training is needed
        if works_untrained:  # need.times: "4 times the trained 8,192 tokens"
            notes.append(f"Training is optional at this length ({need.times}): {need.reason}.")
        else:
            notes.append(need.sentence)

    if status == "unknown":
        notes.append(
            f"{trainer.library}, which {trainer.title} runs, was not tested with this checkpoint"
        )

    # LongRoPE has a second list of frequencies for sequences within the trained context
    if checkpoint.two_lists:
        notes.append(
            f"sequences within {checkpoint.trained:,} tokens train the short list of frequencies;"
            " use longer ones to train the extension"
        )
    return tuple(notes)


def training_step(plan: Plan, path: Path) -> str:
    """Return the command that writes a training config for an output; empty without a trainer.

    Args:
        plan: The plan of the output.
        path: The path of the output.
    """
    # no trainer for drafts of speculative decoding, nor for GGUF files without a checkpoint
    is_draft = bool(plan.target.drafts_for)
    if is_draft or isinstance(plan.source, GgufSource):
        return ""

    # the output is a checkpoint: "train-config MODEL-yarn4 --for axolotl"
    if plan.is_folder:
        trainer = trainer_for(open_source(path, plan.source.treat_as))
        if not trainer:
            return ""
        return command_line("train-config", path, "--for", trainer)

    # The output is a GGUF file, made from a checkpoint. A checkpoint with the same method must be
    # written first, so the method must have options (`flags` is None for a method without).
    recipe_flags = flags(plan.recipe)
    if recipe_flags is None or not isinstance(plan.source, Source):
        return ""
    if checkpoint_purpose(plan.source) != "text":
        return ""

    # "apply MODEL --yarn 4 -o MODEL-yarn4 && train-config MODEL-yarn4 --for axolotl". Axolotl can
    # train most checkpoints; whether it can train this one is not known before it is written.
    checkpoint = f"{plan.source.name}-{plan.recipe.method.label}"
    words = [plan.source.reference, *recipe_flags]
    if plan.target.replace:
        words.append("--replace")
    if plan.source.treat_as:
        words += ["--family", plan.source.treat_as]
    apply = command_line("apply", *words, "-o", checkpoint)
    train = command_line("train-config", checkpoint, "--for", "axolotl")
    return f"{apply} && {train}"


def trainer_for(source: Source | GgufSource) -> str:
    """Return the name of a trainer that trains an output with its RoPE; empty for none.

    Axolotl is preferred. The others are tried by name.
    """
    try:
        checkpoint = baked_output(source)
    except RopeconvError:
        return ""
    others = [name for name in sorted(trainers()) if name != "axolotl"]
    for name in ("axolotl", *others):
        reason_against = _why_not_trainable(trainers()[name], checkpoint)
        if not reason_against:
            return name
    return ""


def _why_not_trainable(trainer: Trainer, checkpoint: TrainingFacts) -> str:
    """Return why a trainer cannot train a checkpoint with its RoPE; empty if it can.

    Args:
        trainer: The trainer, such as Axolotl.
        checkpoint: The checkpoint to train.
    """
    if checkpoint.encoder:
        return "it is an encoder, and the trainers here train the next token"

    # the checkpoint has code of its own, which this trainer does not run: `no_code` says why
    if checkpoint.own_code and trainer.no_code:
        return trainer.no_code

    # Megatron and NeMo compute RoPE themselves. `formulas` are the methods that their options have.
    computes_rope_itself = bool(trainer.formulas)
    if computes_rope_itself:
        missing = _missing_option(trainer, checkpoint.spec)
        if missing:
            return missing

    # all other trainers run transformers, in the version that they allow
    else:
        status, reason = checkpoint.verdict(trainer.transformers)
        may_work = status in RUNS or status == "unknown"  # RUNS: "exact", "approximate", ...
        if not may_work:
            return f"it runs {trainer.library}, which does not compute it ({status}: {reason})"

    # some trainers replace the rotary embedding of some model types by faster code (`rotary`)
    for rotary in trainer.rotary:
        if checkpoint.model_type not in rotary.model_types:
            continue
        code = f"its code for {checkpoint.model_type}"
        place = rotary.source  # the file and the line in the trainer
        kind = checkpoint.spec.form.kind
        if kind not in rotary.rope_types:
            return f"{code} does not support the rope type {kind} ({place})"
        if checkpoint.two_lists:  # of LongRoPE
            return f"{code} uses the short list for every length ({place})"
    return ""


def _missing_option(trainer: Trainer, spec: RopeSpec) -> str:
    """Return why the options of a trainer cannot express a RoPE; empty where they can.

    Megatron and NeMo compute RoPE by formulas of their own, whose numbers are options.

    Args:
        trainer: The trainer, with the `formulas` that it has.
        spec: The RoPE of a checkpoint.
    """
    # latent attention (MLA), another RoPE in layers with a window, positions of images (M-RoPE),
    # and layers without RoPE
    has_unusual_layers = spec.mla or spec.local_form or spec.mrope_section or "none" in spec.layers
    scales_queries = spec.query_scaling or spec.nope_query_scaling
    is_interleaved = spec.layout != "half"
    if has_unusual_layers or scales_queries or is_interleaved:
        return (
            "its options set one RoPE for all layers, in two halves of each head, and this model"
            " rotates otherwise"
        )

    formulas = {formula.kind: formula for formula in trainer.formulas}
    kind = spec.form.kind
    if kind not in formulas:
        return f"it has options for {', '.join(formulas)}, not for {kind}"
    formula = formulas[kind]

    if spec.rotary_dim < spec.head_dim and not formula.partial:
        return (
            f"its {kind} rotates whole heads, and this model {spec.rotary_dim} of"
            f" {spec.head_dim} dimensions"
        )
    # parameters that are constants in the code of the trainer: low_freq_factor = 1 in Megatron
    for name, fixed in formula.fixed.items():
        number = getattr(spec.form, name)
        if number != fixed:
            return f"its {kind} has {name} = {fixed:g}, and this checkpoint {number:g}"
    # options whose type is int
    for name in formula.whole:
        number = getattr(spec.form, name)
        if number != int(number):
            return f"its option for {name} takes whole numbers, and this checkpoint has {number}"
    return ""
