"""Inspection: the family and RoPE of a checkpoint or GGUF file, and problems in its settings.

`inspect_source` makes one, by `inspect_config` or `inspect_gguf`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar, get_args

import msgspec

from ..errors import BadSource
from ..formats.jsontext import JsonObject
from ..models.config import halves, text_part
from ..models.family import Family
from ..models.gguf import GgufSource
from ..models.length_limits import length_limits, modelfile_limits
from ..models.registry import assumption
from ..models.schema import Config
from ..models.source import ADAPTER, Origin, Source, no_config_error
from ..options import MachineOptions
from ..rope.bound.reach import effective_length
from ..rope.errors import counted
from ..rope.methods.vectors import AsIs
from ..rope.recipe import Recipe
from ..rope.schedule import Schedule
from ..rope.spec import LayerKind, RopeSpec
from ..rope.summary import SummaryTable, TableSummary
from ..runtimes.asked import asked_runtimes
from ..runtimes.drafts import DraftKind, draft_verdicts, find_kind
from ..runtimes.llamacpp.archs import arch_table
from ..runtimes.llamacpp.purpose import predicts_no_next_token
from ..runtimes.llamacpp.read_header import read_file, rope_tensors
from ..runtimes.read_config import UnknownRopeType, read_spec
from ..runtimes.runtime import newest
from ..runtimes.verdict import Judge, PlannedConfig, Verdict, describe, difference, rows_for
from .document import InspectionDocument, Problem, layer_groups
from .kv_cache import KvCache, config_cache, gguf_cache
from .memory.fit import Fit, all_fits
from .memory.shape import (
    ModelShape,
    checkpoint_bytes,
    config_shape,
    gguf_bytes,
    gguf_shape,
)
from .problems import (
    check_weights,
    config_problems,
    draft_of,
    gguf_problems,
    limit_problems,
    ramp_problems,
    stale_tensors,
    wrapper_problems,
)
from .receipts.folder import first_spec, valid_receipt
from .receipts.gguf import first_reading, valid_gguf_receipt
from .receipts.receipt import FineTuningRecord, Receipt
from .support import support

SAME_IN_HALVES = {
    "head_dim": "the width of a head",
    "rotary_dim": "the dimensions that rotate",
    "original_context": "the trained context",
    "context": "the context",
}
"""Properties that the halves of a model must share besides their frequencies, in words."""


def check_halves(config: Config, family: Family, spec: RopeSpec) -> None:
    """Check that the encoder and the decoder of a model, if it has both, have the same RoPE.

    These are the halves of a model such as T5Gemma, whose config.json has settings for each.

    Args:
        config: The content of config.json.
        family: The family of the model, with the keys of its halves: ("encoder", "decoder").
        spec: The RoPE of the first half.

    Raises:
        BadSource: The other half has another RoPE.
    """
    for other_key, other_config in halves(config, family):
        difference_in_words = _difference_of_halves(spec, read_spec(other_config, family))
        if difference_in_words:
            first_key = family.halves[0]
            raise BadSource(
                f"config.json has another RoPE in {other_key} than in {first_key}"
                f" ({difference_in_words}), and a recipe changes both alike; give both the same"
                " RoPE first"
            )


def _difference_of_halves(spec: RopeSpec, half: RopeSpec) -> str:
    """How the RoPE of another half differs, in words; empty where it does not."""
    for name, words in SAME_IN_HALVES.items():
        first = getattr(spec, name)
        other = getattr(half, name)
        if first != other:
            return f"{words} is {other:,} there, not {first:,}"
    return difference(spec.current(), spec, half)


CUSTOM_CODE = (
    "its auto_map names code in the checkpoint, which replaces the stock class with"
    " trust_remote_code"
)
CODES_ANNOUNCED_BY_PLAN = ("context", "original", "schemas", "ignored-key")
"""Codes of problems that do not count in settings that ropeconv wrote.

