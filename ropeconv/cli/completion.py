"""The names that TAB completes, from registries and data, without importing torch.

A value that has no names here is completed with files and folders, which the scripts of Typer leave
to the shell.
"""

from collections.abc import Callable

from ..options import encoding_names


def family_names() -> list[str]:
    """Return the values of `--family`."""
    from ..models.registry import families

    return [family.name for family in families() if not family.refuse or family.gguf_only]


def method_names() -> list[str]:
    """Return the methods, for `ropeconv list methods NAME`."""
    from ..rope.methods.method import REGISTRY

    return list(REGISTRY)


def outtype_names() -> list[str]:
    """Return the values of `--outtype`."""
    from ..convert.to_gguf.export import OUTTYPES
    from ..convert.to_gguf.quantise import FTYPES

    return ["auto", *OUTTYPES, *FTYPES]


def runtime_names() -> list[str]:
    """Return the values of `--runtime` without a version."""
    from ..runtimes.gguf_readers import reader_names
    from ..runtimes.runtime import runtimes

    return sorted({*reader_names(), *(runtime.name for runtime in runtimes())})


def format_names() -> list[str]:
    """Return the values of `--to`, an option that can be repeated, whose choices Typer does not
    complete.
    """
    return ["safetensors", "gguf", "ollama", "overrides"]


COMPLETIONS: dict[str, Callable[[], list[str]]] = {
    "--encoding": lambda: list(encoding_names()),
    "--family": family_names,
    "--outtype": outtype_names,
    "--runtime": runtime_names,
    "--to": format_names,
}
"""The names for options that are fields of dataclasses."""
