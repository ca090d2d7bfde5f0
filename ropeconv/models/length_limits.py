"""Keys of files that limit how many tokens a prompt may have: `length_limits.toml`."""

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache, lru_cache

import msgspec

from ..errors import BadSource
from ..formats import jsontext
from ..formats.package_data import package_data
from .modelfile import parse_modelfile
from .parts import text_path
from .source import Origin, Source, SourceFile

UNLIMITED = 10**15
"""From this value on a limit means "no limit": transformers writes 1e30."""
SMALL = 1 << 20
"""The most bytes of a file that is searched as a whole; of longer ones only what is needed."""
HEAD = 1 << 16
"""Bytes at the beginning of a longer file, with the settings of truncation by tokenizers."""
WINDOW = "config"
"""The code of the keys of config.json that state a window."""
TEXT_CONFIG = "text_config"
"""The part of rules that hold for a language model wherever a config.json keeps it."""
DIGITS = re.compile("[0-9]{1,15}")
CONVERTED = ("meta", "gguf")
"""Kinds of sources whose files are generated."""


class LimitRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Files, and keys in them that limit a prompt; `length_limits.toml` explains the fields."""

    ecosystem: str
    code: str
    files: tuple[str, ...]
    keys: tuple[str, ...]
    effect: str
    evidence: str
    parts: tuple[str, ...] = ("",)
    unless: tuple[str, ...] = ()


@dataclass(frozen=True)
class LengthLimit:
    """A key that limits a prompt."""

    file: str
    """The name of the file."""

    key: str
    """With dots between levels."""

    tokens: int
    """Its value."""

    start: int
    """The place of the first byte of the value in the file."""

    stop: int
    """The place behind its last byte."""

    rule: LimitRule
    """The rule that it is an instance of."""

    def declares(self, keys: Collection[str]) -> bool:
        """Whether it is the declared context, which `keys` of config.json state."""
        return self.rule.code == WINDOW and self.key.rpartition(".")[2] in keys


@cache
def limit_rules() -> tuple[LimitRule, ...]:
    """Return the table of all files and keys."""
    return package_data("models/length_limits.toml", dict[str, tuple[LimitRule, ...]])["limits"]


def window_keys() -> tuple[str, ...]:
    """Return the keys of config.json of which vLLM takes the smallest for its window."""
    return next(rule.keys for rule in limit_rules() if rule.code == WINDOW)


def length_limits(source: Source) -> tuple[LengthLimit, ...]:
    """Return every limit of the length of a prompt in the files of a checkpoint.

    Examples are model_max_length in tokenizer_config.json, and truncation.max_length in
    tokenizer.json. Programs that read them cut a text off there, also after an extension. For a
    model that is converted (from GGUF, or from Meta's files), only texts that the conversion makes
    count.
    """
    generated_texts = source.generated_texts()
    is_converted = source.kind in CONVERTED
    limits: list[LengthLimit] = []
    for file in source.files():
        if not _rules_of(file.name):  # no key of such a file is a limit
            continue
        is_generated = file.name in generated_texts
        if is_converted and not is_generated:
            continue

        # tokenizer.json has tens of megabytes; its limits are near the beginning
        if file.size > SMALL and not is_generated:
            limits += limits_in(file.name, _blocks(source, file), stop_early=True)
        else:
            limits += limits_in_text(file.name, source.text(file.name) or "")
    return tuple(limits)


def modelfile_limits(source: Origin) -> list[LengthLimit]:
    """The limits in the Modelfile by which the user named a GGUF file; empty for other sources."""
    if source.modelfile is None:
        return []
    return limits_in("Modelfile", (source.modelfile.text.encode(),))


def limits_in(
    name: str, blocks: Iterable[bytes], stop_early: bool = False, text_model: str = ""
) -> list[LengthLimit]:
    """Return the keys of a file that limit the length of a prompt, in their order.

    tokenizer_config.json with "model_max_length": 32768 has a limit of 32,768 tokens.

    Args:
        name: The name of the file, which decides the keys to look for.
        blocks: The content of the file.
        stop_early: Whether to stop reading a JSON file behind the keys that may have limits.
        text_model: The path of the object with the settings of the language model, such as
            "thinker_config.text_config"; "" if this is the whole file.
    """
    # The rules of this file by the path of each key, such as {"truncation.max_length": RULE}. A
    # rule has the objects (`parts`) in which its keys are; "" is the outermost object.
    rule_by_path = {}
    for rule in _rules_of(name):
        objects = list(rule.parts)
        # a rule for "text_config" also holds for another object with the language model
        if TEXT_CONFIG in objects and text_model not in ("", *objects):
            objects.append(text_model)
        for outer in objects:
            for key in rule.keys:
                path = f"{outer}.{key}" if outer else key
                rule_by_path[path] = rule

    # rules for Ollama's Modelfile have commands as keys, such as "PARAMETER num_ctx"; all other
    # files are JSON
    limits: Iterable[LengthLimit]
    is_modelfile = any(path.startswith("PARAMETER ") for path in rule_by_path)
    if is_modelfile:
        limits = _modelfile_limits(name, blocks, rule_by_command=rule_by_path)
    else:
        limits = _json_limits(name, blocks, rule_by_path, stop_early)
    positive = [limit for limit in limits if limit.tokens > 0]
    return sorted(positive, key=lambda limit: limit.start)


@lru_cache(maxsize=16)
def limits_in_text(name: str, text: str) -> tuple[LengthLimit, ...]:
    """The limits in a small file, kept since the plans of one model ask for them many times."""
    text_model = ""
    if name == "config.json":
        with suppress(BadSource):  # it is reported where it is read
            text_model = ".".join(text_path(jsontext.parse(text, name)))
    return tuple(limits_in(name, (text.encode(),), text_model=text_model))


def raise_limits(limits: Sequence[LengthLimit], context: int, content: bytes) -> bytes:
    """Return the content of a file with its limits raised to a context.

    Args:
        limits: In the order of the file.
        context: In tokens.
        content: The bytes of the file.
    """
    # only the numbers are replaced: the file keeps its layout, and large ones are not parsed
    parts = list[bytes]()
    done = 0
    for limit in limits:
        parts.append(content[done : limit.start])
        parts.append(str(context).encode())
        done = limit.stop
    parts.append(content[done:])
    return b"".join(parts)


def _json_limits(
    name: str, blocks: Iterable[bytes], rule_by_path: dict[str, LimitRule], stop_early: bool
) -> list[LengthLimit]:
    """Return the numbers in a JSON file that limit the length of a prompt, in their order.

    Args:
        name: The name of the file.
        blocks: The content of the file.
        rule_by_path: The rules by the paths of keys, such as "truncation.max_length"; `*` in a path
            stands for any characters.
        stop_early: Whether to stop reading behind the last of these keys, for a large file.
    """
    # The keys of the outermost object that are read, such as "truncation" for
    # "truncation.max_length". A rule may have keys (`unless`) beside which its limit has no effect.
    outer_keys = set()
    for pattern, rule in rule_by_path.items():
        outer_key, _, _ = pattern.partition(".")
        outer_keys.add(outer_key)
        outer_keys |= set(rule.unless)

    # every number below these keys, with its path: (("truncation", "max_length"), 512)
    limits: list[LengthLimit] = []
    present_paths = set[str]()
    for number in jsontext.numbers(blocks, name, outer_keys, first=stop_early):
        path = ".".join(number.path)
        present_paths.add(path)
        is_limit = 0 < number.value < UNLIMITED  # transformers writes 1e30 for "no limit"
        if not is_limit:
            continue
        for pattern, rule in rule_by_path.items():
            matches = path == pattern or ("*" in pattern and fnmatchcase(path, pattern))
            if matches:
                limit = LengthLimit(
                    file=name,
                    key=path,
                    tokens=int(number.value),
                    start=number.start,
                    stop=number.stop,
                    rule=rule,
                )
                limits.append(limit)

    # without the limits that programs ignore beside another key
    return [limit for limit in limits if present_paths.isdisjoint(limit.rule.unless)]


def _modelfile_limits(
    name: str, blocks: Iterable[bytes], rule_by_command: dict[str, LimitRule]
) -> Iterator[LengthLimit]:
    """Yield the limits in the PARAMETER lines of a Modelfile, such as `PARAMETER num_ctx 4096`.

    Args:
        name: The name of the file.
        blocks: Its content.
        rule_by_command: The rule of each command that sets a limit, e.g. of "PARAMETER num_ctx".
    """
    content = b"".join(blocks)
    text = content.decode("utf-8", "surrogateescape")
    for command in parse_modelfile(text).commands:
        name_of_command = f"{command.name} {command.key.lower()}"
        number = text[command.value_start : command.value_stop]
        rule = rule_by_command.get(name_of_command)
        if rule is None or DIGITS.fullmatch(number) is None:
            continue

        # places in the bytes, before which the text may have longer characters
        start = len(text[: command.value_start].encode("utf-8", "surrogateescape"))
        yield LengthLimit(
            file=name,
            key=name_of_command,
            tokens=int(number),
            start=start,
            stop=start + len(number),
            rule=rule,
        )


def _blocks(source: Source, file: SourceFile) -> Iterator[bytes]:
    """Yield the content of a large file: its beginning first, and the rest only on demand."""
    yield source.read(file.name, 0, HEAD)
    left = HEAD
    for block in source.stream(file.name):
        yield block[left:]
        left = max(0, left - len(block))


@cache
def _rules_of(name: str) -> tuple[LimitRule, ...]:
    """Return the rules for a file of this name."""
    rules = []
    for rule in limit_rules():
        if any(fnmatchcase(name, pattern) for pattern in rule.files):
            rules.append(rule)
    return tuple(rules)
