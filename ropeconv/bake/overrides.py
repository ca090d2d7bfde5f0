"""Overrides: the changes of a plan to config.json as JSON for the command line of vLLM or SGLang.

vLLM sets the keys of `--hf-overrides` in the config, and merges dictionaries into those of a nested
config (vllm/config/model.py:527-569, 0.33.0). SGLang merges `rope_parameters`, and replaces those
of a nested config (sglang/srt/utils/hf_transformers/config.py:403-421, 0.5.23). So a key of the
source that the output does not have would stay. `rope_scaling` is left out: in transformers 5 it is
another name of `rope_parameters`, where it would leave keys.
"""

import json
import shlex
from collections.abc import Iterator

import msgspec

from ..convert.encoding import ENCODINGS, CheckpointResult
from ..errors import UsageError
from ..formats.jsontext import JsonObject
from ..models.length_limits import length_limits
from ..models.schema import Config
from ..rope.errors import RopeconvError
from ..runtimes.runtime import canonical
from .checkpoint import CheckpointPlan
from .next_steps import options_of
from .plan import Plan

FLAGS = {"vllm": "--hf-overrides", "sglang": "--json-model-override-args"}
"""The option of each server that takes overrides."""
ROPE_DICTIONARIES = ("rope_scaling", "rope_parameters")
NEW_NAMES_OF_TYPES = {"mrope": "default", "su": "longrope"}
"""The rope_type as which transformers and vLLM read an older name."""
MAY_BE_FLAT = ("qwen2_vl", "qwen2_5_vl")
"""Model types whose config.json may be flat; in transformers 5 their config has a `text_config`."""


def overrides(plan: Plan, before: Config) -> JsonObject:
    """Return the keys of config.json that a plan changes, those of a nested config below its name.

    They are for `vllm serve --hf-overrides`, such as {"max_position_embeddings": 131072,
    "rope_parameters": {"rope_type": "yarn", "factor": 4.0, ...}}.

    Args:
        plan: The output that the overrides stand for.
        before: The config.json that the server reads.

    Raises:
        UsageError: For a plan that changes nothing.
        RopeconvError: For one that changes more than config.json, or removes a key.
    """
    result = _result_in_config(plan)
    source = plan.source.reference

    # the servers merge keys, and remove none
    after = result.config
    removed = next(removed_keys(before, after), "")
    if removed:
        raise RopeconvError(
            f"an override cannot remove {removed} from the config of {source}; write the output"
            " with `ropeconv apply`"
        )
    changes = changed_keys(before, after)
    if not changes:
        raise UsageError(f"{source} needs no override: its config does not change")

    # The config.json of Qwen2-VL has the RoPE of its text model at the top. transformers 5 moves
    # that into a text_config, and only then vLLM merges the override, so it must be in there too.
    is_moved = before.get("model_type") in MAY_BE_FLAT and "text_config" not in before
    if not is_moved:
        return with_needed(plan, changes)
    if any(name.startswith("sglang") for name in plan.target.runtimes):
        raise RopeconvError(
            f"SGLang ignores an override of the RoPE of {source}; write the output with `ropeconv"
            " apply`"
        )
    return with_needed(plan, {"text_config": changes})


def with_needed(plan: Plan, changes: JsonObject) -> JsonObject:
    """Add to some changed keys of config.json the keys that a server needs to compute them exactly.

    vLLM can be started with changes of config.json, its overrides: `--hf-overrides '{...}'`. Some
    versions need a further key, such as {"original_max_position_embeddings": 4096}.

    Args:
        plan: The plan of the output that the overrides replace.
        changes: The keys of config.json that the plan changes, with their new values.

    Returns:
        The overrides: the changes with the further keys.

    Raises:
        UsageError: The user names a runtime without an option for overrides, or two servers that
            need different overrides.
    """
    overrides_by_server = []
    for server in named_servers(plan):  # "vllm", "sglang" or both
        # the further options of the server, e.g. " --hf-overrides '{...}'", and the keys in them
        options = options_of(plan.result.verdicts, server)
        override_option = FLAGS[server]  # the option for overrides, such as "--hf-overrides"
        needed_keys = needed_overrides(options, override_option)
        overrides_by_server.append(merged(changes, needed_keys))

    first, *others = overrides_by_server
    if any(other != first for other in others):
        raise UsageError(
            "vllm and sglang need different overrides; name one of them with --runtime"
        )
    return first


def changed_keys(before: Config, after: Config) -> JsonObject:
    """Return the keys of a config that are new or have another value, with their new values.

    A nested dictionary comes with its changed keys only. RoPE dictionaries come as a whole, since
    SGLang replaces them.
    """
    changes: JsonObject = {}
    for key, value in after.items():
        old = before.get(key)
        is_same = key in before and value == old
        if is_same:
            continue
        # rope_parameters has the same values; in transformers 5 rope_scaling is only another name
        # of it
        if key == "rope_scaling":
            continue
        if isinstance(value, dict) and isinstance(old, dict) and key not in ROPE_DICTIONARIES:
            changes[key] = changed_keys(old, value)
        else:
            changes[key] = value
    return changes


def removed_keys(before: Config, after: Config) -> Iterator[str]:
    """Yield the keys that a config loses, with dots between levels, such as `rope_scaling.factor`.

    The servers merge an override into the config, so these keys would keep their old values.

    Args:
        before: The config of the source.
        after: The config of the output.
    """
    yield from _removed_settings(before, after)

    # all other keys, level by level
    for key, value in before.items():
        if key in ROPE_DICTIONARIES:
            continue
        if key not in after:
            yield key
        elif isinstance(value, dict) and isinstance(after[key], dict):
            for name in removed_keys(value, after[key]):
                yield f"{key}.{name}"


