"""How llama.cpp reads GGUF files: its architectures in archs.toml, and the code that applies their rules."""

from .archs import Arch, Keys, Window, arch_of_header, arch_table, assumed_keys, find_arch

__all__ = ["Arch", "Keys", "Window", "arch_of_header", "arch_table", "assumed_keys", "find_arch"]
