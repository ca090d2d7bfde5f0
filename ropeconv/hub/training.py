"""Facts about an output of `apply` for trainers, from its receipt, and the config that trains
it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import msgspec

from ..bake.plan import Plan
from ..errors import BadSource, UsageError
from ..formats.jsontext import JsonObject, parse
from ..formats.package_data import package_data, package_files, render
from ..inspection.receipts.folder import stated
from ..inspection.receipts.receipt import FineTuningRecord
from ..models.gguf import GgufSource
from ..models.open import open_source
from ..models.purpose import checkpoint_purpose
from ..models.registry import by_name
from ..models.source import Source
from ..rope.errors import RopeconvError, command_line, shown
from ..rope.forms import temperature_attention_factor
from ..rope.recipe import flags
from ..rope.spec import RopeSpec
from ..rope.summary import Summary
from ..runtimes.drafts import draft_kind
from ..runtimes.read_config import read_spec
from ..runtimes.runtime import RUNS, runtimes


@dataclass(frozen=True)
class TrainingFacts:
    """A baked checkpoint, for a trainer.

    path: what the trainer loads, a folder or a Hub id. method: the name of the method. context,
    trained: tokens that it declares, and that its source was trained with. model_type, spec: of
    config.json. two_lists: whether short sequences have other frequencies. own_code: whether it
    needs `trust_remote_code`. encoder: whether it has no logits of the next token. verdicts: by the
    keys of the rows of transformers, status and reason. declared: the tokens that it declares,
    where `context` is less; else 0.
    """

    path: str
    method: str
    context: int
    trained: int
    model_type: str
    spec: RopeSpec
    two_lists: bool
    own_code: bool
    encoder: bool
    verdicts: Mapping[str, tuple[str, str]]
    declared: int = 0
    fine_tuning: FineTuningRecord | None = None
    """The training that the method needs at this length; None in receipts that do not say it."""

    def shortened(self, context: int) -> "TrainingFacts":
        """The same output, trained on shorter sequences than it declares.

        context: their length in tokens. Raises UsageError for one that is longer than the output
        declares.
        """
        if context > self.context:
            raise UsageError(
                f"--context {context} is more than the {self.context:,} tokens that {self.path}"
                " declares; bake that length first, with `ropeconv apply`"
            )
        return replace(self, context=context, declared=self.context)

    def verdict(self, version: str) -> tuple[str, str]:
        """Status and reason of a version of transformers. version: empty for the newest known
        one.
        """
        rows = [row for row in runtimes() if row.name == "transformers"]
        row = (
            next((row for row in rows if version and row.covers(version)), None)
            if version
            else rows[-1]
        )
        return self.verdicts.get(row.key if row else "", ("unknown", "not tested"))


def baked_output(source: Source | GgufSource, path: str = "") -> TrainingFacts:
    """An output of `ropeconv apply`, from its receipt.

    path: what the trainer loads, where that is another place. Raises UsageError for a GGUF file,
    and where there is no receipt of these files, BadSource for an unknown family.
    """
    if isinstance(source, GgufSource):
        raise UsageError(
            "trainers do not load GGUF files; apply the method to the checkpoint and give that"
            " output"
        )
    receipt = stated(source)
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
    # its `model_type` may be one of ropeconv, of which there is no family
    config = parse(source.text("config.json") or "{}", "config.json")
    draft = draft_kind(config, source.tensor_names() or (), source.name)
    if draft:
        raise UsageError(
            f"{source.reference} is {draft.says} for speculative decoding; give the output of its"
            " target"
        )
    name = source.reference.partition("@")[0] if source.kind == "hub" else source.reference
    return TrainingFacts(
        path=path or name,
        method=receipt.extension.method,
        context=receipt.schedule.context,
        trained=receipt.schedule.original_context,
        model_type=str(config.get("model_type", "")),
        spec=read_spec(config, family),
        two_lists=receipt.schedule.short_inv_freq is not None,
        own_code="auto_map" in config,
        encoder=family.encoder,
        verdicts={row.runtime: (row.status, row.reason) for row in receipt.runtimes},
        fine_tuning=receipt.fine_tuning,
    )


class Fact(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A statement on a trainer.

    says: the statement. source: file and line in the release, or what was executed. run: whether it
    was executed.
    """

    says: str
    source: str
    run: bool = False