def _result_in_config(plan: Plan) -> CheckpointResult:
    """Return the new config of a plan, if keys of config.json are all that the output changes.

    Raises:
        UsageError: The output is not a checkpoint with a config.json.
        RopeconvError: The output changes weights or code too.
    """
    if not isinstance(plan, CheckpointPlan) or plan.source.kind == "meta":
        layout = "in Meta's layout" if plan.is_folder else "a GGUF file"
        raise UsageError(
            f"vLLM and SGLang override keys of config.json, and {plan.source.reference} is"
            f" {layout}; write it with -o"
        )
    if not ENCODINGS[plan.result.encoding].config_only:
        raise RopeconvError(
            f"an override changes only config.json, and --encoding {plan.result.encoding} changes"
            " more; write the output with `ropeconv apply`, or choose a method that fits"
            " --encoding native or factors"
        )
    return plan.result


def _removed_settings(before: Config, after: Config) -> Iterator[str]:
    """Yield the names of RoPE settings that a new config lacks, such as "rope_scaling.factor".

    A server with overrides merges them into its config and removes nothing. A setting that the new
    config lacks would therefore still count.

    Args:
        before: The config of the source, with settings in rope_scaling, rope_parameters, or both.
        after: The new config, whose rope_parameters are the override.
    """
    old_settings = dict[str, object]()
    for name in ROPE_DICTIONARIES:
        old_settings.update(_settings(before.get(name)))
    new_settings = dict(_settings(after.get("rope_parameters")))

    # the dictionary that the message names: the first that the source has
    dictionaries = [name for name in ROPE_DICTIONARIES if before.get(name)]
    dictionary = dictionaries[0] if dictionaries else ""

    for setting, value in old_settings.items():
        is_removed = setting not in new_settings
        # `type` is the older name of `rope_type`. It is harmless beside a `rope_type` that means
        # the same, as "su" and "longrope" do.
        if setting == "type":
            new_name = NEW_NAMES_OF_TYPES.get(str(value), value)
            is_removed = new_name != new_settings.get("rope_type")
        if is_removed:
            yield f"{dictionary}.{setting}"


def _settings(rope: object) -> Iterator[tuple[str, object]]:
    """The items of a RoPE dictionary, which may have one for each kind of layer."""
    if not isinstance(rope, dict):
        return
    for key, value in rope.items():
        if isinstance(value, dict):
            yield from _settings(value)
        else:
            yield key, value


def named_servers(plan: Plan) -> list[str]:
    """Return the servers that the user named, each once, by default vLLM.

    Raises:
        UsageError: For a runtime without an option for overrides.
    """
    servers = []
    for name in plan.target.runtimes or ("vllm",):
        server = canonical(name).partition("@")[0]
        if server not in FLAGS:
            raise UsageError(
                f"--runtime {name} has no option for overrides; name vllm or sglang, or leave it"
                " out"
            )
        servers.append(server)
    return list(dict.fromkeys(servers))


def override_commands(plan: Plan, values: str) -> list[str]:
    """Return the command of each server that the user named, by default vLLM.

    Args:
        plan: The output that the overrides stand for.
        values: The overrides as JSON.

    Raises:
        UsageError: For a runtime without an option for overrides.
    """
    starts = {
        "vllm": "vllm serve {} --max-model-len {}",
        "sglang": "sglang serve --model-path {} --context-length {}",
    }
    model = "MODEL" if plan.source.kind == "config" else shlex.quote(plan.source.reference)
    commands = []
    for server in named_servers(plan):
        start = starts[server].format(model, plan.context)
        options = options_of(plan.result.verdicts, server)
        commands.append(start + with_overrides(options, FLAGS[server], values))
    return commands


def with_overrides(options: str, flag: str, values: str) -> str:
    """Return options of a server with overrides, in one JSON with those that they have already.

    " --trust-remote-code" and {"rope_theta": 1e6} give " --trust-remote-code --hf-overrides
    '{"rope_theta": 1e6}'". If the options have --hf-overrides already, both are merged, since a
    server takes the last of two options of one name.

    Args:
        options: The options that an output needs, which are put behind a command, and so begin with
            a blank; empty for none.
        flag: The option for overrides.
        values: The overrides as JSON.
    """
    words = shlex.split(options)
    if flag not in words:
        return f"{options} {flag} {shlex.quote(values)}"

    both = merged(msgspec.json.decode(values), needed_overrides(options, flag))
    place_of_json = words.index(flag) + 1
    words[place_of_json] = json.dumps(both)
    return f" {shlex.join(words)}"


def needed_overrides(options: str, flag: str) -> JsonObject:
    """Return the overrides among the options that an output needs; empty where there are none."""
    words = shlex.split(options)
    if flag not in words:
        return {}
    needed: JsonObject = msgspec.json.decode(words[words.index(flag) + 1])
    return needed


def merged(first: JsonObject, second: JsonObject) -> JsonObject:
    """Return the keys of both, level by level; the second counts where both have one."""
    both = dict(first)
    for key, value in second.items():
        old = first.get(key)
        if isinstance(value, dict) and isinstance(old, dict):
            both[key] = merged(old, value)
        else:
            both[key] = value
    return both


def describe_kept_limits(plan: Plan) -> str:
    """Return a sentence on the limits of the length in other files, which stay; or empty."""
    assert isinstance(plan, CheckpointPlan)
    low = []
    for limit in length_limits(plan.source):
        if limit.tokens < plan.schedule.context and limit.file != "config.json":
            low.append(f"{limit.key} in {limit.file} ({limit.tokens:,})")
    if not low:
        return ""
    return f"these keys stay, and may limit prompts: {', '.join(low)}"
