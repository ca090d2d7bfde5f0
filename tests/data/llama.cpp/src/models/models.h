// Excerpt of llama.cpp, commit 0c1e570 (MIT licence, https://github.com/ggml-org/llama.cpp): what scripts/llamacpp/demands.py reads.

struct llama_model_qwen3 : public llama_model_base
struct llama_model_gemma4 : public llama_model_base
struct llama_model_glm4_moe : public llama_model_base
struct llama_model_falcon_h1 : public llama_model_base
