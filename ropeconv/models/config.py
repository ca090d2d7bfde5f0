"""Reads a config.json by the rules of its family: the text part, widths, and which layers rotate.

Read `detect` first, then `geometry`. `part` is the text part of a config throughout.
"""

import copy
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from ..errors import BadSource, UnknownModelType
from ..rope.errors import counted, shown
from ..rope.forms import Plain
from ..rope.spec import WIDEST_HEAD, RopeSpec
from .family import Family, Kind
from .layers import (
    key_layers,
    kinds_of,
    layer_kinds,
    layer_names,
    layer_windows,
    own_settings,
    settings_name,
)
from .parts import VOCABULARY, KeyPath, Part, other_parts, text_candidates, text_path
from .registry import (
    Shapes,
    assumed_family,
    assumption,
    by_model_type,
    config_keys,
    null_meaning,
    refused_types,
    suggestion,
)
from .schema import (
    ADVICE_FOR_IMAGE_MODELS,
    LAYER_SHARES,
    Config,
    check_config,
    first_present,
    is_null,
    positive_int,
    text_config,
)
from .unread_keys import unread_rope_keys, unread_sizes
from .wrappers import wrapper_types

STORED_ROPE = "_stored_rope"
"""The end of the model types of checkpoints that bring their rotary code."""


def detect(config: Config, assumed: str = "", shapes: Callable[[], Shapes] = dict) -> Family:
    """Return the family of a config.json, such as "llama" or "qwen2_moe", and check its keys.

    Args:
        config: The whole config.json.
        assumed: The family that the user has named with `--family`; "" to use `model_type`.
        shapes: Returns the shapes of the model's tensors by name, to suggest a family if the
            `model_type` is not known.

    Raises:
        UnknownModelType: No family has this `model_type`.
        BadSource: The config has no `model_type`, the model cannot be extended, or a key has a
            value of another type or out of range.
        UsageError: The family that the user has named is not known.
    """
    # the family
    if assumed:
        # `--family` does not make a language model out of an image encoder
        has_known_type = config.get("model_type") in by_model_type()
        if text_config(config) is None and not has_known_type:
            _check_has_text_model(config)
        family = assumed_family(config, assumed)
    else:
        family = _by_model_type(config, shapes)

    # the types and ranges of the values
    parts = text_parts(config, family)
    check_config(config, parts, family)

    # whether the class in transformers reads these keys, and whether the family can be extended
    # with these values; a family that is never extended (`refuse`) need not be checked
    can_be_extended = not family.refuse or family.gguf_only
    if can_be_extended:
        _check_keys_are_in_text_part(config)
        for part in parts:
            _check_names_of_sizes(part, family)
            refusal = family.hooks.refusal(part)  # a sentence, or "" for a good config
            if refusal:
                raise BadSource(refusal)

    # models of one family that have different architectures in GGUF
    first_part = parts[0]
    gguf_kind = family.hooks.gguf_kind(first_part)  # "" for most families
    if gguf_kind:
        family = msgspec.structs.replace(family, gguf=family.gguf_kinds[gguf_kind])

    # a decoder that is used as an encoder, such as EmbeddingGemma
    if not family.encoder and reads_both_directions(config, first_part, family):
        family = msgspec.structs.replace(family, encoder=True)
    return family


def reads_both_directions(config: Config, part: Config, family: Family) -> bool:
    """Whether a config switches the causal mask off, so that tokens attend to later ones too.

    A decoder such as Gemma 3 then is an encoder, for embeddings.

    Args:
        config: The whole config.json.
        part: Its text part.
        family: The family of that part.
    """
    # transformers obeys is_causal = false in all its classes (masking_utils.py,
    # create_causal_mask), and vLLM in those of Llama, Qwen 2 and others
    if part.get("is_causal") is False:
        return True

    # EmbeddingGemma is a Gemma 3 with this key; classes that do not read it ignore it
    key = "use_bidirectional_attention"
    if key not in config_keys().get(family.name, ()):
        return False
    # PaliGemma has the key too, around a Gemma that writes text: there only the prompt is read in
    # both directions
    is_wrapped = part is not config
    if is_wrapped:
        return False
    return part.get(key) in (True, "all")


