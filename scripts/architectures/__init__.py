"""What llama.cpp's sources say about the RoPE of each architecture, extracted without compiling
them.
"""
