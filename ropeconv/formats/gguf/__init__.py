"""GGUF files as bytes: headers, edits, new files, changes in place."""
