"""What the method is taken from: saved recipes, lists of frequencies and factors, and the command line itself."""

from __future__ import annotations

import dataclasses
import io
import json
import struct
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from ropeconv.rope.methods import REGISTRY
from ropeconv.rope.recipe import MODIFIERS

from ..folders import safetensors, small_config, write_checkpoint
from ..formats import Commands, commands, register
from ..json_mutations import Raw, changed, damaged, text_of

SEEDS: tuple[dict[str, Any], ...] = (
    {"method": "yarn", "parameters": {"factor": 4.0, "beta_fast": 32.0, "beta_slow": 1.0}, "context": 256},
    {"method": "linear", "parameters": {"factor": "1k"}, "attention_factor": 1.1},
    {"method": "theta", "parameters": {"base": 1e6}, "temperature_slope": 0.1, "temperature_intercept": 1.0},
    {"method": "theta-for", "parameters": {"target": 1024}},
    {"method": "longrope", "parameters": {"long_factor": [2.0] * 8, "short_factor": [1.0] * 8}, "context": 256},
    {"method": "inv-freq", "parameters": {"inv_freq": [0.5] * 8}},
    {"method": "piecewise", "parameters": {"spec": "8@4"}},
    {"method": "dynamic", "parameters": {"kind": "ntk:2", "at": 256}},
    {"method": "mixed", "parameters": {"factor": 4.0}, "log_n": "clamped", "log_n_length": 32},
    {"method": "as-is", "parameters": {"on": True}},
    {"ropeconv": "0.1", "schema": 2, "recipe": {"method": "yarn", "parameters": {"factor": 4.0}}},
)
RECIPE_KEYS = (*MODIFIERS, "method", "parameters", *(f.name for m in REGISTRY.values() for f in dataclasses.fields(m)))
RECIPE_VALUES = (
    *REGISTRY, "128k", "1M", "9" * 400 + "k", "ntk:1e9", "yarn:2", "4@2", "9" * 400, "9" * 5000 + "@1", Raw("4"),
    "full",
)  # fmt: skip
WITH_RECIPE = commands("""
apply config.json --recipe recipe.json --dry-run; apply config.json --recipe recipe.json -o out;
apply config.json --recipe recipe.json --context 512 --dry-run --json;
apply config.json --recipe recipe.json --on-top --dry-run; schedule --recipe recipe.json --head-dim 16;
schedule --recipe recipe.json --head-dim 16 --json; bound --recipe recipe.json --head-dim 16
""")


@register("recipe")
def write(random: Random, folder: Path) -> Commands:
    (folder / "config.json").write_text(json.dumps(small_config()))
    made = changed(random, random.choice(SEEDS), RECIPE_KEYS, RECIPE_VALUES)
    (folder / "recipe.json").write_bytes(text_of(random, made))
    return random.sample(WITH_RECIPE, 2)


LIST_KEYS = ("inv_freq", "long_factor", "short_factor", "rope_scaling", "dtype", "shape")
LIST_VALUES = (
    *([value] * 8 for value in (0.5, Raw("NaN"), 10**400, 1e308, 0.0, -1.0, True, "1")), [1.0] * 7,
    "F32", "BF16", "F8_E4M3", "I64", "BOOL", "F4", [2**62, 4], [0, 32], [2**40], [0],
)  # fmt: skip
LISTS = ([0.5] * 8, {"inv_freq": [0.5] * 8}, {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8})
DTYPES = ("f8", "f4", "f2", "i4", "u1", "?", "c16", "U3", "S3", "M8[s]", ">f8", "O", "f8,i4")
SHAPES = ((8,), (1, 8), (8, 1), (), (0,), (7,), (2, 4), (100_000,))
CLAIMED = ((8,), (2**40,), (2**62, 4), (-1,), "x", (10**9,), (1.5,))


