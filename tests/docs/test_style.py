"""Pages, help texts, strings of the code, data and templates have no phrases that are hard to
read.
"""

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ropeconv.cli.app import all_commands, find
from scripts.gather_pages import CODE, ROOT
from scripts.pages.reference import option_rows

PAGES = sorted(
    [
        *(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")),
        *(ROOT / folder / "README.md" for folder in ("scripts", "scripts/research", "tests")),
        *(ROOT / "docs").glob("*.md"),
    ]
)
START = r"(?:^|(?<=[.!?:] )|(?<=\| )|(?<=- ))"
PATTERNS = {
    START + r"Of (?!course)[^.?!]*": (
        "begin with the subject: 'For GGUF files, only the header is read'"
    ),
    START + r"What (?:[a-z]|CODE)[^.?!|]*(?![^.!|]*\?)": (
        "begin with the subject, or a verb: 'Return ...'"
    ),
    START + r"Who (?:[a-z]|CODE)[^.?!|]*(?![^.!|]*\?)": "name the actor",
    r"(?<![Tt]here )\b(?:is|are|was|were) no\b(?! longer)": "'is not a'",
    r"\bno such\b(?! file)": "'no', or 'no such file'",
    r"\bas (?:it is|they are)\b": "'unchanged', or leave it out",
    r"\b(?:nobody|somebody|whoever)\b": "'someone', or name the actor: 'untested'",
    r"\bmakes? of it\b": "'does with it'",
    r"\b(?:who|that|what|runtimes?|which) reads? it\b": "'supports it' or 'computes it'",
    r"\bthe way back\b": "'from GGUF to safetensors'",
    r"\b(?:goes|go|went|going) on\b(?! top)": "'continues'",
    r"\b(?:that which|unasked|wherefrom|whereof|therein|thereof)\b": "use plain words",
    r"\bha(?:s|ve|d) to (?:be|lie|have|stand)\b": "'must be'",
    r"\bstands? (?:in|there|beside|below|above|under|at|first)\b(?! the following)": "'is'",
    r"\bfinds? out about\b": "'finds in'",
    r"\btakes? (?:the place|in place) of\b": "'replaces'",
    r"\bsays? of (?:a|an|the|each|itself)\b": "'says about'",
    r"\b(?:arrows?|walls?|house)\b": "name the thing: an import, a package",
    r"\bsooner or later\b": "leave it out",
    r"(?<!left )(?<!leave it )(?<!leaves it )(?<!leave them )(?<!leave )\balone\b": "'only'",
    r"\bby itself\b": "'on its own', or leave it out",
    r"\blooked (?:at|into)\b": "'tested', 'checked', 'read'",
    r"\brooms?\b": "'space'",
}
"""What is hard to read, and what to write instead. Case counts only where a pattern begins a
sentence.
"""
LONGEST = 48
"""Words with letters in a sentence at most, outside of tables."""


def prose(text: str) -> str:
    """The text of a page without code, generated parts of API, links and marks of emphasis."""
    text = CODE.sub("CODE", text)
    text = re.sub(r"^:::.*$|<!--.*?-->|<a id.*?</a>", "", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    return text.replace("**", "").replace("*", "")


def paragraphs(text: str) -> list[str]:
    """The paragraphs, list items, headings and rows of tables of a page, each in one line."""
    parts = re.split(r"\n\s*\n|\n(?=\s*[-|#]|\d+\. )", prose(text))
    return [" ".join(part.split()) for part in parts if part.strip()]


def count(sentence: str) -> int:
    """How many words of letters a sentence has."""
    return len(re.findall(r"[A-Za-z]{2,}", sentence))


def problems(text: str) -> list[str]:
    """The phrases of a text that a pattern finds, each with what to write instead; and sentences
    that are too long.
    """
    faults = []
    for line in paragraphs(text):
        for pattern, instead in PATTERNS.items():
            faults += [
                f"{match[0]!r} in {line[:80]!r}: {instead}" for match in re.finditer(pattern, line)
            ]
        if not line.startswith(("|", "#")):
            sentences = re.split(r"(?<=[.!?:;])\s", line)
            faults += [
                f"{count(sentence)} words: {sentence!r}"
                for sentence in sentences
                if count(sentence) > LONGEST
            ]
    return faults


def literals(source: str) -> Iterator[str]:
    """The strings of a module, docstrings among them; a value in an f-string is VALUE."""
    tree = ast.parse(source)
    formatted = [node for node in ast.walk(tree) if isinstance(node, ast.JoinedStr)]
    parts = {id(part) for node in formatted for part in node.values}
    for node in formatted:
        yield "".join(
            str(part.value) if isinstance(part, ast.Constant) else "VALUE" for part in node.values
        )
    for literal in ast.walk(tree):
        if (
            isinstance(literal, ast.Constant)
            and isinstance(literal.value, str)
            and id(literal) not in parts
        ):
            yield literal.value


def values(table: Any) -> Iterator[str]:
    if isinstance(table, str):
        yield table
    elif isinstance(table, dict | list):
        for value in table.values() if isinstance(table, dict) else table:
            yield from values(value)


def strings(path: Path) -> Iterator[str]:
    """The strings of a file that look like sentences."""
    text = path.read_text("utf-8")
    if path.suffix == ".py":
        parts = literals(text)
    elif path.suffix == ".toml":
        parts = values(tomllib.loads(text))
    else:
        parts = iter(
            re.sub(
                r"\{#.*?#\}|\{%.*?%\}|<[^>]*>", "\n", re.sub(r"\{\{.*?\}\}", "VALUE", text)
            ).splitlines()
        )
    for part in parts:
        if len(part.split()) >= 4 and re.search(r"\b[a-z]{2,}\b", part):
            yield part


def phrases(path: Path) -> list[str]:
    """The problems of the strings of a file, long sentences left out."""
    return [
        problem for text in strings(path) for problem in problems(text) if " words: " not in problem
    ]


SOURCES = [
    path for folder in ("ropeconv", "templates") for path in sorted((ROOT / folder).rglob("*.*"))
]
PACKAGES = sorted(
    {
        path.relative_to(ROOT).parts[1]
        for path in SOURCES
        if path.suffix in (".py", ".toml", ".jinja")
    }
)


@pytest.mark.parametrize("package", PACKAGES)
def test_the_strings_of_a_package_are_easy_to_read(package: str) -> None:
    files = [path for path in SOURCES if path.relative_to(ROOT).parts[1] == package]
    chosen = [path for path in files if path.suffix in (".py", ".toml", ".jinja")]
    assert [f"{path.name}: {problem}" for path in chosen for problem in phrases(path)] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_page_is_easy_to_read(page: Path) -> None:
    assert problems(page.read_text("utf-8")) == []


@pytest.mark.parametrize("name", all_commands())
def test_the_help_of_a_command_is_easy_to_read(name: str) -> None:
    text = "\n\n".join(
        [
            " ".join((find(name).help or "").split()),
            *(row.strip("| ") for row in option_rows(name).values()),
        ]
    )
    assert problems(text) == []


HARD = {
    "Of GGUF files on the Hub only headers are read.": "'Of GGUF",
    "It ends. What is stopped counts no bytes of its own.": "'What is",
    "12q is no number of tokens.": "'is no'",
    "Who supports the file": "'Who",
    "It is read. What a file holds": "'What a file holds'",
    "YaRN alone is supported.": "'alone'",
    "unknown: nobody has looked": "'nobody'",
    "The key has to be there.": "'has to be'",
    " ".join(["word"] * 60) + ".": "60 words",
}
EASY = (
    (
        "'12q' is not a number of tokens. It is no longer there. What is RoPE? `Of code` is left"
        " alone."
    ),
    "For GGUF files on the Hub, only the header is read.",
)


@pytest.mark.parametrize("sentence", HARD)
def test_a_hard_phrase_is_found(sentence: str) -> None:
    assert problems(sentence)[0].startswith(HARD[sentence])


@pytest.mark.parametrize("sentence", EASY)
def test_plain_words_pass(sentence: str) -> None:
    assert problems(sentence) == []


@pytest.mark.parametrize(
    "page", [path for path in PAGES if path.parent.name == "docs"], ids=lambda path: path.name
)
def test_a_page_begins_with_what_the_reader_will_be_able_to_do(page: Path) -> None:
    first = next(line for line in paragraphs(page.read_text("utf-8")) if not line.startswith("#"))
    assert re.search(r"\b(?:you|your)\b", first.partition(". ")[0]), first