Its plan showed what every runtime reads.
"""


@dataclass(frozen=True)
class Inspection(TableSummary):
    """The RoPE of a checkpoint or GGUF file, and the problems in its settings."""

    source: Origin

    name: str
    """The name of the model family or GGUF architecture."""

    display_name: str
    """The name for people."""

    spec: RopeSpec
    problems: tuple[Problem, ...]

    refuse: str = ""
    """Why nothing can be baked for it, or empty."""

    gguf_only: bool = False
    """Whether GGUF files can be baked for it all the same."""

    reader_verdicts: tuple[Verdict, ...] = ()
    """The support of each reader of a GGUF file, which `inspect_opened` adds."""

    kv_cache: KvCache | None = None
    """Its key-value cache; None if the number of heads is not given."""

    shape: ModelShape | None = None
    """The sizes that decide its memory; None if its files leave some of them out."""

    custom_code: str = ""
    """A sentence about code in the checkpoint, or empty."""

    first: RopeSpec | None = None
    """The RoPE of the first source of an output of ropeconv; None for other models."""

    encoder: bool = False
    """Whether it reads in both directions and has no logits of the next token."""

    draft: DraftKind | None = None
    """The kind of draft model that it is; None for a whole model."""

    fine_tuning: FineTuningRecord | None = None
    """The need that the receipt of an output of ropeconv states; None for other models."""

    record_keys: ClassVar[tuple[str, ...]] = (
        "runtime",
        "display_name",
        "status",
        "reason",
        "evidence",
        "evidence_detail",
        "source",
        "options",
    )

    def summary(self) -> dict[str, str]:
        """Return the facts about the model that `inspect` shows, as text by name."""
        spec = self.spec
        attention_factor = ""
        if spec.attention_factor != 1:
            attention_factor = f"{spec.attention_factor:.6g}"
        return {
            "sentence": self.sentence,
            "source": self.source.reference,
            "family": f"{self.family} ({self.display_name})",
            "context": f"{spec.context:,} tokens",
            "original_context": f"{spec.original_context:,} tokens",
            "rope_type": describe(spec.form),
            "attention_factor": attention_factor,
            "head_dim": f"{spec.head_dim}",
            "rotary_dim": f"{spec.rotary_dim}",
        }

    def shown_tables(self) -> list[SummaryTable]:
        """Return the problems with their repairs, and the support of the popular runtimes."""
        problems = [(problem.message, problem.repair or "") for problem in self.problems]
        return [
            SummaryTable("problems", ("problem", "ropeconv apply SOURCE"), problems),
            SummaryTable("runtimes", ("support", "newest versions"), support(self.verdicts)),
        ]

    def records(self) -> list[JsonObject]:
        """Return a row for the verdict on each range of versions of a runtime."""
        return [verdict.to_dict() for verdict in self.verdicts]

    @property
    def sentence(self) -> str:
        """The conclusion: whether it can be extended, its lengths, and the number of problems."""
        if self.refuse:
            return self.refusal
        found = "no problems"
        if self.problems:
            found = counted(len(self.problems), "problem")
        # a scaling may be trained, as in Llama 3.1, or added later
        trained = f"and was trained on {self.original_context:,}"
        if self.spec.scaled:
            trained = f"and has {self.original_context:,} before its {self.rope_type} scaling"
        return f"It declares {self.context:,} tokens {trained}; {found} found."

    @property
    def refusal(self) -> str:
        """A sentence that says why nothing, or only a GGUF file, can be baked; or empty."""
        if not self.refuse:
            return ""
        verb = "extends" if self.gguf_only else "cannot extend"
        form = " only as GGUF" if self.gguf_only else ""
        return f"ropeconv {verb} {self.display_name}{form}: {self.refuse}."

    @property
    def family(self) -> str:
        """The name of the model family; for a GGUF file that of its architecture, as in `name`."""
        return self.name

    @property
    def context(self) -> int:
        """The declared context in tokens."""
        return self.spec.context

    @property
    def original_context(self) -> int:
        """The trained context in tokens."""
        return self.spec.original_context

    @property
    def rope_type(self) -> str:
        """The kind of its formula, as transformers names it: `default`, `yarn`, `llama3`, ..."""
        return self.spec.form.kind

    @property
    def rope_theta(self) -> float:
        """The base of the layers that an extension changes."""
        return self.spec.rope_theta

    @property
    def attention_factor(self) -> float:
        """The factor on cos and sin."""
        return self.spec.attention_factor

    @property
    def head_dim(self) -> int:
        """The width of an attention head, in dimensions."""
        return self.spec.head_dim

    @property
    def rotary_dim(self) -> int:
        """How many dimensions of a head rotate."""
        return self.spec.rotary_dim

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """The support of each runtime."""
        return self.reader_verdicts

    @property
    def runtimes(self) -> tuple[Verdict, ...]:
        """The support of each runtime: the same as `verdicts`."""
        return self.verdicts

    @property
    def family_name(self) -> str:
        """The name of the model family, also of a GGUF file, whose `name` is its architecture."""
        arch = arch_table().arch.get(self.name)
        if arch is None or not arch.family:
            return self.name
        return arch.family

    @property
    def first_spec(self) -> RopeSpec:
        """The RoPE before any bake: that of the first source if it is known, else its own."""
        return self.first or self.spec

    def basis(self, recipe: Recipe) -> RopeSpec:
        """Return the RoPE that a recipe changes.

        With as-is and `on_top` it is the model's own, else that before any bake.
        """
        if recipe.on_top or isinstance(recipe.method, AsIs):
            return self.spec
        return self.first_spec

    def schedule_of(self, recipe: Recipe) -> Schedule:
        """Return the frequencies and the attention factor that a recipe gives the model.

        Args:
            recipe: A method with all its settings (`complete_recipe`).

        Raises:
            RecipeError: As `Recipe.schedule`.
        """
        rope_of_model = self.basis(recipe)
        return recipe.schedule(recipe.start(rope_of_model), source=rope_of_model)

    @property
    def extended(self) -> bool:
        """Whether it is scaled, or has other frequencies or factors than its first source."""
        return self.spec.scaled or bool(difference(self.spec.current(), self.spec, self.first_spec))

    @property
    def assumption(self) -> str:
        """The assumptions about a model that is treated as another family than its own, or
        empty.
        """
        return ""

    def fits(self, machine: MachineOptions | None = None) -> list[Fit]:
        """Return whether the model fits into the memory of a machine, for each known runtime.

        The key-value cache is counted for the whole context. A runtime that does not have the
        requested type of the cache is left out.

        Args:
            machine: The machine and the type of the cache, by default this one and the usual type.

        Raises:
            UsageError: The memory is not a size.
        """
        if self.draft:  # it runs beside its target
            return []
        is_folder = not isinstance(self.source, GgufSource)
        return all_fits(self.shape, self.context, is_folder, machine or MachineOptions())

    def to_dict(
        self,
        repairs: Sequence[Problem] | None = None,
        machine: MachineOptions | None = None,
    ) -> JsonObject:
        """Return the inspection as JSON-ready data, such as {"family": "llama", ...}.

        Args:
            repairs: The problems with the command that repairs each; None if the commands were not
                computed, which leaves this key out.
            machine: The machine in whose memory the model has to fit, and the type of the
                key-value cache; None for this machine and the usual type.
        """
        data: dict[str, object] = {
            "source": self.source.to_dict(),
            "family": self.name,  # for a GGUF file its architecture
            "assumption": self.assumption or None,
            "encoder": self.encoder,
            "draft": self.draft.name if self.draft else None,
            "custom_code": self.custom_code or None,
            "refuse": self.refuse or None,
            "gguf_only": self.gguf_only,
            "problems": self.problems,
            "runtimes": [verdict.to_dict() for verdict in self.verdicts],
            "kv_cache": self.kv_cache.document(self.spec.context) if self.kv_cache else None,
            "memory": [fit.document() for fit in self.fits(machine)],
        }
        if repairs is not None:
            data["repairs"] = repairs
        data |= _describe_spec(self.spec)  # the keys about RoPE, such as rope_theta
        # the class puts the fields in their order, checks their types, and adds missing ones
        return msgspec.convert(data, InspectionDocument).to_dict()


SPEC_KEYS = (
    "head_dim",
    "rotary_dim",
    "layout",
    "mla",
    "rope_theta",
    "attention_factor",
    "softmax_scale",
    "original_context",
    "original_context_source",
    "context",
    "scaled",
    "mrope_section",
    "nope_query_scaling",
    "notes",
)
"""Keys of the JSON document that are properties of RopeSpec."""


def _describe_spec(spec: RopeSpec) -> dict[str, object]:
    """Return the keys of an inspection's JSON document that describe the RoPE of a model."""
    # keys that are named as the properties of a RopeSpec, such as rope_theta
    data = {name: getattr(spec, name) for name in SPEC_KEYS}

    # `spec.form` is the formula of the layers that see the whole context. Layers with a sliding
    # window may have a formula of their own, `spec.local_form`.
    local_base = spec.local_form.theta if spec.local_form else None
    schedule = spec.current()  # the frequencies of `spec.form`
    return data | {
        "rope_type": spec.form.kind,
        "rope": vars(spec.form),
        # the paper or page that states the trained context, if no key of the config does
        "original_context_reference": spec.original_context_reference or None,
        # the number of layers of each kind, and ranges of layers that are alike
        "layers": {kind: spec.count(kind) for kind in get_args(LayerKind)},
        "layer_groups": layer_groups(spec),
        # the largest distance between two tokens that the layers with these frequencies see
        "visible": spec.visible(spec.context),
        "effective_length": effective_length(schedule, spec),
        "local_theta": local_base,
        "schedule": schedule.to_dict(),
    }


