"""The logins of a Hub on localhost: OpenID Connect as huggingface.co has it, with a page on which a visitor says who
they are, and access tokens that are those of the Hub.

https://openid.net/specs/openid-connect-core-1_0.html (3.1, the authorization code flow).
"""

from __future__ import annotations

import base64
import secrets
import time
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from joserfc import jwt
from joserfc.jwk import RSAKey

CLIENT_ID, CLIENT_SECRET = "space-client", "space-secret"
SCOPES = "openid profile read-repos gated-repos contribute-repos"


class Provider:
    """url: of it. tokens: of visitors, by name. granted: what was promised, by code."""

    def __init__(self, tokens: dict[str, str]) -> None:
        self.url = ""
        self.tokens = tokens
        self.granted: dict[str, tuple[str, dict[str, str]]] = {}
        self.key = RSAKey.generate_key(2048, parameters={"kid": "one"})

    def described(self) -> dict[str, Any]:
        """What the provider says of itself."""
        return {
            "issuer": self.url, "authorization_endpoint": f"{self.url}/oauth/authorize",
            "token_endpoint": f"{self.url}/oauth/token", "userinfo_endpoint": f"{self.url}/oauth/userinfo",
            "jwks_uri": f"{self.url}/oauth/jwks", "id_token_signing_alg_values_supported": ["RS256"],
        }  # fmt: skip

    def page(self, asked: dict[str, str]) -> str:
        """The page that asks a visitor. asked: the parameters of the request."""
        links = [
            f'<p><a id="{name}" href="/oauth/authorize?{urlencode({**asked, "as": name})}">{name}</a></p>'
            for name in self.tokens
        ]
        return f"<!DOCTYPE html><title>Sign in</title>{''.join(links)}"

    def redirected(self, asked: dict[str, str]) -> str:
        """Where a visitor is sent who has said their name."""
        code = secrets.token_urlsafe(8)
        self.granted[code] = (asked["as"], asked)
        return f"{asked['redirect_uri']}&{urlencode({'code': code, 'state': asked['state']})}"

    def exchanged(self, said: dict[str, str], login: str) -> dict[str, Any] | None:
        """The token for a code, None for one that is not known, or of another client."""
        known = base64.b64encode(f"{CLIENT_ID}:{CLIENT_SECRET}".encode()).decode()
        name, asked = self.granted.pop(said["code"], ("", {}))
        if not name or login != f"Basic {known}" or said["redirect_uri"] != asked["redirect_uri"]:
            return None
        now = int(time.time())
        claims = {
            "iss": self.url, "sub": name, "aud": CLIENT_ID, "iat": now, "exp": now + 3600, "nonce": asked["nonce"],
            "name": name.title(), "preferred_username": name, "profile": f"{self.url}/{name}", "picture": "",
        }  # fmt: skip
        return {
            "access_token": self.tokens[name], "token_type": "bearer", "expires_in": 3600, "scope": asked["scope"],
            "id_token": jwt.encode({"alg": "RS256", "kid": "one"}, claims, self.key),
        }  # fmt: skip


def with_logins(provider: Provider, base: Any) -> type[BaseHTTPRequestHandler]:
    """A handler that answers as a provider, and everything else as `base` does."""

    class Handler(base):  # type: ignore[misc]
        def do_GET(self) -> None:
            place = urlsplit(self.path)
            asked = {name: values[0] for name, values in parse_qs(place.query).items()}
            if place.path == "/.well-known/openid-configuration":
                self.json(200, provider.described())
            elif place.path == "/oauth/jwks":
                self.json(200, {"keys": [provider.key.as_dict(private=False)]})
            elif place.path == "/oauth/authorize" and "as" in asked:
                self.reply(302, b"", True, {"Location": provider.redirected(asked)})
            elif place.path == "/oauth/authorize":
                self.reply(200, provider.page(asked).encode(), True, {"Content-Type": "text/html; charset=utf-8"})
            else:
                super().do_GET()

        def do_POST(self) -> None:
            if self.path != "/oauth/token":
                super().do_POST()
                return
            said = {name: values[0] for name, values in parse_qs(self.read().decode()).items()}
            found = provider.exchanged(said, self.headers.get("Authorization", ""))
            self.json(200 if found else 400, found or {"error": "invalid_grant"})

    return Handler
