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
    """The questions about a config: with overrides, as written by `apply`, and unchanged."""
    questions = []
    config = json.loads((CONFIGS / f"{name}.json").read_text())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(json.dumps(config))
        for text in CASES[name] if (name, runtime) != REFUSED else ():
            source = open_source(str(path))
            plan = make_plan(
                source,
                parse_recipe(text),
                Target(out=Path(folder) / "out", replace=True, runtimes=(runtime,)),
            )
            assert isinstance(plan, CheckpointPlan)
            common = {"trained": plan.schedule.original_context, "context": plan.schedule.context}
            ways = {
                "overrides": (config, overrides(plan, config)),
                "written": (plan.result.config, {}),
            }
            for way, (given, values) in (ways | {"unchanged": (config, {})}).items():
                more = (
                    common if way != "unchanged" else common | {"context": plan.source_spec.context}
                )
                label = f"{name} {text} {way}"
                options = {FLAGS[runtime].lstrip("-"): values} if values else {}
                questions.append(
                    {"id": label, "label": label, "config": given, "options": options, **more}
                )
    return questions


def main(name: str = "", version: str = "") -> None:
    """Run the servers and print a line for each config and recipe."""
    for runtime in (vllm.RUNTIME, sglang.RUNTIME):
        if name not in ("", runtime.name):
            continue
        questions = [question for config in CASES for question in asked(config, runtime.name)]
        by_question = run(runtime, version or runtime.versions[-1], questions)
        for label in (question["id"].rpartition(" ")[0] for question in questions[::3]):
            given, written, before = (
                by_question[f"{label} {way}"] for way in ("overrides", "written", "unchanged")
            )
            if "ropes" not in given:
                print(f"{runtime.name} {label}: {given}; written: {written}")
                continue
            unlike = [
                key
                for key in ("ropes", "layers", "window", "scaling")
                if given.get(key) != written.get(key)
            ]
            control = "else" if given["ropes"] != before["ropes"] else "the same"
            print(
                f"{runtime.name} {label}: {unlike or 'same'}, {given['window']:,} tokens; without"
                f" overrides {control}"
            )


if __name__ == "__main__":
    main(*sys.argv[1:])
