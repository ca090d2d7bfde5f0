"""The tokenizer of a checkpoint, as transformers loads it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...errors import BadSource
from ...pretrained import load_tokenizer
from ...secrets import without_secrets
from .documents import Tokenizer, prefix_of

MESSAGE = "ropeconv-message"
CPU, LONGEST, MEMORY, LETTERS = 10, 120, 512 << 20, 1 << 20
"""Limits of rendering a template: seconds of the processor, and of the clock with all imports; bytes of memory beside
those of the imports; characters of the text. A template of 20,000 characters takes milliseconds."""
PROGRAM = """
import json, re, resource, sys
from transformers.utils.chat_template_utils import render_jinja_template
asked = json.load(sys.stdin)
used = resource.getrusage(resource.RUSAGE_SELF)
seconds = int(used.ru_utime + used.ru_stime) + asked["cpu"]
resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
try:
    data = int(re.search(r"VmData:\\s*(\\d+)", open("/proc/self/status").read())[1]) << 10
    resource.setrlimit(resource.RLIMIT_DATA, (data + asked["memory"],) * 2)
except (OSError, ValueError, TypeError):
    pass  # a system that does not limit memory
try:
    found = render_jinja_template([asked["messages"]], chat_template=asked["template"], add_generation_prompt=True,
                                  **asked["variables"])
    text = (found[0] if isinstance(found, tuple) else found)[0]
    answer = {"text": text} if len(text) <= asked["letters"] else {"error": f"it makes {len(text):,} characters"}
except MemoryError:
    answer = {"error": f"it takes more than {asked['memory']:,} bytes"}
except Exception as problem:
    answer = {"error": f"{type(problem).__name__}: {str(problem)[:200]}"}
json.dump(answer, sys.stdout)
"""
"""Renders a template as transformers does, in the sandbox of jinja2."""


class CheckpointTokenizer(Tokenizer):
    """The tokenizer in the folder of a checkpoint.

    folder: the checkpoint. trust: run its tokenization file. Raises BadSource as `load_tokenizer` does.
    """

    def __init__(self, folder: Path, trust: bool = False) -> None:
        self.folder, self.tokenizer = folder, load_tokenizer(folder, trust)
        with_special, plain = (self.tokenizer("a", add_special_tokens=added).input_ids for added in (True, False))
        self.prefix = prefix_of(with_special, plain)

    def encode(self, text: str) -> list[int]:
        return [int(token) for token in self.tokenizer(text, add_special_tokens=False, verbose=False).input_ids]

    def decode(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(ids)))

    def chat(self) -> tuple[list[int], list[int]]:
        from transformers import PreTrainedTokenizerBase

        if not self.tokenizer.chat_template:
            return super().chat()
        message = [{"role": "user", "content": MESSAGE}]
        if type(self.tokenizer).apply_chat_template is PreTrainedTokenizerBase.apply_chat_template:
            text = self._rendered(message)
        else:  # mistral-common, and code that the user trusts
            text = self.tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True)
        before, found, after = text.partition(MESSAGE)
        if not found:
            raise BadSource(f"the chat template of {self.folder} leaves out the message of the user; leave --chat out")
        return self.encode(before), self.encode(after)

    def _rendered(self, messages: list[dict[str, str]]) -> str:
        """The chat template with messages. Raises BadSource where it has none for a chat, or it does not render."""
        try:
            template, variables = self.tokenizer.get_chat_template(), self.tokenizer.special_tokens_map
            return rendered(template, messages, variables)
        except (ValueError, TypeError, KeyError, AttributeError) as problem:
            raise BadSource(
                f"the chat template of {self.folder} does not render ({problem}); correct it, or leave --chat out"
            ) from None


def rendered(template: str, messages: list[dict[str, str]], variables: Mapping[str, Any]) -> str:
    """The text of a chat template, rendered in a process of its own with limits of time and memory.

    template: in Jinja. messages: of the chat, with `role` and `content`. variables: further ones, such as `bos_token`.
    Raises ValueError, with the reason, for a template that fails or is beyond a limit.
    """
    limits = {"cpu": CPU, "memory": MEMORY, "letters": LETTERS}
    asked = {"template": template, "messages": messages, "variables": dict(variables), **limits}
    command, late = [sys.executable, "-P", "-c", PROGRAM], f"it takes more than {CPU} seconds"
    try:
        done = subprocess.run(
            command, input=json.dumps(asked, default=str), capture_output=True, text=True, env=without_secrets(),
            timeout=LONGEST, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise ValueError(late) from None
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        raise ValueError(late if done.returncode < 0 else f"its process ended with {done.returncode}") from None
    if "error" in answer:
        raise ValueError(answer["error"])
    return str(answer["text"])