def _by_model_type(config: Config, shapes: Callable[[], Shapes]) -> Family:
    """Return the family of a config by its `model_type`, or raise an error that says what is wrong.

    Args:
        config: The whole config.json.
        shapes: Returns the shapes of the tensors by name, for advice on an unknown model.

    Raises:
        BadSource: For a model type that is known not to work, or that is absent.
        UnknownModelType: For another one without a family.
    """
    # The text model decides, and the model around it only where that is not known: with
    # {"model_type": "llava", "text_config": {"model_type": "llama"}} it is llama.
    text = text_config(config)
    parts = [config]
    if text is not None:
        parts = [text, config]
    type_names = [part.get("model_type") for part in parts]
    for type_name in type_names:
        if isinstance(type_name, str) and type_name in by_model_type():
            family = by_model_type()[type_name]
            _check_rotates(parts[0], family)
            return family

    # none is known: say which kind of model it is, as far as that can be seen, by the type of the
    # whole config
    model_type = config.get("model_type")
    if text is None:
        _check_one_text_model(config)
    if "_class_name" in config:  # beside a model_type such as t2v in the repositories of Wan
        raise BadSource(
            f"config.json is of {shown(config['_class_name'])} in diffusers;"
            f" {ADVICE_FOR_IMAGE_MODELS}"
        )
    if model_type is None:
        raise BadSource(
            "config.json has no model_type, so its architecture is unknown; add model_type"
        )
    if isinstance(model_type, str) and model_type.endswith(STORED_ROPE):
        raise BadSource(
            f"model_type {shown(model_type)} is an output of ropeconv that stores its RoPE in"
            " tensors and custom code; recreate its source with `ropeconv restore`, or bake"
            " another method with `apply --replace`"
        )

    # types that are known not to work, each with the reason
    for type_name in type_names:
        if not isinstance(type_name, str) or type_name not in refused_types():
            continue
        reason = refused_types()[type_name]
        # a stock class without RoPE, and a config that turns RoPE on in the model's own code
        switch = _rotary_switch(parts)  # e.g. "attn_config.rope = true"
        if switch and reason.startswith("does not use rotary"):
            reason = (
                f"has no rotary position embeddings in its stock class, and {switch} is read"
                " only by the model's own code, so nothing can be baked for stock runtimes"
            )
        raise BadSource(f"model_type {shown(type_name)} {reason}")
    if text is None:
        _check_has_text_model(config)
    advice = suggestion(config, shapes())
    raise UnknownModelType(f"model_type {shown(model_type)} is not supported; {advice}")


def _check_has_text_model(config: Config) -> None:
    """Raise BadSource for a config that has no text model, by its model_type.

    It may be of a multimodal model, such as LLaVA, without the text_config that its class reads. Or
    it is of a tower for images or sounds (clip_vision_model).
    """
    name = config.get("model_type")
    if isinstance(name, str) and name in wrapper_types():
        text_path = wrapper_types()[name].path
        if first_present(config, (text_path,)) is None:
            raise _text_model_is_absent(name, text_path)

    words = set(str(name).lower().split("_"))
    is_tower = bool(TOWER_WORDS & words)
    has_vocabulary = any(key in config for key in VOCABULARY)
    if is_tower and not has_vocabulary:
        raise BadSource(
            f"model_type {shown(name)} is of a tower for images or sounds, and has no text context"
            " to extend"
        )


def _check_keys_are_in_text_part(config: Config) -> None:
    """Raise BadSource if a config has the keys of a text model in a place that its class ignores.

    The class of step3p7 reads only text_config. Tools that flatten configs write its keys at the
    top, and transformers then computes its defaults.
    """
    name = config.get("model_type")
    wrapper = wrapper_types().get(name) if isinstance(name, str) else None
    if wrapper is None or wrapper.flat:
        return
    states_sizes = sum(key in config for key in ("hidden_size", "num_hidden_layers")) > 0
    if states_sizes and first_present(config, (wrapper.path,)) is None:
        raise _text_model_is_absent(str(name), wrapper.path)


