"""The state of a checkpoint or GGUF file, its receipt, and the problems in its settings."""