@dataclass(frozen=True)
class ConfigInspection(Inspection):
    """The inspection of a checkpoint with a config.json."""

    model_family: Family = field(kw_only=True)
    """The facts of the family of its `model_type`; `family` is its name."""

    planned: PlannedConfig = field(kw_only=True, compare=False, repr=False)
    """Its config, as one that `apply --as-is` might write."""

    judge: Judge = field(kw_only=True, compare=False, repr=False)
    """Judges it, and what a plan may write in its place."""

    @cached_property
    def verdicts(self) -> tuple[Verdict, ...]:
        """The support of each runtime, found when it is first read: no plan needs all of it."""
        return _as_draft(self.planned.verdicts, self.draft, self.model_family)

    @property
    def family_name(self) -> str:
        return self.model_family.name

    @property
    def assumption(self) -> str:
        return assumption(self.model_family)


def inspect_source(source: Source | GgufSource) -> Inspection:
    """Inspect a checkpoint or GGUF file.

    Raises:
        BadSource: It has no RoPE, is not known, or is damaged.
    """
    if isinstance(source, GgufSource):
        return inspect_gguf(source)
    return inspect_config(source)


def inspect_gguf(source: GgufSource) -> Inspection:
    """Inspect a GGUF file: its RoPE is what llama.cpp computes.

    Raises:
        BadSource: llama.cpp would refuse the file.
    """
    file = source.file
    reading = read_file(file)
    arch = reading.arch
    spec = reading.spec

    # The receipt of a file that ropeconv has written (None for other files) tells the RoPE of the
    # model before ropeconv extended it, with the trained context.
    first_spec = None
    fine_tuning = None
    receipt = valid_gguf_receipt(file, spec)
    if receipt is not None:
        first_spec = first_reading(file, receipt)
        fine_tuning = receipt.fine_tuning
        spec = _with_trained_context(spec, receipt, first_spec)

    # problems of the keys and tensors in the file
    problems = list(gguf_problems(reading, file, rope_tensors(file)))
    problems += ramp_problems(reading, file, receipt)
    # Problems of Ollama's Modelfile if the user has named it: it may limit the context. It has no
    # key that declares the context (`declared`), and `apply` with `fix` writes a better one.
    problems += limit_problems(modelfile_limits(source), spec, declared=(), fix="--as-is --ollama")
    problems_to_show = _without_planned(problems, spec, receipt)  # `apply` has said the others

    # sizes, for the memory of the model
    cache = gguf_cache(file, arch)
    shape = gguf_shape(file, arch, cache)
    if shape is not None:
        shape = shape.with_weights(gguf_bytes(file.tensors.values()))
    return Inspection(
        source=source,
        name=arch.name,
        display_name=f"GGUF, {file.get('general.name', 'unnamed')}",
        spec=spec,
        problems=problems_to_show,
        kv_cache=cache,
        shape=shape,
        first=first_spec,
        fine_tuning=fine_tuning,
        draft=find_kind(arch.draft) if arch.draft else None,
        encoder=predicts_no_next_token(file, arch),
    )


