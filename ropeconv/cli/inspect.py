"""`ropeconv inspect`: the RoPE of a checkpoint, and the problems in its settings."""

from __future__ import annotations

from .options import JsonOption, SourceArgument
from .output import Output

EXAMPLES = """Examples:

ropeconv inspect Qwen/Qwen3-8B

ropeconv inspect ./Llama-2-7b-hf/config.json --json

ropeconv inspect model-Q4_K_M.gguf
"""


def inspect_command(source: SourceArgument, as_json: JsonOption = False) -> None:
    """Show the RoPE of a checkpoint and the problems in its settings."""
    from ..inspection import inspect_source
    from ..sources import open_source
    from .views import show_inspection

    seen = inspect_source(open_source(source))
    output = Output(as_json)
    output.data(seen.to_dict()) if as_json else show_inspection(seen, output)
