"""The key, the cookie and the origins that the pages answer."""

import asyncio
import os
import stat
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from ropeconv.features.ui.access import KeyMiddleware, OriginMiddleware

from ...support.browser import Browser
from ...support.waiting import until
from .visitor import Visitor, served

KEY, PATH = "the-key", "the-path"


def passed(
    wrap: Any,
    path: str = "/",
    query: str = "",
    kind: str = "http",
    method: str = "GET",
    **given: str,
) -> Any:
    """The answer to a request: its status, headers and body; 200 where it was let through. given:
    headers.
    """
    answer: dict[str, Any] = {}

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def send(message: Any) -> None:
        headers = {name.decode(): value.decode() for name, value in message.get("headers", ())}
        answer.update(
            headers, **{key: message[key] for key in ("status", "body") if key in message}
        )

    headers = [
        (name.replace("_", "-").encode(), value.encode("latin-1")) for name, value in given.items()
    ]
    scope = {
        "type": kind,
        "method": method,
        "path": path,
        "query_string": query.encode(),
        "headers": headers,
    }
    asyncio.run(wrap(app)(scope, None, send))
    return answer


class Keyed:
    """A page with its key. used: the keys that follow."""

    def __init__(self) -> None:
        self.used: list[str] = []
        self.middleware: KeyMiddleware | None = None

    def __call__(self, app: Any) -> KeyMiddleware:
        if self.middleware is None:
            self.middleware = KeyMiddleware(app, PATH, KEY, "ropeconv-7860", self.used.append)
        self.middleware.app = app
        return self.middleware

    def cookie(self, key: str = KEY) -> str:
        set_cookie: str = passed(self, query=f"key={key}")["set-cookie"]
        return set_cookie


def led(answer: Any) -> str:
    """Where the page of an answer leads."""
    return str(answer["body"].decode()).split("url=")[1].split('"')[0].replace("&amp;", "&")


def test_the_address_with_the_key_sets_a_cookie_for_a_path_and_leads_there() -> None:
    keyed = Keyed()
    response = passed(keyed, "/bake", f"source=a%2Fb&key={KEY}&method=yarn")
    assert (response["status"], led(response)) == (200, f"/{PATH}/bake?source=a%2Fb&method=yarn")
    value, _, rest = response["set-cookie"].removeprefix("ropeconv-7860=").partition(";")
    assert rest == f" Path=/{PATH}; HttpOnly; SameSite=Strict"
    assert len(value) >= 32
    assert KEY not in value
    assert (response["cache-control"], response["referrer-policy"]) == ("no-store", "same-origin")
    assert led(passed(Keyed(), query=f"key={KEY}")) == f"/{PATH}/"


def test_a_key_works_once_and_the_next_one_is_told() -> None:
    keyed = Keyed()
    first = keyed.cookie()
    (following,) = keyed.used
    assert following != KEY
    assert passed(keyed, query=f"key={KEY}")["status"] == 401
    assert keyed.cookie(following) == first, "a second browser has the same cookie"
    for method in ("HEAD", "POST"):
        assert passed(keyed, query=f"key={keyed.used[-1]}", method=method)["status"] == 401


WRONG_COOKIES = (
    "",
    "ropeconv-7860=",
    "ropeconv-7861={}",
    "ropeconv-7860={}x",
    f"ropeconv-7860={KEY}",
    "=;=,",
    "a=\xe9",
)
WRONG_PATHS = (
    "/",
    "",
    "//",
    "/bake",
    f"/{PATH}x/",
    f"/x/{PATH}/",
    f"//{PATH}/",
    "/config",
    "/\xe9/",
)
WRONG_KEYS = ("", "key=", "key=wrong", f"KEY={KEY}", f"key={KEY}x", "key=%ff")


