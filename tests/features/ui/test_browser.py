"""The page in a real browser, each day: it opens, it answers, and a page of another origin reads
nothing of it.
"""

import pytest

from ...support.waiting import until
from .conftest import Site
from .visitor import Visitor

ASK = """
const [address, options, done] = arguments;
fetch(address, options).then(async (one) => done(`${one.status} ${await one.text()}`), (error) => done(`${error}`));
"""
JOIN = '{"fn_index": 0, "data": [], "session_hash": "x"}'
REQUESTS = [
    ("config", {}),
    ("gradio_api/info", {"headers": {"X-Forwarded-Host": "a"}}),
    (
        "gradio_api/queue/join",
        {"method": "POST", "body": JOIN, "headers": {"Content-Type": "application/json"}},
    ),
    ("gradio_api/upload", {"method": "POST", "body": "x"}),
]


def test_inspect_answers_a_name_by_keyboard_and_keeps_it(visitor: Visitor) -> None:
    visitor.open("inspect")
    visitor.type("source", "model\n")
    answer = visitor.answer()
    assert "rope_theta is absent" in answer or "default, theta" in answer
    assert "supported" in answer
    assert visitor.address() == {"source": "model"}
    visitor.open("inspect", source="model")
    assert visitor.answer() == answer
    assert visitor.field("source").get_attribute("value") == "model"


def test_a_dropped_config_is_inspected_under_its_own_name(visitor: Visitor, site: Site) -> None:
    visitor.open("inspect")
    visitor.first("button.label-wrap").click()
    visitor.first("#upload input[type=file]").send_keys(str(site.folder / "model" / "config.json"))
    until(lambda: "config.json" in visitor.first("#upload").text, "the upload")
    answer = visitor.ask("ask")
    assert answer.splitlines()[0] == "config.json"
    assert str(site.folder) not in answer


@pytest.mark.parametrize(
    "host", ["127.0.0.1", pytest.param("localhost", marks=pytest.mark.nightly)]
)
def test_a_page_on_another_port_reads_nothing_even_where_it_knows_the_address(
    host: str, visitor: Visitor, other: str
) -> None:
    ask = visitor.driver.execute_async_script
    credentials = {"credentials": "include"}
    visitor.open("")
    assert ask(ASK, f"{visitor.site}/config", credentials).startswith("200 {"), "as the page itself"
    visitor.driver.get(other.replace("127.0.0.1", host))
    for path, options in REQUESTS:
        assert (
            ask(ASK, f"{visitor.site}/{path}", credentials | options)
            == "TypeError: Failed to fetch"
        ), path
