"""Runs llama.cpp's convert_hf_to_gguf.py, as a program of its own: SCRIPT SETTINGS ARGUMENT ...

SETTINGS is JSON. With `header_only`, the file gets its header and its small tensors, and holes in
place of the others, which are not converted. With `pre`, that is the value of tokenizer.ggml.pre.
Without `predicts`, no layers that predict further tokens are expected. With `plain_config`, the
converter reads config.json without transformers. It imports nothing of ropeconv.
"""

import importlib
import json
import os
import runpy
import sys
from pathlib import Path
from typing import Any

SMALL = 1 << 16
"""The most bytes of a tensor that is written with only a header: norms, and divisors of RoPE."""


def write_small_tensors(writer: Any, *, progress: bool = False) -> None:
    """Write the entries of tensors, and the data of small ones (GGUFWriter.write_tensors_to_file).

    Args:
        writer: The GGUFWriter, which has written all keys.
        progress: As in the method that it stands for.
    """
    # the entries, which name and place each tensor; there is one file, since nothing is split
    writer.write_ti_data_to_file()
    (file,) = writer.fout
    writer.write_padding(file, file.tell())

    # the data: large tensors and padding become holes
    (tensors,) = writer.tensors
    for info in tensors.values():
        if info.nbytes <= SMALL:
            info.tensor.tofile(file)
        else:
            file.seek(info.nbytes, os.SEEK_CUR)
        padding = -info.nbytes % writer.data_alignment
        file.seek(padding, os.SEEK_CUR)
        info.tensor = None  # frees its memory
    file.truncate()


class NoConfig:
    """Stands for AutoConfig, whose failure makes the converter read config.json itself."""

    @staticmethod
    def from_pretrained(*given: Any, **named: Any) -> Any:
        """Raise ValueError, as AutoConfig does for models that transformers does not have."""
        raise ValueError("config.json is read without transformers")


def main() -> None:
    """Run llama.cpp's converter in this process, with changes to its classes.

    The arguments are the script convert_hf_to_gguf.py, settings as JSON, and the converter's own.
    The settings are `header_only` (large tensors become holes), `pre` (the name of the
    pre-tokenizer, empty for the converter's), `predicts` (false to leave out layers that predict
    further tokens), and `plain_config` (config.json is read without transformers).
    """
    script, text, *arguments = sys.argv[1:]
    settings = json.loads(text)

    # its own packages before installed ones, as when the script runs by itself
    root = Path(script).resolve().parent
    sys.path[:0] = [str(root), str(root / "gguf-py")]
    import gguf

    if settings["header_only"]:
        setattr(gguf.GGUFWriter, "write_tensors_to_file", write_small_tensors)  # noqa: B010
    if settings["pre"]:
        # a package of the checkout
        base = importlib.import_module("conversion.base")
        base.TextModel.get_vocab_base_pre = lambda self, tokenizer: settings["pre"]
    if not settings["predicts"] and (root / "conversion").is_dir():
        # as its option --no-mtp does, which it refuses for classes that never have such layers;
        # converters of one file, from before the package, have no such layers
        importlib.import_module("conversion.base").ModelBase.no_mtp = True
    if settings["plain_config"] and (root / "conversion").is_dir():
        # ModelBase.load_hparams reads config.json where AutoConfig fails
        setattr(importlib.import_module("conversion.base"), "AutoConfig", NoConfig)  # noqa: B010
    sys.argv = [script, *arguments]
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main()
