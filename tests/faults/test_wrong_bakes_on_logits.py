"""The comparison of logits alone: right bakes are neither refused nor inconclusive, wrong ones
always refused.

The checks of files, frequencies and folded weights, which see most of these faults sooner, are left
out here.
"""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import safetensors.torch
import torch

from ropeconv.validate.validation import Validation

from ..support.baking import validate
from ..support.extent import few, tally
from ..support.llamacpp import lively
from ..support.models import make
from .wrong_bakes import CASES, FAMILIES, METHODS, Wrong, bake

SIZES = {"usual": 0.35, "flat": 0.002, "sharp": 1.0}
"""Standard deviations of weights: near zero attention and logits are uniform; large ones in
bfloat16 give one-hot attention and noise.
"""
RIGHT = tuple((family, method) for family in FAMILIES for method in METHODS)
UNSEEN = {
    ("sharp", "weights rounded to bfloat16", ""),  # they are stored so
    (
        "flat",
        "another scale of experts",
        "",
    ),  # their part of the logits is smaller than that of a faint fault
    ("flat", "router x 1.1", "mixtral"),  # its logits are near 0 with any factor: a KL of 5e-13
    (
        "sharp",
        "another eps",
        "qwen3",
    ),  # far smaller than the squares that it is added to: a KL of 1e-6
}
Case = tuple[str, str, str, Wrong | None]


def cases(*sizes: str, wrong: bool) -> list[Case]:
    """Kind of weights, family, method, and what is wrong."""
    right = [(family, method, None) for family, method in RIGHT]
    faults = [(family, fault.method, fault) for fault, family in CASES]
    candidates: list[Case] = [
        (size, *case) for size in sizes for case in (faults if wrong else right)
    ]
    pairs = [(case, case[3].what if case[3] else "") for case in candidates]
    return [
        case
        for case, label in pairs
        if not {(case[0], label, ""), (case[0], label, case[1])} & UNSEEN
    ]


def named(case: tuple[object, ...]) -> str:
    return "-".join(getattr(part, "what", str(part)) for part in case).replace(" ", "_")


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> None:
    """More cost more than they save in models of two layers."""
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Path]:
    """A folder with a checkpoint of a family in `source`, made once: weights, biases and norms are
    random.
    """
    folders: dict[tuple[str, str], Path] = {}

    def get(family: str, size: str = "usual") -> Path:
        if (family, size) not in folders:
            folder = folders[family, size] = tmp_path_factory.mktemp(family)
            lively(make(family, folder / "source", initializer_range=SIZES[size]))
            resize(folder / "source", size)
        return folders[family, size]

    return get


def resize(source: Path, size: str) -> None:
    """Makes biases as small as flat weights are, and stores sharp weights in bfloat16."""
    path = source / "model.safetensors"
    tensors = safetensors.torch.load_file(path)
    for name, tensor in tensors.items():
        biased = size == "flat" and name.endswith(".bias")
        tensors[name] = tensor * SIZES["flat"] / SIZES["usual"] if biased else tensor
        tensors[name] = tensors[name].bfloat16() if size == "sharp" else tensors[name]
    safetensors.torch.save_file(tensors, path, {"format": "pt"})
    config = json.loads((source / "config.json").read_text())
    dtype = "bfloat16" if size == "sharp" else "float32"
    (source / "config.json").write_text(json.dumps(config | {"dtype": dtype}))


def compared(
    folder: Path, method: str, name: str, wrong: Wrong | None = None, dtype: str = "auto"
) -> Validation:
    out = bake(folder / "source", folder / name, method)
    if wrong is not None:
        wrong.change(out)
    return validate(out, folder / "source", device="cpu", tokens=128, dtype=dtype)


EVERY = (
    *few(cases("usual", wrong=False), 1),
    *few(cases("usual", wrong=True), 1),
    *few(cases("flat", "sharp", wrong=False), 1),
    *few(cases("flat", "sharp", wrong=True), 1),
)


@pytest.mark.parametrize("case", EVERY, ids=named)
def test_a_right_bake_agrees_and_a_wrong_one_disagrees(
    case: Case, place: Callable[[str, str], Path]
) -> None:
    size, family, method, wrong = case
    low = "bfloat16" if size == "sharp" and wrong is None else "auto"
    sentence = compared(place(family, size), method, named(case), wrong, low).sentence
    sound = sentence.startswith("FAIL" if wrong else "PASS")
    tally("wrong bake" if wrong else "right bake", f"{size} {family}", 1, int(not sound))
    assert sound, sentence
