"""Lists of frequencies and factors, as JSON, .npy and .safetensors."""

from __future__ import annotations

import io
import json
import struct
from pathlib import Path
from random import Random

import numpy as np

from ..bytes_mutations import damaged
from ..folders import safetensors, small_config
from ..formats import Commands, register
from ..json_mutations import Raw, changed, text_of

KEYS = ("inv_freq", "long_factor", "short_factor", "rope_scaling")
VALUES = (
    [0.5] * 8,
    [1.0] * 7,
    [Raw("NaN")] * 8,
    [10**400] * 8,
    [1e308] * 8,
    [0.0] * 8,
    [-1.0] * 8,
    [True] * 8,
    ["1"] * 8,
)
DTYPES = ("f8", "f4", "f2", "i4", "u1", "?", "c16", "U3", "S3", "M8[s]", ">f8", "O", "f8,i4")
SHAPES = ((8,), (1, 8), (8, 1), (), (0,), (7,), (2, 4), (100_000,))


def _npy(random: Random) -> bytes:
    place, dtype = io.BytesIO(), random.choice(DTYPES)
    array = np.zeros(random.choice(SHAPES), np.dtype(dtype)) if random.random() < 0.5 else np.full(8, 0.5)
    np.save(place, array, allow_pickle=True)
    data = place.getvalue()
    if random.random() < 0.3:
        header = {"descr": random.choice(DTYPES), "fortran_order": random.choice((False, 1, None)),
                  "shape": random.choice(((8,), (2**40,), (2**62, 4), (-1,), "x", (10**9,), (1.5,)))}  # fmt: skip
        text = repr(header).encode() + b"\n"
        return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + b"\0" * 64
    return data if random.random() < 0.3 else damaged(random, data)


def _safetensors(random: Random) -> bytes:
    entries = {"inv_freq": {"dtype": "F64", "shape": [8], "data_offsets": [0, 64]}}
    values = ("F32", "BF16", "F8_E4M3", "I64", "BOOL", "F4", [2**62, 4], [0, 32], [2**40], [0])
    data = safetensors(text_of(random, changed(random, entries, (*KEYS, "dtype", "shape"), values)), 64)
    return data if random.random() < 0.7 else damaged(random, data)


def _json(random: Random) -> bytes:
    seed = random.choice(([0.5] * 8, {"inv_freq": [0.5] * 8}, {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8}))
    return text_of(random, changed(random, seed, KEYS, VALUES))


KINDS = {".json": _json, ".npy": _npy, ".safetensors": _safetensors}


@register("vectors")
def write(random: Random, folder: Path) -> Commands:
    (folder / "config.json").write_text(json.dumps(small_config()))
    ending = random.choice((".json", ".json", ".npy", ".npy", ".safetensors"))
    (folder / f"list{ending}").write_bytes(KINDS[ending](random))
    flag = random.choice((["--inv-freq"], ["--longrope"], ["--inv-freq", f"list{ending}", "--longrope"]))
    option = [*flag, f"list{ending}"]
    commands = [
        ["apply", "config.json", *option, "--context", "256", "--dry-run"],
        ["apply", "config.json", *option, "--context", "256", "-o", "out"],
        ["schedule", *option, "--head-dim", "16"],
        ["schedule", *option, "--head-dim", "16", "--json"],
    ]
    return random.sample(commands, 2)
