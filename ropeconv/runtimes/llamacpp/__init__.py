"""llama.cpp as it reads GGUF files: its architectures as data, and the reader that applies them."""

from .archs import Arch, Window, arch_table, find_arch

__all__ = ["Arch", "Window", "arch_table", "find_arch"]