def inspect_config(source: Source) -> ConfigInspection:
    """Inspect a checkpoint: its RoPE is what the newest transformers computes.

    An output of ropeconv has the family that its source was treated as, which is set in `source`
    too (`treat_as`). A draft model of speculative decoding is inspected as one where the caller
    expects it (`source.as_draft`).

    Raises:
        BadSource: As `detect` does.
    """
    adapter = source.text(ADAPTER)
    if adapter is not None and not source.weights():
        # Axolotl writes the config.json of the base beside an adapter
        raise no_config_error(source.reference, (), adapter)

    # the receipt of an output of ropeconv comes first: it can name the family
    receipt = valid_receipt(source)
    if receipt is not None and not source.treat_as:
        source.treat_as = receipt.source.family
    config = source.config()
    draft = draft_of(source, config)
    family = source.family

    # a config.json says how far a model is extended, and a receipt from which trained context
    spec = _read_spec(config, family)
    if draft is None:
        check_weights(source, family, len(spec.layers))
    first = None
    if receipt is not None:
        first = first_spec(source, receipt)
        spec = _with_trained_context(spec, receipt, first)

    # What runtimes compute from this config. The newest transformers is judged now, since a config
    # that it refuses is a problem; the others only when somebody asks for `verdicts`.
    judge = Judge(asked_runtimes())
    planned = judge.planned(config, family, spec.current(), spec)
    in_transformers = _as_draft(_verdicts_in_newest_transformers(planned, family), draft, family)
    problems = _problems_of_checkpoint(source, spec, in_transformers)

    # the sizes that its memory follows from
    cache = config_cache(config, family)
    shape = config_shape(config, family, cache)
    if shape is not None:
        shape = shape.with_weights(checkpoint_bytes(source))
    return ConfigInspection(
        source=source,
        name=family.name,
        display_name=family.display_name,
        spec=spec,
        problems=_without_planned(problems, spec, receipt),
        refuse=family.refuse,
        gguf_only=family.gguf_only,
        kv_cache=cache,
        shape=shape,
        custom_code=CUSTOM_CODE if config.get("auto_map") else "",
        first=first,
        encoder=family.encoder,
        model_family=family,
        planned=planned,
        judge=judge,
        draft=draft,
        fine_tuning=receipt.fine_tuning if receipt else None,
    )


