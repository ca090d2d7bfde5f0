"""The formats of hostile inputs: a checkpoint, a GGUF file, a receipt, and a recipe or a plan of
`run`.
"""

import copy
import json
import shutil
import struct
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import gguf

from ropeconv.formats.gguf.edit import Edit, write_new
from ropeconv.formats.gguf.file import GgufFile
from ropeconv.formats.gguf.header import GgufValue
from ropeconv.rope.methods.method import REGISTRY
from ropeconv.rope.recipe import MODIFIERS, Recipe
from tests.support.baking import apply, make_plan
from tests.support.gguf_files import write as write_gguf
from tests.support.models import FAMILIES

from .folders import data_bytes, safetensors, small_config, small_header, write_checkpoint
from .json_mutations import VALUES, changed, damaged, text_of

Commands = list[list[str]]
Write = Callable[[Random, Path], Commands]


def commands(text: str) -> Commands:
    """Command lines without `ropeconv`, with semicolons between them."""
    return [line.split() for line in text.split(";")]


def write_input(name: str, number: int, folder: Path) -> Commands:
    """Makes a folder with the input of a number, and returns the command lines to run in it."""
    folder.mkdir()
    return FORMATS[name](Random(f"{name} {number}"), folder)


SCALINGS: tuple[dict[str, Any], ...] = (
    {},
    {"rope_type": "linear", "factor": 4.0},
    {
        "type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 16,
        "beta_fast": 32,
        "mscale": 1.0,
    },
    {
        "rope_type": "llama3",
        "factor": 4.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16,
    },
    {
        "rope_type": "longrope",
        "short_factor": [1.0] * 8,
        "long_factor": [2.0] * 8,
        "original_max_position_embeddings": 16,
        "factor": 4.0,
    },
    {
        "full_attention": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    },
)
CONFIG_KEYS = (
    "layer_types no_rope_layers original_max_position_embeddings partial_rotary_factor"
    " rope_parameters rope_scaling rope_theta sliding_window text_config quantization_config"
    " rotary_dim head_dim attention_factor truncate"
).split()
TOKENIZER: dict[str, Any] = {
    "added_tokens": [{"id": 6, "content": "<s>", "special": True}],
    "normalizer": None,
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True},
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2, "c": 3}, "merges": [["a", "b"]]},
}
SIDE: dict[str, Any] = {
    "model_max_length": 64,
    "eos_token": {"content": "</s>"},
    "eos_token_id": [2, 3],
}
ON_MODEL = commands("""
inspect model --json; apply model --yarn 4 -o out; apply model --yarn 4 --encoding weights --replace -o out;
apply model --mixed 4 --encoding buffers -o out; apply model --yarn 4 --to gguf -o out.gguf; compare model model;
bound model --weights --yarn 4; advise model --context 256
""")


def write_model(random: Random, folder: Path) -> Commands:
    """A checkpoint in which one file is another."""
    name = random.choice((*SEEDS, "config.json"))
    model = write_checkpoint(folder / "model")
    seed: Any = SEEDS.get(name)
    if name == "config.json":
        seed = small_config(random.choice(list(FAMILIES)))
        seed[random.choice(("rope_scaling", "rope_parameters"))] = dict(random.choice(SCALINGS))
    content = text_of(random, changed(random, seed, KEYS.get(name, ())))
    if name == "model.safetensors":
        content = safetensors(content, data_bytes(small_header()))
        content = damaged(random, content) if random.random() < 0.3 else content
    (model / name).write_bytes(content)
    return random.sample(ON_MODEL, 2)