@pytest.mark.parametrize("kind", ["http", "websocket"])
def test_the_cookie_below_the_path_is_enough_and_nothing_else_is(kind: str) -> None:
    keyed = Keyed()
    good = keyed.cookie().partition(";")[0]

    def status(place: str = f"/{PATH}/", query: str = "", **given: str) -> Any:
        return passed(keyed, place, query, kind, **given)["status"]

    for place in (f"/{PATH}", f"/{PATH}/", f"/{PATH}/bake"):
        assert status(place, cookie=f'of={{"another": "program"}}; {good}') == 200
    for both in (
        f"{good}; ropeconv-7860=x",
        f"ropeconv-7860=x; {good}",
    ):  # another port has set one, too
        assert status(cookie=both) == 200
    value = good.partition("=")[2]
    assert {status(cookie=cookie.format(value)) for cookie in WRONG_COOKIES} == {401}
    assert {status(place, cookie=good) for place in WRONG_PATHS} == {401}
    assert {status("/", query) for query in WRONG_KEYS} == {401}
    sites = {
        site: status(cookie=good, sec_fetch_site=site)
        for site in ("same-site", "cross-site", "none")
    }
    assert sites == {"same-site": 401, "cross-site": 401, "none": 200}, "a link on another page"


def test_the_page_that_follows_is_of_this_site() -> None:
    for path in (
        "//elsewhere.example/",
        "/\\elsewhere.example/",
        "/a\r\nset-cookie: b=\u20ac",
        '/"><script>',
    ):
        response = passed(Keyed(), path, f"key={KEY}")
        assert led(response).startswith(f"/{PATH}/"), path
        assert b"<script" not in response["body"]
    assert (
        led(passed(Keyed(), "//elsewhere.example/", f"key={KEY}")) == f"/{PATH}/elsewhere.example/"
    )


HERE = {"host": "127.0.0.1:7860"}
SAME = {"origin": "http://127.0.0.1:7860"}
LINK = {"sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate", "sec_fetch_dest": "document"}
ACCEPTED: list[dict[str, str]] = [
    HERE,
    {"host": "LOCALHOST"},
    {"host": "localhost:8888"},  # another port, by ssh -L
    HERE | SAME | {"sec_fetch_site": "same-origin"},
    HERE | SAME | {"method": "POST"},
    HERE | SAME | {"kind": "websocket"},
    HERE | LINK,  # with the key, by the file
]
REFUSED: list[dict[str, str]] = [
    *({"host": host} for host in ("", "evil.example:7860", "127.0.0.1@evil.example", "127.0.0.1/")),
    {},
    {"host": "localhost.evil.example"},
    *(
        HERE | {"origin": origin}
        for origin in ("null", "", "http://localhost:7860", "http://127.0.0.1:8888")
    ),
    HERE | {"origin": "http://[::1"},
    HERE | SAME | {"sec_fetch_site": "same-site"},
    HERE | {"origin": "http://evil.example", "x_forwarded_host": "evil.example"},
    HERE | LINK | {"sec_fetch_dest": "iframe"},
    HERE | {"method": "POST"},
    HERE | {"kind": "websocket"},
    *(
        HERE | LINK | more
        for more in ({"method": "POST"}, {"sec_fetch_mode": "cors"}, {"kind": "websocket"})
    ),
]
"""Headers, the method and the kind of a request."""


@pytest.mark.parametrize(("status", "cases"), [(200, ACCEPTED), (403, REFUSED)])
def test_hosts_and_origins(status: int, cases: list[dict[str, str]]) -> None:
    assert [given for given in cases if passed(OriginMiddleware, **given)["status"] != status] == []


@pytest.mark.nightly
def test_the_browser_is_opened_through_a_file_that_others_cannot_read(
    opened_browser: Browser, tmp_path: Path
) -> None:
    folder = tmp_path / "site"
    opener = tmp_path / "opener"
    folder.mkdir()
    opener.write_text("#!/bin/sh\nprintf '%s\\n' \"$@\" > arguments\n")
    opener.chmod(0o700)
    with served(folder, {"BROWSER": f"{opener} %s"}, show=True) as (address, _):
        key = address.split("key=")[1]
        until(
            lambda: (folder / "arguments").exists() and (folder / "arguments").read_text(),
            "the browser",
        )
        url = (folder / "arguments").read_text().strip()
        assert key not in url
        file = Path(urlsplit(url).path)
        assert url == file.as_uri()
        assert (stat.S_IMODE(file.stat().st_mode), file.stat().st_uid) == (0o600, os.getuid())
        assert stat.S_IMODE(file.parent.parent.stat().st_mode) == 0o700
        assert key in file.read_text()
        opened = Visitor(opened_browser, url)
        assert key not in opened.driver.current_url
        opened.driver.refresh()
        until(lambda: opened.all("main button"), "the page once more")
        assert httpx.get(address).status_code == 401, "the key works once"
    assert not file.exists()
