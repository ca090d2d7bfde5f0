"""Right bakes, and ways to make them wrong: a table of what is changed, in which of them, and of
which families.

Only faults that change what a model computes are here. Logits cannot see what changes nothing in it
(a schema that this version of transformers does not read, a row of the embedding that no text uses,
a factor on queries or values that a norm behind them removes): that is for the comparison of files.
"""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from ropeconv.convert.fold import Scaling
from ropeconv.rope.methods.method import REGISTRY
from ropeconv.rope.recipe import Recipe

from ..support.baking import apply, make_plan

Change = Callable[[Path], None]
Settings = dict[str, Any]


def config(edit: Callable[[Settings], object]) -> Change:
    def change(out: Path) -> None:
        path = out / "config.json"
        settings = json.loads(path.read_text())
        before = json.dumps(settings)
        edit(settings)
        assert json.dumps(settings) != before, "nothing was changed"
        path.write_text(json.dumps(settings))

    return change


def weights(pattern: str, edit: Callable[[torch.Tensor], torch.Tensor]) -> Change:
    def change(out: Path) -> None:
        path = out / "model.safetensors"
        tensors = safetensors.torch.load_file(path)
        names = [name for name in tensors if re.search(pattern, name)]
        assert names, f"no weight is named like {pattern}"
        tensors |= {name: edit(tensors[name].clone()).contiguous() for name in names}
        safetensors.torch.save_file(tensors, path, {"format": "pt"})

    return change


def _ropes(config: Settings) -> Iterator[Settings]:
    """The parts of a config that describe the RoPE of the layers that a method extends."""
    for part in (
        config,
        config.get("rope_scaling"),
        config.get("rope_parameters"),
        config.get("llama_4_scaling"),
    ):
        if part:
            yield part.get("full_attention", part)


def rope(top: tuple[str, ...] = (), **values: Any) -> Change:
    """Sets keys of the RoPE wherever they are written, or in its schemas where they are not.

    top: keys beside the schemas that get the first value. values: new ones, or functions of the old
    ones.
    """

    def edit(settings: Settings) -> None:
        for part in _ropes(settings):
            for key, value in values.items():
                if key in part:
                    part[key] = value(part[key]) if callable(value) else value
                elif "rope_type" in part and not callable(value):
                    part[key] = value
        settings.update({key: next(iter(values.values())) for key in top if key in settings})

    return config(edit)


def setting(each: bool = False, **values: Any) -> Change:
    """Sets keys of the config. each: in the schemas of the RoPE as well, where they are written."""

    def edit(settings: Settings) -> None:
        settings.update(values)
        for part in _ropes(settings) if each else ():
            part.update({key: value for key, value in values.items() if key in part})

    return config(edit)


def lists(change: Callable[[list[float]], list[float]]) -> Change:
    return rope(short_factor=change, long_factor=change)


def scaled(pattern: str, factor: float, rows: slice = slice(None)) -> Change:
    """Multiplies rows of the weights whose name matches."""

    def edit(tensor: torch.Tensor) -> torch.Tensor:
        tensor[rows] *= factor
        return tensor

    return weights(pattern, edit)


def _folds(out: Path) -> tuple[tuple[Scaling, ...], float]:
    """What a fold into a baked folder has scaled, by the recipe in its receipt, and the attention
    factor.
    """
    receipt = json.loads((out / "ropeconv.json").read_text())
    plan = make_plan(out.parent / "source", Recipe.from_dict(receipt["recipe"]), encoding="weights")
    return tuple(plan.result.fold.scalings), receipt["schedule"]["attention_factor"]


def fold_again(power: int, only: str = "") -> Change:
    """Multiplies what a fold has scaled by a power of the attention factor more. only: in the names
    of the tensors.
    """

    def change(out: Path) -> None:
        scalings, factor = _folds(out)
        for scaling in scalings:

            def edit(tensor: torch.Tensor, scaling: Scaling = scaling) -> torch.Tensor:
                flat = tensor.flatten().float()
                offset = int(scaling.plus_one)
                for start, stop in scaling.spans:
                    flat[start:stop] = (flat[start:stop] + offset) * factor**power - offset
                return flat.reshape(tensor.shape).to(tensor.dtype)

            if only in scaling.tensor:
                weights(f"^{re.escape(scaling.tensor)}$", edit)(out)

    return change


