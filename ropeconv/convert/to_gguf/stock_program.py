"""Runs llama.cpp's convert_hf_to_gguf.py, as a program of its own: SCRIPT SETTINGS ARGUMENT ...

SETTINGS is JSON. With `header_only`, the file gets its header and its small tensors, and holes in
place of the others, which are not converted. With `pre`, that is the value of tokenizer.ggml.pre.
Without `predicts`, no layers that predict further tokens are expected. With `plain_config`, the
converter reads config.json itself, and not the config that transformers loads from it. It imports
nothing of ropeconv.
"""

import importlib
import json
import os
import runpy
import sys
from pathlib import Path
from typing import Any

MOST_BYTES_OF_SMALL_TENSOR = 1 << 16
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
        if info.nbytes <= MOST_BYTES_OF_SMALL_TENSOR:
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

    # the classes of the converter are in the package `conversion` of its checkout; older converters
    # are one file without it
    has_package = (root / "conversion").is_dir()

    # Each setting replaces a method or a class. `setattr` does so without an error of mypy.
    if settings["header_only"]:
        setattr(gguf.GGUFWriter, "write_tensors_to_file", write_small_tensors)  # noqa: B010
    if settings["pre"]:
        base = importlib.import_module("conversion.base")
        base.TextModel.get_vocab_base_pre = lambda self, tokenizer: settings["pre"]
    if not settings["predicts"] and has_package:
        # The option --no-mtp sets this too. The option itself is an error for classes that never
        # have layers that predict further tokens.
        importlib.import_module("conversion.base").ModelBase.no_mtp = True
    if settings["plain_config"] and has_package:
        # ModelBase.load_hparams reads config.json where AutoConfig fails, and `NoConfig` fails
        base = importlib.import_module("conversion.base")
        setattr(base, "AutoConfig", NoConfig)  # noqa: B010
    sys.argv = [script, *arguments]
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main()
