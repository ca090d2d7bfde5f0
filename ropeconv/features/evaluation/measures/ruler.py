"""The tasks of RULER in lm_eval: their names and lengths, and which tokenizers they work with.

Read `check_tokenizer` first. The loops that it guards against are those of lm_eval 0.4.13.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING

from ropeconv.rope.errors import RopeconvError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

RULER = (
    "niah_single_1",
    "niah_single_2",
    "niah_single_3",
    "niah_multikey_1",
    "niah_multikey_2",
    "niah_multikey_3",
    "niah_multiquery",
    "niah_multivalue",
    "ruler_vt",
    "ruler_cwe",
    "ruler_fwe",
    "ruler_qa_squad",
    "ruler_qa_hotpot",
)
"""The tasks of RULER (Hsieh et al. 2024): lm_eval makes their prompts, of a length in tokens."""
GENERATED = (
    "niah_single_1",
    "niah_multikey_2",
    "niah_multikey_3",
    "ruler_vt",
    "ruler_cwe",
    "ruler_fwe",
)
"""Those of them that need no download: their text is made of words, numbers and sentences."""
RULER_LENGTHS = (4096, 8192, 16384, 32768, 65536, 131072)
"""The lengths for which the files of these tasks have a metric."""
LONGEST_ANSWER = 128
"""The most tokens that a task lets a model generate (niah_single_1.yaml)."""

_WORDS = "lm_eval.tasks.ruler.cwe_utils"
_MOST_EXAMPLE_TOKENS = 500
"""The most tokens of the solved example of variable tracking, at every length (vt_utils.py)."""
_MORE_WITH_OTHER_NAMES = 10
"""Tokens by which an example may be longer when lm_eval draws other random names."""
_RANDOM_PROMPTS = 20
"""How many random prompts are made; the longest of them counts."""


def check_tokenizer(task: str, tokenizer: PreTrainedTokenizerBase, length: int) -> None:
    """Refuse a tokenizer that needs too many tokens for the shortest prompt of a task.

    A byte-level tokenizer, or a vocabulary of a few hundred tokens, can need too many. Two tasks of
    lm_eval then fail without a useful message:

    - `ruler_vt` (variable tracking) looks for a shorter prompt for ever, and Ctrl-C does not stop
      its loop (a bare `except:` in vt_utils.py).
    - `ruler_cwe` (common words) makes a prompt without words, and divides by zero (cwe_utils.py).

    Args:
        task: The task, or `ruler` for all.
        tokenizer: The tokenizer of the model.
        length: The length of the prompts in tokens.

    Raises:
        RopeconvError: The shortest prompt is too long.
    """
    if task in ("ruler_vt", "ruler"):
        # the prompt begins with a solved example, whose random names may need a few tokens more
        longest_example = max(_count_tokens(tokenizer, _solved_examples()))
        needed = longest_example + _MORE_WITH_OTHER_NAMES
        if needed > _MOST_EXAMPLE_TOKENS:
            raise RopeconvError(
                "ruler_vt has no prompt for this tokenizer: its solved example needs about"
                f" {needed} tokens, and lm_eval allows {_MOST_EXAMPLE_TOKENS}; leave the task out"
            )
    if task in ("ruler_cwe", "ruler"):
        # the shortest possible prompt has random words; of some such prompts, the longest counts
        needed = max(_count_tokens(tokenizer, _word_lists(length)))
        if needed > length:
            raise RopeconvError(
                f"ruler_cwe has no prompt of {length:,} tokens for this tokenizer: its shortest"
                f" needs about {needed:,}; give longer --lengths, or leave the task out"
            )


def _count_tokens(
    tokenizer: PreTrainedTokenizerBase, prompts: Iterator[tuple[str, int]]
) -> list[int]:
    """Return the number of tokens of each prompt, with the tokens that a model generates after it.

    Args:
        tokenizer: The tokenizer of the model.
        prompts: Texts, each with the number of tokens that are generated after it.
    """
    return [len(tokenizer(text)["input_ids"]) + generated for text, generated in prompts]


def _solved_examples() -> Iterator[tuple[str, int]]:
    """Yield solved examples of variable tracking with the least text between, as lm_eval does."""
    from lm_eval.tasks.ruler import vt_utils

    for _ in range(_RANDOM_PROMPTS):
        text, answer = vt_utils.generate_input_output(5, num_chains=1, num_hops=4, is_icl=True)
        yield f"{text} {answer}", 30


def _word_lists(length: int) -> Iterator[tuple[str, int]]:
    """Yield prompts of common words with the ten words that are asked for, as lm_eval does."""
    with fresh_words():
        words = import_module(_WORDS)
        for _ in range(_RANDOM_PROMPTS):
            example, text, answer = words.generate_input_output(10, length)
            numbered = [f"{number}. {word}" for number, word in enumerate(answer, 1)]
            yield f"{example}\n{text} {' '.join(numbered)}", 120


@contextmanager
def fresh_words() -> Iterator[None]:
    """Let lm_eval load its module of common words anew, within and after this.

    The module has a random generator that simple_evaluate does not seed, and lm_eval keeps modules
    of tasks (lm_eval/tasks/_yaml_loader.py). So a second row would get other questions.
    """
    sys.modules.pop(_WORDS, None)
    try:
        yield
    finally:
        sys.modules.pop(_WORDS, None)
