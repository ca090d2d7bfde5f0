"""Runs llama.cpp's convert_hf_to_gguf.py on a folder, for several types: TREE FOLDER TYPE ...

It reads config.json as it is, and not as transformers completes it; every tokenizer is byte-level
BPE like GPT-2's, and layers that predict further tokens are left out.
"""

import runpy
import sys
from pathlib import Path
from typing import Any

tree, folder, *outtypes = sys.argv[1:]
sys.path[:0] = [tree, str(Path(tree) / "gguf-py")]
import conversion  # noqa: E402
import transformers  # noqa: E402
from conversion.base import ModelBase, TextModel, get_model_architecture  # noqa: E402


def not_there(*given: Any, **more: Any) -> None:
    raise ValueError("the converter then reads config.json itself")


transformers.AutoConfig.from_pretrained = not_there
TextModel.get_vocab_base_pre = lambda self, tokenizer: "gpt-2"
architecture = get_model_architecture(
    ModelBase.load_hparams(Path(folder), False), conversion.ModelType.TEXT
)
model_class = conversion.get_model_class(architecture)
model_class.set_vocab = lambda self: TextModel._set_vocab_gpt2(self)
for outtype in outtypes:
    sys.argv = [
        "convert_hf_to_gguf.py",
        folder,
        "--outtype",
        outtype,
        "--outfile",
        f"{folder}-{outtype}.gguf",
    ]
    sys.argv += ["--no-mtp"] * bool(model_class.supports_mtp_export)
    runpy.run_path(str(Path(tree) / sys.argv[0]), run_name="__main__")
