"""The files of a checkpoint: config.json, weights and their index, tokenizers, and the JSON of generation."""

from __future__ import annotations

import copy
import io
import json
import struct
import zipfile
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from tests.support.models import FAMILIES

from ..folders import (
    PARAMS,
    data_bytes,
    pth,
    safetensors,
    sentencepiece,
    small_config,
    small_header,
    write_checkpoint,
    write_release,
)
from ..formats import Commands, commands, register
from ..json_mutations import Raw, changed, damaged, text_of

ON_MODEL = commands("""
inspect model; apply model --yarn 4 --dry-run; apply model --yarn 4 -o out; apply model --yarn 4 --context 128 -o out;
apply model --yarn 4 --encoding weights --replace -o out;
apply model --yarn 4 --encoding weights --fold-dtype f32 -o out; apply model --mixed 4 --encoding buffers -o out;
apply model --yarn 4 --log-n clamped --allow-approximate -o out; apply model --yarn 4 --to gguf -o out.gguf;
bound model --weights --yarn 4; restore model --dry-run; compare model model
""")
Q = "model.layers.0.self_attn.q_proj.weight"
HEADER_KEYS = ("dtype", "shape", "data_offsets", "__metadata__", "format", Q)
HEADER_VALUES = (
    "F32", "BF16", "F4", "F8_E4M3", "I64", "BOOL", "f32", [0, 0], [4, 0], [2**62, 4], [2**40], [0, 2**64], Raw("1.0"),
)  # fmt: skip
LENGTHS = (0, 1, 7, 100_000_000, 100_000_001, 2**31, 2**32, 2**63, 2**64 - 1)
INDEX_VALUES = (
    "model.safetensors", "./model.safetensors", "config.json", "model-00001-of-00002.safetensors", "..", ".", "a\0b",
    "C:\\x",
)  # fmt: skip
SIDE_FILES = {
    "tokenizer_config.json": {
        "model_max_length": 64, "tokenizer_class": "LlamaTokenizer", "bos_token": "<s>",
        "chat_template": "{{ messages }}", "added_tokens_decoder": {"0": {"content": "<unk>", "special": True}},
        "auto_map": {"AutoTokenizer": [None, "a.B"]},
    },
    "generation_config.json": {
        "bos_token_id": 1, "eos_token_id": [2, 3], "max_length": 64, "transformers_version": "4.50.0",
    },
}  # fmt: skip
SIDE_KEYS = ("model_max_length", "max_length", "eos_token_id", "chat_template", "tokenizer_class", "bos_token")
SIDE_VALUES = (Raw("1e30"), Raw("63.0"), 10**15, 10**15 - 1, {"content": "<s>"})


@register("safetensors")
def write_header(random: Random, folder: Path) -> Commands:
    place, entries = write_checkpoint(folder / "model") / "model.safetensors", small_header()
    kind = random.random()
    if kind < 0.7:
        made = changed(random, copy.deepcopy(entries), HEADER_KEYS, HEADER_VALUES)
        place.write_bytes(safetensors(text_of(random, made), data_bytes(entries)))
    elif kind < 0.9:
        place.write_bytes(damaged(random, place.read_bytes()))
    else:
        size = len(json.dumps(entries))
        length = random.choice((*LENGTHS, size - 1, size + 1, size + data_bytes(entries)))
        place.write_bytes(struct.pack("<Q", length) + place.read_bytes()[8:])
    return random.sample(ON_MODEL, 2)


@register("index")
def write_index(random: Random, folder: Path) -> Commands:
    places = {name: "model.safetensors" for name in small_header() if name != "__metadata__"}
    seed = {"metadata": {"total_size": data_bytes(small_header())}, "weight_map": places}
    made = changed(random, seed, ("metadata", "total_size", "weight_map", Q, "x"), INDEX_VALUES)
    (write_checkpoint(folder / "model") / "model.safetensors.index.json").write_bytes(text_of(random, made))
    return random.sample(ON_MODEL, 2)


@register("side files")
def write_side_files(random: Random, folder: Path) -> Commands:
    name = random.choice(list(SIDE_FILES))
    made = changed(random, SIDE_FILES[name], SIDE_KEYS, SIDE_VALUES)
    (write_checkpoint(folder / "model") / name).write_bytes(text_of(random, made))
    return random.sample(ON_MODEL, 2)


