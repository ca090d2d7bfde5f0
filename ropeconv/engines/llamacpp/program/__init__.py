"""The program that runs a GGUF file in llama.cpp, in its own process since llama.cpp ends that on some bad files."""
