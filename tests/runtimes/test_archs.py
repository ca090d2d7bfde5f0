"""The table of llama.cpp's architectures: the carriers that it names, and rotations in part that it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from ropeconv.encode.gguf.carriers import CARRIERS
from ropeconv.errors import BadSource
from ropeconv.inspection import inspect_source
from ropeconv.runtimes.llamacpp import arch_table
from ropeconv.sources import open_source

from ..support.gguf_files import write


def test_the_carriers_of_the_table_are_those_that_exist() -> None:
    listed = {(arch.name, to) for arch in arch_table().arch.values() for to in arch.carriers}
    assert listed == set(CARRIERS)


@pytest.mark.parametrize("arch", ["llama", "deci"])
def test_a_rotation_in_part_is_refused_where_the_table_says(tmp_path: Path, arch: str) -> None:
    assert arch_table().arch[arch].full_rotation
    path = write(tmp_path / "model.gguf", arch, {"rope.dimension_count": 32})
    with pytest.raises(BadSource, match="only when all 64 dimensions rotate"):
        inspect_source(open_source(str(path)))


def test_llama_cpp_refuses_it_too(tmp_path: Path) -> None:
    pytest.importorskip("llama_cpp")
    from ..support.tiny_gguf import answers, make

    tiny = make("llama", tmp_path / "tiny.gguf")
    part = {"llama.rope.dimension_count": ("int", 32)}
    assert set(answers("llama", tmp_path, {"whole": tiny, "part": (tiny, part)})) == {"whole"}