def _text_model_is_absent(name: str, path: str) -> BadSource:
    """The error for a config whose class reads a text model from an object that is not there."""
    return BadSource(
        f"the class of model_type {shown(name)} reads a text model from {path}, which config.json"
        " does not have, so that it computes its defaults; give a checkpoint of the stock layout"
    )


TOWER_WORDS = frozenset({"vision", "visual", "vit", "audio", "speech"})
"""Words in the model types of towers."""


def _check_one_text_model(config: Config) -> None:
    """Raise BadSource for a config with several parts, any of which may be its language model."""
    candidates = text_candidates(config)
    if len(candidates) > 1:
        names = " and ".join(part.name for part in candidates)
        raise BadSource(
            f"config.json has several parts that look like its language model ({names}), and none"
            " is in text_config; give one of them as a checkpoint of its own"
        )


ROTARY_SWITCHES = ("attn_config.rope", "rope", "use_rope", "position_embedding_type")
"""Keys that say that a model rotates, in types whose stock class does not (MPT)."""
ROTARY_NUMBERS = ("rotary_emb_fraction", "rotary_emb_base")
"""Likewise with a number above 0, as code with flash-attn's layers has it (BERT, GPT-2)."""


def _rotary_switch(parts: Sequence[Config]) -> str:
    """The key and value that say that a model rotates, as `attn_config.rope = true`; or empty."""
    for part in parts:
        for key in ROTARY_SWITCHES:
            value = first_present(part, (key,))
            if value is True or value in ("rope", "rotary"):
                return f"{key} = {shown(value)}"
        for key in ROTARY_NUMBERS:
            value = part.get(key)
            if isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0:
                return f"{key} = {shown(value)}"
    return ""


def _check_rotates(part: Config, family: Family) -> None:
    """Raise BadSource for a config that switches rotary embeddings off.

    Falcon has alibi = true for that, and Granite Hybrid no position_embedding_type = "rope".
    """
    for need in family.rotates:
        value = first_present(part, (need.key,), need.default)
        if value != need.value:
            raise BadSource(
                f"this {family.name} config has {need.key} = {shown(value)}, so it does not use"
                " rotary position embeddings and cannot be extended"
            )
    # DeepSeek-VL2-tiny, whose own code builds plain attention then (use_mla in its
    # modeling_deepseek.py); the stock class has none
    if family.mla and part.get("qk_rope_head_dim") == 0:
        raise BadSource(
            f"this {family.name} config has qk_rope_head_dim = 0, so it has no latent attention,"
            " which only the custom code of the model computes; convert it to a stock architecture"
            " first"
        )


def text_part(config: Config, family: Family) -> Config:
    """The dictionary with the keys of the language model.

    It is the config itself, the part of a model around it (`text_config`), or that of its decoder.
    """
    return text_parts(config, family)[0]


def text_parts(config: Config, family: Family) -> list[Config]:
    """Return the parts of a config.json with the keys of a language model: one, or several.

    A model such as T5Gemma has several, an encoder and a decoder (`Family.halves`). Others have
    one: the text part of a model around it (LLaVA over Llama, Mistral 3 over Mistral) where that is
    of this family, and otherwise the config itself.

    Raises:
        BadSource: Where a half is absent.
    """
    if family.halves:
        return [_half(config, path) for path in family.halves]
    inner = text_config(config)
    if inner is None:
        return [config]
    # a text part may leave its type out, and then has that of the whole
    model_type = inner.get("model_type", config.get("model_type"))
    if model_type in family.model_types:
        return [inner]
    return [config]


def text_paths(config: Config) -> list[KeyPath]:
    """Return the keys of the language models in a config, () for a config that is one itself.

    There is one, such as ("text_config",), or the two of an encoder-decoder model.
    """
    family = by_model_type().get(str(config.get("model_type")))
    if family is not None and family.halves:
        return [tuple(path.split(".")) for path in family.halves]
    return [text_path(config)]


