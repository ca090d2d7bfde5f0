"""The key of a page on one's own machine."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ropeconv.ui.access import KeyMiddleware, new_key

KEY = "the-key"


def asked(path: str = "/", query: str = "", cookie: str = "", kind: str = "http") -> dict[str, Any]:
    """The answer to a request: its status and headers; 200 where it was let through."""
    answer: dict[str, Any] = {}

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def send(message: Any) -> None:
        if message["type"].endswith("http.response.start"):  # of a websocket it has a prefix
            headers = {name.decode(): value.decode() for name, value in message["headers"]}
            answer.update(headers, status=message["status"])

    headers = [(b"cookie", cookie.encode("latin-1"))] if cookie else []
    scope = {"type": kind, "path": path, "query_string": query.encode(), "headers": headers}
    asyncio.run(KeyMiddleware(app, KEY, 7860)(scope, None, send))  # type: ignore[arg-type]
    return answer


def test_the_address_with_the_key_sets_a_cookie_and_leads_to_the_one_without() -> None:
    found = asked("/bake", f"source=a%2Fb&key={KEY}&method=yarn")
    assert (found["status"], found["location"]) == (303, "/bake?source=a%2Fb&method=yarn")
    assert found["set-cookie"] == f"ropeconv-7860={KEY}; Path=/; HttpOnly; SameSite=Strict"
    assert asked("/", f"key={KEY}")["location"] == "/"


@pytest.mark.parametrize("kind", ["http", "websocket"])
def test_the_cookie_is_enough_and_nothing_else_is(kind: str) -> None:
    assert asked(cookie=f"other=1; ropeconv-7860={KEY}", kind=kind)["status"] == 200
    odd = f'of={{"another": "program"}}; ropeconv-7860={KEY}'
    assert asked(cookie=odd, kind=kind)["status"] == 200
    for cookie in ("", "ropeconv-7860=", f"ropeconv-7861={KEY}", f"ropeconv-7860={KEY}x", "ropeconv-7860=\xe9", "=;=,"):
        assert asked(cookie=cookie, kind=kind)["status"] == 401, cookie
    for query in ("", "key=", "key=wrong", f"KEY={KEY}", f"key={KEY}x", "key=%ff"):
        assert asked(query=query)["status"] == 401, query


def test_a_redirect_stays_on_the_page() -> None:
    assert asked("//elsewhere.example/", f"key={KEY}")["location"] == "/elsewhere.example/"
    assert asked("/\\elsewhere.example/", f"key={KEY}")["location"] == "/elsewhere.example/"
    assert asked("/a\r\nset-cookie: b=\u20ac", f"key={KEY}")["location"] == "/a%0D%0Aset-cookie%3A%20b%3D%E2%82%AC"


def test_keys_differ() -> None:
    assert len({new_key() for _ in range(100)}) == 100
    assert min(len(new_key()) for _ in range(100)) >= 32
