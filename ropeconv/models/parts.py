"""The parts of a config.json that holds several models, found by their structure.

Read `text_path` first: it says where the language model is. Only the names of keys and sizes count,
so that a wrapper of an unknown type (`llm_config`, `thinker_config.text_config`, `decoder`) is read
like a known one. The module needs only Python, since probes run it beside other packages.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

Config = dict[str, Any]
KeyPath = tuple[str, ...]

DEEPEST = 5
"""Levels of objects that are searched; published configs have up to four."""
MOST_PARTS = 256
"""Objects that are searched; published configs have up to about forty."""

SIZES = (
    ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    ("hidden_size", "n_embd", "d_model", "dim"),
    ("num_attention_heads", "n_head", "n_heads", "num_heads"),
)
"""Names of the layers, the width and the heads of a language model."""
VOCABULARY = ("vocab_size", "padded_vocab_size", "n_vocab")
OF_PIXELS_AND_SOUNDS = frozenset(
    "patch_size image_size num_channels in_channels in_chans spatial_merge_size num_mel_bins n_mels"
    " conv_dim sampling_rate sample_rate".split()
)
"""Keys of parts that take images or sounds."""
TEXT_WORDS = frozenset("text language llm lm thinker decoder".split())
"""Words in the names of language models."""
OTHER_WORDS = frozenset(
    "vision visual image img video vit audio speech sound whisper talker tts voice vocoder codec"
    " codebook codes code code2wav token2wav flow dit diffusion speaker depth projector resampler"
    " connector adapter qformer perceiver tower assistant draft mtp patcher".split()
)
"""Words in the names of other parts. Talkers and code predictors make sounds from the thoughts of
a language model, and have layers and a vocabulary too.
"""
TEXT_MODEL_KEYS = ("text_config", "llm_config", "language_config", "lm_config")
"""Names that hold the language model also where the config has sizes of its own beside them."""


@dataclass(frozen=True)
class Part:
    """A model inside a config."""

    path: KeyPath
    """Its keys from the top."""

    config: Config

    @property
    def name(self) -> str:
        """Its keys with dots between them."""
        return ".".join(self.path)


def text_path(config: Config) -> KeyPath:
    """Return the keys of the language model in a config; empty where that is the config itself.

    `{"model_type": "my_vlm", "llm_config": {...}, "vision_config": {...}}` gives ("llm_config",).
    It is empty too where several parts may be the language model (`text_candidates`).
    """
    known = _known_path(config)
    if known:
        return known
    candidates = text_candidates(config)
    return candidates[0].path if len(candidates) == 1 else ()


def _known_path(config: Config) -> KeyPath:
    """The keys under which classes of transformers read the language model of a multimodal one.

    They are ("text_config",) in nearly all classes. Without such an object they are ().
    """
    path: KeyPath = ("text_config",)
    text = config.get("text_config")
    thinker = config.get("thinker_config")
    if isinstance(thinker, dict):  # Qwen's Omni models
        path = ("thinker_config", "text_config")
        text = thinker.get("text_config")
    if not isinstance(text, dict):
        return ()

    # an object without sizes such as hidden_size may have the language model in it, at one more key
    if not _count_sizes(text):
        candidates = text_candidates(text)
        if len(candidates) == 1:
            inner_path = candidates[0].path
            return (*path, *inner_path)
    return path


def text_candidates(config: Config) -> list[Part]:
    """Return the parts of a config that may be its language model.

    A part is a dictionary inside the config. Usually one of them is the language model, such as
    llm_config. The list is empty where the config is a language model itself, and has several parts
    where neither their names nor their keys tell which of them it is.
    """
    # A config with two or more sizes, such as hidden_size and num_hidden_layers, is the language
    # model itself. Its parts are then something else, unless one has a name such as text_config.
    is_model_itself = _count_sizes(config) >= 2
    candidates = []
    for part in _objects_in(config):
        has_name_of_text_model = part.name in TEXT_MODEL_KEYS
        if is_model_itself and not has_name_of_text_model:
            continue
        if _may_be_language_model(part) and not _is_for_images_or_sounds(part):
            candidates.append(part)
    if not candidates:
        return []

    # those whose names are most like that of a language model, such as text_decoder
    best_rank = min(_rank(part) for part in candidates)  # 0 is the best
    return [part for part in candidates if _rank(part) == best_rank]


def other_parts(config: Config) -> list[Part]:
    """Return the parts of a multimodal config for images and sounds, such as vision_config.

    The path of a part is the keys that lead to it, such as ("thinker_config", "audio_config").
    """
    path_of_text = text_path(config)
    others: list[Part] = []
    for part in _objects_in(config, path_of_text):
        # the language model, and what is around it
        contains_text = _is_inside(path_of_text, part.path)
        if contains_text:
            continue
        # what is inside of a part that was found already
        if any(_is_inside(part.path, other.path) for other in others):
            continue

        # a model by its sizes, such as hidden_size and num_hidden_layers
        sizes = _count_sizes(part.config)
        if sizes >= 2:
            others.append(part)
            continue
        # a model by its name, as audio_encoder is, if it also looks like a config
        has_name = bool(_words(part) & OTHER_WORDS)
        is_named_config = part.path[-1].endswith("_config")
        has_type = isinstance(part.config.get("model_type"), str)
        looks_like_config = is_named_config or has_type or sizes == 1
        if has_name and looks_like_config:
            others.append(part)
    return others


def _is_inside(path: KeyPath, outer: KeyPath) -> bool:
    """Whether a part of a config, by its path, is another part or inside of it."""
    return path[: len(outer)] == outer


def _objects_in(config: Config, language_model: KeyPath = ()) -> Iterator[Part]:
    """Yield the objects in a config, such as vision_config, the outer ones first.

    An object with two keys of sizes, such as hidden_size and num_hidden_layers, is the config of a
    model. The objects inside of it are settings, such as rope_parameters, and are not yielded.

    Args:
        config: The config.
        language_model: The path of the language model, which is a model also with fewer sizes;
            empty where the path is not known.
    """
    # a config may be nested or long on purpose, so at most 5 levels and 256 objects are searched
    objects_of_level = [Part((), config)]
    yielded = 0
    for _ in range(DEEPEST):
        objects_of_next_level = []
        for outer in objects_of_level:
            for key, value in outer.config.items():
                if not isinstance(value, dict) or yielded >= MOST_PARTS:
                    continue
                yielded += 1
                part = Part((*outer.path, str(key)), value)
                yield part

                is_language_model = bool(language_model) and part.path == language_model
                is_model = is_language_model or _count_sizes(value) >= 2
                if not is_model:
                    objects_of_next_level.append(part)
        objects_of_level = objects_of_next_level


def _count_sizes(config: Config) -> int:
    """How many of the sizes of a language model a config has."""
    count = 0
    for names in SIZES:
        for name in names:
            value = config.get(name)
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                count += 1
                break
    return count


def _words(part: Part) -> set[str]:
    """The words in the names of a part and of what is around it."""
    return {word for key in part.path for word in key.lower().split("_")}


def _is_for_images_or_sounds(part: Part) -> bool:
    """Whether a part is for images or sounds, by its names or its keys."""
    return bool(_words(part) & OTHER_WORDS) or bool(OF_PIXELS_AND_SOUNDS & set(part.config))


def _may_be_language_model(part: Part) -> bool:
    """Whether a part may be a language model."""
    is_named = bool(set(part.path[-1].lower().split("_")) & TEXT_WORDS)
    if _count_sizes(part.config) >= 2:
        return is_named or any(name in part.config for name in VOCABULARY)
    # a class has defaults for sizes that are left out
    return (
        is_named
        and isinstance(part.config.get("model_type"), str)
        and not _only_holds_language_model(part)
    )


def _only_holds_language_model(part: Part) -> bool:
    """Whether an object only holds a language model further inside."""
    if _count_sizes(part.config):
        return False
    return any(
        _may_be_language_model(inner)
        for inner in _objects_in(part.config)
        if not _is_for_images_or_sounds(inner)
    )


def _rank(part: Part) -> int:
    """How much a part is like a language model; 0 is the most."""
    words = _words(part)
    if words & TEXT_WORDS and "encoder" not in words:
        return 0
    return 2 if "encoder" in words else 1
