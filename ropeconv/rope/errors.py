"""The base classes of known failures, RopeconvError and RecipeError, and parts of messages."""

import reprlib
import shlex


class RopeconvError(Exception):
    """A known failure: printed as a sentence, without a traceback. Exit code 1."""

    exit_code = 1


class RecipeError(RopeconvError, ValueError):
    """A method or modifier got a value that it does not accept. Exit code 2.

    The message has the value and the fix.
    """

    exit_code = 2


class ImpossibleSize(RopeconvError):
    """A size of a model, declared or derived, is out of bounds. Exit code 1.

    Its message is a noun phrase.
    """


_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 80
_SHORT.maxlevel = 2


def counted(number: int, noun: str, plural: str = "") -> str:
    """A number with its noun for a message: `1 file`, `2 files`.

    With `file is` and `files are` as the nouns, the message also gets its verb.
    """
    if number == 1:
        return f"{number:,} {noun}"
    return f"{number:,} {plural or noun + 's'}"


def shown(value: object) -> str:
    """A value for a message: its repr, in which long texts, numbers and lists are cut."""
    return _SHORT.repr(value)


def command_line(*words: object) -> str:
    """A `ropeconv` command for a message, quoted so that a shell reads exactly these words."""
    return shlex.join(["ropeconv", *map(str, words)])