def halves(config: Config, family: Family) -> Iterator[tuple[str, Config]]:
    """Yield the further halves of an encoder-decoder model by key, each at the top of a config."""
    for path in family.halves[1:]:
        whole = copy.deepcopy(config)
        text_part(whole, family).update(_half(config, path))
        yield path, whole


def _half(config: Config, path: str) -> Config:
    """The config of a half, whose keys `path` joins by dots. Raises BadSource without one."""
    half = first_present(config, (path,))
    if not isinstance(half, dict):
        raise BadSource(f"config.json has no {path}; add it, or give the folder of the whole model")
    return half


def geometry(config: Config, family: Family) -> RopeSpec:
    """Return the sizes of a model on which its RoPE depends; the RoPE settings are not read yet.

    They are the widths of heads, the context, the layers and their windows. The form of the RoPE is
    still the unscaled one with the base of the model's class.

    Raises:
        BadSource: When a needed key is absent or not a number.
        ImpossibleSize: As RopeSpec.
    """
    part = text_part(config, family)
    keys = family.keys
    defaults = family.defaults
    notes = []
    if family.assumed or family.derived:
        notes.append(assumption(family))

    # a layer of a few families has several blocks with attention
    declared_layers = positive_int(part, keys.layers, defaults.layers) or 0
    kinds = layer_kinds(part, family, declared_layers * family.layers.blocks)

    # the width of a head: that of the first extended layer where the config has settings for single
    # layers, else that of the model, else hidden size / heads
    head_dim = None
    if "global" in kinds:
        first_extended = kinds.index("global")
        layer_settings = own_settings(part).get(first_extended, {})
        head_dim = positive_int(layer_settings, ("head_dim",))
    if head_dim is None:
        _check_null(part, family, keys.head_dim)
        head_dim = positive_int(part, keys.head_dim)
    if head_dim is None:
        head_dim = _head_dim(part, family)
        notes.append(f"head_dim is absent: {head_dim}")

    context = positive_int(part, keys.context)
    if context is None:
        null_keys = [key for key in keys.context if key in part]
        if null_keys:
            raise BadSource(f"config.json has {null_keys[0]} = null; write a number there")
        if defaults.context is None:
            raise BadSource(f"config.json has no {keys.context[0]}; add it")
        context = defaults.context
        notes.append(f"{keys.context[0]} is absent: the class default {context} holds")

    rotary_dim = _rotary_dim(part, family, head_dim)
    local_width = local_head_dim(part, family, head_dim)
    local_rotary_dim = _rotary_dim(part, family, local_width, "local")
    if local_rotary_dim == rotary_dim:
        local_rotary_dim = 0  # as in the other layers
    return RopeSpec(
        head_dim=head_dim,
        rotary_dim=rotary_dim,
        form=Plain(defaults.theta),
        original_context=context,
        context=context,
        layers=kinds,
        windows=layer_windows(part, family, kinds),
        chunked=family.window.chunked,
        local_rotary_dim=local_rotary_dim,
        layout=family.layout,
        mla=family.mla,
        nope_query_scaling=family.hooks.nope_query_scaling(part),
        notes=tuple(notes),
    )


def local_head_dim(part: Config, family: Family, head_dim: int) -> int:
    """Return the width of a head in local layers; `head_dim` is the width in global layers."""
    width = positive_int(part, family.keys.local_head_dim, family.defaults.local_head_dim)
    return width or head_dim


def _check_names_of_sizes(part: Config, family: Family) -> None:
    """Raise BadSource if a config has key names that the class in transformers does not read.

    An example is the first NomicBERT, which has its own code and the key n_embd. The class in
    transformers 5 reads hidden_size, and ignores the size of the model in n_embd.
    """
    unread_keys = unread_sizes(part, family, ("hidden", "heads", "layers"))  # e.g. ["n_embd"]
    if not unread_keys:
        return
    unread_keys = list(dict.fromkeys(unread_keys + unread_rope_keys(part, family)))  # each once
    ignored = ", ".join(unread_keys)
    keys = family.keys
    raise BadSource(
        f"config.json has the keys of the model's own code ({ignored}), and the stock {family.name}"
        f" class reads {keys.hidden[0]}, {keys.heads[0]} and {keys.layers[0]} and ignores them, so"
        " that it computes its defaults; give a checkpoint of the stock layout"
    )