CONVERSIONS = commands("""
apply model --yarn 4 --to gguf -o out.gguf; apply model --yarn 4 --to gguf --pre gpt-2 -o out.gguf
""")
BYTE_LEVEL: dict[str, Any] = {
    "version": "1.0",
    "added_tokens": [{"id": 6, "content": "<s>", "special": True}, {"id": 7, "content": "</s>", "special": True}],
    "normalizer": None,
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True},
    "model": {
        "type": "BPE", "unk_token": None, "byte_fallback": False, "ignore_merges": False,
        "vocab": {"a": 0, "b": 1, "ab": 2, "c": 3}, "merges": [["a", "b"]],
    },
}  # fmt: skip
BYTE_FALLBACK: dict[str, Any] = {
    "version": "1.0",
    "added_tokens": [{"id": 0, "content": "<unk>", "special": True}],
    "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}]},
    "pre_tokenizer": None,
    "model": {
        "type": "BPE", "unk_token": "<unk>", "byte_fallback": True,
        "vocab": {"<unk>": 0, "<0x0A>": 1, "▁": 2, "a": 3, "▁a": 4}, "merges": ["▁ a"],
    },
}  # fmt: skip
SPLIT = {"type": "Split", "pattern": {"Regex": r"\p{N}{1,3}"}, "behavior": "Isolated", "invert": False}
STEPS = {"type": "Sequence", "pretokenizers": [SPLIT, {"type": "ByteLevel", "add_prefix_space": False}]}
SETTINGS: dict[str, Any] = {
    "bos_token": "<s>", "eos_token": {"content": "</s>"}, "add_bos_token": True, "chat_template": "{{ messages }}",
    "added_tokens_decoder": {"0": {"content": "<unk>", "special": True}, "7": {"content": "x", "special": False}},
}  # fmt: skip
TOKENIZER_KEYS = (
    "model vocab merges added_tokens type byte_fallback unk_token ignore_merges normalizer normalizers pre_tokenizer "
    "pretokenizers pattern Regex prepend_scheme id content special bos_token eos_token chat_template "
    "added_tokens_decoder add_bos_token post_processor single a"
).split()
TOKENIZER_VALUES = (
    10**9, "1000000000", {"a": 10**9}, {"a": "1"}, [["a", 1]], [1], ["a"], ["a b c"], [["a"]], SPLIT, STEPS,
)  # fmt: skip
MERGES = (b"", b"#version\na b\n", b"\xff\xfe", b"a\nb c d\n")
CARDS = (b"---\nlicense: [1]\n---\n", b"---\nbase_model: 3\n---", b"---\n{\n---\n", b"\xff", b"---\n- a\n---\n")


@cache
def _many() -> Raw:
    return Raw(json.dumps({f"token {index}": index for index in range(200_000)}))


@register("tokenizer.json")
def write_tokenizer(random: Random, folder: Path) -> Commands:
    model = write_checkpoint(folder / "model", small_config(rms_norm_eps=1e-5))
    seed = random.choice((BYTE_LEVEL, BYTE_FALLBACK, {**BYTE_LEVEL, "pre_tokenizer": STEPS}))
    values, settings = (*TOKENIZER_VALUES, *((_many(),) if random.random() < 0.02 else ())), SETTINGS
    if random.random() < 0.75:
        seed = changed(random, seed, TOKENIZER_KEYS, values)
    else:
        settings = changed(random, SETTINGS, TOKENIZER_KEYS, values)
    if random.random() < 0.95:
        (model / "tokenizer.json").write_bytes(text_of(random, seed))
    if random.random() < 0.5:
        (model / "tokenizer_config.json").write_bytes(text_of(random, settings))
    for name in ("special_tokens_map.json", "added_tokens.json", "generation_config.json"):
        if random.random() < 0.1:
            made = changed(random, SETTINGS, TOKENIZER_KEYS, TOKENIZER_VALUES)
            (model / name).write_bytes(text_of(random, made))
    others = {
        "tokenizer.model": damaged(random, sentencepiece()),
        "merges.txt": random.choice(MERGES),
        "README.md": random.choice(CARDS),
    }
    for name, data in others.items():
        if random.random() < 0.1:
            (model / name).write_bytes(data)
    return [random.choice(CONVERSIONS)]


ON_RELEASE = commands("""
inspect model; apply model --yarn 4 --dry-run; apply model --yarn 4 -o out;
apply model --yarn 4 --encoding weights -o out; apply model --as-is --to gguf -o out.gguf; compare model model
""")


@register("params.json")
def write_params(random: Random, folder: Path) -> Commands:
    model = write_release(folder / "model")
    keys = (*PARAMS, "rope_scaling_factor")
    (model / "params.json").write_bytes(text_of(random, changed(random, PARAMS, keys, (128, 64, 500000.0, 1000000.0))))
    return random.sample(ON_RELEASE, 2)


