"""What a process that works for a page says to it, one message after the other."""

from __future__ import annotations

import msgspec


class Progress(msgspec.Struct, frozen=True, tag="progress"):
    """How far it is. title: what is done. done, total: in bytes; total 0 where it is not known."""

    title: str
    done: int = 0
    total: int = 0


class Answer(msgspec.Struct, frozen=True, tag="answer"):
    """The end: what the page shows. failed: whether it is about a failure."""

    html: str
    failed: bool = False


Message = Progress | Answer
_decoder: msgspec.json.Decoder[Message] = msgspec.json.Decoder(Message)
encode = msgspec.json.encode


def decode(data: bytes) -> Message:
    """A message from its bytes."""
    return _decoder.decode(data)
