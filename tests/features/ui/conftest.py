"""The pages with a test Hub, and a browser: once for all tests of a module."""

import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.util import get_temp_dir
from pathlib import Path

import pytest

from ropeconv.features.ui.job import prepare

from ...support.browser import Browser, browser
from ...support.hub_server import Hub, handler
from ...support.hub_server import running as running_server
from ...support.hub_writing import WritingHub, serving_writes
from .visitor import Visitor, served


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """`-m ui` runs these tests alone, and `-m "not ui"` all others."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker("ui")


@pytest.fixture(autouse=True, scope="session")
def own_temporary_files() -> Iterator[None]:
    """What is left there is then of these tests, and not of others that run beside them. Short, as
    for a socket.
    """
    get_temp_dir()  # of multiprocessing, which removes it after all fixtures have ended
    with tempfile.TemporaryDirectory(prefix="ui-") as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", folder)
        patch.setattr(tempfile, "tempdir", folder)
        yield


@pytest.fixture(autouse=True, scope="session")
def requests_begin_prepared(own_temporary_files: None) -> None:
    """As those of the pages do, also where tests begin them by themselves."""
    prepare()


@dataclass
class Site:
    """The pages in a folder that has a tiny Llama named `model`. address: with the key. hub: a test
    Hub with it.
    """

    folder: Path
    address: str
    process: subprocess.Popen[str]
    hub: WritingHub


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, tiny: Callable[[str], Path]) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("ui")
    subprocess.run(["cp", "-r", str(tiny("llama")), str(folder / "model")], check=True)
    with serving_writes(tmp_path_factory.mktemp("hub")) as hub:
        hub.repos["them/llama"] = tiny("llama")
        environment = hub.environment(folder / "home") | {"HF_TOKEN": "hf_of_this_user"}
        with served(folder, environment) as (address, process):
            yield Site(folder, address, process, hub)


@pytest.fixture(scope="module")
def other() -> Iterator[str]:
    """The address of a server with an empty page on another port of this machine."""

    class Handler(handler(Hub())):  # type: ignore[misc]
        def do_GET(self) -> None:
            self.reply(
                200, b"<!DOCTYPE html><title>other</title>", True, {"Content-Type": "text/html"}
            )

    with running_server(Hub(), Handler) as hub:
        yield hub.url


@pytest.fixture(scope="module")
def opened_browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture(scope="module")
def visitor(site: Site, opened_browser: Browser) -> Visitor:
    return Visitor(opened_browser, site.address)