@register("tokenizer.model")
def write_tokenizer_model(random: Random, folder: Path) -> Commands:
    model = write_release(folder / "model")
    tiktoken = b"YQ== 0\nYg== 1\nYWI= 2\n"
    odd = (b"YQ== 99999999999999999999999\n", "YQ== ²\n".encode(), b"YQ== 0\n\xff\xfe 1\nYQ==")
    made = random.choice((damaged(random, sentencepiece()), damaged(random, tiktoken), *odd))
    (model / "tokenizer.model").write_bytes(made)
    return random.sample(ON_RELEASE, 2)


@register("pth")
def write_weights(random: Random, folder: Path) -> Commands:
    """Damaged bytes, and zips of which entries are gone, cut, renamed or compressed, or whose pickle is damaged.

    Objects and pickles of other kinds are in tests/sources/test_meta_hostile.py.
    """
    place = write_release(folder / "model") / "consolidated.00.pth"
    if random.random() < 0.4:
        place.write_bytes(damaged(random, pth()))
        return random.sample(ON_RELEASE, 2)
    out, kind = io.BytesIO(), random.choice((zipfile.ZIP_STORED, zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))
    whole, share = random.random() < 0.5, random.choice((0.05, 0.3))
    with zipfile.ZipFile(io.BytesIO(pth())) as old, zipfile.ZipFile(out, "w", kind) as new:
        for name in old.namelist():
            content = old.read(name)
            if name.endswith("data.pkl") and whole:
                content = damaged(random, content) + bytes(random.choice((0, 0, 0, 30_000_000)))
            elif not whole and random.random() < share:
                content = random.choice((b"", content[: random.randrange(len(content) + 1)], content * 2))
                name = random.choice((name, name, "x", "../x", "archive/data.pkl", name * 2, "é\x00"))
            new.writestr(name, content)
    place.write_bytes(out.getvalue())
    return random.sample(ON_RELEASE, 2)


SCALINGS: tuple[dict[str, Any], ...] = (
    {"rope_type": "linear", "factor": 4.0},
    {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "beta_fast": 32, "mscale": 1.0},
    {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
     "original_max_position_embeddings": 16},
    {"rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8,
     "original_max_position_embeddings": 16, "factor": 4.0},
    {"rope_type": "dynamic", "factor": 2.0, "alpha": 1000.0},
    {"rope_type": "proportional", "partial_rotary_factor": 0.5, "rope_theta": 1e4},
    {"full_attention": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e6},
     "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}},
)  # fmt: skip
OTHERS = (
    "architectures auto_map layer_types no_rope_layers original_max_position_embeddings partial_rotary_factor "
    "rope_parameters rope_scaling rope_theta sliding_window use_sliding_window text_config torch_dtype dtype "
    "tie_word_embeddings max_sequence_length quantization_config model_type transformers_version rotary_dim alibi "
    "quant_method attn_implementation use_kernels "
    "llama_4_scaling mrope_section long_mscale short_mscale attn_factor attention_factor mscale_all_dim truncate"
).split()


KEYS = tuple(sorted({*OTHERS, *(key for name in FAMILIES for key in small_config(name))}))
ON_CONFIG = commands("""
inspect config.json; inspect config.json --json; apply config.json --yarn 4 --dry-run;
apply config.json --mixed 4 --dry-run --json --explain; apply config.json --linear 2 --on-top --dry-run;
apply config.json --as-is -o out; apply config.json --yarn 8 --replace --keep-short -o out;
apply config.json --ntk 128k --replace --runtime vllm --dry-run; compare config.json config.json;
plot config.json --yarn 4 -o plot.png; advise config.json --context 256; bound config.json
""")


@register("config.json")
def write(random: Random, folder: Path) -> Commands:
    whole = random.random() < 0.3
    config = small_config("llama" if whole else random.choice(list(FAMILIES)))
    if random.random() < 0.5:
        config[random.choice(("rope_scaling", "rope_parameters"))] = dict(random.choice(SCALINGS))
    if random.random() < 0.1:
        config = {"model_type": random.choice(("llava", "gemma3", "mistral3")), "text_config": config}
    text = text_of(random, changed(random, config, KEYS))
    if not whole:
        (folder / "config.json").write_bytes(text)
        return random.sample(ON_CONFIG, 3)
    write_checkpoint(folder / "model")
    (folder / "model" / "config.json").write_bytes(text)
    return random.sample(ON_MODEL, 2)