class Rotary(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Rotary code of a trainer, which replaces that of transformers.

    model_types: of config.json, for which it does. rope_types: those that it computes, with one
    list of factors. source: file and line in the release.
    """

    model_types: tuple[str, ...]
    rope_types: tuple[str, ...]
    source: str


class Formula(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A formula that a trainer's own options express.

    kind: as in `Form`. fixed: numbers of the form that no option sets. whole: those whose options
    take whole numbers. partial: whether it can rotate a part of each head.
    """

    kind: str
    fixed: dict[str, float] = {}
    whole: tuple[str, ...] = ()
    partial: bool = True


class Trainer(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A release of a trainer.

    name: the value of `--for`. title: for people. version: the release that was read. transformers:
    the newest version that it allows, empty for any. file: the name to save its snippet under;
    `templates/training/FILE.jinja` makes it. command: what runs it. length: its option for the
    length of sequences. untouched: its options that would scale RoPE again. no_code: why
    checkpoints with a modelling file of their own are refused, empty where they are trained.
    rotary: its own rotary code. formulas: of its options, for a trainer that does not take RoPE
    from config.json. facts: what it does with RoPE and lengths.
    """

    name: str
    title: str
    version: str
    file: str
    command: str
    length: str
    untouched: tuple[str, ...]
    facts: tuple[Fact, ...]
    transformers: str = ""
    no_code: str = ""
    rotary: tuple[Rotary, ...] = ()
    formulas: tuple[Formula, ...] = ()

    @property
    def library(self) -> str:
        """The version of transformers that it runs."""
        return (
            f"transformers {self.transformers}" if self.transformers else "the newest transformers"
        )


@cache
def trainers() -> dict[str, Trainer]:
    """All trainers by name, sorted."""
    rows = [package_data(entry, Trainer) for entry in package_files("hub/trainers", ".toml")]
    return {row.name: row for row in sorted(rows, key=lambda row: row.name)}


@dataclass(frozen=True)
class Snippet(Summary):
    """The file of a trainer.

    trainer: that it is for. baked: the checkpoint. text: of the file. status: what the trainer's
    transformers computes from the checkpoint. notes: sentences for the user.
    """

    trainer: Trainer
    baked: TrainingFacts
    text: str
    status: str
    notes: tuple[str, ...]

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
        return self.trainer.command

    def summary(self) -> dict[str, str]:
        """The values that are shown, by name."""
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
        """The snippet as JSON-ready data, with the values that it was made from."""
        baked, trainer = self.baked, self.trainer
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
            "command": trainer.command,
            "text": self.text,
            "notes": list(self.notes),
            "fine_tuning": msgspec.to_builtins(baked.fine_tuning),
        }


def make_snippet(trainer: Trainer, baked: TrainingFacts) -> Snippet:
    """The file that trains a checkpoint at its whole context, with the baked RoPE.

    Raises RopeconvError where the trainer would compute another RoPE than the baked one, where it
    fails on the checkpoint, and for encoders.
    """
    name = f"{trainer.title} {trainer.version}"
    if reason := _refusal(trainer, baked):
        others = [
            other.name
            for other in trainers().values()
            if other is not trainer and not _refusal(other, baked)
        ]
        ways = " or ".join(f"--for {name}" for name in others)
        repair = (
            f"use {ways}"
            if ways
            else "write it another way (`ropeconv apply --explain` lists the support)"
        )
        raise RopeconvError(
            f"{name} cannot train this checkpoint with its RoPE: {reason}; {repair}"
        )
    status = "exact" if trainer.formulas else baked.verdict(trainer.transformers)[0]
    growth = temperature_attention_factor(getattr(baked.spec.form, "factor", 1.0)) - 1
    text = render(
        f"training/{trainer.file}.jinja",
        trainer=name,
        command=trainer.command,
        model=baked.path,
        output=f"{baked.path.rstrip('/').rpartition('/')[2]}-trained",
        method=baked.method,
        context=baked.context,
        declared=baked.declared or baked.context,
        own_code=baked.own_code,
        spec=baked.spec,
        mscale=(baked.spec.attention_factor - 1) / (growth or 1),
    )
    notes = []
    if baked.declared > baked.context:
        notes.append(
            f"the output declares {baked.declared:,} tokens, and positions from {baked.context:,}"
            " on are not trained"
        )
    need = baked.fine_tuning
    if need is not None and need.factor > 1:
        optional = f"Training is optional at this length ({need.times}): {need.reason}."
        notes.append(need.sentence or optional)
    if status == "unknown":
        notes.append(
            f"{trainer.library}, which {trainer.title} runs, was not tested with this checkpoint"
        )
    if baked.two_lists:
        notes.append(
            f"sequences within {baked.trained:,} tokens train the short list of frequencies; use"
            " longer ones to train the extension"
        )
    return Snippet(trainer, baked, text, status, tuple(notes))


def train_command(plan: Plan, path: Path) -> str:
    """Return the command that starts fine-tuning an output that was written; empty where none can.

    For a conversion to GGUF, which cannot be trained, it first makes the checkpoint.
    """
    if plan.target.drafts_for or isinstance(plan.source, GgufSource):
        return ""
    if plan.is_folder:
        trainer = trainer_for(open_source(path, plan.source.treat_as))
        return command_line("train-config", path, "--for", trainer) if trainer else ""
    checkpoint = f"{plan.source.name}-{plan.recipe.method.label}"
    options = flags(plan.recipe)
    if (
        options is None
        or not isinstance(plan.source, Source)
        or checkpoint_purpose(plan.source) != "text"
    ):
        return ""
    words = [plan.source.reference, *options]
    if plan.target.replace:
        words.append("--replace")
    if plan.source.treat_as:
        words += ["--family", plan.source.treat_as]
    apply = command_line("apply", *words, "-o", checkpoint)
    return f"{apply} && {command_line('train-config', checkpoint, '--for', 'axolotl')}"


def trainer_for(source: Source | GgufSource) -> str:
    """Return the name of a trainer that trains an output with its RoPE, Axolotl before others;
    empty for none.

    source: the output.
    """
    try:
        facts = baked_output(source)
    except RopeconvError:
        return ""
    names = sorted(trainers(), key=lambda name: (name != "axolotl", name))
    return next((name for name in names if not _refusal(trainers()[name], facts)), "")


def _refusal(trainer: Trainer, baked: TrainingFacts) -> str:
    """Why a trainer cannot train a checkpoint with its RoPE; empty where it can."""
    if baked.encoder:
        return "it is an encoder, and the trainers here train the next token"
    if baked.own_code and trainer.no_code:
        return trainer.no_code
    status, reason = baked.verdict(trainer.transformers)
    if trainer.formulas:
        if missing := _missing_option(trainer, baked.spec):
            return missing
    elif status not in (*RUNS, "unknown"):
        return f"it runs {trainer.library}, which does not compute it ({status}: {reason})"
    for rotary in trainer.rotary:
        if baked.model_type not in rotary.model_types:
            continue
        kind = baked.spec.form.kind
        if kind not in rotary.rope_types:
            return (
                f"its code for {baked.model_type} does not support the rope type {kind}"
                f" ({rotary.source})"
            )
        if baked.two_lists:
            return (
                f"its code for {baked.model_type} uses the short list for every length"
                f" ({rotary.source})"
            )
    return ""


def _missing_option(trainer: Trainer, spec: RopeSpec) -> str:
    """Why the options of a trainer cannot express a spec; empty where they can."""
    alike = not (
        spec.mla
        or spec.local_form
        or spec.mrope_section
        or spec.query_scaling
        or spec.nope_query_scaling
    )
    if not alike or "none" in spec.layers or spec.layout != "half":
        return (
            "its options set one RoPE for all layers, in two halves of each head, and this model"
            " rotates otherwise"
        )
    formula = next(
        (formula for formula in trainer.formulas if formula.kind == spec.form.kind), None
    )
    if formula is None:
        return (
            f"it has options for {', '.join(formula.kind for formula in trainer.formulas)}, not for"
            f" {spec.form.kind}"
        )
    if spec.rotary_dim < spec.head_dim and not formula.partial:
        return (
            f"its {formula.kind} rotates whole heads, and this model {spec.rotary_dim} of"
            f" {spec.head_dim} dimensions"
        )
    for name, number in formula.fixed.items():
        if getattr(spec.form, name) != number:
            return (
                f"its {formula.kind} has {name} = {number:g}, and this checkpoint"
                f" {getattr(spec.form, name):g}"
            )
    for name in formula.whole:
        number = getattr(spec.form, name)
        if number != int(number):
            return f"its option for {name} takes whole numbers, and this checkpoint has {number}"
    return ""
