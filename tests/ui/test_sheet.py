"""Answers are text: nothing that a model, a card or an error says becomes markup."""

import base64
from html.parser import HTMLParser

from ropeconv.ui.job import failure
from ropeconv.ui.server import _shown
from ropeconv.ui.sheet import HtmlSheet, PageProgress

HOSTILE = "<img src=x onerror=alert(1)>\"'><script>alert(2)</script>&amp;"


class Elements(HTMLParser):
    """The elements of a text with their attributes, and its words."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.words = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.words += data

    @property
    def names(self) -> set[str]:
        return {name for name, _ in self.found}


def test_hostile_words_stay_words() -> None:
    sheet = HtmlSheet()
    for show in (sheet.title, sheet.say, sheet.note, sheet.problem, sheet.good, sheet.copyable):
        show(HOSTILE)
    sheet.file(HOSTILE, HOSTILE)
    sheet.link(HOSTILE, HOSTILE)
    sheet.link(f"https://hub/{HOSTILE}", HOSTILE)
    sheet.ways(HOSTILE, [(HOSTILE, f"bake?source={HOSTILE}")])
    sheet.table(HOSTILE, (HOSTILE, "status"), [(HOSTILE, HOSTILE), (HOSTILE, "exact")], styles={(0, 0): "bold"})
    page = Elements(sheet.html())
    assert not {"img", "script"} & page.names
    assert not [name for _, attributes in page.found for name in attributes if name.startswith("on")]
    assert page.words.count(HOSTILE) == 18
    for html in (failure(HOSTILE).html, _shown(PageProgress(HOSTILE, 1, 2))):
        assert not {"img", "script"} & Elements(html).names
        assert HOSTILE in Elements(html).words


def test_links_lead_to_pages_alone() -> None:
    sheet = HtmlSheet()
    for address in ("javascript:alert(1)", "data:text/html,x", "//elsewhere", "https://hub/me/x"):
        sheet.link(address, address)
    links = [attributes["href"] for name, attributes in Elements(sheet.html()).found if name == "a"]
    assert links == ["https://hub/me/x"]


def test_a_file_can_be_saved_as_it_is() -> None:
    sheet = HtmlSheet()
    sheet.file("config.json", '{"name": "\u00e9"}')
    (link,) = [attributes for name, attributes in Elements(sheet.html()).found if name == "a"]
    assert link["download"] == "config.json"
    kind, _, data = str(link["href"]).partition(",")
    assert kind == "data:application/octet-stream;base64"
    assert base64.b64decode(data).decode() == '{"name": "\u00e9"}'
