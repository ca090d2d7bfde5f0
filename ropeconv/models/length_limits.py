"""Keys of a checkpoint's files that limit how many tokens a prompt may have:
`length_limits.toml`.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache, lru_cache

import msgspec

from ..formats import jsontext
from ..formats.package_data import package_data
from .source import Origin, Source, SourceFile

UNLIMITED = 10**15
"""From this value on a limit means "no limit": transformers writes 1e30."""
SMALL = 1 << 20
"""Bytes of the longest file that is searched as a whole; of longer ones no more is read than is
needed.
"""
HEAD = 1 << 16
"""Bytes at the beginning of a longer file, where tokenizers writes the settings of its
truncation.
"""
PARAMETER = "PARAMETER "
WINDOW = "config"
"""The code of the keys of config.json that state a window."""
CONVERTED = ("meta", "gguf")
"""Kinds of sources whose files are generated."""


class LimitRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Files, and keys in them that limit a prompt. Its fields are explained in
    `length_limits.toml`.
    """

    ecosystem: str
    code: str
    files: tuple[str, ...]
    keys: tuple[str, ...]
    effect: str
    evidence: str
    parts: tuple[str, ...] = ("",)


@dataclass(frozen=True)
class LengthLimit:
    """A key that limits a prompt."""

    file: str
    """Its name."""

    key: str
    """With dots between levels."""

    tokens: int
    """Its value."""

    start: int
    """The bytes of the value in the file."""

    stop: int
    """The bytes of the value in the file."""

    rule: LimitRule
    """what it is an instance of."""

    def declares(self, keys: Collection[str]) -> bool:
        """Whether it is the declared context.

        Args:
            keys: of config.json, which state that.
        """
        return self.rule.code == WINDOW and self.key.rpartition(".")[2] in keys


@cache
def limit_rules() -> tuple[LimitRule, ...]:
    """The table of all files and keys."""
    return package_data("models/length_limits.toml", dict[str, tuple[LimitRule, ...]])["limits"]


def window_keys() -> tuple[str, ...]:
    """The keys of config.json of which vLLM takes the smallest for its window."""
    return next(rule.keys for rule in limit_rules() if rule.code == WINDOW)


def length_limits(source: Source) -> tuple[LengthLimit, ...]:
    """Every limit in the files of a checkpoint, whatever its value, except files that a conversion
    generates.
    """
    texts = source.generated_texts()
    converted = source.kind in CONVERTED
    limits: list[LengthLimit] = []
    for file in source.files():
        if _rules_of(file.name) and (file.name in texts or not converted):
            if file.size > SMALL and file.name not in texts:
                limits += limits_in(file.name, _blocks(source, file), large=True)
            else:
                limits += limits_in_text(file.name, source.text(file.name) or "")
    return tuple(limits)


def modelfile_limits(source: Origin) -> list[LengthLimit]:
    """The limits in the Modelfile by which the user named a GGUF file; empty for other sources."""
    if source.modelfile is None:
        return []
    return limits_in("Modelfile", (source.modelfile.text.encode(),))


def limits_in(name: str, blocks: Iterable[bytes], large: bool = False) -> list[LengthLimit]:
    """The limits in a file.

    Args:
        name: of the file.
        blocks: Its content.
        large: Read no more than is needed.
    """
    rules = [(rule, part) for rule in _rules_of(name) for part in rule.parts]
    paths = {f"{part}.{key}" if part else key: rule for rule, part in rules for key in rule.keys}
    modelfile = any(path.startswith(PARAMETER) for path in paths)
    limits = (
        _parameters(name, blocks, paths) if modelfile else _json_limits(name, blocks, paths, large)
    )
    return sorted((limit for limit in limits if limit.tokens > 0), key=lambda limit: limit.start)


@lru_cache(maxsize=16)
def limits_in_text(name: str, text: str) -> tuple[LengthLimit, ...]:
    """The limits in a small file, kept since the plans of one model ask for them many times."""
    return tuple(limits_in(name, (text.encode(),)))


def raised(limits: Sequence[LengthLimit], context: int, content: bytes) -> bytes:
    """Return the content of a file with its limits raised to a context.

    Args:
        limits: In the order of the file.
    """
    parts = list[bytes]()
    at = 0
    for limit in limits:
        parts += (content[at : limit.start], str(context).encode())
        at = limit.stop
    return b"".join((*parts, content[at:]))


def _json_limits(
    name: str, blocks: Iterable[bytes], paths: dict[str, LimitRule], large: bool
) -> Iterator[LengthLimit]:
    outer = {path.partition(".")[0] for path in paths}
    for number in jsontext.numbers(blocks, name, outer, large):
        if 0 < number.value < UNLIMITED:
            path = ".".join(number.path)
            for pattern, rule in paths.items():
                if path == pattern or ("*" in pattern and fnmatchcase(path, pattern)):
                    yield LengthLimit(
                        name, path, int(number.value), number.start, number.stop, rule
                    )


def _parameters(
    name: str, blocks: Iterable[bytes], paths: dict[str, LimitRule]
) -> Iterator[LengthLimit]:
    content = b"".join(blocks)
    for path, rule in paths.items():
        words = rb"[ \t]+".join(re.escape(word.encode()) for word in path.split())
        for match in re.finditer(
            rb"^[ \t]*" + words + rb"[ \t]+(\d{1,15})[ \t\r]*$", content, re.I | re.M
        ):
            yield LengthLimit(name, path, int(match[1]), match.start(1), match.end(1), rule)


def _blocks(source: Source, file: SourceFile) -> Iterator[bytes]:
    """The content of a large file: its beginning first, and the rest only where that is asked
    for.
    """
    yield source.read(file.name, 0, HEAD)
    left = HEAD
    for block in source.stream(file.name):
        yield block[left:]
        left = max(0, left - len(block))


@cache
def _rules_of(name: str) -> tuple[LimitRule, ...]:
    return tuple(
        rule for rule in limit_rules() if any(fnmatchcase(name, pattern) for pattern in rule.files)
    )
