"""Problems in the RoPE settings of a checkpoint, as sentences.

`config_problems` and `gguf_problems` yield them. A problem has a repair, which is printed as a
command, only where the command cannot replace settings that the weights were trained with: where
two settings contradict each other, only the publisher knows which of them is right.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from difflib import get_close_matches
from functools import cache
from typing import Literal

import msgspec

from ..errors import BadSource
from ..formats.gguf.file import GgufFile
from ..formats.package_data import package_data
from ..models.config import nested_settings, text_part
from ..models.family import Family
from ..models.layers import layer_prefix, layer_prefixes
from ..models.length_limits import LengthLimit
from ..models.registry import by_name
from ..models.schema import DUAL_CHUNK, Config, first_present
from ..models.source import Source
from ..rope.errors import command_line, counted
from ..rope.forms import DynamicNtk, InterpolatedForm, LongRope, Vector, Yarn
from ..rope.spec import RopeSpec
from ..runtimes.drafts import DraftKind, draft_kind
from ..runtimes.evidence import stated_key
from ..runtimes.llamacpp.archs import Arch
from ..runtimes.llamacpp.read_header import FREQS, LONG, SHORT, Reading
from ..runtimes.llamacpp.scaling import llamacpp_ramp, why_other_ramp
from ..runtimes.read_config import NOT_A_SCALING, UnknownRopeType, read_spec, rope_dict
from ..runtimes.runtime import find, newest, runtimes
from ..runtimes.verdict import describe, unseen_wrapper, without_config
from .document import Problem
from .receipts.receipt import Receipt

ROPE_KEYS = frozenset(
    (
        "rope_type type rope_theta factor original_max_position_embeddings attention_factor"
        " attn_factor beta_fast beta_slow mscale mscale_all_dim truncate short_factor long_factor"
        " short_mscale long_mscale low_freq_factor high_freq_factor partial_rotary_factor"
        " mrope_section mrope_interleaved alpha finetuned extrapolation_factor llama_4_scaling_beta"
        " max_position_embeddings full_attention sliding_attention"
    ).split()
)
"""Keys of the RoPE dictionary that some runtime reads, or that publishers write."""
ROPE_KEY = re.compile(r"(^|_)(rope|yarn|ntk)(_|$)|rotary_|theta|original_max_position_embeddings")
"""Names of keys of a config.json that are about RoPE."""


def config_problems(config: Config, family: Family, spec: RopeSpec) -> Iterator[Problem]:
    """Yield problems in config.json, the most important first. spec: the RoPE that the newest
    transformers reads.
    """
    part = text_part(config, family)
    rope, defaults = rope_dict(part, family)
    form = spec.form
    yield from _schemas(config, family)
    new = part.get("rope_parameters")
    if (
        family.writing.nested
        and isinstance(new, dict)
        and new
        and not set(family.layers.types) & set(new)
    ):
        message = (
            f"rope_parameters is flat, and {family.name} reads it per layer type: it is ignored; if"
            " the model was trained with it, write it for each of"
            f" {' and '.join(family.layers.types)}"
        )
        yield Problem("flat", message)
    known = {*ROPE_KEYS, *family.writing.keep, *filter(None, [family.keys.query_beta])}
    for key in rope:
        near = get_close_matches(key, known, 1, 0.75)
        if key not in known and near:
            yield Problem(
                "misspelt",
                f"no runtime reads {key}; did you mean {near[0]}? correct it in config.json",
            )
    yield from _ignored_keys(part, family)
    yield from _dual_chunk(config, family)
    if isinstance(form, DynamicNtk):
        options = (
            f"--dynamic ntk:{form.factor:.12g} --at {round(form.factor * form.original_context)}"
            " --replace"
        )
        yield Problem(
            "dynamic",
            "dynamic scaling changes with the length of the sequence, and files hold fixed"
            " frequencies: to run it in a runtime that ignores dynamic scaling, `ropeconv apply`"
            f" with {options} writes those of one length, which changes short prompts too",
        )
    if isinstance(form, (InterpolatedForm, Yarn)):
        reach = round(form.factor * spec.original_context)
        if spec.context < reach:
            product = f"factor {form.factor:g} x {spec.original_context:,} is {reach:,}"
            message = (
                f"declares {spec.context:,} tokens, but {product}: runtimes limit prompts to the"
                " former"
            )
            if (
                spec.original_context_source == "declared"
            ):  # the product is of a length that is only assumed
                yield Problem("context", message)
            else:
                yield Problem("context", message, f"--as-is --context {reach}")
    if isinstance(form, Yarn) and spec.original_context_source == "declared":
        message = (
            "yarn without original_max_position_embeddings: readers assume"
            f" {form.original_context:,}; write the length that it was trained on"
        )
        yield Problem("original", message)
    if isinstance(form, Yarn) and rope.get("attn_factor") is not None:
        product = rope["attn_factor"] * spec.attention_factor
        yield Problem(
            "attn-factor",
            f"transformers ignores attn_factor {rope['attn_factor']:.6g} (it reads"
            f" attention_factor) and uses {spec.attention_factor:.4f}; runtimes that multiply the"
            f" two use {product:.4f}. Write the one that it was trained with as attention_factor,"
            " without attn_factor",
        )
    yield from _doubtful(family, spec, part)
    if defaults:
        yield Problem(
            "default-scaling", "the scaling is only in the class, not in a file", "--as-is"
        )


def wrapper_problems(config: Config, family: Family) -> Iterator[Problem]:
    """Yield the problem of a text model inside a model that no runtime was seen to load."""
    unseen = unseen_wrapper(config, family)
    if unseen:
        yield Problem(
            "wrapper",
            f"{unseen}; --family {family.name} treats its text model as that, which is untested",
        )


@cache
def class_keys() -> dict[str, frozenset[str]]:
    """Return the keys about RoPE that the class of each family uses, by its name:
    `rope_keys.json`.
    """
    return package_data("models/rope_keys.json", dict[str, frozenset[str]])


def _ignored_keys(part: Config, family: Family) -> Iterator[Problem]:
    """Yield the problem of keys about RoPE that the stock class of a family ignores."""
    known = class_keys().get(family.name)
    if known is None or family.assumed:
        return
    ignored = [
        key for key, value in part.items() if value and ROPE_KEY.search(key) and key not in known
    ]
    if ignored:
        used = [key for key in part if key in known and ROPE_KEY.search(key)]
        message = (
            f"the {family.name} class of transformers ignores {' and '.join(ignored)} of"
            f" config.json and uses {' and '.join(used) or 'its defaults'}"
        )
        # `--as-is` writes what the class computes, over what the publisher's own code may have read
        yield Problem(
            "ignored-key", f"{message}; if it was trained with them, write them in rope_parameters"
        )


def _dual_chunk(config: Config, family: Family) -> Iterator[Problem]:
    """Yield the problem of dual_chunk_attention_config, which some runtimes apply in place of any
    method.
    """
    chunked = text_part(config, family).get(DUAL_CHUNK)
    if not chunked:
        return
    rows = {
        row.name: row
        for row in runtimes()
        if without_config(row, family, str(config.get("model_type"))) is None
    }
    keys = {row.display_name: stated_key(config, family, row) for row in rows.values()}
    reasons = [f"{name}: {key[1].reason}" for name, key in keys.items() if key]
    message = "; ".join([f"{DUAL_CHUNK} is ignored by transformers", *reasons])
    yield Problem("dual-chunk", f"{message} (`ropeconv apply --dual-chunk drop` removes it)")


def _schemas(config: Config, family: Family) -> Iterator[Problem]:
    """Yield the problem of a config whose two schemas differ, so that runtimes read different
    forms.
    """
    rows = [row for row in find("transformers") if without_config(row, family) is None]
    readers = {row.display_name: row for row in rows}
    row = newest("transformers")  # a variant that prefers rope_parameters, as other runtimes do
    both: tuple[Literal["rope_parameters", "rope_scaling"], ...] = (
        "rope_parameters",
        "rope_scaling",
    )
    rules = {
        name: msgspec.structs.replace(rule_set, schemas=both)
        for name, rule_set in row.rules.items()
    }
    readers["a runtime that prefers rope_parameters"] = msgspec.structs.replace(row, rules=rules)
    forms: dict[str, str] = {}
    for title, runtime in readers.items():
        with suppress(UnknownRopeType, BadSource):
            forms[title] = describe(read_spec(config, family, runtime).form)
    if len(set(forms.values())) > 1:
        readings = "; ".join(f"{title} reads {form}" for title, form in reversed(forms.items()))
        message = f"runtimes read the settings differently: {readings}"
        if contradicting(text_part(config, family), family):
            yield Problem(
                "schemas", f"{message}; write the values that it was trained with in both schemas"
            )
        else:
            yield Problem("schemas", message, "--as-is")


def contradicting(part: Config, family: Family) -> bool:
    """Whether a config gives two values of one RoPE setting, so that no reader can know which it
    was trained with.
    """
    old = part.get("rope_scaling")
    new = nested_settings(part, family, "global")
    dictionaries = [settings for settings in (old, new) if isinstance(settings, dict)]

    bases = [
        first_present(part, family.keys.theta),
        *(settings.get("rope_theta") for settings in dictionaries),
    ]
    if len({float(base) for base in bases if isinstance(base, (int, float))}) > 1:
        return True
    types = [settings.get(key) for settings in dictionaries for key in ("rope_type", "type")]
    if len({NOT_A_SCALING.get(name, name) for name in types if name is not None}) > 1:
        return True
    if len(dictionaries) < 2:
        return False
    shared = dictionaries[0].keys() & dictionaries[1].keys() - {"rope_type", "type", "rope_theta"}
    return any(dictionaries[0][key] != dictionaries[1][key] for key in shared)


def limit_problems(
    limits: Iterable[LengthLimit], spec: RopeSpec, declared: Sequence[str], fix: str
) -> Iterator[Problem]:
    """Yield problems of files that limit prompts below the declared context.

    declared: the key of config.json that declares it. fix: options of `apply` that raise the
    limits.
    """
    for limit in limits:
        if limit.tokens < spec.context and not limit.declares(declared):
            message = (
                f"{limit.file} has {limit.key} = {limit.tokens:,}, below the declared context of"
                f" {spec.context:,}"
            )
            yield Problem(limit.rule.code, f"{message}: {limit.rule.effect}", fix)


def gguf_problems(
    reading: Reading, file: GgufFile, vectors: Mapping[str, Vector]
) -> Iterator[Problem]:
    """Yield problems in the keys and rope tensors of a file.

    reading: what llama.cpp computes from it. vectors: its rope tensors, by name.
    """
    spec, arch = reading.spec, reading.arch
    prefix = f"{arch.name}.rope.scaling."
    if isinstance(spec.form, Yarn) and file.get(f"{prefix}original_context_length") is None:
        yield Problem(
            "original",
            f"yarn without original_context_length: llama.cpp assumes {spec.form.original_context}",
        )
    if reading.dead:
        keys = ", ".join(reading.dead)
        yield Problem("dead-keys", f"llama.cpp ignores {keys} of {arch.name} here")
    refused = refused_tensors(reading, vectors, file.get(f"{prefix}type"))
    for name in refused:
        yield Problem("refused-tensor", f"llama.cpp does not load a {arch.name} file with {name}")
    for name in vectors:
        if name not in refused and (arch.freqs if name == FREQS else arch.factors) == "ignored":
            yield Problem("ignored-tensor", f"llama.cpp loads {name} and ignores it in {arch.name}")
    if isinstance(spec.form, (Yarn, InterpolatedForm)):
        original = (
            spec.form.original_context if isinstance(spec.form, Yarn) else spec.original_context
        )
        reach = round(spec.form.factor * original)
        if reach != spec.context:
            yield Problem(
                "context",
                f"declares context_length {spec.context}, but factor x original is {reach}: servers"
                " use the former",
            )
    if file.get(f"{prefix}type") == "longrope" and not isinstance(spec.form, LongRope):
        yield Problem(
            "no-factors",
            "the type longrope has no effect without factor tensors that llama.cpp uses",
        )
    if "local" in spec.layers and abs(reading.local_attention_factor - 1) > 1e-6:
        yield Problem(
            "window-attention-factor",
            "attn_factor also scales the sliding-window layers (by"
            f" {reading.local_attention_factor:.4f})",
        )
    family = by_name().get(arch.family)
    if family and not spec.scaled:
        yield from _doubtful(family, spec, {})


def ramp_problems(reading: Reading, file: GgufFile, receipt: Receipt | None) -> Iterator[Problem]:
    """Yield the distance of YaRN's ramp in llama.cpp from the ramp of the model, where that one is
    known.

    It is stated by a receipt, by keys that llama.cpp does not read for the architecture, or by the
    class of the family.
    """
    spec = reading.spec
    form = reading.spec.form
    arch = reading.arch
    if not isinstance(form, Yarn):
        return
    if receipt is not None and receipt.ramp_approximation is not None:
        distance = receipt.ramp_approximation.distance
        yield Problem(
            "approximate", f"llama.cpp computes another ramp of YaRN than the model has: {distance}"
        )
        return
    own = own_ramp(form, file, arch, receipt)
    schedule = replace(spec.current(), form=own, inv_freq=own.inv_freq(spec.rotary_dim))
    ramp = llamacpp_ramp(schedule, arch)
    if ramp is None:
        return
    whose = (
        f"published {arch.name} models have other ends"
        if form.truncate != own.truncate
        else "the header has others"
    )
    yield Problem(
        "approximate", f"llama.cpp {why_other_ramp(own, arch)}, and {whose}: {ramp.distance}"
    )


def own_ramp(form: Yarn, file: GgufFile, arch: Arch, receipt: Receipt | None) -> Yarn:
    """Return the form that a model has by the dead keys of its header, or by the class of its
    family.
    """
    family = by_name().get(arch.family)
    scaling = (family.defaults.scaling if family else None) or {}
    published = (scaling.get("factor"), scaling.get("original_max_position_embeddings"))
    unchanged = receipt is None or receipt.method == "as-is"
    if (
        unchanged
        and scaling.get("truncate") is False
        and published == (form.factor, form.original_context)
    ):
        return replace(form, truncate=False)
    if arch.betas:
        return form
    fast, slow = (
        file.get(f"{arch.name}.rope.scaling.yarn_beta_{name}") for name in ("fast", "slow")
    )
    fast = fast if isinstance(fast, float) and fast > 0 else form.beta_fast
    slow = slow if isinstance(slow, float) and 0 < slow <= fast else form.beta_slow
    return replace(form, beta_fast=fast, beta_slow=slow)


def _doubtful(family: Family, spec: RopeSpec, part: Config) -> Iterator[Problem]:
    """Yield the problem of an uncertain trained context. part: the text part of the config; empty
    for GGUF.
    """
    for known in family.trained:
        if (
            known.doubt is None
            or known.declared != spec.context
            or known.trained == spec.original_context
        ):
            continue
        if all(part.get(key) == value for key, value in known.doubt.items()):
            yield Problem(
                "trained",
                f"declares {known.declared:,} tokens and may have been trained with"
                f" {known.trained:,} ({known.source}); if so, pass --original-context"
                f" {known.trained}",
            )


def stale_tensors(source: Source) -> Iterator[Problem]:
    """Yield the problem of stored frequencies, which transformers ignores from 4.32 on."""
    stale = [name for name in source.tensor_names() or () if name.endswith("rotary_emb.inv_freq")]
    if stale:
        stored = f"{counted(len(stale), 'stored inv_freq tensor')} ({stale[0]})"
        yield Problem("stale-inv-freq", f"{stored}: stock transformers ignores them")


def refused_tensors(
    reading: Reading, vectors: Mapping[str, Vector], scaling: str | None
) -> tuple[str, ...]:
    """Return names of rope tensors for which llama.cpp refuses the file, since it checks that every
    tensor is used.

    vectors: the rope tensors of the file. scaling: its rope.scaling.type, None without that key.
    """
    arch = reading.arch
    lists = arch.factors in ("always", "ignored") or (
        arch.factors == "longrope" and scaling == "longrope"
    )
    loads = {
        LONG: lists,
        SHORT: lists,
        FREQS: bool(arch.freqs) and not (lists and arch.factors == "longrope"),
    }
    return tuple(name for name in vectors if not loads[name])


DRAFT_PART = re.compile(r"(^|\.)(mtp|draft|eagle|medusa|midlayer)")


def draft_of(source: Source, config: Config) -> DraftKind | None:
    """Return the kind of draft model that a checkpoint is; None for a whole model.

    If its tensors cannot be listed without downloads, only its config and its name count. Raises
    BadSource for a draft that no one expects (`source.as_draft`), or that cannot be extended.
    """
    names = () if source.treat_as or not source.weights() else source.tensor_names() or ()
    kind = draft_kind(config, names, source.name)
    if kind is None or (source.as_draft and not kind.refuse):
        return kind
    extended = command_line("apply", "TARGET", "--yarn", 4, "--draft", source.reference)
    fix = kind.refuse or f"extend it with its target: {extended}"
    raise BadSource(
        f"{source.reference} is {kind.says} for speculative decoding, not a whole model; {fix}"
    )


def check_weights(source: Source, family: Family, layers: int) -> None:
    """Raise BadSource if no layer has the projections of its family. layers: how many the
    checkpoint has.

    If its tensors cannot be listed without downloads, nothing is checked.
    """
    names = source.tensor_names() if source.weights() else None
    if not names:
        return
    projections = list(filter(None, (family.weights.fused, family.weights.q, family.weights.k)))
    if family.assumed:
        known = set(names)
        prefix = next(
            filter(None, (layer_prefix(index, family, known) for index in range(layers))), None
        )
        absent = next(
            (
                name
                for name in projections
                if prefix is None or f"{prefix}{name}.weight" not in known
            ),
            "",
        )
        if absent:
            raise BadSource(
                f"{source.reference} has no {absent} in its layers, which makes queries and keys in"
                f" the family {family.name}; name another --family"
            )
        return
    # some layer has one, whatever the names of the model around it and of the quantisation
    ends = {
        prefix.partition(".")[2] or prefix
        for index in range(layers)
        for prefix in layer_prefixes(index, family)
    }
    probes = tuple(f".{end}{name}." for end in ends for name in projections)
    if projections and not any(
        any(probe in f".{name}" for probe in probes) and not DRAFT_PART.search(name)
        for name in names
    ):
        raise BadSource(
            f"{source.reference} has the config of a {family.name} model, but none of its {layers}"
            f" layers has {projections[0]}; if it holds only layers that draft for another model,"
            " extend that model"
        )