def _check_null(part: Config, family: Family, keys: Iterable[str]) -> None:
    """Raise BadSource if one of some keys is null, and the class in transformers fails on that."""
    for key in keys:
        if is_null(part, key) and null_meaning(family, key) == "refused":
            raise BadSource(
                f"config.json has {key} = null, on which the {family.name} class in transformers"
                " fails; write a number there, or leave the key out for the default of the class"
            )


def _is_unset(part: Config, family: Family, keys: Iterable[str]) -> bool:
    """Whether one of some keys is null, and the class then computes without its default."""
    return any(is_null(part, key) and null_meaning(family, key) == "unset" for key in keys)


def _head_dim(part: Config, family: Family) -> int:
    """Return the width of a head for a config that does not state it: hidden size / heads."""
    keys = family.keys
    defaults = family.defaults
    if defaults.head_dim is not None and not _is_unset(part, family, keys.head_dim):
        return defaults.head_dim

    hidden = positive_int(part, keys.hidden, defaults.hidden)
    heads = positive_int(part, keys.heads, defaults.heads)
    if hidden is None or heads is None:
        raise BadSource(
            f"config.json needs head_dim, or {keys.hidden[0]} and {keys.heads[0]}; add them"
        )
    if hidden < heads:
        raise BadSource(
            f"config.json has {keys.hidden[0]} = {hidden}, less than its {counted(heads, 'head')};"
            " correct it"
        )

    width = family.hooks.head_dim(hidden, heads)
    if width > WIDEST_HEAD:
        raise BadSource(
            f"config.json has {keys.hidden[0]} = {hidden} for {counted(heads, 'head')}, which makes"
            f" heads of {width:,} dimensions, and published models have up to 576; correct it"
        )
    return width


def rotary_share(part: Config, family: Family, kind: Kind = "global") -> Any:
    """Return the share of a head's dimensions that rotates, such as 0.5 for half of them.

    It is in the RoPE dictionary, in a list with a share for each layer, or at the top level of the
    config. The first of these places counts. Without any, it is the default of the class.

    Args:
        part: The text part of the config.
        family: The family of the model.
        kind: "global" for the layers whose context is extended, "local" for layers that keep
            frequencies of their own, such as Gemma 3's layers with a window.
    """
    # the default of the class, which Step 3.5 has twice, for its global and its local layers
    defaults = family.defaults
    default_share = defaults.partial_rotary_factor
    if kind == "local" and defaults.local_partial is not None:
        default_share = defaults.local_partial
    keys = family.keys.partial  # the names of the key at the top level
    if not keys:  # the class has no such key
        return default_share

    # a share that is null is an error in some classes, and the whole head in others
    _check_null(part, family, keys)
    if _is_unset(part, family, keys):
        default_share = 1.0

    # 1. The RoPE dictionary: rope_scaling, to which transformers adds the share of the top level
    # (configuration_utils.py), or rope_parameters. A family with one dictionary for each kind of
    # layers (`nested`) has them in rope_parameters.
    share_at_top = first_present(part, keys)
    uses_rope_scaling = not family.writing.nested and bool(part.get("rope_scaling"))
    if uses_rope_scaling:
        settings = {"partial_rotary_factor": share_at_top, **part["rope_scaling"]}
    else:
        settings = nested_settings(part, family, kind)
    share_in_dictionary = settings.get("partial_rotary_factor")
    if share_in_dictionary is not None:
        return share_in_dictionary

    # Laguna has another default if the config has a dictionary without the share
    has_dictionary = bool(settings)
    if has_dictionary and defaults.unstated_partial is not None:
        default_share = defaults.unstated_partial

    # 2. The list, in which all layers of a kind have the same share
    share_by_layer = part.get(LAYER_SHARES)
    if share_by_layer:
        kind_by_layer = kinds_of(part, family, layer_names(part, family, len(share_by_layer)))
        for share, layer_kind in zip(share_by_layer, kind_by_layer, strict=False):
            if layer_kind == kind:
                return share
        return default_share

    # 3. The top level
    return default_share if share_at_top is None else share_at_top


