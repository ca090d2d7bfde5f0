"""The tokenizer of a checkpoint, as transformers loads it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ...errors import BadSource
from .documents import Tokenizer, prefix_of

MESSAGE = "ropeconv-message"


class CheckpointTokenizer(Tokenizer):
    """The tokenizer in the folder of a checkpoint. Raises BadSource where transformers does not load it."""

    def __init__(self, folder: Path, trust: bool = False) -> None:
        from transformers import AutoTokenizer

        try:
            self.tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=trust)
        except (OSError, ValueError, KeyError, TypeError) as problem:
            raise BadSource(f"{folder} has no tokenizer that loads ({problem}); add its tokenizer files") from None
        with_special, plain = (self.tokenizer("a", add_special_tokens=added).input_ids for added in (True, False))
        self.prefix = prefix_of(with_special, plain)

    def encode(self, text: str) -> list[int]:
        return [int(token) for token in self.tokenizer(text, add_special_tokens=False, verbose=False).input_ids]

    def decode(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(ids)))

    def chat(self) -> tuple[list[int], list[int]]:
        if not self.tokenizer.chat_template:
            return super().chat()
        message = [{"role": "user", "content": MESSAGE}]
        text = self.tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True)
        before, _, after = text.partition(MESSAGE)
        return self.encode(before), self.encode(after)
