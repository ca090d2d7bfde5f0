"""Runs llama.cpp's convert_hf_to_gguf.py on a tokenizer it does not know, by telling it that it is like GPT-2's."""

import runpy
import sys
from pathlib import Path

converter = Path(sys.argv[1])
sys.path[:0] = [str(converter.parent), str(converter.parent / "gguf-py")]
from conversion.base import TextModel  # noqa: E402

TextModel.get_vocab_base_pre = lambda self, tokenizer: "gpt-2"
sys.argv = sys.argv[1:]
runpy.run_path(str(converter), run_name="__main__")