def _states_share(part: Config, family: Family, kind: Kind) -> bool:
    """Whether a config states the share of a head that rotates, by a key that its class reads."""
    if not family.keys.partial:
        return False
    settings = nested_settings(part, family, kind)
    if settings.get("partial_rotary_factor") is not None:
        return True
    return first_present(part, family.keys.partial) is not None


def nested_settings(part: Config, family: Family, kind: Kind) -> Config:
    """The `rope_parameters` of a kind of layers, empty where there are none."""
    new = part.get("rope_parameters")
    if family.writing.nested and isinstance(new, dict):
        new = new.get(settings_name(part, family, kind))
    return new if isinstance(new, dict) else {}


def _rotary_dim(part: Config, family: Family, head_dim: int, kind: Kind = "global") -> int:
    """Return how many dimensions of a head rotate, in "global" or in "local" layers.

    A config has the number (rotary_dim = 64), or a share of the head (partial_rotary_factor = 0.5).
    """
    rotary_dim = positive_int(part, family.keys.rotary_dim)
    # a class that has both, MiniMax M2 and M3, obeys the share (configuration_minimax_m2.py)
    if rotary_dim is None or _states_share(part, family, kind):
        share = rotary_share(part, family, kind)
        is_number = isinstance(share, (int, float)) and not isinstance(share, bool)
        if not is_number or not 0 < share <= 1:
            raise BadSource(
                f"config.json has a partial rotary factor of {shown(share)}; write a number above 0"
                " and up to 1"
            )
        rotary_dim = int(head_dim * share)
        if rotary_dim < 2:
            raise BadSource(
                f"config.json rotates {rotary_dim} of {head_dim} dimensions; nothing can be"
                " extended"
            )

    if rotary_dim % 2:
        raise BadSource(
            f"config.json rotates {rotary_dim} of {head_dim} dimensions, which rotate in pairs;"
            " correct it"
        )
    if rotary_dim > head_dim:
        raise BadSource(
            f"config.json rotates {rotary_dim} dimensions of heads that have {head_dim}; correct it"
        )

    return rotary_dim


def modality_note(config: Config, sections: Sequence[int]) -> str:
    """Return a note for a multimodal model: which parts no method changes, and its M-RoPE.

    Args:
        config: The whole config.json.
        sections: The mrope_section, how many rotated pairs turn by time, height and width; empty
            for a model without M-RoPE.
    """
    others = [_describe_part(part) for part in other_parts(config)]
    notes = []
    if others:
        # Towers have position embeddings of their own, over patches or frames: the
        # two-dimensional RoPE of Qwen2.5-VL is Qwen2_5_VisionRotaryEmbedding in transformers
        # (models/qwen2_5_vl/modeling_qwen2_5_vl.py)
        unchanged = "they are" if len(others) > 1 else "it is"
        notes.append(f"methods leave {' and '.join(others)} as {unchanged}")
    if sections:
        pairs = ", ".join(map(str, sections))
        notes.append(f"time, height and width (mrope_section {pairs}) share the scaled frequencies")
    return "; ".join(notes)


def _describe_part(part: Part) -> str:
    """The name of a part beside the language model, with the base of its own RoPE if it has one."""
    inner = text_config(part.config) or part.config
    base = first_present(inner, PART_BASES)
    if isinstance(base, (int, float)) and not isinstance(base, bool):
        return f"{part.name} (its own RoPE, theta {base:.9g})"
    return part.name


PART_BASES = ("rope_theta", "rope_parameters.rope_theta", "rope_scaling.rope_theta")
"""Where parts beside the language model have the base of their RoPE."""

