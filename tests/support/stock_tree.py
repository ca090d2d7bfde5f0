"""llama.cpp's own converter on this machine: from the variable LLAMA_CPP, or the source
distribution of llama-cpp-python, which pip fetches once.
"""

import json
import os
import tomllib
from pathlib import Path
from typing import Any

import pytest

from scripts.laboratory.environment import NotInstallable
from scripts.laboratory.runtimes.converter import PACKAGES, converter_tree

from ..convert.to_gguf.stock_converter import KEYS, SIZES
from .llamacpp import checkpoint

STORE = Path(__file__).parents[2] / ".cache" / "llama.cpp"
SHAPES: dict[str, dict[str, dict[str, Any]]] = tomllib.loads(
    (Path(__file__).parents[1] / "data" / "stock_shapes.toml").read_text()
)
LINKED = ("conversion", "gguf-py")
WRAPPER = """
import runpy
import conversion
from conversion.base import TextModel

known = conversion.get_model_class

def set_vocab(self):
    if "type_vocab_size" in self.hparams:
        self.gguf_writer.add_token_type_count(self.hparams["type_vocab_size"])
    TextModel._set_vocab_gpt2(self)

def with_plain_vocabulary(*given, **named):
    found = known(*given, **named)
    found.set_vocab = set_vocab
    found._is_tokenizer_xlmroberta = lambda self: False
    return found

conversion.get_model_class = with_plain_vocabulary
TextModel.get_vocab_base_pre = lambda self, tokenizer: "gpt-2"
runpy.run_path({script!r}, run_name="__main__")
"""
"""A converter for tiny checkpoints, whose tokenizers are all byte-level BPE like that of GPT-2."""
OWN_VOCABULARY = """
import runpy
import conversion
from conversion.base import TextModel

TextModel.get_vocab_base_pre = lambda self, tokenizer: "gpt-2"
runpy.run_path({script!r}, run_name="__main__")
"""
"""The same, with the vocabulary and the special tokens of every architecture."""


def stock_tree() -> Path:
    """The sources of llama.cpp with its converter; the test is skipped where pip has none."""
    if os.environ.get("LLAMA_CPP"):
        return Path(os.environ["LLAMA_CPP"])
    try:
        return converter_tree(PACKAGES["2026.10"], STORE)
    except NotInstallable as problem:
        pytest.skip(f"llama.cpp's converter cannot be had: {problem}")


def tree_for_tiny_models(folder: Path, sources: Path, wrapper: str = WRAPPER) -> Path:
    """A checkout whose converter takes the tokenizers of tests. sources: a whole one."""
    folder.mkdir()
    for name in LINKED:
        (folder / name).symlink_to((sources / name).resolve())
    script = str((sources / "convert_hf_to_gguf.py").resolve())
    (folder / "convert_hf_to_gguf.py").write_text(wrapper.format(script=script))
    return folder


def published(model_type: str, folder: Path) -> Path:
    """A tiny checkpoint with the sizes that llama.cpp takes for granted, and the keys that
    published configs have.
    """
    shape = SHAPES.get(model_type, {})
    source = checkpoint(
        model_type, folder, **{**SIZES.get(model_type, {}), **shape.get("config", {})}
    )
    config = json.loads((source / "config.json").read_text())
    config |= {**KEYS.get(model_type, {}), **shape.get("keys", {})}
    (source / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    return source
