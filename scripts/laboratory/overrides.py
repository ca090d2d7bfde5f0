"""Runs configs with the JSON of `ropeconv apply --to overrides` in vLLM and SGLang, beside those of
`ropeconv apply`.

    python -m scripts.laboratory.overrides [vllm|sglang [VERSION]]

It prints for each config whether the server computes the same from both, and something else without
the overrides.
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from ropeconv.bake.apply import make_plan
from ropeconv.bake.checkpoint import CheckpointPlan
from ropeconv.bake.overrides import FLAGS, overrides
from ropeconv.convert.target import Target
from ropeconv.models.open import open_source
from ropeconv.rope.recipe import parse_recipe

from .execute import run
from .runtimes import sglang, vllm

CONFIGS = Path(__file__).parents[2] / "tests" / "data" / "configs"
CASES = {
    "Qwen--Qwen3-8B": ("yarn:4", "mixed:4", "theta:4000000"),
    "meta-llama--Meta-Llama-3-8B": ("yarn:4", "linear:4", "llama3:4", "mixed:4"),
    "google--gemma-3-27b-it": ("linear:16",),
    "mistralai--Mistral-7B-v0.1": ("yarn:4",),
    "Qwen--Qwen2.5-VL-7B-Instruct": ("ntk:4",),
}
"""Recipes by published config; gemma 3 and Qwen2.5-VL have theirs in a text_config."""
REFUSED = ("Qwen--Qwen2.5-VL-7B-Instruct", "sglang")
"""SGLang 0.5.23 computes the RoPE of the unchanged config, with the overrides at the top and in the
text_config.
"""


def asked(name: str, runtime: str) -> list[dict[str, Any]]:
    """Return the questions about a config, three for each recipe.

    The runtime is asked about the config with overrides, as written by `apply`, and unchanged.

    Args:
        name: The name of the config, a key of CASES.
        runtime: "vllm" or "sglang".
    """
    if (name, runtime) == REFUSED:
        return []
    questions = []
    config = json.loads((CONFIGS / f"{name}.json").read_text())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(json.dumps(config))
        source = open_source(str(path))
        for text in CASES[name]:
            target = Target(out=Path(folder) / "out", replace=True, runtimes=(runtime,))
            plan = make_plan(source, parse_recipe(text), target)
            assert isinstance(plan, CheckpointPlan)
            trained = plan.schedule.original_context
            context = plan.schedule.context
            option = FLAGS[runtime].lstrip("-")  # such as "hf-overrides"
            values = overrides(plan, config)
            # the config, the options of the server, and the context, for each way
            ways: dict[str, tuple[dict[str, Any], dict[str, Any], int]] = {
                "overrides": (config, {option: values} if values else {}, context),
                "written": (plan.result.config, {}, context),
                "unchanged": (config, {}, plan.source_spec.context),
            }
            for way, (given, options, length) in ways.items():
                label = f"{name} {text} {way}"
                questions.append(
                    {
                        "id": label,
                        "label": label,
                        "config": given,
                        "options": options,
                        "trained": trained,
                        "context": length,
                    }
                )
    return questions


def main(name: str = "", version: str = "") -> None:
    """Run the servers and print a line for each config and recipe.

    Args:
        name: The server; empty for both.
        version: Its version; empty for the newest.
    """
    for runtime in (vllm.RUNTIME, sglang.RUNTIME):
        if name not in ("", runtime.name):
            continue
        questions = []
        for config in CASES:
            questions += asked(config, runtime.name)
        by_question = run(runtime, version or runtime.versions[-1], questions)
        # three questions about each config and recipe, whose ids end with the way
        labels = dict.fromkeys(question["id"].rpartition(" ")[0] for question in questions)
        for label in labels:
            given = by_question[f"{label} overrides"]
            written = by_question[f"{label} written"]
            unchanged = by_question[f"{label} unchanged"]
            if "ropes" not in given:
                print(f"{runtime.name} {label}: {given}; written: {written}")
                continue
            unlike = []
            for key in ("ropes", "layers", "window", "scaling"):
                if given.get(key) != written.get(key):
                    unlike.append(key)
            control = "else" if given["ropes"] != unchanged["ropes"] else "the same"
            print(
                f"{runtime.name} {label}: {unlike or 'same'}, {given['window']:,} tokens; without"
                f" overrides {control}"
            )


if __name__ == "__main__":
    main(*sys.argv[1:])
