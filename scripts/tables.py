"""Writes tables in README.md and docs/ from the data of the package, and the methods and encodings that they lack.

    python scripts/tables.py

A method or an encoding without a row or a section gets one from its docstring; those that are there stay.
tests/runtimes/test_tables.py compares the pages with the data.
"""

from __future__ import annotations

import dataclasses
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from ropeconv.bake.advice import METHODS, MatrixCell, counts, letters, matrix
from ropeconv.convert.encoding import ENCODINGS
from ropeconv.convert.gguf_encoding import GGUF_ENCODINGS
from ropeconv.hub.training import trainers
from ropeconv.models.registry import families as all_families
from ropeconv.rope.methods.method import REGISTRY, Method
from ropeconv.runtimes.grouping import newest
from ropeconv.runtimes.runtime import Runtime, runtimes

ROOT = Path(__file__).parents[1]
IN_README = ("transformers", "vllm", "sglang", "mlx-lm", "exllamav3", "llama-cpp", "tgi")
IN_DOCS = (
    "transformers", "exllamav3", "llama-cpp", "lmdeploy", "mistralrs", "mlc-llm", "mlx-lm", "sglang", "tensorrt-llm",
    "tgi", "vllm",
)  # fmt: skip
OUTSIDE = {"unsupported", "unknown"}
MODELS = {
    "Llama, Code World Model, SmolLM 3, Seed, Apertus": r"llama4?|mllama|cwm|smollm3|seed_oss|apertus",
    "Qwen 2 to 3.6, with experts, vision and sound": r"qwen.*",
    "Mistral, Mixtral, Ministral, Voxtral": r"mistral.*|mixtral|ministral.*|voxtral.*",
    "Gemma 1 to 4, VaultGemma, T5Gemma": r"(vault|t5)?gemma.*|(diffusion|embedding)_gemma.*",
    "DeepSeek V2 to V4, Kimi": r"deepseek.*|kimi.*",
    "GLM 4 to 5, ChatGLM": r"glm.*|chatglm",
    "gpt-oss, GPT-NeoX, GPT-J, Phi, Falcon, StarCoder 2": r"gpt_.*|gptj|phi.*|falcon.*|starcoder2",
    "Granite, OLMo, Command, Aya, LFM": r"granite.*|olmo.*|flex_olmo|molmo2|cohere.*|lfm.*",
    "MiniMax, MiniCPM, InternLM, Baichuan, Hunyuan, ERNIE, EXAONE, Ling, MiMo, Step": (
        r"minimax.*|minicpm.*|internlm.*|baichuan|hunyuan.*|hy_.*|ernie.*|exaone.*|bailing.*|mimo.*|step.*"
    ),
    "encoders: ModernBERT, NomicBERT, GTE, Jina v3, EuroBERT, UltraBERT": (
        r"modernbert|nomic_bert|gte|jina.*|eurobert|ultrabert|openai_privacy_filter"
    ),
}
"""Lines of the table of models, each with a pattern for the names of its families; the last line counts all others."""


def of(row: Runtime) -> list[MatrixCell]:
    """The cells of a row of the table of runtimes."""
    return [cell for cell in matrix() if cell.verdict.covers(row)]


def newest_versions() -> str:
    """The table of README.md: a line per runtime, the number of families that are exact by way to write RoPE."""
    lines = ["| runtime | has | theta, NTK | linear | llama3 | YaRN | any frequencies | known by |", "|---" * 8 + "|"]
    for row in map(newest, IN_README):
        own = of(row)
        has = {cell.family for cell in own if cell.verdict.status not in OUTSIDE}
        exact = [sum(cell.writing == name and cell.verdict.status == "exact" for cell in own) for name in METHODS]
        known = counts(own)
        grade = max(("run", "read"), key=lambda name: known[name])
        lines.append("| " + " | ".join(map(str, (row.display_name, len(has), *exact, grade))) + " |")
    return "\n".join(lines)


def ranges() -> str:
    """The table of ranges of versions in docs/runtimes.md."""
    lines = ["| runtime | exact | run | read | unknown |", "|---|---|---|---|---|"]
    for row in runtimes():
        own = of(row)
        known = counts(own)
        exact = sum(cell.verdict.status == "exact" for cell in own)
        lines.append(f"| {row.display_name} | {exact} of {len(own)} | " + " | ".join(map(str, known.values())) + " |")
    return "\n".join(lines)


