"""What llama.cpp's sources say, read without compiling them, and what its converter writes."""
