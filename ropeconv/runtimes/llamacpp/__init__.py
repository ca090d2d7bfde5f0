"""How llama.cpp reads GGUF files: its architectures in archs.toml, and the code that applies their rules."""

from .archs import Arch, Window, arch_table, find_arch

__all__ = ["Arch", "Window", "arch_table", "find_arch"]