def _verdicts_in_newest_transformers(planned: PlannedConfig, family: Family) -> list[Verdict]:
    """Return how the newest transformers reads a config: the verdict of each row that covers it.

    Args:
        planned: The config, which is judged by a row of the table of runtimes at a time.
        family: Its family.
    """
    transformers = newest("transformers")
    verdicts = []
    for row in rows_for(family):
        if row.name == transformers.name and row.covers(transformers.last):
            verdicts.append(planned.verdict(row))
    return verdicts


def _as_draft(
    verdicts: Iterable[Verdict], draft: DraftKind | None, family: Family
) -> tuple[Verdict, ...]:
    """Verdicts on a model, or on the draft model that it is."""
    if draft is None:
        return tuple(verdicts)
    return draft_verdicts(draft, family, verdicts)


def _read_spec(config: Config, family: Family) -> RopeSpec:
    """The RoPE of a config, which all halves of the model have."""
    try:
        spec = read_spec(config, family)
        check_halves(config, family, spec)
    except UnknownRopeType as kind:
        raise BadSource(
            f"config.json has the rope_type {kind}, unknown to transformers; correct it"
        ) from None
    return spec


def _problems_of_checkpoint(
    source: Source, spec: RopeSpec, transformers_verdicts: Iterable[Verdict]
) -> list[Problem]:
    """Return the problems in all files of a checkpoint, the most important first.

    Args:
        source: The checkpoint.
        spec: Its RoPE.
        transformers_verdicts: Whether the newest transformers supports the config.
    """
    # config.json
    config = source.config()
    family = source.family
    problems = []
    for verdict in transformers_verdicts:
        if verdict.status == "refused":
            message = f"{verdict.display_name} does not load it: {verdict.reason}"
            problems.append(Problem("load", message))
    problems += wrapper_problems(config, family)
    problems += config_problems(config, family, spec)

    # limits below the context, such as model_max_length in tokenizer_config.json; the key of
    # config.json that declares the context, such as max_position_embeddings, is not a limit
    part = text_part(config, family)
    present_keys = [key for key in family.keys.context if part.get(key) is not None]
    declaring_key = present_keys[:1]  # the first of the family's keys that the config has
    problems += limit_problems(length_limits(source), spec, declared=declaring_key, fix="--as-is")
    problems += stale_tensors(source)

    # `apply` would repair these problems, but refuses a family that cannot be extended
    if family.refuse:
        problems = [msgspec.structs.replace(problem, repair=None) for problem in problems]
    if source.kind == "folder" and not source.weights():
        problems.append(Problem("weights", "there are no safetensors weights here"))
    return problems


