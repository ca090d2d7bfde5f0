"""How llama.cpp reads GGUF files: architectures in archs.toml, and code that applies them."""
