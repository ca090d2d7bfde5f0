"""Overrides: the changes of a plan to config.json as JSON for the command line of vLLM or SGLang.

vLLM sets the keys of `--hf-overrides` in the config, and merges dictionaries into those of a nested
config (vllm/config/model.py:527-569, 0.33.0). SGLang merges `rope_parameters`, and replaces those
of a nested config (sglang/srt/utils/hf_transformers/config.py:403-421, 0.5.23). So a key of the
source that the output does not have would stay. `rope_scaling` is left out: in transformers 5 it is
another name of `rope_parameters`, where it would leave keys.
"""

import shlex
from collections.abc import Iterator

from ..convert.encoding import ENCODINGS
from ..errors import UsageError
from ..formats.jsontext import JsonObject
from ..models.length_limits import length_limits
from ..models.schema import Config
from ..rope.errors import RopeconvError
from ..runtimes.runtime import canonical
from .checkpoint import CheckpointPlan
from .plan import Plan

FLAGS = {"vllm": "--hf-overrides", "sglang": "--json-model-override-args"}
"""The option of each server that takes overrides."""
ROPE = ("rope_scaling", "rope_parameters")
OLDER = {"mrope": "default", "su": "longrope"}
"""Types that transformers and vLLM read as other ones."""
FLAT = ("qwen2_vl", "qwen2_5_vl")
"""Model types whose config.json may be flat, while their config in transformers 5 has a
`text_config`.
"""


def overrides(plan: Plan, before: Config) -> JsonObject:
    """Return the keys of config.json that a plan changes, those of a nested config below its name.

    Args:
        plan: The output that the overrides stand for.
        before: The config.json that the server reads.

    Raises:
        UsageError: For a plan that changes nothing.
        RopeconvError: For one that changes more than config.json, or removes a key.
    """
    source = plan.source.reference
    if not isinstance(plan, CheckpointPlan) or plan.source.kind == "meta":
        layout = "in Meta's layout" if plan.is_folder else "a GGUF file"
        raise UsageError(
            f"vLLM and SGLang override keys of config.json, and {source} is {layout}; write it"
            " with -o"
        )
    if not ENCODINGS[plan.result.encoding].config_only:
        raise RopeconvError(
            f"an override changes only config.json, and --encoding {plan.result.encoding} changes"
            " more; write the output with `ropeconv apply`, or choose a method that fits"
            " --encoding native or factors"
        )
    after = plan.result.config
    if stays := next(removed(before, after), ""):
        raise RopeconvError(
            f"an override cannot remove {stays} from the config of {source}; write the output with"
            " `ropeconv apply`"
        )
    changes = changed(before, after)
    if not changes:
        raise UsageError(f"{source} needs no override: its config does not change")
    flat = before.get("model_type") in FLAT and "text_config" not in before
    if flat and any(name.startswith("sglang") for name in plan.target.runtimes):
        raise RopeconvError(
            f"SGLang ignores an override of the RoPE of {source}; write the output with `ropeconv"
            " apply`"
        )
    return {"text_config": changes} if flat else changes


def changed(before: Config, after: Config) -> JsonObject:
    """Return the keys of a config that are new or have another value, those of RoPE with their
    whole dictionaries.
    """
    changes: JsonObject = {}
    for key, value in after.items():
        old = before.get(key)
        if key == "rope_scaling" or (value == old and key in before):
            continue
        nested = isinstance(value, dict) and isinstance(old, dict) and key not in ROPE
        changes[key] = changed(dict(old or {}), value) if nested else value
    return changes


def removed(before: Config, after: Config) -> Iterator[str]:
    """Yield the keys that a config loses, with dots between levels."""
    old = {name: value for key in ROPE for name, value in _settings(before.get(key))}
    new = dict(_settings(after.get("rope_parameters")))
    new["type"] = new.get("rope_type")  # its older name
    kind = OLDER.get(str(old.get("type")), old.get("type"))
    stale = (name for name in old if name not in new or (name == "type" and kind != new["type"]))
    place = next((key for key in ROPE if before.get(key)), "")
    yield from (f"{place}.{name}" for name in stale)
    for key, value in before.items():
        if key not in after and key not in ROPE:
            yield key
        elif isinstance(value, dict) and isinstance(after.get(key), dict) and key not in ROPE:
            yield from (f"{key}.{name}" for name in removed(value, after[key]))


def _settings(rope: object) -> Iterator[tuple[str, object]]:
    """The items of a RoPE dictionary, which may have one for each kind of layer."""
    for key, value in rope.items() if isinstance(rope, dict) else ():
        yield from _settings(value) if isinstance(value, dict) else ((key, value),)


def override_commands(plan: Plan, values: str) -> list[str]:
    """Return the command of each server that the user named, by default vLLM. values: the overrides
    as JSON.

    Raises UsageError for a runtime without an option for overrides.
    """
    given = {name: canonical(name).partition("@")[0] for name in plan.target.runtimes or ("vllm",)}
    if other := next((name for name, server in given.items() if server not in FLAGS), ""):
        raise UsageError(
            f"--runtime {other} has no option for overrides; name vllm or sglang, or leave it out"
        )
    starts = {
        "vllm": "vllm serve {} --max-model-len {}",
        "sglang": "sglang serve --model-path {} --context-length {}",
    }
    model = "MODEL" if plan.source.kind == "config" else shlex.quote(plan.source.reference)
    text = shlex.quote(values)
    return [
        f"{starts[name].format(model, plan.schedule.context)} {FLAGS[name]} {text}"
        for name in dict.fromkeys(given.values())
    ]


def kept_limits(plan: Plan) -> str:
    """Return a sentence on the limits of the length in other files, which stay; empty without
    any.
    """
    assert isinstance(plan, CheckpointPlan)
    low = [
        limit
        for limit in length_limits(plan.source)
        if limit.tokens < plan.schedule.context and limit.file != "config.json"
    ]
    keys = ", ".join(f"{limit.key} in {limit.file} ({limit.tokens:,})" for limit in low)
    return keys and f"these keys stay, and may limit prompts: {keys}"
