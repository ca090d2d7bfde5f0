"""The messages that docs/troubleshooting.md quotes are those of the engines that are installed."""

import importlib.metadata
import importlib.util
import re
from pathlib import Path

import pytest

from scripts.gather_pages import ROOT

PAGE = (ROOT / "docs" / "troubleshooting.md").read_text("utf-8")
QUOTED = {
    "transformers": {
        "modeling_rope_utils.py": (
            "Unrecognized keys in `rope_parameters` for 'rope_type'=",
            "Missing required keys in `rope_parameters` for 'rope_type'=",
            "factor field must be a float or int >= 1",
            "original_max_position_embeddings field must be less than max_position_embeddings",
        ),
        "tokenization_utils_base.py": (
            "Token indices sequence length is longer than the specified maximum sequence length",
        ),
        "generation/stopping_criteria.py": (
            "This is a friendly reminder - the current text generation call has exceeded",
        ),
    },
    "llama_cpp": {
        "lib/libllama.so": (
            "-- possible training context overflow",
            "-- the full capacity of the model will not be utilized",
            "custom YaRN scaling detected, re-adjusting n_ctx_train",
        ),
    },
    "vllm": {
        "config/model.py": (
            "User-specified max_model_len (",
            "greater than the derived max_model_len",
        ),
        "v1/core/kv_cache_utils.py": (
            "To serve at least one request with the model's max seq len",
        ),
    },
    "sglang": {
        "srt/configs/model_config.py": ("is greater than the derived context_length",),
    },
}
"""Parts of messages by the package and the file that print them. vLLM 0.32 and SGLang 0.5.23 had
these where they were read.
"""


def plain(text: str) -> str:
    """A text without the marks of code and of f-strings, in one line."""
    joined = re.sub(r'"\s*\n\s*f?"', "", text)
    return " ".join(joined.replace("`", "").split())


@pytest.mark.parametrize("package", QUOTED)
def test_a_message_of_the_page_is_printed_by_the_engine(package: str) -> None:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        pytest.skip(f"{package} is not installed")
    for name, messages in QUOTED[package].items():
        code = plain((Path(spec.origin).parent / name).read_bytes().decode("utf-8", "ignore"))
        assert [message for message in messages if plain(message) not in code] == [], name


def test_the_page_has_every_message() -> None:
    quoted = [message for files in QUOTED.values() for some in files.values() for message in some]
    assert [message for message in quoted if plain(message) not in plain(PAGE)] == []


def test_every_row_of_the_list_leads_to_a_section_with_a_command() -> None:
    sections = re.split(r"^## (.+)$", PAGE, flags=re.MULTILINE)
    bodies = dict(zip(sections[1::2], sections[2::2], strict=True))
    listed = re.findall(r"\]\(#([\w-]+)\) \|$", sections[0], re.MULTILINE)
    titles = {re.sub(r"[^\w -]", "", name.lower()).replace(" ", "-"): name for name in bodies}
    assert len(set(listed)) >= 10
    for anchor in set(listed) - {"ropeconv-refuses"}:
        assert re.search(r"^(?:\$ )?ropeconv ", bodies[titles[anchor]], re.MULTILINE), anchor


def test_the_versions_that_are_installed_are_those_of_the_page() -> None:
    version = importlib.metadata.version("transformers")
    assert f"transformers {version.rpartition('.')[0]}" in PAGE
