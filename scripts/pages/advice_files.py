"""What the records about `ropeconv advise` have in common: asking it, and their form as JSON.

`regret` and `publishers` write such records, and pages have their sentences.
"""

import json
import tempfile
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from ropeconv.bake.advice import Advice, advise
from ropeconv.formats.drafts import write_file
from ropeconv.models.open import open_source


def advise_config(config: dict[str, Any], context: int) -> Sequence[Advice]:
    """Return the lines of `advise` for a model of which only the config is known.

    Args:
        config: The content of its config.json.
        context: The wanted length in tokens.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_bytes(msgspec.json.encode(config))
        return advise(open_source(str(path)), context, ("safetensors",)).methods


def write_records(path: Path, records: Sequence[msgspec.Struct]) -> None:
    """Write a list of records as JSON, with one record to a line."""
    lines = [json.dumps(msgspec.to_builtins(one), ensure_ascii=False) for one in records]
    write_file(path, "[\n" + ",\n".join(lines) + "\n]\n")


def paragraph(sentences: str) -> str:
    """Return sentences in lines of a page."""
    return "\n".join(textwrap.wrap(sentences, 125))
