"""model_max_length in tokenizer_config.json, raised to a new context: a lower limit truncates prompts in pipelines."""

from __future__ import annotations

import re

from . import jsontext

SENTINEL = 10**15  # transformers writes 1e30 for "no limit"
LIMIT = re.compile(r'("model_max_length"\s*:\s*)(-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)')


def limit(text: str | None) -> int | None:
    """model_max_length in tokens; None where it is absent or means "no limit". text: of tokenizer_config.json."""
    value = None if text is None else jsontext.parse(text, "tokenizer_config.json").get("model_max_length")
    good = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < SENTINEL
    return int(value) if good and value is not None else None


def raised(text: str | None, context: int) -> str | None:
    """The text of the file with model_max_length raised to `context` tokens; None where nothing has to change."""
    old = limit(text)
    if text is None or old is None or old >= context:
        return None
    if len(LIMIT.findall(text)) == 1:
        return LIMIT.sub(rf"\g<1>{context}", text)
    return jsontext.dump({**jsontext.parse(text, "tokenizer_config.json"), "model_max_length": context}, like=text)
