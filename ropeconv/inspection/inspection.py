"""Inspection: the family and RoPE of a checkpoint or GGUF file, and the problems in its settings."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import get_args

from msgspec import UNSET

from ..errors import BadSource
from ..formats import jsontext
from ..formats.jsontext import JsonObject
from ..models.config import halves
from ..models.family import Family
from ..models.gguf import GgufSource
from ..models.length_limits import length_limits, modelfile_limits
from ..models.registry import assumption
from ..models.schema import Config
from ..models.source import Origin, Source
from ..pretrained import CodeFile, code_files
from ..rope.bound.reach import effective_length
from ..rope.methods.vectors import AsIs
from ..rope.recipe import Recipe
from ..rope.spec import LayerKind, RopeSpec
from ..runtimes.llamacpp.read_header import read_file, rope_tensors
from ..runtimes.read_config import UnknownRopeType, read_spec
from ..runtimes.verdict import Verdict, describe, difference, judge_all
from ..summary import Summary
from .document import (
    CodeFileDocument,
    InspectionDocument,
    layer_groups,
    schedule_document,
    source_document,
    verdict_document,
)
from .kv_cache import KvCache, config_cache, gguf_cache
from .problems import (
    Problem,
    check_weights,
    config_problems,
    custom_code,
    gguf_problems,
    limit_problem,
    limit_problems,
    load_problem,
    tensor_problems,
)
from .receipts.folder import first_spec, stated
from .receipts.gguf import first_reading, gguf_stated
from .receipts.receipt import Receipt

SAME = {
    "head_dim": "the width of a head",
    "rotary_dim": "the dimensions that rotate",
    "original_context": "the trained context",
    "context": "the context",
}
"""What halves have to have in common beside their frequencies, and in words."""


def check_halves(config: Config, family: Family, spec: RopeSpec) -> None:
    """Raises BadSource where a further half has another RoPE than the one that is read.

    config: of the whole model. family: of the model. spec: the RoPE of the half that is read.
    """
    for path, whole in halves(config, family):
        other = read_spec(whole, family)
        found = ((getattr(spec, name), getattr(other, name), words) for name, words in SAME.items())
        why = next((f"{words} is {seen:,} there, not {own:,}" for own, seen, words in found if own != seen), "")
        why = why or difference(spec.current(), spec, other)
        if why:
            raise BadSource(
                f"config.json has another RoPE in {path} than in {family.halves[0]} ({why}), and one recipe changes "
                "both alike; give both the same first"
            )


TOKENIZER = "tokenizer_config.json"
PLANNED = ("context", "original", "schemas", "ignored-key")
"""Codes of problems that are none where ropeconv wrote the settings: its plan said what every runtime reads."""


@dataclass(frozen=True)
class Inspection(Summary):
    """The RoPE of a checkpoint or GGUF file, and the problems in its settings.

    name: of the model family or GGUF architecture. display_name: for people. spec: its RoPE. refuse: why nothing can be
    baked for it, or empty. verdicts: what each runtime does with it as it is. kv_cache: its key-value cache, None where
    the number of heads is not stated. custom_code: a sentence about code that the checkpoint brings, or empty.
    code_files: its files that can make a runtime run code. first: of an output of ropeconv, the RoPE of its first
    source; None for others. encoder: whether it reads in both directions and has no logits of the next token.
    """

    source: Origin
    name: str
    display_name: str
    spec: RopeSpec
    problems: tuple[Problem, ...]
    refuse: str = ""
    verdicts: tuple[Verdict, ...] = ()
    kv_cache: KvCache | None = None
    custom_code: str = ""
    code_files: tuple[CodeFile, ...] = ()
    first: RopeSpec | None = None
    encoder: bool = False

    def summary(self) -> dict[str, str]:
        """What is shown, by name."""
        spec = self.spec
        return {
            "source": self.source.reference,
            "family": self.display_name,
            "RoPE": describe(spec.form),
            "context": f"{spec.context:,} tokens, {spec.original_context:,} trained",
            "head_dim": f"{spec.head_dim}, of which {spec.rotary_dim} rotate",
            "problems": " ".join(problem.message for problem in self.problems),
            "refused": self.refuse,
        }

    @property
    def first_spec(self) -> RopeSpec:
        """The RoPE before any bake: of the first source, where that is known, else its own."""
        return self.first or self.spec

    def basis(self, recipe: Recipe) -> RopeSpec:
        """The RoPE that a recipe is about: its own with as-is and `on_top`, else that before any bake."""
        return self.spec if recipe.on_top or isinstance(recipe.method, AsIs) else self.first_spec

    @property
    def extended(self) -> bool:
        """Whether it is scaled, or ropeconv gave it other frequencies or factors than its first source has."""
        return self.spec.scaled or bool(difference(self.spec.current(), self.spec, self.first_spec))

    @property
    def assumption(self) -> str:
        """What is assumed about a model that is treated as a family that its model_type is not of; empty for others."""
        return ""

    def document(self, repairs: Iterable[Problem] | None = None) -> InspectionDocument:
        """The inspection as a JSON document. repairs: of the command, None where nobody looked for them."""
        spec, form = self.spec, self.spec.form
        return InspectionDocument(
            source=source_document(self.source),
            family=self.name,
            assumption=self.assumption or None,
            head_dim=spec.head_dim,
            rotary_dim=spec.rotary_dim,
            layout=spec.layout,
            mla=spec.mla,
            encoder=self.encoder,
            rope_type=form.kind,
            rope=dict(vars(form)),
            rope_theta=spec.rope_theta,
            attention_factor=spec.attention_factor,
            softmax_scale=spec.softmax_scale,
            original_context=spec.original_context,
            original_context_source=spec.original_context_source,
            original_context_reference=spec.original_context_reference or None,
            context=spec.context,
            scaled=spec.scaled,
            layers={kind: spec.count(kind) for kind in get_args(LayerKind)},
            layer_groups=layer_groups(spec),
            visible=spec.visible(spec.context),
            effective_length=effective_length(spec.current(), spec),
            mrope_section=spec.mrope_section,
            nope_query_scaling=spec.nope_query_scaling,
            custom_code=self.custom_code or None,
            code_files=tuple(CodeFileDocument(name=file.name, reason=file.reason) for file in self.code_files),
            local_theta=spec.local_form.theta if spec.local_form else None,
            refuse=self.refuse or None,
            notes=spec.notes,
            problems=tuple(problem.document for problem in self.problems),
            runtimes=tuple(map(verdict_document, self.verdicts)),
            kv_cache=self.kv_cache.document(spec.context) if self.kv_cache else None,
            schedule=schedule_document(spec.current()),
            repairs=UNSET if repairs is None else tuple(problem.document for problem in repairs),
        )

    def to_dict(self) -> JsonObject:
        """The inspection as JSON-ready data; keys stay within a schema."""
        return self.document().to_dict()


@dataclass(frozen=True)
class ConfigInspection(Inspection):
    """The inspection of a checkpoint with a config.json. family: that of its `model_type`."""

    family: Family = field(kw_only=True)

    @property
    def assumption(self) -> str:
        return assumption(self.family)


def inspect_source(source: Source | GgufSource) -> Inspection:
    """Inspects a checkpoint or GGUF file. Raises BadSource where it has no RoPE, is not known, or is damaged."""
    return inspect_gguf(source) if isinstance(source, GgufSource) else inspect_config(source)


def inspect_gguf(source: GgufSource) -> Inspection:
    """Inspects a GGUF file: its RoPE is what llama.cpp computes. Raises BadSource where llama.cpp would refuse it."""
    reading = read_file(source.file)
    display_name = f"GGUF, {source.file.get('general.name', 'unnamed')}"
    spec, first = reading.spec, None
    receipt = gguf_stated(source.file, spec)
    if receipt is not None:
        first = first_reading(source.file, receipt)
        spec = _trained(spec, receipt, first)
    found = list(gguf_problems(reading, source.file, rope_tensors(source.file)))
    for limit in modelfile_limits(source):
        found += limit_problem(limit, spec, "--as-is --ollama")
    problems = _unplanned(found, spec, receipt)
    cache = gguf_cache(source.file, reading.arch)
    return Inspection(source, reading.arch.name, display_name, spec, problems, kv_cache=cache, first=first)


def inspect_config(source: Source) -> ConfigInspection:
    """Inspects a checkpoint: its RoPE is what the newest transformers computes. Raises BadSource as `detect` does.

    An output of ropeconv is of the family that its source was treated as.
    """
    receipt = stated(source)
    source.treat_as = source.treat_as or (receipt.source.family if receipt else "")
    config, family = source.config(), source.family
    try:
        spec = read_spec(config, family)
        check_halves(config, family, spec)
    except UnknownRopeType as kind:
        raise BadSource(f"config.json has the rope_type {kind}, which transformers does not know; correct it") from None
    check_weights(source, config, family, len(spec.layers))
    first = None
    if receipt is not None:
        first = first_spec(source, receipt)
        spec = _trained(spec, receipt, first)
    verdicts = judge_all(config, family, spec.current(), spec)
    tokenizer = source.text(TOKENIZER)
    configs = {"config.json": config} | ({} if tokenizer is None else {TOKENIZER: jsontext.parse(tokenizer, TOKENIZER)})
    problems = [
        *load_problem(verdicts),
        *config_problems(config, family, spec),
        *limit_problems(length_limits(source), config, family, spec),
        *tensor_problems(source.tensor_names()),
    ]
    if family.refuse:  # then `apply` repairs nothing
        problems = [replace(problem, repair="") for problem in problems]
    if source.kind == "folder" and not source.weights():
        problems.append(Problem("weights", "there are no safetensors weights here"))
    return ConfigInspection(
        source, family.name, family.display_name, spec, _unplanned(problems, spec, receipt), family.refuse,
        verdicts, config_cache(config, family), custom_code(config), first=first, encoder=family.encoder,
        family=family, code_files=tuple(code_files((file.name for file in source.files()), configs)),
    )  # fmt: skip


def _unplanned(problems: Iterable[Problem], spec: RopeSpec, receipt: Receipt | None) -> tuple[Problem, ...]:
    """The problems without those that are what the bake of a receipt was asked for."""
    if receipt is None:
        return tuple(problems)
    planned = PLANNED if spec.context == spec.original_context else (*PLANNED, "trained")
    return tuple(problem for problem in problems if problem.code not in planned)


def _trained(spec: RopeSpec, receipt: Receipt, first: RopeSpec | None) -> RopeSpec:
    """The RoPE of an output with the trained context of its receipt, unless that is longer than any it had."""
    trained = receipt.schedule.original_context
    longest = max(tokens for one in (spec, first) if one for tokens in (one.context, one.original_context))
    if not 0 < trained <= longest:
        return spec
    return replace(spec, original_context=trained, original_context_source="receipt", original_context_reference="")
