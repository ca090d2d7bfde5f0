"""`ropeconv inspect`: the RoPE of a checkpoint, and the problems in its settings."""

from __future__ import annotations

from .options import FamilyOption, JsonOption, SourceArgument
from .output import Output

EXAMPLES = """Examples:

ropeconv inspect Qwen/Qwen3-8B

ropeconv inspect ./Llama-2-7b-hf/config.json --json

ropeconv inspect model-Q4_K_M.gguf

ropeconv inspect ./DeepSeek-V3-renamed --family deepseek_v3
"""


def inspect_command(source: SourceArgument, family: FamilyOption = "", as_json: JsonOption = False) -> None:
    """Show the RoPE of a checkpoint, which runtimes compute it as it is, and the problems with their repairs."""
    from ..bake.repairs import repairs_of
    from ..inspection import inspect_source
    from ..sources import open_source
    from ..views.inspection import show_inspection

    opened = open_source(source, family)
    seen = inspect_source(opened)
    found, output = repairs_of(opened, seen), Output(as_json)
    if as_json:
        output.data(seen.document(found).to_dict())
    else:
        show_inspection(seen, output, found)
