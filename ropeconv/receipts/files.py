"""Compares the files of an output folder with its receipt."""

from __future__ import annotations

from pathlib import Path

from ..errors import BadSource, shown
from ..formats.digest import sha256
from ..formats.index import safe_name
from .receipt import Receipt

CHECKED = (".json", ".py", ".safetensors")


def check_files(baked: Path, receipt: Receipt, weights: bool = True) -> None:
    """Raises BadSource where a file is missing, or differs from the receipt in size or (where known) sha256.

    baked: the output. receipt: of it. weights: whether the sha256 of weights is compared too, which takes long.
    """
    for file in receipt.files:
        if not safe_name(file.name):
            raise BadSource(f"the receipt of {baked} lists {shown(file.name)}, outside of it; do not trust it")
        path = baked / file.name
        if path.suffix not in CHECKED:
            continue
        if not path.is_file():
            raise BadSource(f"{path} is not there any more; run apply again")
        known = file.sha256 if weights or path.suffix != ".safetensors" else None
        if path.stat().st_size != file.size or (known and sha256(path) != known):
            raise BadSource(
                f"{path} is not the file that ropeconv wrote; run apply again, or pass --ignore-receipt if it was "
                "edited on purpose"
            )
