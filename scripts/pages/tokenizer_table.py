"""The table of tokenizers in docs/gguf.md, from docs/evidence/pre-tokenizers.json.

`python -m scripts.llamacpp.pre_tokenizers` writes the record, and `tables.py` puts the table into
the page.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

RECORD = Path(__file__).parents[2] / "docs" / "evidence" / "pre-tokenizers.json"
NAMES = {
    "aya_expanse": "Aya Expanse",
    "baichuan2": "Baichuan 2",
    "chatglm3": "ChatGLM 3",
    "claude": "Claude 2",
    "command_r_plus": "Command R+",
    "deepseek": "DeepSeek V4",
    "deepseek_v3": "DeepSeek V3",
    "gemini": "Gemma 2, as Gemini's",
    "gemma": "Gemma",
    "gemma2": "Gemma 2",
    "gemma3": "Gemma 3",
    "gpt2": "GPT-2",
    "gpt35turbo": "GPT-3.5 (cl100k)",
    "gpt4o": "GPT-4o (o200k)",
    "gptoss": "gpt-oss",
    "internlm2": "InternLM 2",
    "llama2": "Llama 2",
    "llama3": "Llama 3",
    "llama3_1": "Llama 3.1",
    "llama3_2": "Llama 3.2",
    "mistral_nemo": "Mistral Nemo",
    "qwen1_5": "Qwen 1.5",
    "qwen2_5": "Qwen 2.5",
    "qwen3": "Qwen 3",
    "text_davinci002": "Davinci 2 (p50k)",
    "yi": "Yi",
}
"""The models, by the names of the record."""


def tokenizers() -> list[dict[str, Any]]:
    """Return the rows of the record that are about whole tokenizers."""
    rows: list[dict[str, Any]] = json.loads(RECORD.read_text("utf-8"))["tokenizers"]
    return rows


def read_keys() -> list[dict[str, Any]]:
    """Return the rows that scripts.llamacpp.compare_tokenizer_keys writes."""
    path = RECORD.with_name("tokenizer-keys.json")
    rows: list[dict[str, Any]] = json.loads(path.read_text("utf-8"))["rows"]
    return rows


def outcome(row: Mapping[str, Any]) -> str:
    """Return which strings become other tokens, in words."""
    if "refused" in row:
        return "not converted: its normalizer is not in llama.cpp"
    if not row["differ"]:
        return "0"
    words = f"{row['differ']}, such as '{row['example']}'"
    if not row["differ_composed"]:
        return f"{words}; 0 after NFC"
    return words


def note(row: Mapping[str, Any]) -> str:
    """Return the example that a plan gives, with its numbers of tokens."""
    parts = []
    for text, usual, in_llama_cpp in row.get("noted", {}).values():
        parts.append(f"'{text}' {in_llama_cpp} in place of {usual}")
    return "; ".join(parts)


def tokenizer_table() -> str:
    """Return the table of tokenizers, those with differences first."""
    rows = tokenizers()
    counts = {row["strings"] for row in rows}
    assert len(counts) == 1, counts
    lines = [
        "| tokenizer | package | pre-tokenizer | strings that become other tokens, of"
        f" {counts.pop()} | the plan's example |",
        "|---" * 5 + "|",
    ]
    for row in sorted(rows, key=lambda row: (-row.get("differ", 0), NAMES[row["name"]])):
        cells = (
            NAMES[row["name"]],
            f"{row['package']} {row['version']}",
            row.get("pre", ""),
            outcome(row),
            note(row),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def tokenizers_counted() -> str:
    """Return a sentence that counts the tokenizers."""
    rows = tokenizers()
    converted = [row for row in rows if "refused" not in row]
    equal = [row for row in converted if not row["differ"]]
    composed = [row for row in converted if row["differ"] and not row["differ_composed"]]
    return (
        f"In llama.cpp, {len(equal)} of {len(rows)} whole tokenizers give the same tokens for all"
        f" strings, and {len(composed)} more do once the text is composed (NFC). Where tokens"
        " differ, the plan of a conversion gives an example, which is confirmed here in llama.cpp."
    )
