"""A small Llama in the HF layout: 2 layers, trained length 64, with a byte-level tokenizer trained
on this project.
"""

import json
import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.utils import logging

TRAINED = 64


def tokenizer(folder: Path) -> int:
    """Write tokenizer.json and tokenizer_config.json, and return the size of the vocabulary."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=320, special_tokens=["<s>", "</s>"], initial_alphabet=alphabet
    )
    tokenizer.train(
        [
            str(path)
            for path in sorted(Path(__file__).parents[1].joinpath("ropeconv").rglob("*.py"))
        ],
        trainer,
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "bos_token": "<s>",
        "eos_token": "</s>",
        "model_max_length": TRAINED,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")
    return int(tokenizer.get_vocab_size())


def main(folder: Path) -> None:
    """Write a Llama of random weights and its tokenizer into a folder."""
    logging.disable_progress_bar()
    folder.mkdir(parents=True)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=tokenizer(folder),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=64,
        max_position_embeddings=TRAINED,
        initializer_range=0.35,
        bos_token_id=0,
        eos_token_id=1,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    print(f"made {folder}: {sum(path.stat().st_size for path in folder.iterdir()) / 1e6:.1f} MB")


main(Path(sys.argv[1]))