SEEDS: dict[str, Any] = {
    "model.safetensors": small_header(),
    "model.safetensors.index.json": {
        "metadata": {"total_size": 4},
        "weight_map": dict.fromkeys([*small_header()][1:], "model.safetensors"),
    },
    "tokenizer.json": TOKENIZER,
    "tokenizer_config.json": SIDE,
    "generation_config.json": SIDE,
}
KEYS = {
    "config.json": CONFIG_KEYS,
    "model.safetensors": ("dtype", "shape", "data_offsets", "__metadata__"),
}
ON_GGUF = commands("""
inspect m.gguf --json; apply m.gguf --mixed 4 --replace -o out.gguf; apply m.gguf --linear 2 --on-top --dry-run --json;
apply m.gguf --yarn 4 --replace --in-place; restore m.gguf -o out.gguf; compare m.gguf m.gguf
""")
Place = tuple[int, int]
ARCHS: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0},
    "mistral3": {},
    "gemma3": {"attention.sliding_window": 512},
    "deepseek2": {
        "attention.kv_lora_rank": 16,
        "attention.key_length": 64,
        "attention.key_length_mla": 64,
    },
}
ODD = (
    0,
    1,
    2,
    3,
    8,
    9,
    31,
    33,
    64,
    255,
    4096,
    10_001,
    1 << 26,
    1 << 31,
    1 << 32,
    1 << 40,
    1 << 63,
    (1 << 64) - 1,
)
NAMES = (
    b"",
    b"rope_freqs.weight",
    b"\xff",
    b"x" * 64,
    b"x" * 70_000,
    b"\0",
    b"\n\x1b[0m",
    b"general.architecture",
)


@cache
def gguf_seeds() -> list[tuple[bytes, int, list[Place], list[Place]]]:
    """Small files: their bytes, where the data begins, the places of the parts of the header, and
    those of numbers.
    """
    seeds = []
    with tempfile.TemporaryDirectory() as folder:
        for arch, more in ARCHS.items():
            path = write_gguf(Path(folder, f"{arch}.gguf"), arch, more)
            reader = gguf.GGUFReader(path)
            fields = [*reader.fields.values(), *(tensor.field for tensor in reader.tensors)]
            places = []
            numbers = []
            for field in fields:
                at = field.offset
                for part in field.parts:
                    places.append((at, part.nbytes))
                    at += part.nbytes
                numbers += [places[-1]] if len(field.parts) == 4 else []
            seeds.append((path.read_bytes(), reader.data_offset, places, numbers))
    return seeds


def write_damaged_gguf(random: Random, folder: Path) -> Commands:
    """A GGUF file in which parts of the header are other numbers, other names, gone or damaged."""
    data, start, *kinds = random.choice(gguf_seeds())
    head = data[:start]
    for at, size in sorted(
        random.sample(random.choice(kinds), random.choice((1, 1, 2, 4))), reverse=True
    ):
        new = random.choice(ODD).to_bytes(8, "little")[:size]
        if size > 8:
            new = random.choice(
                (b"", random.choice(NAMES), random.randbytes(size), head[at : at + size] * 2)
            )
        head = head[:at] + new + head[at + size :]
    head = damaged(random, head) if random.random() < 0.2 else head
    (folder / "m.gguf").write_bytes(head + bytes(-len(head) % 32) + data[start:])
    return random.sample(ON_GGUF, 2)


RECEIPT_KEYS = "source original target texts keys values scaled spans factor name commit schedule files".split()
ON_OUTPUT = """
inspect {baked}; restore {baked} -o {out}; restore {baked} --dry-run; apply {baked} --linear 8 --replace -o {out};
apply {baked} --yarn 2 --on-top -o {out}; compare {baked} {model}
"""
_kept = cache(lambda: tempfile.TemporaryDirectory(prefix="ropeconv-outputs-"))


@cache
def outputs() -> Path:
    """A folder with a small checkpoint and a GGUF file, and an output of each."""
    folder = Path(_kept().name)
    write_checkpoint(folder / "model")
    write_gguf(folder / "a.gguf")
    for source, out in (("model", "baked"), ("a.gguf", "b.gguf")):
        apply(make_plan(folder / source, Recipe(REGISTRY["yarn"](4.0)), folder / out))
    return folder


