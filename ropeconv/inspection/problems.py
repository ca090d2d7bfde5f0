"""Problems in the RoPE settings of a checkpoint, as sentences.

`config_problems` and `gguf_problems` yield them. A problem has a repair, which is printed as a
command, only where the command cannot replace settings that the weights were trained with: where
two settings contradict each other, only the publisher knows which of them is right.
"""

import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from functools import cache
from typing import Literal

import msgspec

from ..errors import BadSource
from ..formats.gguf.file import GgufFile
from ..formats.package_data import package_data
from ..models.config import text_part
from ..models.family import Family
from ..models.layers import layer_prefix, layer_prefixes
from ..models.length_limits import LengthLimit
from ..models.parts import text_path
from ..models.registry import by_name
from ..models.schema import (
    DUAL_CHUNK,
    ROPE_KEY,
    SHARE_KEY,
    Config,
)
from ..models.source import Source
from ..models.unread_keys import unread_rope_keys
from ..rope.errors import command_line, counted, shown
from ..rope.forms import (
    DynamicNtk,
    InterpolatedForm,
    Llama3,
    LongRope,
    Vector,
    Yarn,
    temperature_attention_factor,
)
from ..rope.spec import RopeSpec
from ..runtimes.drafts import DraftKind, draft_kind
from ..runtimes.evidence import stated_key
from ..runtimes.llamacpp.archs import Arch
from ..runtimes.llamacpp.purpose import masks_otherwise
from ..runtimes.llamacpp.read_header import FREQS, LONG, SHORT, Reading
from ..runtimes.llamacpp.scaling import llamacpp_ramp, why_other_ramp
from ..runtimes.read_config import UnknownRopeType, read_spec, reads_share, rope_dict
from ..runtimes.runtime import Runtime, find, newest, runtimes
from ..runtimes.verdict import describe, unseen_wrapper, without_config
from .contradictions import ORIGINAL, contradictions, refusal, refused_heads
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


def config_problems(config: Config, family: Family, spec: RopeSpec) -> Iterator[Problem]:
    """Yield problems in config.json, the most important first.

    Args:
        config: The content of config.json.
        family: The family of the model.
        spec: The RoPE that the newest transformers reads.
    """
    # The RoPE dictionary, rope_parameters or rope_scaling. Where the config has none, it is the
    # default of the class in transformers.
    part = text_part(config, family)
    rope, is_default_of_class = rope_dict(part, family)

    # first: runtimes that read different settings, and settings with which `apply` refuses a config
    stated_twice = list(contradictions(part, family, spec.head_dim))
    yield from _differing_schemas(config, family, states_key_twice=bool(stated_twice))
    for contradiction in stated_twice:
        yield Problem("contradiction", refusal(contradiction))
    wrong_heads = refused_heads(part, family)
    if wrong_heads:
        yield Problem("contradiction", wrong_heads)

    # then settings without effect, and doubts
    yield from _flat_settings(part, family)
    yield from _misspelt_keys(rope, family)
    yield from _ignored_keys(part, family, spec)
    share = part.get("partial_rotary_factor")
    if share not in (None, 1) and not reads_share(family):
        message = (
            f"the {family.name} class of transformers ignores partial_rotary_factor = {share} and"
            " rotates the whole head, and vLLM rotates a part of it; remove the key"
        )
        yield Problem("ignored-key", message)
    yield from _keys_beside_text_part(config, family, spec)
    yield from _dual_chunk_key(config, family)
    if family.gguf is not None and masks_otherwise(part, family.gguf.arch, spec):
        message = (
            "is_causal is false, and llama.cpp does not hide later tokens from layers with a"
            " window: `ropeconv apply --to gguf` refuses it"
        )
        yield Problem("gguf-mask", message)
    yield from _scaling_problems(spec, rope, family)
    yield from _doubtful_training(family, spec, part)
    if is_default_of_class:
        yield Problem(
            "default-scaling", "the scaling is only in the class, not in a file", "--as-is"
        )


