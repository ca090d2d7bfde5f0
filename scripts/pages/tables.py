"""Writes tables in README.md and docs/ from the data of the package, and the methods and encodings
that they lack.

    python -m scripts.pages tables

A method or an encoding without a row or a section gets one from its docstring; those that are there
stay. tests/docs/test_generated.py compares the pages with the data.
"""

import dataclasses
import re
import sys
import textwrap
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path

from ropeconv.bake.advice import METHODS, MatrixCell, counts, letters, matrix
from ropeconv.convert.encoding import ENCODINGS
from ropeconv.convert.gguf_encoding import GGUF_ENCODINGS
from ropeconv.models.family import Family
from ropeconv.models.registry import families as all_families
from ropeconv.rope.methods.method import REGISTRY, Method
from ropeconv.runtimes.runtime import Runtime, newest, runtimes

from ..formulas import FORMULAS
from . import engine_tables, popular_tables, record_tables, tokenizer_table, vector_tables
from .advice_files import paragraph
from .publishers import choice_sentence, publisher_table, read_choices, read_reasons
from .regret import read_regrets, regret_sentence, regret_table

ROOT = Path(__file__).parents[2]
IN_README = ("transformers", "vllm", "sglang", "mlx-lm", "exllamav3", "llama-cpp", "tgi")
IN_DOCS = (
    "transformers",
    "exllamav3",
    "llama-cpp",
    "lmdeploy",
    "mistralrs",
    "mlc-llm",
    "mlx-lm",
    "sglang",
    "tensorrt-llm",
    "tgi",
    "vllm",
)
OUTSIDE = {"unsupported", "unknown"}
COMMON = (
    "llama",
    "llama4",
    "mistral",
    "mixtral",
    "ministral3",
    "qwen2",
    "qwen2_moe",
    "qwen2_5_vl",
    "qwen3",
    "qwen3_moe",
    "qwen3_next",
    "qwen3_5",
    "gemma",
    "gemma2",
    "gemma3",
    "gemma4",
    "deepseek_v2",
    "deepseek_v3",
    "glm4",
    "glm4_moe",
    "phi",
    "phi3",
    "gpt_oss",
    "gpt_neox",
    "granite",
    "olmo2",
    "olmo3",
    "cohere",
    "falcon",
    "smollm3",
    "modernbert",
)
"""Families in the table of docs/runtimes.md."""
MODELS = {
    "Llama, Code World Model, SmolLM 3, Seed, Apertus": (
        r"llama4?|mllama|cwm|smollm3|seed_oss|apertus"
    ),
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
"""Rows of the table of models, each with a pattern for the names of its families; the last line
counts all others.
"""


@cache
def cells_by_range() -> dict[tuple[str, str], list[MatrixCell]]:
    """The cells of the matrix by the range of versions that their verdicts are about."""
    by_range: dict[tuple[str, str], list[MatrixCell]] = {}
    for cell in matrix():
        by_range.setdefault((cell.verdict.runtime, cell.verdict.through), []).append(cell)
    return by_range


def of(row: Runtime) -> list[MatrixCell]:
    """Return the cells of a row of the table of runtimes."""
    found = []
    for cells in cells_by_range().values():
        if cells[0].verdict.covers(row):
            found += cells
    return found


def newest_counts() -> list[tuple[str, int, list[int]]]:
    """Return the counts of README.md for the newest version of each runtime.

    They are its name, the number of families that it supports, and the numbers of those that it
    computes exactly, by way to write RoPE.
    """
    rows = []
    for name in IN_README:
        runtime = newest(name)
        cells = of(runtime)
        supported = {cell.family for cell in cells if cell.verdict.status not in OUTSIDE}
        exact_writings = Counter(cell.writing for cell in cells if cell.verdict.status == "exact")
        exact = [exact_writings[writing] for writing in METHODS]
        rows.append((runtime.display_name, len(supported), exact))
    return rows


def newest_versions() -> str:
    """Return the table of README.md: per runtime, the number of families that are exact by way to
    write RoPE.
    """
    lines = [
        "| runtime | supported | new base, NTK | linear | Llama 3 | YaRN | any frequencies |",
        "|---" * 7 + "|",
    ]
    for name, supported, exact in newest_counts():
        lines.append("| " + " | ".join(map(str, (name, supported, *exact))) + " |")
    return "\n".join(lines)


def ranges() -> str:
    """The table of ranges of versions in docs/runtimes.md."""
    lines = ["| runtime | exact | run | read | unknown |", "|---|---|---|---|---|"]
    for row in runtimes():
        verdicts = of(row)
        known = counts(verdicts)
        exact = sum(cell.verdict.status == "exact" for cell in verdicts)
        lines.append(
            f"| {row.display_name} | {exact} of {len(verdicts)} | "
            + " | ".join(map(str, known.values()))
            + " |"
        )
    return "\n".join(lines)


def families() -> str:
    """Return the table of all families and runtimes, as `ropeconv list runtimes --matrix` prints
    it.
    """
    return matrix_lines(IN_DOCS, dict.fromkeys(cell.family for cell in matrix()))


def common_families() -> str:
    """Return the part of that table in docs/runtimes.md: runtimes and families that many people
    use.
    """
    return matrix_lines(IN_README, COMMON)


def matrix_lines(names: Iterable[str], rows: Iterable[str]) -> str:
    """Return letters in columns. names: of runtimes. rows: names of families."""
    names = tuple(names)
    lines = [("family", *names)]
    columns = [by_family(of(newest(name))) for name in names]
    lines += [(family, *(letters(column[family]) for column in columns)) for family in rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    padded = (
        "  ".join(f"{cell:{width}}" for cell, width in zip(line, widths, strict=True))
        for line in lines
    )
    return "\n".join(line.rstrip() for line in padded)


def by_family(cells: Iterable[MatrixCell]) -> dict[str, list[MatrixCell]]:
    """The cells of each family."""
    by_name: dict[str, list[MatrixCell]] = {}
    for cell in cells:
        by_name.setdefault(cell.family, []).append(cell)
    return by_name


def sentence() -> str:
    """Return how many cells there are, and how they are known."""
    known = counts(matrix())
    text = (
        f"There are {len(matrix()):,} cells (family, way to write RoPE, range of versions):"
        f" {known['run']:,} were run, {known['read']:,} were read in source code, and"
        f" {known['unknown']:,} are unknown."
    )
    return textwrap.fill(text, 119)


def families_counted() -> str:
    """The line above the table of README.md."""
    number = len({cell.family for cell in matrix()})
    return f"Number of model families (of {number})"


def model_table() -> str:
    """Return the table of models: the number of families in each line, and how many become GGUF."""
    lines = ["| models | families | as GGUF |", "|---|---|---|"]
    left = [family for family in all_families() if not family.refuse]
    for title, pattern in MODELS.items():
        members = [family for family in left if re.fullmatch(pattern, family.name)]
        left = [family for family in left if family not in members]
        lines.append(_model_line(title, members))
    lines.append(_model_line("others", left))

    # families whose own code other runtimes would run, so that only their GGUF files are supported
    gguf_only = [family for family in all_families() if family.refuse and family.gguf is not None]
    names = ", ".join(family.display_name for family in gguf_only)
    lines.append(f"| as GGUF only, not as a checkpoint: {names} | - | {len(gguf_only)} |")
    return "\n".join(lines)


def _model_line(title: str, families: Sequence[Family]) -> str:
    """Return the line of some families in the table of models."""
    as_gguf = [family for family in families if family.gguf is not None]
    return f"| {title} | {len(families)} | {len(as_gguf)} |"


BASES = {
    "its publisher": "recommended by the publisher",
    "its trained scaling": "trained with this scaling",
    "no new angle": "every layer sees only a window, so a method adds nothing",
}


TRAINING = {
    "none": "",
    "undecided": " (not decided)",
    "recommended": " and fine-tuning",
    "needed": " and fine-tuning",
}
"""The words of the table of choices for the training that a method needs."""


def choice_table() -> str:
    """Return the table of first choices of docs/methods.md: models with the same ones in a line."""
    document = tomllib.loads((ROOT / "tests" / "bake" / "choices.toml").read_text("utf-8"))
    models_by_row: dict[tuple[str, ...], list[str]] = {}
    for choice in document["choices"]:
        # a cell for each factor, such as "`--yarn 4` and fine-tuning"
        cells = []
        for flags, level in zip(choice["first"], choice["training"], strict=True):
            cells.append(f"`{flags}`{TRAINING[level]}")

        # "measured on SmolLM2-135M at 2x": the model once, whatever the factor
        bases = dict.fromkeys(choice["basis"])
        reasons = [BASES[basis] for basis in bases if basis in BASES]
        others = [basis.rpartition(" at ")[0] or basis for basis in bases if basis not in BASES]
        reasons += dict.fromkeys(others)
        _, _, name = choice["model"].partition("/")
        models_by_row.setdefault((*cells, "; then ".join(reasons)), []).append(name)

    lines = ["| models | 2 times | 4 times | 8 times | why |", "|---|---|---|---|---|"]
    for row, names in models_by_row.items():
        lines.append(f"| {' | '.join((', '.join(names), *row))} |")
    return "\n".join(lines)


def compare_with_publishers() -> str:
    """The table of the methods of publishers in docs/methods.md."""
    return publisher_table(read_choices(), read_reasons())


def kept(rows: Mapping[str, str], names: Iterable[str], make: Callable[[str], str]) -> str:
    """Return rows or sections in the order of `names`, with new ones for those that a page lacks.

    Args:
        rows: Those that the page has, by name. A person may have changed them, so they stay.
        names: The names of all.
        make: Makes one that is absent.
    """
    return "\n".join(rows[name] if name in rows else make(name) for name in names)


def by_flag(page: str, pattern: str) -> dict[str, str]:
    """Return the rows or sections of a part of a page, by the name in their first line.

    Args:
        page: The part, such as a table whose rows begin with "| `--yarn S` |".
        pattern: Finds the beginning of each.
    """
    parts = re.split(pattern, page, flags=re.MULTILINE)[1:]
    return {re.findall(r"`(?:--)?([\w-]+)", part)[0]: part.rstrip("\n") for part in parts}


def method_rows(rows: str) -> str:
    """Return the table of methods of docs/methods.md.

    Args:
        rows: The rows that are there.
    """

    def row(name: str) -> str:
        """Return the row of a method: its flag, formula, settings and paper."""
        method = REGISTRY[name]
        value, *settings = dataclasses.fields(method)
        flags = []
        for setting in settings:
            flag = setting.name.replace("_", "-")
            flags.append(f"`--{flag}` ({setting.default})")
        formula = explained(method)[0].split(". ")[0].rstrip(".")
        settings_cell = ", ".join(flags)
        return f"| `--{name} {value.name.upper()}` | {formula} | {settings_cell} | {method.paper} |"

    names = [name for name in REGISTRY if name != "as-is"]
    return kept(by_flag(rows, r"^(?=\| `--)"), [*names, "recipe", "as-is"], row)


def explained(method: type[Method]) -> list[str]:
    """The docstring of a method, by paragraphs in one line each."""
    return [" ".join(part.split()) for part in (method.__doc__ or "").split("\n\n")]


def method_sections(text: str) -> str:
    """Return the sections of docs/methods.md, with the pictures that they have.

    Args:
        text: The present sections.
    """
    present = by_flag(text, r"^(?=### `--)")
    sections = []
    for name in REGISTRY:
        if name == "as-is":
            continue
        # a person may have given the picture other words
        picture = re.search(r"^!\[.*$", present.get(name, ""), re.MULTILINE)
        sections.append(_method_section(name, picture[0] if picture else ""))
    return "\n".join(sections)


def _method_section(name: str, picture: str) -> str:
    """Return the section of a method: what it does, its formula and picture, and its departures.

    Args:
        name: The name of the method.
        picture: The line of the picture; empty for the usual one.
    """
    method = REGISTRY[name]
    note = f"Fine-tuning: {method.finetuning_note or 'not tried'}."
    parts = [f"### `--{name}`"]
    for text in (*explained(method), f"Source: {method.paper}", note):
        parts.append(textwrap.fill(text, 119))
    if name in FORMULAS:
        parts.append(f"```math\n{FORMULAS[name]}\n```")
    usual = f"![--{name} on Llama 2: wavelengths and divisors per pair](pictures/method-{name}.svg)"
    parts.append(picture or usual)
    if method.departures:
        parts.append("Differences from the paper:")
        items = []
        for departure in method.departures:
            items.append(textwrap.fill(f"- {departure}", 119, subsequent_indent="  "))
        parts.append("\n".join(items))
    return "\n\n".join(parts) + "\n"


def encoding_rows(rows: str, names: Iterable[str]) -> str:
    """Return a table of encodings.

    Args:
        rows: The rows that are there.
        names: The names of all encodings.
    """

    def row(name: str) -> str:
        """Return the row of an encoding, from the first paragraph of its module's docstring."""
        docstring = sys.modules[f"ropeconv.convert.encodings.{name}"].__doc__ or ""
        paragraph = " ".join(docstring.split("\n\n")[0].split())
        _, _, summary = paragraph.partition(": ")
        return f"| `{name}` | {summary.rstrip('.')} | |"

    return kept(by_flag(rows, r"^(?=\| `)"), names, row)


def items_of_a_model(
    times: int, model: str = record_tables.REAL
) -> Iterator[tuple[str, Callable[[], str]]]:
    """Yield the parts of docs/evaluating.md that the items of a model make: pattern and function.

    Args:
        times: How many times the trained length the texts are.
        model: The name of the model.
    """
    title = "method" if model == record_tables.REAL else model
    place = record_tables.place_of(times, model)
    arguments = (times, model)
    header = rf"\| {title} \| loss at 1/4T \| at 1T \| at {times}T \|"
    yield rf"{header}.*?(?=\n\n)", partial(record_tables.item_table, *arguments)
    yield rf"- By loss {place}: .*?(?=\n\n)", partial(record_tables.item_pairs, *arguments)
    counted = rf"[\d,]+ items {place}: .*? of\s+LongPPL"
    yield counted, partial(record_tables.item_counts, *arguments)


PARTS: dict[str, tuple[tuple[str, Callable[[], str]], ...]] = {
    "docs/methods.md": (
        (r"\| models \| 2 times \|.*?(?=\n\n)", choice_table),
        (
            r"The first line is YaRN for .*?(?=\n\n)",
            lambda: paragraph(choice_sentence(read_choices())),
        ),
        (r"\| its publisher \|.*?(?=\n\n)", compare_with_publishers),
    ),
    "docs/evaluating.md": (
        (r"\| method \| factor \|.*?(?=\n\n)", record_tables.real_model),
        (r"- At 2T, .*?(?=\n\n)", record_tables.decided_pairs),
        (r"at most [\d.]+ nats above the unchanged model at 1T, .*? passkeys", record_tables.bar),
        *items_of_a_model(2),
        *items_of_a_model(4),
        *items_of_a_model(8),
        *items_of_a_model(2, "gemma-3-270m"),
        (r"\| method and factor \| right answers.*?(?=\n\n)", record_tables.short_questions),
        (r"\| model \| on top of \|.*?(?=\n\n)", lambda: regret_table(read_regrets())),
        (
            r"The first line is the best.*?(?=\n\n)",
            lambda: paragraph(regret_sentence(read_regrets())),
        ),
    ),
    "README.md": (
        (r"\| runtime \| supported.*?(?=\n\n)", newest_versions),
        (r"Number of model families \(of \d+\)", families_counted),
        (r"For \d+ published models in .*? running them", engine_tables.share),
    ),
    "docs/runtimes.md": (
        (r"(?<=```text\n)family .*?(?=\n```)", common_families),
        (r"\| runtime \| exact \| run \|.*?(?=\n\n)", ranges),
        (r"\| model \| `--ntk 4` \|.*?(?=\n\n)", engine_tables.engines),
        (r"That holds in\s+\d+\s+of\s+\d+\s+cells[^.]*\.", engine_tables.engines_counted),
        (
            r"For \d+ published models in .*? the table\s+below.*?running\s+them\.",
            engine_tables.shares,
        ),
        (r"There are [\d,]+\s+cells\s[^.]*?\sunknown\.", sentence),
        (r"\| runtime \| exact \| with an.*?(?=\n\n)", popular_tables.popular_counts),
    ),
    "docs/engines.md": (
        (r"\| engine \| version \|.*?(?=\n\n)", vector_tables.vector_versions),
        (r"\| architecture \| transformers.*?(?=\n\n)", vector_tables.vector_results),
    ),
    "docs/vectors.md": (
        (r"### [^\n]*: [^\n]*\n\n- Program.*?(?=\n\n## )", vector_tables.vector_defects),
    ),
    "docs/gguf.md": (
        (
            r"In llama\.cpp, \d+ of \d+ whole tokenizers .*?(?=\n\n)",
            lambda: paragraph(tokenizer_table.tokenizers_counted()),
        ),
        (r"\| tokenizer \| package \|.*?(?=\n\n)", tokenizer_table.tokenizer_table),
    ),
    "docs/families.md": ((r"\| models \| families \|.*?(?=\n\n)", model_table),),
    "docs/tables/runtimes.txt": ((r"^.*$", lambda: f"{families()}\n"),),
    "docs/tables/engines.txt": ((r"^.*$", lambda: f"{engine_tables.reasons()}\n"),),
    "docs/tables/popular.txt": ((r"^.*$", lambda: f"{popular_tables.popular_answers()}\n"),),
}
"""The parts of each page that are written: a pattern that finds one, and a function to make it."""
COMPLETED: dict[str, tuple[tuple[str, Callable[[str], str]], ...]] = {
    "docs/methods.md": (
        (r"\| `--theta B` .*?(?=\n\n)", method_rows),
        (r"### `--theta`\n.*?(?=\n## )", method_sections),
    ),
    "docs/runtimes.md": (
        (r"\| `native` \|.*?(?=\n\n)", lambda rows: encoding_rows(rows, ENCODINGS)),
    ),
    "docs/gguf.md": (
        (
            r"\| `keys` \|.*?(?=\n\n)",
            lambda rows: encoding_rows(rows, [*GGUF_ENCODINGS, "carrier"]),
        ),
    ),
}
"""The parts of each page that are completed: a pattern, and a function from a part to the whole.
"""
PAGES = tuple(dict.fromkeys((*PARTS, *COMPLETED)))


def filled(page: str, text: str) -> str:
    """Return the text of a page, in which every part is as the data have it.

    Args:
        page: Its path, such as "docs/methods.md".
        text: Its present text.

    Raises:
        ValueError: A part is not found once.
    """
    # PARTS make a part without its present text, and COMPLETED from it
    for pattern, make in PARTS.get(page, ()):
        text = _replace_once(page, text, pattern, lambda _, make=make: make())
    for pattern, complete in COMPLETED.get(page, ()):
        text = _replace_once(page, text, pattern, complete)
    return text


def _replace_once(page: str, text: str, pattern: str, make: Callable[[str], str]) -> str:
    """Replace the part of a page that a pattern finds, and raise ValueError if it is not one.

    Args:
        page: The path of the page, for the message.
        text: The text of the page.
        pattern: Finds the part.
        make: Returns the new part for the present one.
    """
    new_text, number = re.subn(pattern, lambda match: make(match[0]), text, flags=re.DOTALL)
    if number != 1:
        raise ValueError(f"{page} has {number} parts like {pattern}, not one")
    return new_text


def main() -> None:
    """Rewrites the pages."""
    for page in PAGES:
        path = ROOT / page
        path.write_text(filled(page, path.read_text("utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