STATES = ("linear_attention", "conv", "mamba", "recurrent")
"""Layer types that keep a state of fixed size instead of keys and values."""
LATENT_RANK = 512
"""The default of transformers' classes for the width of what multi-head latent attention keeps."""
INDEX_WIDTH = 128
"""The default of transformers' classes for the width of an indexer's keys."""


@dataclass(frozen=True)
class CachedLayers:
    """Layers that keep the same in the key-value cache."""

    count: int
    """How many layers."""

    keys: int
    """Numbers of keys that one of them keeps per token."""

    values: int
    """Numbers of values that one of them keeps per token."""

    window: int | None = None
    """How many tokens a layer keeps at most; None for the whole context."""


def cached_layers(config: Config, family: Family) -> tuple[tuple[CachedLayers, ...], int] | None:
    """Return which layers of a model cache keys and values, in groups of equal layers.

    Llama 3 8B has 32 layers with 8 heads of 128 dimensions, which gives
    ((CachedLayers(count=32, keys=1024, values=1024),), 0).

    Returns:
        The groups, and the number of layers with a state of fixed size (Mamba, linear attention).
        None for a model without a cache, and for a config without the number of heads.
    """
    part = text_part(config, family)
    sizes = geometry(config, family)
    heads = positive_int(part, family.keys.heads, family.defaults.heads)
    if heads is None or family.encoder or not family.cache.per_token:
        return None

    # The sizes of the keys and the values that a layer caches for a token. DeepSeek V3 (multi-head
    # latent attention) caches a latent vector, and the part of the keys that rotates.
    if family.mla:
        latent_width = positive_int(part, ("kv_lora_rank",), LATENT_RANK) or 0
        sizes_of_global = (latent_width, sizes.head_dim)
        sizes_of_local = sizes_of_global
    else:
        sizes_of_global = _numbers_per_token(part, family, sizes, "global", heads)
        sizes_of_local = _numbers_per_token(part, family, sizes, "local", heads)

    # what differs by layer: its type, the layer whose keys it uses, the size of an indexer's keys
    # (0 without an indexer), and the number of key heads (None if all layers have the same number)
    layer_count = len(sizes.layers)
    layer_types = layer_names(part, family, layer_count)
    layers_of_keys = key_layers(part, family, layer_count)
    index_widths = _index_widths(part, family, layer_count)
    key_heads = family.hooks.kv_heads_by_layer(part, heads)

    # count the layers with equal caches
    counts: Counter[CachedLayers] = Counter()
    layers_with_state = 0
    for layer, (layer_type, window) in enumerate(zip(layer_types, sizes.windows, strict=False)):
        # Mamba: a state of fixed size (a window of 0 stands for it too)
        if layer_type in STATES or window == 0:
            layers_with_state += 1
            continue

        # Gemma 3n: the last layers use the keys and values of an earlier layer
        if layers_of_keys[layer] != layer:
            continue

        # Gemma 4: the heads of local layers have another size than those of global layers
        keys, values = sizes_of_global
        if sizes.layers[layer] == "local":
            keys, values = sizes_of_local

        # OpenELM: the config lists the heads of each layer; 0 for a layer without attention
        if key_heads is not None:
            if key_heads[layer] == 0:
                continue
            keys = values = key_heads[layer] * sizes.head_dim

        # DeepSeek V3.2: an indexer caches keys of its own
        keys += index_widths[layer]

        # Nanbeige 4.2: a layer runs several times, with a cache for each run
        cache_of_layer = CachedLayers(count=0, keys=keys, values=values, window=window)
        counts[cache_of_layer] += family.hooks.runs(part, layer)

    # layers that see the whole context first, then by the size of the window
    groups = [replace(cache, count=count) for cache, count in counts.items()]
    groups.sort(key=lambda group: (group.window is not None, group.window or 0))
    return tuple(groups), layers_with_state


