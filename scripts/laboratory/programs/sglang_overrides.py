"""Asks SGLang what it computes with `--json-model-override-args`; `scripts/laboratory/overrides.py`
runs it.

A question also has "overrides", the JSON; the answer also has "served", the tokens that SGLang
serves.

"""

from __future__ import annotations

import json
from typing import Any

import protocol
import sglang_program


def ask(config: dict[str, Any], question: dict[str, Any]) -> protocol.Answer:
    """The answer of SGLang to a question about a config with overrides."""
    from sglang.srt.configs import model_config

    plain = model_config.ModelConfig
    loaded = []

    class Overridden(plain):  # type: ignore[misc, valid-type]
        def __init__(self, **given: Any) -> None:
            super().__init__(**given, model_override_args=json.dumps(question["overrides"]))
            loaded.append(self)

    model_config.ModelConfig = Overridden
    try:
        answer = sglang_program.ask(config, question)
    finally:
        model_config.ModelConfig = plain
    return {**answer, "served": loaded[0].context_len}


if __name__ == "__main__":
    sglang_program.prepare()
    protocol.main(ask)