def _flat_settings(part: Config, family: Family) -> Iterator[Problem]:
    """Yield the problem of a single RoPE dictionary if the class reads one per layer type.

    Gemma 3 reads {"full_attention": {...}, "sliding_attention": {...}}, and ignores {"rope_type":
    "linear", "factor": 8.0}.
    """
    if not family.writing.nested:
        return
    settings = part.get("rope_parameters")
    if not isinstance(settings, dict) or not settings:
        return

    # nested settings have the layer types as keys: {"full_attention": {...}, ...}
    types = family.layers.types
    if not set(types) & set(settings):
        message = (
            f"rope_parameters is flat, and {family.name} reads it per layer type: it is ignored; if"
            f" the model was trained with it, write it for each of {' and '.join(types)}"
        )
        yield Problem("flat", message)


def _misspelt_keys(rope: Config, family: Family) -> Iterator[Problem]:
    """Yield the problems of keys in the RoPE dictionary that look like a misspelt key."""
    known = {*ROPE_KEYS, *family.writing.keep}
    if family.keys.query_beta:
        known.add(family.keys.query_beta)
    for key in rope:
        if key in known:
            continue
        near = get_close_matches(key, known, 1, 0.75)
        if near:
            message = f"no runtime reads {key}; did you mean {near[0]}? correct it in config.json"
            yield Problem("misspelt", message)


