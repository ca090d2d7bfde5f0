"""The encodings of checkpoints and GGUF files, one module each, with the name of the encoding."""
