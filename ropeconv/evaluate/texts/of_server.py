"""The tokenizer of a running server."""

from __future__ import annotations

from collections.abc import Sequence

from ...engines.servers import Server
from .documents import Tokenizer, prefix_of


class ServerTokenizer(Tokenizer):
    """The tokenizer that a server answers with. server: that runs a model. Raises RopeconvError where it has none."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.prefix = prefix_of(server.encode("a", special=True), server.encode("a"))

    def encode(self, text: str) -> list[int]:
        return self.server.encode(text)

    def decode(self, ids: Sequence[int]) -> str:
        return self.server.decode(ids)