def all_rows(out: Path) -> None:
    """Multiplies the rows of folded tensors that were left alone, because they do not rotate or are
    no keys.
    """
    scalings, factor = _folds(out)
    for scaling in scalings:

        def edit(tensor: torch.Tensor, scaling: Scaling = scaling) -> torch.Tensor:
            whole = tensor.flatten() * factor**2
            for start, stop in scaling.spans:
                whole[start:stop] = tensor.flatten()[start:stop]
            return whole.reshape(tensor.shape)

        weights(f"^{re.escape(scaling.tensor)}$", edit)(out)


FAMILIES = (
    "llama",
    "mistral",
    "mixtral",
    "qwen2",
    "qwen3",
    "gemma2",
    "gemma3_text",
    "phi3",
    "stablelm",
    "gpt_neox",
    "olmo2",
    "cohere",
    "deepseek_v3",
    "granite",
)

Options = dict[str, Any]


Way = tuple[Callable[[int], Recipe], Options]


def _way(name: str, *parameters: Any, options: Options | None = None, **more: Any) -> Way:
    recipe = Recipe(REGISTRY[name](*parameters, **more.pop("of", {})), **more)
    return lambda pairs: recipe, options or {}


METHODS: dict[str, Way] = {
    "theta": _way("theta", 160000.0, context=1024),
    "linear": _way("linear", 16.0),
    "by-parts": _way("by-parts", 16.0),
    "yarn": _way("yarn", 16.0),
    "yarn folded": _way("yarn", 16.0, options={"encoding": "weights"}),
    "mixed": _way("mixed", 16.0, attention_factor=1.0),
    "llama3": _way("llama3", 16.0),
    "longrope": (lambda n: Recipe(REGISTRY["longrope"]((4.0,) * n, (2.0,) * n), context=1024), {}),
}
"""The eight methods and encodings of the right bakes, from the number of frequencies to the
recipe.
"""
OTHERS: dict[str, Way] = {
    "log-n": _way(
        "yarn", 16.0, log_n="clamped", options={"encoding": "ministral3", "allow_approximate": True}
    ),
    "mscale": _way("yarn", 16.0, of={"mscale": 1.0, "mscale_all_dim": 1.0}),
}
"""What only some families can have."""