def _scaling_problems(spec: RopeSpec, rope: Config, family: Family) -> Iterator[Problem]:
    """Yield the problems of dynamic scaling, linear scaling and YaRN.

    Args:
        spec: The RoPE as it was read, with the scaling in `form`.
        rope: The RoPE dictionary of config.json.
        family: The family of the model.
    """
    # without original_max_position_embeddings the trained context is not stated; the declared one
    # stands for it, which may be the length after the scaling
    form = spec.form
    trained_is_assumed = spec.original_context_source == "declared"

    # nothing is wrong with dynamic scaling, but few runtimes compute it
    if isinstance(form, DynamicNtk):
        length = round(form.factor * form.original_context)
        options = f"--dynamic ntk:{form.factor:.12g} --at {length} --replace"
        message = (
            "dynamic scaling changes with the length of the sequence, and files hold fixed"
            " frequencies"
        )
        if not family.refuse:  # which apply refuses, whatever the method
            message += (
                ": to run it in a runtime that ignores dynamic scaling, `ropeconv apply` with"
                f" {options} writes those of one length, which changes short prompts too"
            )
        yield Problem("dynamic", message)

    # the scaling covers more tokens than the config declares
    reach = spec.covered_context
    if isinstance(form, (InterpolatedForm, Yarn)) and spec.context < reach:
        message = (
            f"declares {spec.context:,} tokens, but factor {form.factor:g} x"
            f" {reach / form.factor:,.0f} is {reach:,}: runtimes limit prompts to the former"
        )
        # where the trained context is assumed, so is `reach`, and no command should write it
        repair = None if trained_is_assumed else f"--as-is --context {reach}"
        yield Problem("context", message, repair)

    # or the config declares more tokens than the scaling covers
    if isinstance(form, Yarn) and not trained_is_assumed and spec.context > reach:
        message = (
            f"declares {spec.context:,} tokens, but factor {form.factor:g} x"
            f" {form.original_context:,} is {reach:,}: angles beyond were not trained, and vLLM"
            " has no cosines for them"
        )
        yield Problem("context", message, f"--as-is --context {reach}")

    if isinstance(form, Yarn) and trained_is_assumed:
        message = (
            "yarn without original_max_position_embeddings: readers assume"
            f" {form.original_context:,}; write the length that it was trained on"
        )
        yield Problem("original", message)

    # YaRN's own code multiplies attn_factor by the factor that follows from the scaling
    attn_factor = rope.get("attn_factor")
    if isinstance(form, Yarn) and attn_factor is not None:
        formula = temperature_attention_factor(form.factor)
        if math.isclose(attn_factor * formula, spec.attention_factor, rel_tol=1e-6):
            return  # both kinds of runtimes use the same factor
        product = attn_factor * spec.attention_factor
        yield Problem(
            "attn-factor",
            f"transformers ignores attn_factor {attn_factor:.6g} (it reads attention_factor) and"
            f" uses {spec.attention_factor:.4f}; runtimes that multiply the two use {product:.4f}."
            " Write the one that it was trained with as attention_factor, without attn_factor",
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
    """Return the keys about RoPE that the class of each family uses, by its name."""
    return package_data("models/rope_keys.json", dict[str, frozenset[str]])


def _ignored_keys(part: Config, family: Family, spec: RopeSpec) -> Iterator[Problem]:
    """Yield the problem of keys about RoPE that the class in transformers ignores.

    A key is not a problem if its value is the one that the class computes with.

    Args:
        part: The part of config.json about the text model.
        family: The family of the model.
        spec: The RoPE that ropeconv read from the config.
    """
    # a model that the user treats as this family: its class is not known
    if family.assumed:
        unread = unread_rope_keys(part, family)
        if unread:
            yield Problem(
                "ignored-key",
                f"the family {family.name} does not read {' and '.join(unread)} of config.json,"
                " so the model may compute another RoPE; describe it in a file of its own"
                " (docs/families.md) where it does",
            )
        return

    # A family that ropeconv has derived by running the class: keys that this family does not read
    # do not change the result. (A class for which they do is refused, and does not come here.)
    if family.derived:
        unread = unread_rope_keys(part, family)
        if unread:
            yield Problem(
                "ignored-key",
                f"{family.derived} computes the same without {' and '.join(unread)} of config.json;"
                " if it was trained with them, describe it in a file of its own"
                " (docs/families.md)",
            )
        return

    # a family that ropeconv knows, with a list of the keys that its class reads
    used, ignored = _keys_used_and_ignored(part, family, spec)
    if ignored:
        # There is no repair by a command: `--as-is` would write the values that the class uses, and
        # remove the ignored ones, which the publisher's own code may have used in the training.
        yield Problem(
            "ignored-key",
            f"the {family.name} class of transformers ignores {' and '.join(ignored)} of"
            f" config.json and uses {' and '.join(used) or 'its defaults'}; if it was trained with"
            " them, write their values in rope_parameters, and remove these keys",
        )


def _keys_beside_text_part(config: Config, family: Family, spec: RopeSpec) -> Iterator[Problem]:
    """Yield the problem of RoPE settings of a multimodal config that are not in its text part.

    Args:
        config: The content of config.json, {"rope_scaling": {...}, "text_config": {...}}.
        family: The family of the text model.
        spec: The RoPE that ropeconv read from the text part.
    """
    part = text_part(config, family)
    if part is config or family.halves:
        return
    names = ["rope_scaling", "rope_parameters", ORIGINAL]
    names += [*family.keys.theta, *family.keys.partial]

    # a setting that the text part has too does no harm, as transformers writes it in some classes
    values_of_part = [*part.values(), *_values_of(part, frozenset())]
    ignored = []
    for key in dict.fromkeys(names):
        value = config.get(key)
        values = value.values() if isinstance(value, dict) else [value]
        if value and not all(item in values_of_part for item in values):
            ignored.append(key)
    for key in family.keys.context:
        declared = config.get(key)
        if isinstance(declared, int) and declared > spec.context:
            ignored.append(key)
    if not ignored:
        return

    path = ".".join(text_path(config)) or "its text part"
    yield Problem(
        "outside-text",
        f"{' and '.join(ignored)} of config.json is outside {path}, from which the class of"
        f" model_type {shown(config.get('model_type'))} reads the RoPE: it has no effect, and some"
        f" classes of transformers then do not load the config; move it into {path} if the model"
        " was trained with it, else remove it",
    )


def _keys_used_and_ignored(
    part: Config, family: Family, spec: RopeSpec
) -> tuple[list[str], list[str]]:
    """Return the keys about RoPE that a class in transformers reads, and the keys that it ignores.

    The class of GPT-NeoX reads rotary_emb_base and ignores rope_theta. A config with both keys
    gives (["rotary_emb_base"], ["rope_theta"]). Ignored keys that do no harm are left out.

    Args:
        part: The part of config.json about the text model.
        family: The family of the model, which tells the class.
        spec: The RoPE that ropeconv read from the config.

    Returns:
        Two lists of keys, which are empty for a class whose keys are not known.
    """
    keys_of_class = class_keys().get(family.name)
    if keys_of_class is None:
        return [], []
    # for these scalings, every class reads original_max_position_embeddings at the top level
    # (modeling_rope_utils.py, standardize_rope_params)
    reads_original_context = isinstance(spec.form, (Yarn, Llama3, LongRope))
    values_read_by_class = _values_of(part, keys_of_class)
    used = []
    ignored = []
    for key, value in part.items():
        is_about_rope = ROPE_KEY.search(key) is not None
        if not is_about_rope:
            continue
        is_read_by_every_class = key == ORIGINAL and reads_original_context and bool(value)
        if key in keys_of_class or is_read_by_every_class:
            used.append(key)
            continue

        # an ignored key does no harm if it is empty, or if it agrees with the class
        if not value:
            continue
        if _agrees_with_class(key, value, family, spec, values_read_by_class):
            continue
        ignored.append(key)
    return used, ignored


def _agrees_with_class(
    key: str, value: object, family: Family, spec: RopeSpec, values_read_by_class: list[object]
) -> bool:
    """Whether a key that a class ignores has the value with which the class computes.

    The class of GPT-NeoX ignores rope_theta = 10000 beside rotary_emb_base = 10000: the model is
    the same without this key.

    Args:
        key: The ignored key.
        value: Its value.
        family: The family of the model.
        spec: The RoPE that ropeconv read from the config.
        values_read_by_class: The values of the keys that the class reads.
    """
    if not _is_value_in_spec(key, value, spec):
        return False
    # ropeconv may have read this key, and then `spec` agrees with it in any case. So the value must
    # also be in a key that the class reads.
    is_read_by_ropeconv = key in (*family.keys.theta, *family.keys.partial)
    if is_read_by_ropeconv:
        return value in values_read_by_class
    return True


def _values_of(part: Config, keys: frozenset[str]) -> list[object]:
    """Return the values of some keys of a config, and all values in its RoPE dictionaries."""
    values = [part[key] for key in keys if key in part]
    for name in ("rope_parameters", "rope_scaling"):
        rope = part.get(name)
        if not isinstance(rope, dict):
            continue
        values += rope.values()
        # rope_parameters may have a dictionary for each layer type
        for settings in rope.values():
            if isinstance(settings, dict):
                values += settings.values()
    return values


def _is_value_in_spec(key: str, value: object, spec: RopeSpec) -> bool:
    """Whether a key for the base, or for the share of dimensions that rotate, has its value."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    if SHARE_KEY.search(key):
        return value == spec.rotary_dim / spec.head_dim
    if "theta" in key or key.endswith("_base"):
        return value == spec.rope_theta
    return False


def _dual_chunk_key(config: Config, family: Family) -> Iterator[Problem]:
    """Yield the problem of dual_chunk_attention_config, a key of Qwen2.5-1M.

    Some runtimes apply it instead of RoPE. The message says what each runtime does with the key.
    """
    if not text_part(config, family).get(DUAL_CHUNK):
        return

    # The newest version of each runtime that reads the configs of this family. `runtimes()` has
    # older versions first, so that a newer version replaces an older one.
    newest_versions = {}
    for version in runtimes():
        # `without_config` returns a verdict if the version cannot read the config, and None if the
        # version reads it
        verdict = without_config(version, family, str(config.get("model_type")))
        reads_config = verdict is None
        if reads_config:
            newest_versions[version.name] = version

    clauses = [f"{DUAL_CHUNK} is ignored by transformers"]
    for version in newest_versions.values():
        # the data of a runtime may have a statement about the key
        key_and_statement = stated_key(config, family, version)
        if key_and_statement is not None:
            _, statement = key_and_statement
            clauses.append(f"{version.display_name}: {statement.reason}")
    message = "; ".join(clauses)
    yield Problem("dual-chunk", f"{message} (`ropeconv apply --dual-chunk drop` removes it)")


def _differing_schemas(config: Config, family: Family, states_key_twice: bool) -> Iterator[Problem]:
    """Yield the problem of a config from which two runtimes read different RoPE settings.

    A config may have both schemas, rope_scaling of transformers 4 and rope_parameters of
    transformers 5, and runtimes differ in which of them they prefer.

    Args:
        config: The content of config.json.
        family: The family of the model.
        states_key_twice: Whether the config has two values of one setting. Then no command can
            know the right one, and the problem has no repair.
    """
    # all versions of transformers, and a runtime that reads the schemas in the other order
    readers = {}
    for version in find("transformers"):
        if without_config(version, family) is None:
            readers[version.display_name] = version
    readers["a runtime that prefers rope_parameters"] = _prefers_new_schema()

    # the RoPE in words, by the reader that reads it; one that refuses the config reads none
    readings: dict[str, str] = {}
    for title, reader in readers.items():
        try:
            readings[title] = describe(read_spec(config, family, reader).form)
        except (UnknownRopeType, BadSource):
            continue
    if len(set(readings.values())) < 2:
        return

    # newer versions of transformers before older ones
    clauses = [f"{title} reads {form}" for title, form in readings.items()]
    clauses.reverse()
    message = f"runtimes read the settings differently: {'; '.join(clauses)}"
    if states_key_twice:
        advice = "write the values that it was trained with in both schemas"
        yield Problem("schemas", f"{message}; {advice}")
    else:
        # the repair, as options of `apply`, which writes both schemas with the same values
        yield Problem("schemas", message, "--as-is")


def _prefers_new_schema() -> Runtime:
    """A variant of transformers that prefers rope_parameters, as other runtimes do."""
    both: tuple[Literal["rope_parameters", "rope_scaling"], ...] = (
        "rope_parameters",
        "rope_scaling",
    )
    row = newest("transformers")
    rules = {
        name: msgspec.structs.replace(rule_set, schemas=both)
        for name, rule_set in row.rules.items()
    }
    return msgspec.structs.replace(row, rules=rules)


def limit_problems(
    limits: Iterable[LengthLimit], spec: RopeSpec, declared: Sequence[str], fix: str
) -> Iterator[Problem]:
    """Yield the problem of each limit in a file that is shorter than the context of the model.

    For instance model_max_length = 32768 in tokenizer_config.json, for a context of 131072: longer
    prompts are cut off.

    Args:
        limits: The limits in the files of a checkpoint.
        spec: The RoPE, with the declared context.
        declared: The keys of config.json that declare this context, and are not limits.
        fix: Options of `apply` that raise the limits.
    """
    for limit in limits:
        is_shorter = limit.tokens < spec.context
        is_context_itself = limit.declares(declared)
        if not is_shorter or is_context_itself:
            continue
        message = (
            f"{limit.file} has {limit.key} = {limit.tokens:,}, below the declared context of"
            f" {spec.context:,}: {limit.rule.effect}"
        )
        yield Problem(limit.rule.code, message, fix)


def gguf_problems(
    reading: Reading, file: GgufFile, vectors: Mapping[str, Vector]
) -> Iterator[Problem]:
    """Yield problems in the keys and rope tensors of a file.

    Args:
        reading: The RoPE that llama.cpp computes from it.
        file: The file.
        vectors: Its rope tensors, by name.
    """
    # keys that are missing, or that llama.cpp does not use
    spec = reading.spec
    form = spec.form
    arch = reading.arch
    prefix = f"{arch.name}.rope.scaling"
    scaling_type = file.get(f"{prefix}.type")
    if isinstance(form, Yarn) and file.get(f"{prefix}.original_context_length") is None:
        message = f"yarn without original_context_length: llama.cpp assumes {form.original_context}"
        yield Problem("original", message)
    if reading.dead:
        keys = ", ".join(reading.dead)
        yield Problem("dead-keys", f"llama.cpp ignores {keys} of {arch.name} here")

    # rope tensors, and keys that need them
    yield from _tensor_problems(reading, vectors, scaling_type)
    yield from _unreached_context(spec)
    if scaling_type == "longrope" and not isinstance(form, LongRope):
        message = "the type longrope has no effect without factor tensors that llama.cpp uses"
        yield Problem("no-factors", message)

    # llama.cpp has one attn_factor for all layers, also for those that the scaling leaves alone
    has_local_layers = "local" in spec.layers
    if has_local_layers and abs(reading.local_attention_factor - 1) > 1e-6:
        factor = f"{reading.local_attention_factor:.4f}"
        message = f"attn_factor also scales the sliding-window layers (by {factor})"
        yield Problem("window-attention-factor", message)

    # the trained context, where the family is known to declare another one
    family = by_name().get(arch.family)
    if family and not spec.scaled:
        yield from _doubtful_training(family, spec, {})


def _tensor_problems(
    reading: Reading, vectors: Mapping[str, Vector], scaling_type: str | None
) -> Iterator[Problem]:
    """Yield the problem of each rope tensor that llama.cpp does not load, or loads and ignores.

    Rope tensors have numbers by which frequencies are divided: rope_freqs.weight, or two lists for
    LongRoPE.

    Args:
        reading: The RoPE that llama.cpp computes from the file, with the architecture.
        vectors: The rope tensors of the file, by name.
        scaling_type: The value of rope.scaling.type; None without this key.
    """
    arch = reading.arch
    refused = refused_tensors(reading, vectors, scaling_type)
    for name in refused:
        yield Problem("refused-tensor", f"llama.cpp does not load a {arch.name} file with {name}")
    for name in vectors:
        if name in refused:
            continue
        # The table of architectures has a word, such as "ignored", for what the code of llama.cpp
        # does with rope_freqs.weight (`freqs`) and with the lists for LongRoPE (`factors`).
        use_by_llamacpp = arch.freqs if name == FREQS else arch.factors
        if use_by_llamacpp == "ignored":
            yield Problem("ignored-tensor", f"llama.cpp loads {name} and ignores it in {arch.name}")


def _unreached_context(spec: RopeSpec) -> Iterator[Problem]:
    """Yield the problem of a scaling whose factor does not lead to the declared context.

    For instance context_length = 65536, with a factor of 4 over 32768 tokens, which is 131072.
    """
    reach = spec.covered_context
    if reach and reach != spec.context:
        message = (
            f"declares context_length {spec.context}, but factor x original is {reach}: servers"
            " use the former"
        )
        yield Problem("context", message)


def ramp_problems(reading: Reading, file: GgufFile, receipt: Receipt | None) -> Iterator[Problem]:
    """Yield the problem of a YaRN model for which llama.cpp computes other frequencies.

    YaRN blends interpolated and original frequencies between two dimensions, the ends of a ramp.
    They follow from beta_fast and beta_slow, for which llama.cpp has fixed values in most
    architectures.

    Args:
        reading: The RoPE that llama.cpp computes from the file.
        file: The file.
        receipt: The receipt of a file that ropeconv has written; None for other files.
    """
    spec = reading.spec
    form = spec.form
    arch = reading.arch
    if not isinstance(form, Yarn):
        return
    # a file of ropeconv: the receipt records how far the frequencies of llama.cpp are from YaRN's
    if receipt is not None and receipt.ramp_approximation is not None:
        distance = receipt.ramp_approximation.distance
        yield Problem(
            "approximate", f"llama.cpp computes another ramp of YaRN than the model has: {distance}"
        )
        return

    # another file: compare the frequencies with which the model was trained and those of llama.cpp
    trained_form = trained_yarn(form, file, arch, receipt)
    trained_inv_freq = trained_form.inv_freq(spec.rotary_dim)
    trained_schedule = replace(spec.current(), form=trained_form, inv_freq=trained_inv_freq)
    approximation = llamacpp_ramp(trained_schedule, arch)
    if approximation is None:  # llama.cpp computes the same frequencies
        return

    # gpt-oss does not round the ends of the ramp (`truncate`); other models have other betas
    what_llamacpp_does = why_other_ramp(trained_form, arch)  # "always rounds the ends of the ramp"
    if form.truncate != trained_form.truncate:
        what_model_has = f"published {arch.name} models have other ends"
    else:
        what_model_has = "the header has others"
    yield Problem(
        "approximate",
        f"llama.cpp {what_llamacpp_does}, and {what_model_has}: {approximation.distance}",
    )


def trained_yarn(form: Yarn, file: GgufFile, arch: Arch, receipt: Receipt | None) -> Yarn:
    """Return the YaRN scaling that a model was trained with, which llama.cpp may not compute.

    The trained scaling can have other values for beta_fast and beta_slow, which say where the ramp
    of YaRN begins and ends. It can also leave the ends unrounded (`truncate` is False).

    Args:
        form: The scaling that llama.cpp computes, which always rounds the ends.
        file: The file. The header can have keys that llama.cpp does not read.
        arch: The architecture of the file.
        receipt: The receipt of a file that ropeconv has written; None for other files.
    """
    # gpt-oss: GGUF has no key for `truncate`, but all published models of the family have the
    # scaling {"factor": 32.0, "original_max_position_embeddings": 4096, "truncate": False}. A file
    # with this factor and length has it too, unless ropeconv has extended the file.
    is_extended = receipt is not None and receipt.method != "as-is"
    family = by_name().get(arch.family)
    if family is not None and family.defaults.scaling and not is_extended:
        published = family.defaults.scaling
        has_its_factor = published.get("factor") == form.factor
        has_its_length = published.get("original_max_position_embeddings") == form.original_context
        is_published_model = has_its_factor and has_its_length
        if is_published_model and published.get("truncate") is False:
            return replace(form, truncate=False)

    # architectures for which llama.cpp reads the betas: `form` has the values of the file
    if arch.betas:
        return form
    # other architectures: read the betas, and keep those of llama.cpp for keys that are missing
    prefix = f"{arch.name}.rope.scaling.yarn_beta_"
    fast = file.get(f"{prefix}fast")
    if not isinstance(fast, float) or fast <= 0:
        fast = form.beta_fast
    slow = file.get(f"{prefix}slow")
    if not isinstance(slow, float) or not 0 < slow <= fast:
        slow = form.beta_slow
    return replace(form, beta_fast=fast, beta_slow=slow)


def _doubtful_training(family: Family, spec: RopeSpec, part: Config) -> Iterator[Problem]:
    """Yield the problem of a model that may have been trained with less context than it declares.

    Qwen2-7B was trained with 32,768 tokens and declares 131,072. Other models of its family declare
    the same, and were trained with them. A family lists such models: `known.declared` and
    `known.trained` are the two lengths, and `known.doubt` other keys of config.json with the values
    that these models have. Without `doubt` the trained length is certain.

    Args:
        family: The family, which lists such models.
        spec: The RoPE of the model.
        part: The part of config.json about the text model; empty for a GGUF file.
    """
    for known in family.trained:
        if known.doubt is None:
            continue
        declares_the_same = known.declared == spec.context
        states_trained_length = known.trained == spec.original_context
        if not declares_the_same or states_trained_length:
            continue
        is_such_a_model = all(part.get(key) == value for key, value in known.doubt.items())
        if is_such_a_model:
            yield Problem(
                "trained",
                f"declares {known.declared:,} tokens and may have been trained with"
                f" {known.trained:,} ({known.source}); if so, pass --original-context"
                f" {known.trained}",
            )


def stale_tensors(source: Source) -> Iterator[Problem]:
    """Yield the problem of stored frequencies, which transformers ignores from 4.32 on."""
    names = source.tensor_names() or ()
    stale = [name for name in names if name.endswith("rotary_emb.inv_freq")]
    if stale:
        stored = f"{counted(len(stale), 'stored inv_freq tensor')} ({stale[0]})"
        yield Problem("stale-inv-freq", f"{stored}: stock transformers ignores them")


def refused_tensors(
    reading: Reading, vectors: Mapping[str, Vector], scaling: str | None
) -> tuple[str, ...]:
    """Return the rope tensors of a GGUF file that make llama.cpp refuse the file.

    llama.cpp refuses a file with a tensor that the code of its architecture does not load.

    Args:
        reading: The RoPE that llama.cpp computes from the file, with the architecture.
        vectors: The rope tensors of the file, by name.
        scaling: The value of rope.scaling.type; None without this key.
    """
    # the two lists for LongRoPE (LONG and SHORT); `arch.factors` says when llama.cpp loads them
    arch = reading.arch
    loads_always = arch.factors in ("always", "ignored")  # "ignored": loaded, but not used
    loads_for_longrope = arch.factors == "longrope" and scaling == "longrope"
    loads_lists = loads_always or loads_for_longrope
    # rope_freqs.weight (FREQS), which llama.cpp loads unless it has loaded the lists instead
    loads_freqs = bool(arch.freqs) and not loads_for_longrope
    is_loaded = {LONG: loads_lists, SHORT: loads_lists, FREQS: loads_freqs}
    return tuple(name for name in vectors if not is_loaded[name])


DRAFT_PART = re.compile(r"(^|\.)(mtp|draft|eagle|medusa|midlayer)")
"""Names of tensors in the layers of a checkpoint that draft for another model."""


def draft_of(source: Source, config: Config) -> DraftKind | None:
    """Return the kind of draft model that a checkpoint is; None for a whole model.

    Draft models guess tokens for a larger one in speculative decoding. If the tensors cannot be
    listed without downloads, only the config and the name of the checkpoint count.

    Raises:
        BadSource: It is a draft model where the caller expects a whole model (`source.as_draft` is
            not set), or one that cannot be extended (`kind.refuse` says why, and what to do).
    """
    # some heads are only known by their tensors: their config.json is that of a whole model
    names: Collection[str] = ()
    if not source.treat_as and source.weights():
        names = source.tensor_names() or ()
    kind = draft_kind(config, names, source.name)
    if kind is None:
        return None
    if source.as_draft and not kind.refuse:
        return kind

    fix = kind.refuse
    if not fix:
        command = command_line("apply", "TARGET", "--yarn", 4, "--draft", source.reference)
        fix = f"extend it with its target: {command}"
    raise BadSource(
        f"{source.reference} is {kind.says} for speculative decoding, not a whole model; {fix}"
    )


def check_weights(source: Source, family: Family, layers: int) -> None:
    """Check that some layer of a checkpoint has the projections of its family.

    If its tensors cannot be listed without downloads, nothing is checked.

    Args:
        source: The checkpoint.
        family: The family that it is of by its config, or by an option.
        layers: How many layers it has.

    Raises:
        BadSource: No layer has them.
    """
    names = source.tensor_names() if source.weights() else None
    if not names:
        return
    weights = family.weights
    projections = [name for name in (weights.fused, weights.q, weights.k) if name]
    if not projections:
        return

    # a model that the user treats as another family must have all names of that family
    if family.assumed:
        absent = _absent_projection(set(names), family, projections, layers)
        if absent:
            raise BadSource(
                f"{source.reference} has no {absent} in its layers, which makes queries and keys in"
                f" the family {family.name}; name another --family"
            )
        return

    if not _have_projections(names, family, projections, layers):
        raise BadSource(
            f"{source.reference} has the config of a {family.name} model, but none of its {layers}"
            f" layers has {projections[0]}; if it holds only layers that draft for another model,"
            " extend that model"
        )


def _have_projections(
    names: Iterable[str], family: Family, projections: Sequence[str], layers: int
) -> bool:
    """Whether some tensor is a projection of a layer of the model itself.

    Args:
        names: The names of all tensors of the checkpoint.
        family: The family of the model, which knows the names of its layers.
        projections: The names of its projections in a layer, such as `self_attn.q_proj`.
        layers: The number of layers.
    """
    # Only the middle of a name is compared, such as ".layers.0.self_attn.q_proj." of
    # "model.layers.0.self_attn.q_proj.weight". In a multimodal model names begin otherwise
    # ("language_model.model.layers..."), and in a quantised one they end otherwise ("...qweight").
    middles = []
    for index in range(layers):
        for prefix in layer_prefixes(index, family):  # such as "model.layers.0."
            _, _, without_root = prefix.partition(".")  # "layers.0."
            layer_name = without_root or prefix
            middles += [f".{layer_name}{projection}." for projection in projections]

    # a dot is put before a name, so that one that begins with the layer is found too
    for name in names:
        is_of_draft = DRAFT_PART.search(name) is not None
        if is_of_draft:
            continue
        if any(middle in f".{name}" for middle in middles):
            return True
    return False


def _absent_projection(
    names: set[str], family: Family, projections: Sequence[str], layers: int
) -> str:
    """Return the first projection that a checkpoint lacks in a layer; empty where it has all.

    Args:
        names: The names of all tensors of the checkpoint.
        family: The family of the model, which knows the names of its layers.
        projections: The names of its projections in a layer, such as `self_attn.q_proj`.
        layers: The number of layers.
    """
    # the first layer with attention stands for all
    for index in range(layers):
        prefix = layer_prefix(index, family, names)
        has_attention = bool(prefix)
        if not has_attention:
            continue
        absent = [name for name in projections if f"{prefix}{name}.weight" not in names]
        return absent[0] if absent else ""
    # no layer has attention, so all projections are absent
    return projections[0]