def write_receipt(random: Random, folder: Path) -> Commands:
    """An output whose receipt has changes, often within one of its records."""
    seed = json.loads((outputs() / "baked" / "ropeconv.json").read_text())
    in_gguf = random.random() < 0.5
    if in_gguf:
        seed = json.loads(gguf.GGUFReader(outputs() / "b.gguf").fields["ropeconv.json"].contents())
    inner = seed
    while random.random() < 0.6 and (
        records := [item for item in inner.values() if isinstance(item, dict) and item]
    ):
        inner = random.choice(records)
    mutant = changed(random, inner, RECEIPT_KEYS)
    inner.clear()
    inner.update(mutant)
    receipt = text_of(random, seed)
    if not in_gguf:
        for name in ("model", "baked"):
            shutil.copytree(outputs() / name, folder / name)
        (folder / "baked" / "ropeconv.json").write_bytes(receipt)
        return random.sample(commands(ON_OUTPUT.format(baked="baked", model="model", out="out")), 2)
    shutil.copy(outputs() / "a.gguf", folder)
    file = GgufFile.open(outputs() / "b.gguf")
    text = GgufValue(8, struct.pack("<Q", len(receipt)) + receipt)
    write_new(file, 0, Edit({"ropeconv.json": text}), folder / "b.gguf")
    return random.sample(
        commands(ON_OUTPUT.format(baked="b.gguf", model="a.gguf", out="out.gguf")), 2
    )


RECIPES: tuple[dict[str, Any], ...] = (
    {
        "method": "yarn",
        "parameters": {"factor": 4.0, "beta_fast": 32.0, "beta_slow": 1.0},
        "context": 256,
    },
    {"method": "linear", "parameters": {"factor": "1k"}, "attention_factor": 1.1},
    {"method": "theta-for", "parameters": {"target": 1024}},
    {
        "method": "longrope",
        "parameters": {"long_factor": [2.0] * 8, "short_factor": [1.0] * 8},
        "context": 256,
    },
    {"method": "inv-freq", "parameters": {"inv_freq": [0.5] * 8}},
    {"method": "dynamic", "parameters": {"kind": "ntk:2", "at": 256}},
    {"method": "mixed", "parameters": {"factor": 4.0}, "log_n": "clamped", "log_n_length": 32},
)
PLAN: dict[str, Any] = {
    "sources": ["model"],
    "recipes": ["yarn:4"],
    "tasks": ["apply"],
    "out": "outs",
    "family": "",
    "targets": [{"name": "q", "to": "gguf", "outtype": "q8_0"}],
    "push": {"to": "me/{name}"},
    "limits": {"jobs": 1, "hours": 1.0, "bytes": "1GB", "unit_timeout": "1h"},
    "executor": {"on": "local", "gpus": 0, "timeout": "2h"},
    "validate": {"tokens": 8},
}


def toml(data: dict[str, Any]) -> str:
    """A table as TOML, its values in one line each."""

    def value(item: Any) -> str:
        if isinstance(item, dict):
            return (
                "{"
                + ", ".join(f"{json.dumps(key)} = {value(entry)}" for key, entry in item.items())
                + "}"
            )
        if isinstance(item, list):
            return f"[{', '.join(map(value, item))}]"
        return getattr(item, "text", None) or ("nan" if item is None else json.dumps(item))

    return "\n".join(f"{json.dumps(key)} = {value(item)}" for key, item in data.items())


def write_plan(random: Random, folder: Path) -> Commands:
    model = write_checkpoint(folder / "model")
    if random.random() < 0.5:
        recipe = changed(random, random.choice(RECIPES), (*MODIFIERS, "method", "parameters"))
        (folder / "recipe.json").write_bytes(text_of(random, recipe))
        return commands(
            "apply model --recipe recipe.json -o out; plot --recipe recipe.json --head-dim 16"
            " --json"
        )
    shutil.copytree(model, folder / "other")
    plan = copy.deepcopy(PLAN)
    plan[random.choice(list(PLAN))] = copy.deepcopy(random.choice(VALUES))
    text = toml(changed(random, plan) if random.random() < 0.7 else plan).encode(
        errors="surrogatepass"
    )
    (folder / "plan.toml").write_bytes(damaged(random, text) if random.random() < 0.2 else text)
    return [["run", "plan.toml", "--dry-run"]]


FORMATS: dict[str, Write] = {
    "checkpoint": write_model,
    "gguf": write_damaged_gguf,
    "receipt": write_receipt,
    "recipe and plan": write_plan,
}
"""Per format a function that makes one input in an empty folder, and returns the command lines to
run there.

random: the only source of chance, so that the N-th input is always the same.
"""
