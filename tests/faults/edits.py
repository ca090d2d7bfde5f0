"""Edits of the config and the weights of a baked folder, as functions of the folder."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from ropeconv.encode.fold.placement import Scaling
from ropeconv.rope.recipe import Recipe

from ..support.baking import make_plan

Change = Callable[[Path], None]
Settings = dict[str, Any]


def _config(out: Path, edit: Callable[[Settings], None]) -> None:
    path = out / "config.json"
    config = json.loads(path.read_text())
    before = json.dumps(config)
    edit(config)
    assert json.dumps(config) != before, "nothing was changed"
    path.write_text(json.dumps(config))


def _weights(out: Path, pattern: str, edit: Callable[[torch.Tensor], torch.Tensor]) -> None:
    path = out / "model.safetensors"
    tensors = safetensors.torch.load_file(path)
    names = [name for name in tensors if re.search(pattern, name)]
    assert names, f"no weight is named like {pattern}"
    for name in names:
        tensors[name] = edit(tensors[name].clone()).contiguous()
    safetensors.torch.save_file(tensors, path, {"format": "pt"})


def _ropes(config: Settings) -> Iterator[Settings]:
    """The parts of a config that describe the RoPE of the layers that a method extends."""
    for part in (config, config.get("rope_scaling"), config.get("rope_parameters"), config.get("llama_4_scaling")):
        if part:
            yield part.get("full_attention", part)


def _new(value: Any, old: Any) -> Any:
    return value(old) if callable(value) else value


def rope(top: tuple[str, ...] = (), **values: Any) -> Change:
    """Sets keys of the RoPE wherever they are written, or in its schemas where they are not.

    top: keys beside the schemas that get the first value. values: new ones, or functions of the old ones.
    """

    def edit(config: Settings) -> None:
        for part in _ropes(config):
            for key, value in values.items():
                if key in part:
                    part[key] = _new(value, part[key])
                elif "rope_type" in part and not callable(value):
                    part[key] = value
        for key in top:
            if key in config:
                config[key] = next(iter(values.values()))

    return lambda out: _config(out, edit)


def per_rope(layers: str, **values: Any) -> Change:
    """Sets keys of the RoPE of one kind of layers."""
    return lambda out: _config(out, lambda config: config["rope_parameters"][layers].update(values))


def setting(each: bool = False, **values: Any) -> Change:
    """Sets keys of the config. each: in the schemas of the RoPE as well, where they are written."""

    def edit(config: Settings) -> None:
        config.update(values)
        for part in _ropes(config) if each else ():
            part.update({key: value for key, value in values.items() if key in part})

    return lambda out: _config(out, edit)


def both_lists(change: Callable[[list[float]], list[float]]) -> Change:
    """Changes the short and the long factor list."""

    def edit(config: Settings) -> None:
        for part in _ropes(config):
            for key in ("short_factor", "long_factor"):
                if key in part:
                    part[key] = change(part[key])

    return lambda out: _config(out, edit)


def switched(out: Path) -> None:
    """Exchanges the short and the long factor list."""

    def edit(config: Settings) -> None:
        for part in _ropes(config):
            if "short_factor" in part:
                part["short_factor"], part["long_factor"] = part["long_factor"], part["short_factor"]

    _config(out, edit)


def scaled(pattern: str, factor: float, rows: slice = slice(None)) -> Change:
    """Multiplies weights whose name matches. rows: of each."""

    def edit(tensor: torch.Tensor) -> torch.Tensor:
        tensor[rows] *= factor
        return tensor

    return lambda out: _weights(out, pattern, edit)


def exchanged(pattern: str) -> Change:
    """Exchanges the two halves of the rows of matching weights: the two heads of queries."""
    return lambda out: _weights(out, pattern, lambda tensor: torch.cat(tensor.chunk(2)[::-1]))


def interleaved(pattern: str) -> Change:
    """Puts the rows of one head from two halves into pairs, as GPT-J and GGUF files of Llama have them."""
    return lambda out: _weights(
        out, pattern, lambda tensor: tensor.unflatten(0, (2, len(tensor) // 2)).transpose(0, 1).flatten(0, 1)
    )


def without_bias(out: Path) -> None:
    """Sets all biases to 0."""
    _weights(out, r"\.bias$", torch.zeros_like)


def rounded(out: Path) -> None:
    """Rounds all weights to bfloat16, and stores them as before."""
    _weights(out, "", lambda tensor: tensor.bfloat16().to(tensor.dtype))


def fold_again(power: int, only: str = "") -> Change:
    """Multiplies what a fold has scaled by a power of the attention factor more. only: in the names of the tensors."""

    def change(out: Path) -> None:
        receipt = json.loads((out / "ropeconv.json").read_text())
        for scaling in _folded(out):
            if only in scaling.tensor:
                factor = receipt["schedule"]["attention_factor"] ** power
                _weights(out, f"^{re.escape(scaling.tensor)}$", _in_spans(scaling, factor))

    return change


def all_rows(out: Path) -> None:
    """Multiplies the rows of folded tensors that were left alone, because they do not rotate or are no keys."""
    factor = json.loads((out / "ropeconv.json").read_text())["schedule"]["attention_factor"]
    for scaling in _folded(out):

        def edit(tensor: torch.Tensor, scaling: Scaling = scaling) -> torch.Tensor:
            whole = tensor.flatten() * factor**2
            for start, stop in scaling.spans:
                whole[start:stop] = tensor.flatten()[start:stop]
            return whole.reshape(tensor.shape)

        _weights(out, f"^{re.escape(scaling.tensor)}$", edit)


def _folded(out: Path) -> tuple[Scaling, ...]:
    """What a fold into a baked folder has scaled, from the plan that the recipe in its receipt gives."""
    source = out.parent / "source"
    recipe = Recipe.from_dict(json.loads((out / "ropeconv.json").read_text())["recipe"])
    fold = make_plan(source, recipe, encoding="weights").result.fold
    return tuple(fold.scalings)


def _in_spans(scaling: Scaling, factor: float) -> Callable[[torch.Tensor], torch.Tensor]:
    def edit(tensor: torch.Tensor) -> torch.Tensor:
        flat, one = tensor.flatten().float(), int(scaling.plus_one)
        for start, stop in scaling.spans:
            flat[start:stop] = (flat[start:stop] + one) * factor - one
        return flat.reshape(tensor.shape).to(tensor.dtype)

    return edit
