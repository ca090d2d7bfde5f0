"""Running models: transformers with its rotary modules patched, llama.cpp in its own process, servers by protocol."""
