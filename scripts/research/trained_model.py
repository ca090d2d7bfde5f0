"""Trains a small Llama on the manual of Python, and writes it as a checkpoint, with texts that it
has not seen.

    python -m scripts.research.trained_model FOLDER [STEPS]

It is for measurements that need a model which has learned something: FOLDER/model and
FOLDER/texts/*.txt.
"""

import sys
from pathlib import Path
from pydoc_data.topics import topics

from tokenizers import Tokenizer

from .reproduction.text import corpus, tokenizer_of
from .reproduction.training import Training, train

DOCUMENTS, LONGEST = 18, 600
"""Texts that are kept from training, and the tokens that each has at least."""


def make(folder: Path, steps: int = 400, length: int = 64) -> None:
    """Train a small model, and write it with texts that it has not seen.

    Args:
        folder: Gets the folders `model` and `texts`.
        steps: Steps of AdamW, of 1,024 tokens each.
        length: The trained context in tokens.
    """
    texts = {name: text for name, text in topics.items() if len(text) > 500}
    texts_read = corpus(texts, LONGEST, DOCUMENTS)
    settings = Training(length=length, steps=steps, hidden=128, layers=2, heads=2, tiled=0.0)
    model = train(settings, texts_read.train, texts_read.vocabulary, heard=lambda step, loss: None)
    (folder / "texts").mkdir(parents=True)
    model.config.bos_token_id = None
    model.config.eos_token_id = None
    model.save_pretrained(folder / "model")

    # the tokenizer is that of `corpus`, which is trained on the texts to train on
    seen = [text for name, text in texts.items() if name not in set(texts_read.names)]
    save(tokenizer_of(seen), folder / "model")
    for number, name in enumerate(texts_read.names):
        (folder / "texts" / f"{number:02}.txt").write_text(texts[name], "utf-8")


def save(tokenizer: Tokenizer, folder: Path) -> None:
    """Writes the files of a tokenizer as transformers reads them."""
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        '{"tokenizer_class": "PreTrainedTokenizerFast"}\n'
    )


if __name__ == "__main__":
    make(Path(sys.argv[1]), *map(int, sys.argv[2:]))
