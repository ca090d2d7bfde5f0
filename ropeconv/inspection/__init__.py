"""What a checkpoint or GGUF file is now, its receipt, and the problems in its settings."""