def families() -> str:
    """The table of families in docs/runtimes.md, as `ropeconv runtimes --matrix` prints it."""
    rows = [("family", *IN_DOCS)]
    columns = [by_family(of(newest(name))) for name in IN_DOCS]
    for family in dict.fromkeys(cell.family for cell in matrix()):
        rows.append((family, *(letters(column[family]) for column in columns)))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)
    return "\n".join(lines)


def by_family(cells: Iterable[MatrixCell]) -> dict[str, list[MatrixCell]]:
    """The cells of each family."""
    found: dict[str, list[MatrixCell]] = {}
    for cell in cells:
        found.setdefault(cell.family, []).append(cell)
    return found


def sentence(beginning: str) -> str:
    """How many cells there are, and how they are known. beginning: the words before the number."""
    known = counts(matrix())
    text = (
        f"{beginning} {len(matrix()):,} cells (family, way to write RoPE, range of versions) {known['run']:,} were "
        f"run, {known['read']:,} read, and {known['unknown']:,} are unknown."
    )
    return textwrap.fill(text, 119)


def families_counted() -> str:
    """The line above the table of README.md."""
    number = len({cell.family for cell in matrix()})
    return f"Model families (of {number}) in which the newest version computes it exactly"


def model_table() -> str:
    """The table of models: how many families each line has, and how many of them become GGUF."""
    left = [family for family in all_families() if not family.refuse]
    lines = ["| models | families | as GGUF |", "|---|---|---|"]
    for title, pattern in MODELS.items():
        own = [family for family in left if re.fullmatch(pattern, family.name)]
        left = [family for family in left if family not in own]
        lines.append(f"| {title} | {len(own)} | {sum(family.gguf is not None for family in own)} |")
    lines.append(f"| others | {len(left)} | {sum(family.gguf is not None for family in left)} |")
    return "\n".join(lines)


def trainer_table() -> str:
    """The table of trainers: a line per statement, with how it is known."""
    lines = ["| trainer | what it does | how it is known |", "|---|---|---|"]
    for trainer in trainers().values():
        for fact in trainer.facts:
            known = f"run: {fact.source}" if fact.run else f"{fact.source}"
            lines.append(f"| {trainer.display_name} | {fact.says} | {known} |")
    return "\n".join(lines)


def kept(found: Mapping[str, str], names: Iterable[str], made: Callable[[str], str]) -> str:
    """Rows or sections in the order of `names`. found: those that a page has. made: makes one that it lacks."""
    return "\n".join(found[name] if name in found else made(name) for name in names)


def by_flag(page: str, pattern: str) -> dict[str, str]:
    """Rows or sections of a part of a page by the name in their first line, which `pattern` finds."""
    parts = re.split(pattern, page, flags=re.MULTILINE)[1:]
    return {re.findall(r"`(?:--)?([\w-]+)", part)[0]: part.rstrip("\n") for part in parts}


def method_rows(rows: str) -> str:
    """The table of methods in docs/methods.md. rows: those that are there."""

    def row(name: str) -> str:
        method = REGISTRY[name]
        value, *settings = dataclasses.fields(method)
        flags = ", ".join(f"`--{item.name.replace('_', '-')}` ({item.default})" for item in settings)
        formula = explained(method)[0].split(". ")[0].rstrip(".")
        return f"| `--{name} {value.name.upper()}` | {formula} | {flags} | {method.paper} |"

    found = by_flag(rows, r"^(?=\| `--)")
    return kept(found, [*(name for name in REGISTRY if name != "as-is"), "recipe", "as-is"], row)


def explained(method: type[Method]) -> list[str]:
    """The docstring of a method, by paragraphs in one line each."""
    return [" ".join(part.split()) for part in (method.__doc__ or "").split("\n\n")]


