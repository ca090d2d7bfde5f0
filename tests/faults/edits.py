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


def config(edit: Callable[[Settings], object]) -> Change:
    """Changes config.json."""

    def change(out: Path) -> None:
        path = out / "config.json"
        found = json.loads(path.read_text())
        before = json.dumps(found)
        edit(found)
        assert json.dumps(found) != before, "nothing was changed"
        path.write_text(json.dumps(found))

    return change


def weights(pattern: str, edit: Callable[[torch.Tensor], torch.Tensor]) -> Change:
    """Changes the weights whose name matches."""

    def change(out: Path) -> None:
        path = out / "model.safetensors"
        tensors = safetensors.torch.load_file(path)
        names = [name for name in tensors if re.search(pattern, name)]
        assert names, f"no weight is named like {pattern}"
        tensors |= {name: edit(tensors[name].clone()).contiguous() for name in names}
        safetensors.torch.save_file(tensors, path, {"format": "pt"})

    return change


def _ropes(found: Settings) -> Iterator[Settings]:
    """The parts of a config that describe the RoPE of the layers that a method extends."""
    for part in (found, found.get("rope_scaling"), found.get("rope_parameters"), found.get("llama_4_scaling")):
        if part:
            yield part.get("full_attention", part)


def rope(top: tuple[str, ...] = (), **values: Any) -> Change:
    """Sets keys of the RoPE wherever they are written, or in its schemas where they are not.

    top: keys beside the schemas that get the first value. values: new ones, or functions of the old ones.
    """

    def edit(found: Settings) -> None:
        for part in _ropes(found):
            for key, value in values.items():
                if key in part:
                    part[key] = value(part[key]) if callable(value) else value
                elif "rope_type" in part and not callable(value):
                    part[key] = value
        found.update({key: next(iter(values.values())) for key in top if key in found})

    return config(edit)


def setting(each: bool = False, **values: Any) -> Change:
    """Sets keys of the config. each: in the schemas of the RoPE as well, where they are written."""

    def edit(found: Settings) -> None:
        found.update(values)
        for part in _ropes(found) if each else ():
            part.update({key: value for key, value in values.items() if key in part})

    return config(edit)


def lists(change: Callable[[list[float], list[float]], tuple[list[float], list[float]]]) -> Change:
    """Changes the short and the long factor list."""

    def edit(found: Settings) -> None:
        for part in _ropes(found):
            if "short_factor" in part:
                part["short_factor"], part["long_factor"] = change(part["short_factor"], part["long_factor"])

    return config(edit)


def both_lists(change: Callable[[list[float]], list[float]]) -> Change:
    return lists(lambda short, long: (change(short), change(long)))


def scaled(pattern: str, factor: float, rows: slice = slice(None)) -> Change:
    """Multiplies rows of the weights whose name matches."""

    def edit(tensor: torch.Tensor) -> torch.Tensor:
        tensor[rows] *= factor
        return tensor

    return weights(pattern, edit)


def _folds(out: Path) -> tuple[tuple[Scaling, ...], float]:
    """What a fold into a baked folder has scaled, by the recipe in its receipt, and the attention factor."""
    receipt = json.loads((out / "ropeconv.json").read_text())
    plan = make_plan(out.parent / "source", Recipe.from_dict(receipt["recipe"]), encoding="weights")
    return tuple(plan.result.fold.scalings), receipt["schedule"]["attention_factor"]


def fold_again(power: int, only: str = "") -> Change:
    """Multiplies what a fold has scaled by a power of the attention factor more. only: in the names of the tensors."""

    def change(out: Path) -> None:
        scalings, factor = _folds(out)
        for scaling in scalings:

            def edit(tensor: torch.Tensor, scaling: Scaling = scaling) -> torch.Tensor:
                flat, one = tensor.flatten().float(), int(scaling.plus_one)
                for start, stop in scaling.spans:
                    flat[start:stop] = (flat[start:stop] + one) * factor**power - one
                return flat.reshape(tensor.shape).to(tensor.dtype)

            if only in scaling.tensor:
                weights(f"^{re.escape(scaling.tensor)}$", edit)(out)

    return change


def all_rows(out: Path) -> None:
    """Multiplies the rows of folded tensors that were left alone, because they do not rotate or are no keys."""
    scalings, factor = _folds(out)
    for scaling in scalings:

        def edit(tensor: torch.Tensor, scaling: Scaling = scaling) -> torch.Tensor:
            whole = tensor.flatten() * factor**2
            for start, stop in scaling.spans:
                whole[start:stop] = tensor.flatten()[start:stop]
            return whole.reshape(tensor.shape)

        weights(f"^{re.escape(scaling.tensor)}$", edit)(out)
