"""llama.cpp's own converter, for the tests that convert with it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from ropeconv.convert.to_gguf.stock import StockConverter

from ...support.converter_server import Convert, converter_server
from ...support.stock_tree import stock_tree, tree_for_tiny_models


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tree_for_tiny_models(tmp_path_factory.mktemp("stock") / "llama.cpp", stock_tree())


@pytest.fixture(scope="module")
def server() -> Iterator[Convert]:
    with converter_server(stock_tree()) as convert:
        yield convert


@pytest.fixture
def quick(server: Convert, monkeypatch: pytest.MonkeyPatch) -> None:
    """The converter in forks of a process that has imported torch; other tests run it as users do."""
    monkeypatch.setattr(StockConverter, "convert", server)
