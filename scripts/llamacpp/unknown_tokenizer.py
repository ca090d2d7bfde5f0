"""Runs llama.cpp's convert_hf_to_gguf.py on a tokenizer it does not know, by telling it that it is
like GPT-2's.

With --without-vocabulary as first argument it writes no tokenizer at all.
"""

import runpy
import sys
from pathlib import Path

bare = sys.argv[1] == "--without-vocabulary"
if bare:
    del sys.argv[1]
converter = Path(sys.argv[1])
sys.path[:0] = [str(converter.parent), str(converter.parent / "gguf-py")]
import conversion  # noqa: E402
from conversion.base import TextModel  # noqa: E402

TextModel.get_vocab_base_pre = lambda self, tokenizer: "gpt-2"
if bare:
    known = conversion.get_model_class

    def without_vocabulary(*given, **named):
        """The class of a model, with nothing to do for its tokenizer."""
        vocabulary = known(*given, **named)
        vocabulary.set_vocab = lambda self: None
        return vocabulary

    conversion.get_model_class = without_vocabulary
sys.argv = sys.argv[1:]
runpy.run_path(str(converter), run_name="__main__")