def _without_planned(
    problems: Iterable[Problem], spec: RopeSpec, receipt: Receipt | None
) -> tuple[Problem, ...]:
    """Return the problems of a model that `ropeconv apply` has not already named in a warning.

    Args:
        problems: All problems of the model.
        spec: Its RoPE.
        receipt: The receipt that `apply` left in it; None for other models.
    """
    if receipt is None:
        return tuple(problems)
    announced = set(CODES_ANNOUNCED_BY_PLAN)
    # the receipt of an extended model has its trained context, so that is not in doubt
    if spec.context != spec.original_context:
        announced.add("trained")
    return tuple(problem for problem in problems if problem.code not in announced)


def _with_trained_context(spec: RopeSpec, receipt: Receipt, first: RopeSpec | None) -> RopeSpec:
    """The RoPE of an extended model, with the context that it was trained on before.

    Its files may state only the extended context. The receipt that `ropeconv apply` left in it says
    the trained one.

    Args:
        spec: The RoPE as read from the files.
        receipt: The receipt in the output.
        first: The RoPE of the model before ropeconv changed it, where it is known.
    """
    # anybody can publish a model with a receipt, and scaling factors are computed from this length:
    # it is not believed beyond the longest context that the model has ever had
    trained = receipt.schedule.original_context
    longest = max(spec.context, spec.original_context)
    if first is not None:
        longest = max(longest, first.context, first.original_context)
    if not 0 < trained <= longest:
        return spec
    return replace(
        spec,
        original_context=trained,
        original_context_source="receipt",
        original_context_reference="",
    )
