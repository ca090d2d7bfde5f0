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
    """Run llama.cpp's convert_hf_to_gguf.py in this process, with changes to its classes.

    The arguments are the path of the script, settings as JSON, and the arguments of the script. The
    settings are:

    - `header_only`: write holes in place of the data of large tensors.
    - `pre`: the name of the pre-tokenizer, empty to let the converter find it.
    - `predicts`: false to leave out layers that predict further tokens.
    - `plain_config`: read config.json without transformers.
    """
    script, text, *arguments = sys.argv[1:]
    settings = json.loads(text)

    # import the converter's packages in place of installed packages
    root = Path(script).resolve().parent
    sys.path[:0] = [str(root), str(root / "gguf-py")]
    import gguf

    # newer converters have a package `conversion`, older converters are one file
    has_package = (root / "conversion").is_dir()

    # Each setting replaces a method or a class; mypy does not check `setattr`.
    if settings["header_only"]:
        setattr(gguf.GGUFWriter, "write_tensors_to_file", write_small_tensors)  # noqa: B010
    if settings["pre"]:
        base = importlib.import_module("conversion.base")
        base.TextModel.get_vocab_base_pre = lambda self, tokenizer: settings["pre"]
    if not settings["predicts"] and has_package:
        # The option --no-mtp sets this too, but is an error for classes without such layers.
        base = importlib.import_module("conversion.base")
        base.ModelBase.no_mtp = True
    if settings["plain_config"] and has_package:
        # ModelBase.load_hparams reads config.json where transformers' AutoConfig raises an error.
        # `NoConfig` always raises one.
        base = importlib.import_module("conversion.base")
        setattr(base, "AutoConfig", NoConfig)  # noqa: B010

    sys.argv = [script, *arguments]
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main()
