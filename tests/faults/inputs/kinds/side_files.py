"""The small JSON files beside the weights: of the tokenizer and of generation."""

from __future__ import annotations

from pathlib import Path
from random import Random

from ..folders import write_checkpoint
from ..formats import Commands, register
from ..json_mutations import Raw, changed, text_of

COMMANDS: Commands = [
    ["inspect", "model"],
    ["apply", "model", "--yarn", "4", "-o", "out"],
    ["apply", "model", "--yarn", "4", "--context", "128", "-o", "out"],
    ["apply", "model", "--yarn", "4", "--log-n", "clamped", "--allow-approximate", "-o", "out"],
    ["apply", "model", "--yarn", "4", "--to", "gguf", "-o", "out.gguf"],
]
TOKENIZER = {
    "model_max_length": 64, "tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "chat_template": "{{ messages }}",
    "added_tokens_decoder": {"0": {"content": "<unk>", "special": True}}, "auto_map": {"AutoTokenizer": [None, "a.B"]},
}  # fmt: skip
GENERATION = {"bos_token_id": 1, "eos_token_id": [2, 3], "max_length": 64, "transformers_version": "4.50.0"}
KEYS = ("model_max_length", "max_length", "eos_token_id", "chat_template", "tokenizer_class", "bos_token")
VALUES = (Raw("1e30"), Raw("63.0"), 10**15, 10**15 - 1, {"content": "<s>"})


@register("side files")
def write(random: Random, folder: Path) -> Commands:
    model = write_checkpoint(folder / "model")
    name, seed = random.choice((("tokenizer_config.json", TOKENIZER), ("generation_config.json", GENERATION)))
    (model / name).write_bytes(text_of(random, changed(random, seed, KEYS, VALUES)))
    return random.sample(COMMANDS, 2)