def method_sections(text: str) -> str:
    """The sections of docs/papers.md. text: those that are there."""

    def section(name: str) -> str:
        method = REGISTRY[name]
        said = [*explained(method), f"Source: {method.paper}", f"Fine-tuning: {method.finetuning_note or 'not tried'}."]
        departures = ["Taken otherwise than printed:", *(f"- {one}" for one in method.departures)]
        lines = [textwrap.fill(part, 119, subsequent_indent="  " * part.startswith("- ")) for part in departures]
        picture = f"![--{name} on Llama 2: wavelengths and divisors per pair](pictures/method-{name}.svg)"
        parts = [f"## `--{name}`", *(textwrap.fill(part, 119) for part in said), picture]
        parts += [lines[0], "\n".join(lines[1:])] if method.departures else []
        return "\n\n".join(parts) + "\n"

    found = {name: f"{body}\n" for name, body in by_flag(text, r"^(?=## `--)").items()}
    return kept(found, (name for name in REGISTRY if name != "as-is"), section)


def method_flags() -> str:
    """The sentence with all methods in README.md."""
    flags = ", ".join(f"`--{name}`" for name in REGISTRY)
    text = f"With formulas and papers ([docs/methods.md](docs/methods.md)): {flags}."
    return textwrap.fill(text, 119, break_on_hyphens=False)


def encoding_rows(rows: str, names: Iterable[str]) -> str:
    """A table of encodings. rows: those that are there. names: of the encodings."""

    def row(name: str) -> str:
        said = " ".join((sys.modules[f"ropeconv.convert.encodings.{name}"].__doc__ or "").split("\n\n")[0].split())
        return f"| `{name}` | {said.partition(': ')[2].rstrip('.')} | |"

    return kept(by_flag(rows, r"^(?=\| `)"), names, row)


COUNTED = r"{} [\d,]+\s+cells\s[^.]*?\sunknown\."
PARTS: dict[str, tuple[tuple[str, Callable[[], str]], ...]] = {
    "README.md": (
        (r"\| runtime \| has \|.*?(?=\n\n)", newest_versions),
        (r"Model families \(of \d+\) in which the newest version computes it exactly", families_counted),
        (COUNTED.format("Of"), lambda: sentence("Of")),
        (r"\| models \| families \|.*?(?=\n\n)", model_table),
        (r"With formulas and papers .*?`--as-is`\.", method_flags),
    ),
    "docs/runtimes.md": (
        (r"(?<=```\n)family .*?(?=\n```)", families),
        (r"\| runtime \| exact \|.*?(?=\n\n)", ranges),
        (COUNTED.format("Of all"), lambda: sentence("Of all")),
    ),
    "docs/training.md": ((r"\| trainer \| what it does \|.*?(?=\n\n)", trainer_table),),
}
"""What is written in each page: a pattern that finds it, and a function that makes it."""
COMPLETED: dict[str, tuple[str, Callable[[str], str]]] = {
    "docs/methods.md": (r"\| `--theta B` .*?(?=\n\n)", method_rows),
    "docs/papers.md": (r"## `--theta`\n.*?(?=\n## Modifiers)", method_sections),
    "docs/runtimes.md": (r"\| `native` \|.*?(?=\n\n)", lambda rows: encoding_rows(rows, ENCODINGS)),
    "docs/gguf.md": (r"\| `keys` \|.*?(?=\n\n)", lambda rows: encoding_rows(rows, [*GGUF_ENCODINGS, "carrier"])),
}
"""What is completed in each page: a pattern that finds it, and a function from it to the whole."""
PAGES = tuple(dict.fromkeys((*PARTS, *COMPLETED)))


def filled(page: str, text: str) -> str:
    """The text of a page with every part as the data have it. Raises ValueError where a part is not found once."""
    parts = [(pattern, lambda _, made=made: made()) for pattern, made in PARTS.get(page, ())]
    if page in COMPLETED:
        pattern, whole = COMPLETED[page]
        parts.append((pattern, lambda found, made=whole: made(found[0])))
    for pattern, part in parts:
        text, number = re.subn(pattern, part, text, flags=re.DOTALL)
        if number != 1:
            raise ValueError(f"{page} has {number} parts like {pattern}, not one")
    return text


def main() -> None:
    """Rewrites the pages."""
    for page in PAGES:
        path = ROOT / page
        path.write_text(filled(page, path.read_text("utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
