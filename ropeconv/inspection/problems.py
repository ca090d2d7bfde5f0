"""Problems in the RoPE settings of a checkpoint, as sentences."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from typing import Literal

import msgspec

from ..errors import BadSource
from ..formats.gguf.file import GgufFile
from ..formats.jsontext import JsonObject
from ..models.config import text_part
from ..models.family import Family
from ..models.length_limits import LengthLimit
from ..models.registry import by_name
from ..models.schema import DUAL_CHUNK, Config
from ..models.source import Source
from ..models.suggest import layer_prefix, layer_prefixes
from ..rope.errors import counted, shown
from ..rope.forms import DynamicNtk, InterpolatedForm, LongRope, Yarn
from ..rope.lazy import Vector
from ..rope.spec import RopeSpec
from ..runtimes.evidence import stated_key
from ..runtimes.grouping import find, newest
from ..runtimes.llamacpp.read_header import FREQS, LONG, SHORT, Reading
from ..runtimes.read_config import UnknownRopeType, read_spec, rope_dict
from ..runtimes.runtime import runtimes
from ..runtimes.verdict import Verdict, describe, without_config
from .document import ProblemDocument

ROPE_KEYS = frozenset(
    (
        "rope_type type rope_theta factor original_max_position_embeddings attention_factor attn_factor beta_fast "
        "beta_slow mscale mscale_all_dim truncate short_factor long_factor short_mscale long_mscale low_freq_factor "
        "high_freq_factor partial_rotary_factor mrope_section mrope_interleaved alpha finetuned extrapolation_factor "
        "llama_4_scaling_beta max_position_embeddings full_attention sliding_attention"
    ).split()
)
"""Keys of the RoPE dictionary that some runtime reads, or that publishers write."""


ROPE_KEY = re.compile(r"(^|_)(rope|yarn|ntk)(_|$)|rotary_|theta|original_max_position_embeddings")
"""Names of keys of a config.json that are about RoPE."""


@dataclass(frozen=True)
class Problem:
    """A problem in the settings of a model.

    code: a stable name for it. message: a sentence. repair: flags of `ropeconv apply` that fix it, empty without.
    """

    code: str
    message: str
    repair: str = ""

    @property
    def document(self) -> ProblemDocument:
        """The problem as documents have it."""
        return ProblemDocument(code=self.code, message=self.message, repair=self.repair or None)


def config_problems(config: Config, family: Family, spec: RopeSpec) -> Iterator[Problem]:
    """Problems in config.json alone, those that matter most first.

    config: the whole file. spec: the RoPE that the newest transformers reads from it.
    """
    part = text_part(config, family)
    found, _ = rope_dict(part, family)
    form = spec.form
    yield from _schemas(config, family)
    new = part.get("rope_parameters")
    if family.writing.nested and isinstance(new, dict) and new and not set(family.layers.types) & set(new):
        message = f"rope_parameters is flat, and {family.name} reads it per layer type: it is ignored"
        yield Problem("flat", message, "--as-is")
    yield from _misspelt(found, family)
    yield from _ignored_keys(part, family)
    yield from _dual_chunk(config, family)
    if isinstance(form, DynamicNtk):
        repair = f"--dynamic ntk:{form.factor:g} --at {round(form.factor * form.original_context)} --replace"
        yield Problem("dynamic", "dynamic scaling changes with the sequence, and files hold fixed frequencies", repair)
    if isinstance(form, (InterpolatedForm, Yarn)):
        reach = round(form.factor * spec.original_context)
        if spec.context < reach:
            product = f"factor {form.factor:g} x {spec.original_context:,} is {reach:,}"
            message = f"declares {spec.context:,} tokens, and {product}: runtimes cap the window at the former"
            yield Problem("context", message, f"--as-is --context {reach}")
    if isinstance(form, Yarn):
        yield from _yarn(form, spec, found)
    yield from _doubtful(family, spec, part)
    if spec.notes and any("scaling" in note and "class default" in note for note in spec.notes):
        yield Problem("default-scaling", "the scaling stands in no file, only in the class", "--as-is")


def custom_code(config: Config) -> str:
    """A sentence about code that the checkpoint brings; empty without. config: the whole config.json."""
    if not config.get("auto_map"):
        return ""
    return "auto_map names code of the checkpoint, which runs instead of the stock class with trust_remote_code"


@cache
def class_keys() -> dict[str, frozenset[str]]:
    """The keys about RoPE that the class of each family computes with, by its name: `rope_keys.json`."""
    data = json.loads((files("ropeconv.models") / "rope_keys.json").read_text("utf-8"))
    return {name: frozenset(keys) for name, keys in data.items()}


def _ignored_keys(part: Config, family: Family) -> Iterator[Problem]:
    """The problem of keys about RoPE that the stock class of a family does not compute with."""
    known = class_keys().get(family.name)
    if known is None or family.assumed:
        return
    ignored = [key for key, value in part.items() if value and ROPE_KEY.search(key) and key not in known]
    if ignored:
        message = f"the {family.name} class of transformers ignores {' and '.join(ignored)} of config.json"
        reads = [key for key in part if key in known and ROPE_KEY.search(key)]
        yield Problem("ignored-key", f"{message} and computes with {' and '.join(reads) or 'its defaults'}", "--as-is")


def _dual_chunk(config: Config, family: Family) -> Iterator[Problem]:
    """The problem of dual_chunk_attention_config, which some runtimes compute in place of any method."""
    chunked = text_part(config, family).get(DUAL_CHUNK)
    if not chunked:
        return
    rows = {row.name: row for row in runtimes() if without_config(row, family, str(config.get("model_type"))) is None}
    stated = {row.display_name: stated_key(config, family, row) for row in rows.values()}
    reasons = [f"{name}: {found[1].reason}" for name, found in stated.items() if found]
    message = "; ".join([f"{DUAL_CHUNK} is ignored by transformers", *reasons])
    yield Problem("dual-chunk", f"{message} (`ropeconv apply --dual-chunk drop` removes it)")


def _yarn(form: Yarn, spec: RopeSpec, found: JsonObject) -> Iterator[Problem]:
    """Problems of a model with YaRN. found: its RoPE dictionary."""
    if spec.original_context_source == "declared":
        message = f"yarn without original_max_position_embeddings: readers assume {form.original_context:,}"
        yield Problem("original", message, "--as-is")
    if found.get("attn_factor") is not None:
        yield Problem(
            "attn-factor",
            f"attn_factor {found['attn_factor']:.6g} is not a key transformers reads (attention_factor is): it uses "
            f"{spec.attention_factor:.4f}, and runtimes that multiply the two use another attention factor",
            "--as-is",
        )


def _schemas(config: Config, family: Family) -> Iterator[Problem]:
    """The problem of a config that readers of its two schemas take differently."""
    rows = [row for row in find("transformers") if without_config(row, family) is None]
    readers = {row.display_name: row for row in rows}
    row = newest("transformers")  # as it would be if it preferred rope_parameters, as other runtimes do
    both: tuple[Literal["rope_parameters", "rope_scaling"], ...] = ("rope_parameters", "rope_scaling")
    rules = {name: msgspec.structs.replace(rule_set, schemas=both) for name, rule_set in row.rules.items()}
    readers["what prefers rope_parameters"] = msgspec.structs.replace(row, rules=rules)
    seen: dict[str, str] = {}
    for title, runtime in readers.items():
        try:
            seen[title] = describe(read_spec(config, family, runtime).form)
        except (UnknownRopeType, BadSource):
            continue
    if len(set(seen.values())) > 1:
        readings = "; ".join(f"{title} reads {form}" for title, form in reversed(seen.items()))
        yield Problem("schemas", f"the settings are read differently: {readings}", "--as-is")


def _misspelt(found: JsonObject, family: Family) -> Iterator[Problem]:
    """Keys of the RoPE dictionary that nothing reads and that are spelt nearly as one that is read."""
    known = {*ROPE_KEYS, *family.writing.keep, *filter(None, [family.keys.query_beta])}
    for key in found:
        near = get_close_matches(key, known, 1, 0.75)
        if key not in known and near:
            yield Problem("misspelt", f"no runtime reads {key}; did you mean {near[0]}? correct it in config.json")


def load_problem(verdicts: Iterable[Verdict]) -> Iterator[Problem]:
    """The problem of a config that the newest transformers does not load. verdicts: of the checkpoint as it is."""
    newest_row = newest("transformers")
    for one in verdicts:
        if one.covers(newest_row) and one.status == "refused":
            yield Problem("load", f"{one.display_name} does not load it: {one.reason}")


def limit_problems(limits: Iterable[LengthLimit], config: Config, family: Family, spec: RopeSpec) -> Iterator[Problem]:
    """The problems of files that limit prompts below the declared context.

    limits: in the files of the checkpoint. config: its config.json. spec: its RoPE.
    """
    part = text_part(config, family)
    declared = [key for key in family.keys.context if part.get(key) is not None][:1]
    for limit in limits:
        if not limit.declares(declared):
            yield from limit_problem(limit, spec, "--as-is")


def limit_problem(limit: LengthLimit, spec: RopeSpec, repair: str) -> Iterator[Problem]:
    """The problem of a limit, if it is below the declared context. spec: the RoPE. repair: as in `Problem`."""
    if limit.tokens < spec.context:
        yield Problem(
            limit.rule.code,
            f"{limit.file} has {limit.key} = {limit.tokens:,}, below the declared context of {spec.context:,}: "
            f"{limit.rule.effect}",
            repair,
        )


def tensor_problems(names: tuple[str, ...] | None) -> Iterator[Problem]:
    """The problem of stored inv_freq tensors, which transformers does not load since 4.32. names: of all tensors."""
    stale = [name for name in names or () if name.endswith("rotary_emb.inv_freq")]
    if stale:
        yield Problem(
            "stale-inv-freq",
            f"{counted(len(stale), 'stored inv_freq tensor')} ({stale[0]}): stock transformers ignores them",
        )


def gguf_problems(reading: Reading, file: GgufFile, vectors: Mapping[str, Vector]) -> Iterator[Problem]:
    """Problems in the keys and rope tensors of a file.

    reading: what llama.cpp computes from it. vectors: its rope tensors, by name.
    """
    spec, arch = reading.spec, reading.arch
    prefix = f"{arch.name}.rope.scaling."
    if isinstance(spec.form, Yarn) and file.get(f"{prefix}original_context_length") is None:
        yield Problem(
            "original", f"yarn without original_context_length: llama.cpp assumes {spec.form.original_context}"
        )
    if reading.dead:
        keys = ", ".join(reading.dead)
        yield Problem("dead-keys", f"llama.cpp does not read {keys} of {arch.name} here; what they say has no effect")
    yield from _tensors(reading, vectors, file.get(f"{prefix}type"))
    if isinstance(spec.form, (Yarn, InterpolatedForm)):
        original = spec.form.original_context if isinstance(spec.form, Yarn) else spec.original_context
        reach = round(spec.form.factor * original)
        if reach != spec.context:
            yield Problem(
                "context",
                f"declares context_length {spec.context}, and factor x original is {reach}: servers cap windows there",
            )
    if file.get(f"{prefix}type") == "longrope" and not isinstance(spec.form, LongRope):
        yield Problem("no-factors", "the type longrope without factor tensors in use leaves the model unscaled")
    if "local" in spec.layers and abs(reading.local_attention_factor - 1) > 1e-6:
        yield Problem(
            "window-attention-factor",
            f"attn_factor also scales the window layers, by {reading.local_attention_factor:.4f}, as no method does",
        )
    family = by_name().get(arch.family)
    if family and not spec.scaled:
        yield from _doubtful(family, spec, {})


def _doubtful(family: Family, spec: RopeSpec, part: Config) -> Iterator[Problem]:
    """The problem of a trained context that is uncertain. part: the text part of the config; empty for GGUF."""
    for known in family.trained:
        if known.doubt is None or known.declared != spec.context or known.trained == spec.original_context:
            continue
        if all(part.get(key) == value for key, value in known.doubt.items()):
            yield Problem(
                "trained",
                f"declares {known.declared:,} tokens and may have been trained for {known.trained:,} ({known.source}); "
                f"if so pass --original-context {known.trained}",
            )


def refused_tensors(reading: Reading, vectors: Mapping[str, Vector], scaling: str | None) -> tuple[str, ...]:
    """Names of rope tensors with which llama.cpp refuses the file, since it checks that every tensor is used.

    vectors: the rope tensors of the file. scaling: its rope.scaling.type, None where it has no such key.
    """
    arch = reading.arch
    lists = arch.factors in ("always", "ignored") or (arch.factors == "longrope" and scaling == "longrope")
    takes = {LONG: lists, SHORT: lists, FREQS: bool(arch.freqs) and not (lists and arch.factors == "longrope")}
    return tuple(name for name in vectors if not takes[name])


def _tensors(reading: Reading, vectors: Mapping[str, Vector], scaling: str | None) -> Iterator[Problem]:
    refused = refused_tensors(reading, vectors, scaling)
    for name in refused:
        yield Problem("refused-tensor", f"llama.cpp does not load a {reading.arch.name} file with {name}")
    for name in vectors:
        kept = reading.arch.freqs if name == FREQS else reading.arch.factors
        if name not in refused and kept == "ignored":
            yield Problem("ignored-tensor", f"llama.cpp loads {name} and then ignores it in {reading.arch.name}")


DRAFT_CLASS = re.compile(r"Eagle(?!\d_)|Medusa|MTP|Draft|Speculator", re.IGNORECASE)
"""Names of the classes of draft models; Eagle 2.5 is a model of its own."""
DRAFT_TENSOR = re.compile(r"(model\.)?(fc\.weight|midlayer\..*|d2t|t2d|medusa_heads?\..*)$")
"""Names of tensors that only draft models have, EAGLE, EAGLE-3 and Medusa."""
DRAFT_PART = re.compile(r"(^|\.)(mtp|draft|eagle|medusa|midlayer)")
DRAFT = "transformers does not load it as a model, and it has no context of its own to extend: give the model it is for"


def check_weights(source: Source, config: Config, family: Family, layers: int) -> None:
    """Raises BadSource for the draft model of another one, and where no layer has the projections of its family.

    source: the checkpoint; one whose tensors cannot be listed without fetching them passes, if its config does. config:
    its config.json. family: of its model_type, or that it is treated as. layers: how many it has.
    """
    listed = config.get("architectures")
    named = [one for one in listed if DRAFT_CLASS.search(str(one))] if isinstance(listed, list) else []
    if named:
        raise BadSource(
            f"{source.reference} names {shown(named[0])} in architectures, a draft model for speculative decoding; "
            f"{DRAFT}"
        )
    names = source.tensor_names() if source.weights() else None
    if not names:
        return
    draft = next((name for name in names if DRAFT_TENSOR.match(name)), None)
    if draft and not family.assumed:
        raise BadSource(
            f"{source.reference} has the config of a {family.name} model and the tensor {draft}, which only draft "
            f"models for speculative decoding have; {DRAFT}"
        )
    if family.assumed:
        known = set(names)
        prefix = next((found for i in range(layers) if (found := layer_prefix(i, family, known)) is not None), None)
        absent = [name for name in _projections(family) if prefix is None or f"{prefix}{name}.weight" not in known]
        if absent:
            raise BadSource(
                f"{source.reference} has no {absent[0]} in its layers, where a model of the family {family.name} makes "
                "queries and keys; name another --family"
            )
    elif not _has_projections(family, layers, names):
        raise BadSource(
            f"{source.reference} has the config of a {family.name} model and none of its {layers} layers has "
            f"{_projections(family)[0]}; if it is a draft model for speculative decoding, such as MTP layers alone: "
            f"{DRAFT}"
        )


def _projections(family: Family) -> list[str]:
    """The names of what makes queries and keys in a layer."""
    return [name for name in (family.weights.fused, family.weights.q, family.weights.k) if name]


def _has_projections(family: Family, layers: int, names: tuple[str, ...]) -> bool:
    """Whether some layer has a projection, whatever the model around it and the quantisation are called."""
    wanted = _projections(family)
    ends = {prefix.partition(".")[2] or prefix for i in range(layers) for prefix in layer_prefixes(i, family)}
    probes = tuple(f"{end}{name}." for end in ends for name in wanted)
    return not wanted or any(
        any(f".{probe}" in f".{name}" for probe in probes) and not DRAFT_PART.search(name) for name in names
    )
