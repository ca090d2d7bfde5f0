"""The one failure of the mathematics: parameters that make no schedule."""


class RecipeError(ValueError):
    """A method or modifier got a value that it cannot take. The message names the value and the repair."""
