// Excerpt of llama.cpp, commit 0c1e570 (MIT licence, https://github.com/ggml-org/llama.cpp): what scripts/llamacpp/demands.py reads.

case LLM_ARCH_GEMMA4:
            return new llama_model_gemma4(params);
case LLM_ARCH_GLM4_MOE:
            return new llama_model_glm4_moe(params);
case LLM_ARCH_QWEN3:
            return new llama_model_qwen3(params);
case LLM_ARCH_FALCON_H1:
            return new llama_model_falcon_h1(params);
create_tensor(tn(LLM_TENSOR_FFN_GATE_EXPS, "scale", i), {n_expert}, TENSOR_NOT_REQUIRED);
create_tensor(tn(LLM_TENSOR_FFN_DOWN_EXPS, "scale", i), {n_expert}, TENSOR_NOT_REQUIRED);
create_tensor(tn(LLM_TENSOR_FFN_UP_EXPS, "scale", i), {n_expert}, TENSOR_NOT_REQUIRED);
