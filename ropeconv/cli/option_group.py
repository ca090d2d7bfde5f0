"""option_group: one parameter of a function that becomes several options of its command."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any


def option_group(
    name: str, added: Callable[[], list[inspect.Parameter]], build: Callable[[dict[str, Any]], Any]
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator: replaces a parameter of a command by several options.

    name: of the parameter. added: returns the options. build: from their values by name to the value of the parameter.
    """

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.name != name]
        options = added()
        names = {parameter.name for parameter in options}

        @wraps(command)
        def wrapper(**given: Any) -> Any:
            chosen = {key: value for key, value in given.items() if key in names}
            return command(**{name: build(chosen)}, **{k: v for k, v in given.items() if k not in names})

        parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in (*own, *options)]
        wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        wrapper.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return wrapper

    return decorate
