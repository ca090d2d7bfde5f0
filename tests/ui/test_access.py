"""The key, the cookie and the origins that the pages answer."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Collection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from ropeconv.ui.access import LOOPBACK, KeyMiddleware, OriginMiddleware, new_key

from ..support.browser import browser
from ..support.waiting import until
from .visitor import served

KEY, PATH = "the-key", "the-path"
OPENER = "#!/bin/sh\nprintf '%s\\n' \"$@\" > arguments\n"


def passed(wrap: Any, path: str = "/", query: str = "", kind: str = "http", method: str = "GET", **given: str) -> Any:
    """The answer to a request: its status and headers; 200 where it was let through. given: headers."""
    answer: dict[str, Any] = {}

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def send(message: Any) -> None:
        if message["type"].endswith("http.response.start"):  # of a websocket it has a prefix
            headers = {name.decode(): value.decode() for name, value in message["headers"]}
            answer.update(headers, status=message["status"])
        elif message["type"].endswith("http.response.body"):
            answer["body"] = message.get("body", b"").decode()

    headers = [(name.replace("_", "-").encode(), value.encode("latin-1")) for name, value in given.items()]
    scope = {"type": kind, "method": method, "path": path, "query_string": query.encode(), "headers": headers}
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


def led(body: str) -> str:
    """Where the page of an answer leads."""
    return body.split("url=")[1].split('"')[0].replace("&amp;", "&")


def test_the_address_with_the_key_sets_a_cookie_for_a_path_and_leads_there() -> None:
    keyed = Keyed()
    found = passed(keyed, "/bake", f"source=a%2Fb&key={KEY}&method=yarn")
    assert (found["status"], led(found["body"])) == (200, f"/{PATH}/bake?source=a%2Fb&method=yarn")
    value, _, rest = found["set-cookie"].removeprefix("ropeconv-7860=").partition(";")
    assert rest == f" Path=/{PATH}; HttpOnly; SameSite=Strict"
    assert len(value) >= 32
    assert KEY not in value
    assert (found["cache-control"], found["referrer-policy"]) == ("no-store", "same-origin")
    assert led(passed(Keyed(), query=f"key={KEY}")["body"]) == f"/{PATH}/"


def test_a_key_works_once_and_the_next_one_is_told() -> None:
    keyed = Keyed()
    first = keyed.cookie()
    (following,) = keyed.used
    assert following != KEY
    assert passed(keyed, query=f"key={KEY}")["status"] == 401
    assert keyed.cookie(following) == first, "a second browser has the same cookie"
    for method in ("HEAD", "POST"):
        assert passed(keyed, query=f"key={keyed.used[-1]}", method=method)["status"] == 401


@pytest.mark.parametrize("kind", ["http", "websocket"])
def test_the_cookie_below_the_path_is_enough_and_nothing_else_is(kind: str) -> None:
    keyed = Keyed()
    good = keyed.cookie().partition(";")[0]
    for place in (f"/{PATH}", f"/{PATH}/", f"/{PATH}/bake"):
        assert passed(keyed, place, kind=kind, cookie=f"other=1; {good}")["status"] == 200
        assert passed(keyed, place, kind=kind, cookie=f'of={{"another": "program"}}; {good}')["status"] == 200
    for both in (f"{good}; ropeconv-7860=x", f"ropeconv-7860=x; {good}"):  # another port has set one, too
        assert passed(keyed, f"/{PATH}/", kind=kind, cookie=both)["status"] == 200
    value = good.partition("=")[2]
    wrong = (
        "",
        "ropeconv-7860=",
        f"ropeconv-7861={value}",
        f"{good}x",
        f"ropeconv-7860={KEY}",
        "ropeconv-7860=\xe9",
        "=;=,",
    )
    for cookie in wrong:
        assert passed(keyed, f"/{PATH}/", kind=kind, cookie=cookie)["status"] == 401, cookie
    for place in ("/", "", "//", "/bake", f"/{PATH}x/", f"/x/{PATH}/", f"//{PATH}/", "/config", "/\xe9/"):
        assert passed(keyed, place, kind=kind, cookie=good)["status"] == 401, place
    for query in ("", "key=", "key=wrong", f"KEY={KEY}", f"key={KEY}x", "key=%ff"):
        assert passed(keyed, query=query, kind=kind)["status"] == 401, query
    for site in ("same-site", "cross-site"):  # a link on another page
        assert passed(keyed, f"/{PATH}/", cookie=good, sec_fetch_site=site, kind=kind)["status"] == 401
    assert passed(keyed, f"/{PATH}/", cookie=good, sec_fetch_site="none", kind=kind)["status"] == 200


def test_the_page_that_follows_is_of_this_site() -> None:
    for path in ("//elsewhere.example/", "/\\elsewhere.example/", "/a\r\nset-cookie: b=\u20ac", '/"><script>'):
        found = passed(Keyed(), path, f"key={KEY}")
        assert led(found["body"]).startswith(f"/{PATH}/"), path
        assert "<script" not in found["body"]
    assert led(passed(Keyed(), "//elsewhere.example/", f"key={KEY}")["body"]) == f"/{PATH}/elsewhere.example/"


def at(hosts: Collection[str] | None) -> Any:
    return lambda app: OriginMiddleware(app, hosts)


HERE = {"host": "127.0.0.1:7860"}
SAME = {"origin": "http://127.0.0.1:7860"}


@pytest.mark.parametrize(
    ("status", "given", "hosts"),
    [
        (200, HERE, LOOPBACK),
        (200, {"host": "localhost:8888"}, LOOPBACK),  # another port, by ssh -L
        (200, {"host": "LOCALHOST"}, LOOPBACK),
        (200, HERE | SAME | {"sec_fetch_site": "same-origin"}, LOOPBACK),
        (403, {}, LOOPBACK),
        (403, {"host": ""}, LOOPBACK),
        (403, {"host": "evil.example:7860"}, LOOPBACK),
        (403, {"host": "127.0.0.1@evil.example"}, LOOPBACK),
        (403, {"host": "localhost.evil.example"}, LOOPBACK),
        (403, {"host": "127.0.0.1/"}, LOOPBACK),
        (403, HERE | {"origin": "null"}, LOOPBACK),
        (403, HERE | {"origin": ""}, LOOPBACK),
        (403, HERE | {"origin": "http://localhost:7860"}, LOOPBACK),
        (403, HERE | {"origin": "http://127.0.0.1:8888"}, LOOPBACK),
        (403, HERE | {"origin": "http://[::1"}, LOOPBACK),
        (403, HERE | {"origin": "http://127.0.0.1:7860", "sec_fetch_site": "same-site"}, LOOPBACK),
        (403, HERE | {"origin": "http://evil.example", "x_forwarded_host": "evil.example"}, LOOPBACK),
        (
            403,
            HERE | {"sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate", "sec_fetch_dest": "iframe"},
            LOOPBACK,
        ),
        (200, {"host": "me-ropeconv.hf.space"}, None),
        (200, {"host": "10.0.0.1:7860", "origin": "https://me-x.hf.space", "sec_fetch_site": "same-origin"}, None),
        (200, {"host": "me-x.hf.space", "origin": "https://me-x.hf.space"}, None),
        (200, {"host": "10.0.0.1", "x_forwarded_host": "me-x.hf.space", "origin": "https://me-x.hf.space"}, None),
        (403, {"host": "me-x.hf.space", "origin": "https://other.hf.space"}, None),
        (403, {"host": "me-x.hf.space", "origin": "null"}, None),
        (403, {"host": "", "origin": "null"}, None),
        (403, {"host": "me-x.hf.space", "origin": "https://me-x.hf.space", "sec_fetch_site": "cross-site"}, None),
    ],
)
def test_hosts_and_origins(status: int, given: dict[str, str], hosts: Collection[str] | None) -> None:
    assert passed(at(hosts), **given)["status"] == status


def test_pages_are_opened_from_elsewhere_and_not_asked() -> None:
    opened = {"sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate", "sec_fetch_dest": "document"}
    assert passed(at(LOOPBACK), **HERE, **opened)["status"] == 200, "with the key, by the file"
    assert passed(at(None), **HERE, **opened | {"sec_fetch_dest": "iframe"})["status"] == 200, "on huggingface.co"
    for hosts in (LOOPBACK, None):
        assert passed(at(hosts), **HERE, **opened, method="POST")["status"] == 403, "a form of another page"
        assert passed(at(hosts), **HERE, **opened | {"sec_fetch_mode": "cors"})["status"] == 403
        assert passed(at(hosts), **HERE, **opened, kind="websocket")["status"] == 403
    assert passed(at(LOOPBACK), **HERE, method="POST")["status"] == 403, "without an origin"
    assert passed(at(LOOPBACK), **HERE, kind="websocket")["status"] == 403, "without an origin"
    assert passed(at(LOOPBACK), **HERE, **SAME, method="POST")["status"] == 200
    assert passed(at(LOOPBACK), **HERE, **SAME, kind="websocket")["status"] == 200


def test_keys_differ() -> None:
    assert len({new_key() for _ in range(100)}) == 100
    assert min(len(new_key()) for _ in range(100)) >= 32


def test_the_browser_is_opened_through_a_file_that_others_cannot_read(tmp_path: Path) -> None:
    folder, opener = tmp_path / "site", tmp_path / "opener"
    folder.mkdir()
    opener.write_text(OPENER)
    opener.chmod(0o700)
    with served(folder, {"BROWSER": f"{opener} %s"}, show=True) as (address, _):
        key = address.split("key=")[1]
        until(lambda: (folder / "arguments").exists() and (folder / "arguments").read_text(), "the browser")
        said = (folder / "arguments").read_text().strip()
        assert key not in said
        file = Path(urlsplit(said).path)
        assert said == file.as_uri()
        assert (stat.S_IMODE(file.stat().st_mode), file.stat().st_uid) == (0o600, os.getuid())
        assert stat.S_IMODE(file.parent.parent.stat().st_mode) == 0o700
        assert key in file.read_text()
        with browser(tmp_path / "profile") as opened:
            opened.driver.get(said)
            until(lambda: opened.driver.find_elements("css selector", "main button"), "the page")
            assert key not in opened.driver.current_url
            opened.driver.refresh()
            until(lambda: opened.driver.find_elements("css selector", "main button"), "the page once more")
        assert httpx.get(address).status_code == 401, "the key works once"
    assert not file.exists()