def kv_heads(part: Config, family: Family, heads: int, kind: Kind = "global") -> int:
    """Heads of keys and values of a layer of a kind; `heads` is the number of query heads."""
    count = positive_int(part, family.keys.kv_heads, family.defaults.kv_heads) or heads
    keys = family.cache.global_heads
    if kind != "local" and keys:
        number_key, *switches = keys
        if all(part.get(switch) for switch in switches):
            count = positive_int(part, (number_key,)) or count
    return family.hooks.kv_heads(part, count, kind)


def _numbers_per_token(
    part: Config, family: Family, sizes: RopeSpec, kind: Kind, heads: int
) -> tuple[int, int]:
    """Numbers that a layer of a kind keeps of the keys and of the values of a token."""
    settings: Config = {}
    width = sizes.head_dim
    if kind == "local":
        width = local_head_dim(part, family, sizes.head_dim)
    elif "global" in sizes.layers:
        settings = own_settings(part).get(sizes.layers.index("global"), {})
    count = positive_int(settings, ("num_key_value_heads",)) or kv_heads(part, family, heads, kind)
    return count * width, count * family.hooks.value_width(part, width)


def _index_widths(part: Config, family: Family, count: int) -> list[int]:
    """Return the numbers per token that the indexer of each layer caches, 0 for a layer without.

    The indexer of DeepSeek-V3.2 is a small attention with keys of its own. It chooses the tokens
    that the large attention sees.

    Args:
        part: The text part of the config.
        family: The family; `cache.index_key` is the config key with the width of these keys, and
            empty for a family without indexers.
        count: The number of layers.
    """
    rules = family.cache
    widths = [0] * count
    if not rules.index_key:
        return widths

    # a config may list a type for each layer, of which "full" has an indexer
    width = positive_int(part, (rules.index_key,), INDEX_WIDTH) or 0
    types = part.get("indexer_types")
    if isinstance(types, list) and types:
        for layer, kind in enumerate(types[:count]):
            if kind == "full":
                widths[layer] = width
        return widths

    # else layer 0 has one, and from layer 1 on one layer in each interval: 0, 1, 5, 9, ... for 4
    for layer in range(count):
        is_first_of_interval = layer >= 1 and (layer - 1) % rules.index_interval == 0
        if layer == 0 or is_first_of_interval:
            widths[layer] = width
    return widths


SAMPLE_HEADS = 8
"""The heads of a sample."""
SAMPLE_HEAD_DIM = 128
"""The width of one of them."""
SAMPLE_CONTEXT = 4096
"""The context that it declares, in tokens."""


def sample_config(family: Family) -> Config:
    """Return a config.json for a family with the few keys that RoPE needs.

    For instance {"model_type": "llama", "hidden_size": 1024, "num_attention_heads": 8, ...}.
    """
    # `family.keys` lists the names that a key may have; the first name is the usual one
    keys = family.keys
    theta = family.defaults.theta
    config: Config = {
        "model_type": family.model_types[0],
        keys.hidden[0]: SAMPLE_HEADS * SAMPLE_HEAD_DIM,
        keys.heads[0]: SAMPLE_HEADS,
        keys.layers[0]: family.defaults.layers or 2,
        keys.context[0]: SAMPLE_CONTEXT,
        keys.theta[0]: theta,
    }
    # also for a family with another key for the base, such as rotary_emb_base of GPT-NeoX
    config["rope_theta"] = theta

    # the dimensions of a head, and the share of them that rotates
    if family.mla:
        config |= {keys.head_dim[0]: 64, "qk_nope_head_dim": 128}
    elif family.writing.head_dim:
        config[keys.head_dim[0]] = SAMPLE_HEAD_DIM
    if keys.partial and family.defaults.partial_rotary_factor != 1:
        config[keys.partial[0]] = family.defaults.partial_rotary_factor
    if not family.halves:
        return config

    # a model with an encoder and a decoder has these keys twice, in dictionaries with paths such as
    # "encoder" and "decoder.text_config" (`halves`)
    whole_config: Config = {"model_type": config.pop("model_type")}
    for path in family.halves:
        *outer_keys, last_key = path.split(".")
        outer = whole_config
        for key in outer_keys:
            outer = outer.setdefault(key, {})
        outer[last_key] = dict(config)
    return whole_config