def _list(random: Random, ending: str) -> bytes:
    if ending == ".json":
        return text_of(random, changed(random, random.choice(LISTS), LIST_KEYS, LIST_VALUES))
    if ending == ".safetensors":
        entries = {"inv_freq": {"dtype": "F64", "shape": [8], "data_offsets": [0, 64]}}
        data = safetensors(text_of(random, changed(random, entries, LIST_KEYS, LIST_VALUES)), 64)
        return data if random.random() < 0.7 else damaged(random, data)
    if random.random() < 0.3:
        order = random.choice((False, 1, None))
        header = {"descr": random.choice(DTYPES), "fortran_order": order, "shape": random.choice(CLAIMED)}
        text = repr(header).encode() + b"\n"
        return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + b"\0" * 64
    place, dtype = io.BytesIO(), np.dtype(random.choice(DTYPES))
    array = np.zeros(random.choice(SHAPES), dtype) if random.random() < 0.5 else np.full(8, 0.5)
    np.save(place, array, allow_pickle=True)
    return place.getvalue() if random.random() < 0.3 else damaged(random, place.getvalue())


@register("vectors")
def write_vectors(random: Random, folder: Path) -> Commands:
    (folder / "config.json").write_text(json.dumps(small_config()))
    name = "list" + random.choice((".json", ".json", ".npy", ".npy", ".safetensors"))
    (folder / name).write_bytes(_list(random, name.removeprefix("list")))
    option = random.choice(("--inv-freq", "--longrope", f"--inv-freq {name} --longrope")) + " " + name
    found = commands(
        f"apply config.json {option} --context 256 --dry-run; apply config.json {option} --context 256 -o out; "
        f"schedule {option} --head-dim 16; schedule {option} --head-dim 16 --json"
    )
    return random.sample(found, 2)


VALUES = (
    "0 -0 -1 1 2 3 4 0.5 1.5 -4 nan NaN inf -inf Infinity 1e308 -1e308 1e-308 5e-324 1e999 1e18 1e400 0x10 1_000 "
    "9223372036854775807 9223372036854775808 18446744073709551616 65 128k 1M 0k 4k 999999999M 3000000000000k 128K 1.5k "
    "four ntk:2 yarn:1e9 linear:4 yarn:0.5 8@4 8@0 8@99999999999999999999 128k@4 1@1 @ : -- . .. / ~ transformers "
    "transformers@4.0 transformers@x vllm llama-cpp @ f32 q8_0 x@y"
).split()
LONG = (
    "9" * 400, "9" * 5000, "9" * 400 + "k", "1" + "0" * 400 + "@4", "ntk:" + "9" * 400, "x" * 5000, "", " ", "\udcff",
    "a\nb",
)  # fmt: skip
LEAVE_OUT = {"push", "validate", "certificate", "out", "in_place", "staged", "help", "serve", "report"}
BASES = commands("""
apply config.json --dry-run; apply config.json --yarn 4 --dry-run; apply config.json --yarn 4 -o out;
apply model --yarn 4 --to gguf --dry-run; schedule; schedule --yarn 4; schedule --mixed 4 --head-dim 64; bound;
bound 4k; bound config.json; advise config.json; advise config.json --context 256; compare config.json; inspect;
restore; plot config.json --yarn 4 -o p.png; families; methods; archs
""")


@cache
def _options(command: str) -> tuple[str, ...]:
    """The options of a command that take a value, from the application itself."""
    import typer

    from ropeconv.cli.app import app

    group: Any = typer.main.get_command(app)
    found = [param for param in group.commands[command].params if param.param_type_name == "option"]
    return tuple(param.opts[0] for param in found if not param.is_flag and param.name not in LEAVE_OUT)


@register("command line")
def write_command_line(random: Random, folder: Path) -> Commands:
    (folder / "config.json").write_text(json.dumps(small_config()))
    base = list(random.choice(BASES))
    if "model" in base:
        write_checkpoint(folder / "model")
    known = _options(base[0])
    for _ in range(random.choice((1, 1, 2, 3)) if known else 0):
        base += [random.choice(known), random.choice(VALUES if random.random() < 0.85 else LONG)]
    if not known or random.random() < 0.1:
        base.insert(random.randrange(1, len(base) + 1), random.choice(VALUES))
    return [base]