def bake(source: Path, out: Path, method: str) -> Path:
    """A right bake of a source, by the name of a method in one of the tables."""
    recipe, options = (METHODS | OTHERS)[method]
    before = make_plan(source, Recipe(REGISTRY["linear"](2.0))).before
    return apply(make_plan(source, recipe(before.rotary_dim // 2), out, **options))


@dataclass(frozen=True)
class Wrong:
    """A fault. what: it is. method: of the right bake. families: that it is tried on. change: makes
    a bake wrong.
    """

    what: str
    method: str
    families: str
    change: Change


def local(**values: Any) -> Change:
    """Sets keys of the RoPE of the layers that are not extended."""
    return config(lambda settings: settings["rope_parameters"]["sliding_attention"].update(values))


def interleaved(rows: torch.Tensor) -> torch.Tensor:
    """The rows of one head in pairs instead of two halves, as GPT-J and GGUF files of Llama have
    them.
    """
    return rows.unflatten(0, (2, len(rows) // 2)).transpose(0, 1).flatten(0, 1)


K = r"layers\.0\..*k_proj\.weight"
Q = r"layers\.0\..*q_proj\.weight"
V = r"layers\.0\..*v_proj\.weight"

WRONG = (
    Wrong(
        "theta off by 1 %",
        "yarn",
        "llama qwen3 gemma2 granite",
        rope(rope_theta=lambda old: old * 1.01),
    ),
    Wrong(
        "theta times ten",
        "yarn",
        "mistral olmo2 mixtral cohere",
        rope(rope_theta=lambda old: old * 10),
    ),
    Wrong("factor 15 for 16", "yarn", "qwen2 stablelm gemma3_text deepseek_v3", rope(factor=15.0)),
    Wrong("no attention factor", "yarn", "llama gpt_neox cohere olmo2", rope(attention_factor=1.0)),
    Wrong(
        "attention factor off by 1 %", "yarn", "mixtral gemma2 qwen3", rope(attention_factor=1.29)
    ),
    Wrong("betas swapped", "yarn", "mixtral qwen2 granite", rope(beta_fast=1.0, beta_slow=32.0)),
    Wrong("ramp begins later", "yarn", "llama deepseek_v3 gemma2", rope(beta_slow=2.0)),
    Wrong("ramp without rounding", "yarn", "mistral stablelm olmo2", rope(truncate=False)),
    Wrong(
        "trained length doubled",
        "yarn",
        "llama gemma3_text gpt_neox",
        rope(original_max_position_embeddings=128),
    ),
    Wrong(
        "method not written", "yarn", "llama gemma2 cohere deepseek_v3", rope(rope_type="default")
    ),
    Wrong("linear for yarn", "yarn", "qwen2 gpt_neox olmo2 stablelm", rope(rope_type="linear")),
    Wrong("factor upside down", "linear", "mistral gemma2 qwen3", rope(factor=1 / 16)),
    Wrong("factor off by 1 %", "linear", "llama granite cohere", rope(factor=16.16)),
    Wrong("theta of the source", "theta", "qwen3 phi3 mixtral", rope(rope_theta=10000.0)),
    Wrong("theta off by 0.1 %", "theta", "mistral gemma3_text stablelm", rope(rope_theta=160160.0)),
    Wrong("high_freq_factor 3", "llama3", "llama qwen2 olmo2", rope(high_freq_factor=3.0)),
    Wrong("low_freq_factor 2", "llama3", "granite mistral gpt_neox", rope(low_freq_factor=2.0)),
    Wrong(
        "llama3 for by-parts",
        "by-parts",
        "llama qwen3 cohere",
        rope(low_freq_factor=1.0, high_freq_factor=4.0),
    ),
    Wrong(
        "one frequency off by 1 %",
        "mixed",
        "llama qwen2 phi3 olmo2 deepseek_v3",
        lists(lambda old: [old[0], 1.01 * old[1], *old[2:]]),
    ),
    Wrong(
        "factors off by one",
        "mixed",
        "mistral gemma2 phi3 granite",
        lists(lambda old: [old[0], *old[:-1]]),
    ),
    Wrong("factors backwards", "mixed", "qwen3 gpt_neox cohere", lists(lambda old: old[::-1])),
    Wrong(
        "factors upside down",
        "mixed",
        "stablelm mixtral phi3",
        lists(lambda old: [1 / value for value in old]),
    ),
    Wrong(
        "short and long list swapped",
        "longrope",
        "llama qwen2 phi3 cohere",
        rope(
            short_factor=lambda old: [value * 2 for value in old],
            long_factor=lambda old: [v / 2 for v in old],
        ),
    ),
    Wrong(
        "another length for the lists",
        "longrope",
        "mistral granite olmo2",
        setting(original_max_position_embeddings=256, each=True),
    ),
    Wrong(
        "half of the rotated dimensions",
        "yarn",
        "stablelm gpt_neox",
        rope(partial_rotary_factor=0.25, top=("rotary_pct",)),
    ),
    Wrong("no log-n", "log-n", "llama mistral", rope(llama_4_scaling_beta=0.0, beta=0.0)),
    Wrong(
        "log-n to another base",
        "log-n",
        "llama mistral",
        rope(llama_4_scaling_beta=lambda old: 1.3 * old, beta=lambda old: 1.3 * old),
    ),
    Wrong("softmax scale forgotten", "mscale", "deepseek_v3", rope(mscale_all_dim=0.0, mscale=0.0)),
    Wrong("a smaller window", "yarn", "gemma2 gemma3_text", setting(sliding_window=16)),
    Wrong("a window where none was", "yarn", "mistral mixtral", setting(sliding_window=64)),
    Wrong(
        "kinds of layers exchanged",
        "yarn",
        "gemma3_text",
        setting(layer_types=["full_attention", "sliding_attention", "full_attention"]),
    ),
    Wrong(
        "method on local layers too",
        "linear",
        "gemma3_text",
        local(rope_type="linear", factor=16.0),
    ),
    Wrong("theta of local layers", "yarn", "gemma3_text", local(rope_theta=20000.0)),
    Wrong("another logit scale", "yarn", "cohere", setting(logit_scale=0.066)),
    Wrong(
        "another attention scale", "yarn", "gemma2 gemma3_text", setting(query_pre_attn_scalar=66)
    ),
    Wrong("another scale of experts", "yarn", "deepseek_v3", setting(routed_scaling_factor=2.6)),
    Wrong("another eps", "linear", "llama qwen3 mixtral", setting(rms_norm_eps=1e-3)),
    Wrong("keys by A, not A^2", "yarn folded", " ".join(FAMILIES), fold_again(-1)),
    Wrong("keys folded twice", "yarn folded", "llama stablelm olmo2 phi3", fold_again(2)),
    Wrong("fold over all rows", "yarn folded", "stablelm gpt_neox phi3", all_rows),
    Wrong(
        "fold forgotten in one layer",
        "yarn folded",
        "mistral qwen2 gpt_neox granite",
        fold_again(-2, only="layers.1."),
    ),
    Wrong(
        "keys of one layer x 1.01", "yarn", "llama mixtral qwen2 granite gemma2", scaled(K, 1.01)
    ),
    Wrong(
        "a head of queries x 1.003",
        "yarn",
        "llama mistral granite gemma2",
        scaled(Q, 1.003, slice(0, 64)),
    ),
    Wrong("values of one layer x 1.01", "linear", "qwen3 stablelm cohere", scaled(V, 1.01)),
    Wrong(
        "one norm x 1.01",
        "theta",
        "gemma2 qwen2 llama",
        scaled(r"layers\.1\.input_layernorm\.weight", 1.01),
    ),
    Wrong(
        "norm of keys x 1.02",
        "yarn",
        "qwen3 olmo2 gemma3_text",
        scaled(r"layers\.0\..*k_norm\.weight", 1.02),
    ),
    Wrong(
        "fused projection x 1.01",
        "linear",
        "phi3 gpt_neox",
        scaled(r"layers\.0\..*(qkv_proj|query_key_value)\.weight", 1.01),
    ),
    Wrong(
        "latent keys x 1.01",
        "linear",
        "deepseek_v3",
        scaled(r"layers\.0\..*kv_a_proj_with_mqa\.weight", 1.01),
    ),
    Wrong(
        "heads of queries exchanged",
        "linear",
        "llama qwen2 cohere",
        weights(Q, lambda old: torch.cat(old.chunk(2)[::-1])),
    ),
    Wrong(
        "keys in the interleaved layout", "yarn", "llama mistral granite", weights(K, interleaved)
    ),
    Wrong(
        "head x 1.01", "yarn", "llama phi3 gpt_neox", scaled(r"(lm_head|embed_out)\.weight", 1.01)
    ),
    Wrong("biases lost", "linear", "qwen2 gpt_neox", weights(r"\.bias$", torch.zeros_like)),
    Wrong("router x 1.1", "yarn", "mixtral", scaled(r"layers\.0\..*gate\.weight", 1.1)),
    Wrong(
        "weights rounded to bfloat16",
        "theta",
        "llama mistral phi3 stablelm",
        weights("", lambda old: old.bfloat16().to(old.dtype)),
    ),
)

CASES = tuple((wrong, family) for wrong in WRONG for family in wrong.families.split())
