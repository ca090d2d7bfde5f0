"""Text that every Python has: the manual of the language, and the docstrings of the standard
library.
"""

import ast
import hashlib
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

VOCABULARY = 512
Ids = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Corpus:
    """Tokens to train on, and documents that are kept for measuring."""

    train: Ids
    """int64 [tokens], documents one after the other."""

    test: Ids
    """int64 [documents, tokens], the beginnings of documents."""

    names: tuple[str, ...]
    """The names of the documents in `test`."""

    vocabulary: int
    """The number of tokens of the tokenizer."""

    @property
    def sha256(self) -> str:
        """Of all tokens."""
        return hashlib.sha256(
            self.train.astype("<i8").tobytes() + self.test.astype("<i8").tobytes()
        ).hexdigest()


def manual(folder: Path | None = None) -> dict[str, str]:
    """Return the topics of Python's manual and the docstrings of each of its modules, by name.

    Args:
        folder: The folder of the modules; None for the standard library.
    """
    from pydoc_data.topics import topics

    root = folder or Path(sysconfig.get_paths()["stdlib"])
    texts = {f"topic {name}": text for name, text in topics.items()}
    left_out = {"test", "tests", "idle_test", "site-packages", "dist-packages"}
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root).as_posix()
        if not left_out & set(name.split("/")):
            texts[f"module {name}"] = _docstrings(path)
    return texts


def _docstrings(path: Path) -> str:
    """All docstrings of a file; empty where it cannot be parsed."""
    try:
        tree = ast.parse(path.read_text("utf-8"))
    except (SyntaxError, UnicodeDecodeError):
        return ""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    parts = [ast.get_docstring(node) for node in ast.walk(tree) if isinstance(node, kinds)]
    return "\n\n".join(part for part in parts if part)


def files(paths: Sequence[Path]) -> dict[str, str]:
    """The texts of the user, by name."""
    return {str(path): path.read_text("utf-8") for path in paths}


def corpus(
    texts: dict[str, str],
    length: int,
    documents: int,
    vocabulary: int = VOCABULARY,
    bytes_per_token: int = 6,
) -> Corpus:
    """Split texts into those to train on and those to measure on, and return their tokens.

    The tokenizer is trained on the first ones only, so that the others stay unseen.

    Args:
        texts: The texts by name.
        length: The tokens of each text that is measured on.
        documents: How many of them: long ones, in the order of a hash of their names.
        vocabulary: The tokens of the byte-level BPE.
        bytes_per_token: A text is long if it has more bytes than this for each of `length`.

    Raises:
        SystemExit: Too few texts are long.
    """
    names = [name for name, text in texts.items() if text]
    order = sorted(names, key=lambda name: hashlib.md5(name.encode()).digest())
    least = bytes_per_token * length
    long = [name for name in order if len(texts[name].encode()) > least][:documents]
    if len(long) < documents or len(order) == len(long):
        raise SystemExit(
            f"{len(long)} texts have more than {least:,} bytes, and {documents} are needed beside"
            " those to train on; give more --text, or fewer --documents"
        )
    rest = [texts[name] for name in order if name not in set(long)]
    tokenizer = tokenizer_of(rest, vocabulary)

    def encode(text: str) -> list[int]:
        ids: list[int] = tokenizer.encode(text).ids
        return ids

    test = np.array([encode(texts[name])[:length] for name in long], np.int64)
    train = np.concatenate([np.array(encode(text + "\n\n"), np.int64) for text in rest])
    return Corpus(train, test, tuple(long), tokenizer.get_vocab_size())


def tokenizer_of(texts: Sequence[str], vocabulary: int = VOCABULARY) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        texts,
        trainers.BpeTrainer(vocab_size=vocabulary, initial_alphabet=alphabet, show_progress=False),
    )
    return tokenizer
