"""RopeconvError, the base of all known failures, and RecipeError, the one that the mathematics raises."""


class RopeconvError(Exception):
    """A known failure: printed as a sentence, without a traceback. Exit code 1."""

    exit_code = 1


class RecipeError(RopeconvError, ValueError):
    """A method or modifier got a value that it cannot take. The message names the value and the repair. Exit code 2."""

    exit_code = 2
