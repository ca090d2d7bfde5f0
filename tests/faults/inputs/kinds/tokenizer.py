"""The tokenizers of checkpoints that are converted to GGUF."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from ..bytes_mutations import damaged
from ..folders import small_config, write_checkpoint
from ..formats import Commands, register
from ..json_mutations import Raw, changed, text_of
from ..meta_folders import sentencepiece

COMMANDS: Commands = [
    ["apply", "model", "--yarn", "4", "--to", "gguf", "-o", "out.gguf"],
    ["apply", "model", "--yarn", "4", "--to", "gguf", "--pre", "gpt-2", "-o", "out.gguf"],
]
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
KEYS = (
    "model vocab merges added_tokens type byte_fallback unk_token ignore_merges normalizer normalizers pre_tokenizer "
    "pretokenizers pattern Regex prepend_scheme id content special bos_token eos_token chat_template "
    "added_tokens_decoder add_bos_token post_processor single a"
).split()


@cache
def _many() -> Raw:
    return Raw(json.dumps({f"token {index}": index for index in range(200_000)}))


@register("tokenizer.json")
def write(random: Random, folder: Path) -> Commands:
    model = write_checkpoint(folder / "model", small_config(rms_norm_eps=1e-5))
    seed = random.choice((BYTE_LEVEL, BYTE_FALLBACK, {**BYTE_LEVEL, "pre_tokenizer": STEPS}))
    values = (10**9, "1000000000", {"a": 10**9}, {"a": "1"}, [["a", 1]], [1], ["a"], ["a b c"], [["a"]], SPLIT, STEPS)
    extra = (_many(),) if random.random() < 0.02 else ()
    settings = SETTINGS
    if random.random() < 0.75:
        seed = changed(random, seed, KEYS, (*values, *extra))
    else:
        settings = changed(random, SETTINGS, KEYS, (*values, *extra))
    if random.random() < 0.95:
        (model / "tokenizer.json").write_bytes(text_of(random, seed))
    if random.random() < 0.5:
        (model / "tokenizer_config.json").write_bytes(text_of(random, settings))
    if random.random() < 0.1:
        (model / "tokenizer.model").write_bytes(damaged(random, sentencepiece()))
    for name in ("special_tokens_map.json", "added_tokens.json", "generation_config.json"):
        if random.random() < 0.1:
            (model / name).write_bytes(text_of(random, changed(random, SETTINGS, KEYS, values)))
    if random.random() < 0.1:
        (model / "merges.txt").write_bytes(random.choice((b"", b"#version\na b\n", b"\xff\xfe", b"a\nb c d\n")))
    if random.random() < 0.1:
        card = (b"---\nlicense: [1]\n---\n", b"---\nbase_model: 3\n---", b"---\n{\n---\n", b"\xff", b"---\n- a\n---\n")
        (model / "README.md").write_bytes(random.choice(card))
    return [random.choice(COMMANDS)]
