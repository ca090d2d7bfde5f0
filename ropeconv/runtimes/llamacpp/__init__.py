"""How llama.cpp reads GGUF files: its architectures in archs.toml, and the code that applies their
rules.
"""
