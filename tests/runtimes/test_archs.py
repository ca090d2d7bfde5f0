"""The table of llama.cpp's architectures: the carriers that it names, and rotations in part that it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from ropeconv.errors import BadSource
from ropeconv.runtimes.llamacpp.archs import arch_table

from ..support.baking import inspected
from ..support.gguf_files import write


def test_every_carrier_uses_rope_freqs_and_its_pairs_can_be_made() -> None:
    table = arch_table().arch
    pairs = [(arch, table[to]) for arch in table.values() for to in arch.carriers]
    assert pairs
    assert all(to.freqs == "used" and to.pairs in ("norm", arch.pairs) for arch, to in pairs)


@pytest.mark.parametrize("arch", ["llama", "deci"])
def test_a_rotation_in_part_is_refused_where_the_table_says(tmp_path: Path, arch: str) -> None:
    assert arch_table().arch[arch].full_rotation
    path = write(tmp_path / "model.gguf", arch, {"rope.dimension_count": 32})
    with pytest.raises(BadSource, match="only when all 64 dimensions rotate"):
        inspected(path)
