# Excerpt of llama.cpp, commit 0c1e570 (MIT licence, https://github.com/ggml-org/llama.cpp): what scripts/llamacpp/demands.py reads.
# ruff: noqa
# fmt: off

# Some tensor types are always in float32
if data_qtype is False and (
    any(
        self.match_model_tensor_name(new_name, key, bid)
        for key in (
            gguf.MODEL_TENSOR.FFN_GATE_INP,
            gguf.MODEL_TENSOR.FFN_GATE_INP_SHEXP,
            gguf.MODEL_TENSOR.POS_EMBD,
            gguf.MODEL_TENSOR.TOKEN_TYPES,
            gguf.MODEL_TENSOR.SSM_CONV1D,
            gguf.MODEL_TENSOR.SHORTCONV_CONV,
            gguf.MODEL_TENSOR.TIME_MIX_FIRST,
            gguf.MODEL_TENSOR.TIME_MIX_W1,
            gguf.MODEL_TENSOR.TIME_MIX_W2,
            gguf.MODEL_TENSOR.TIME_MIX_DECAY_W1,
            gguf.MODEL_TENSOR.TIME_MIX_DECAY_W2,
            gguf.MODEL_TENSOR.TIME_MIX_LERP_FUSED,
            gguf.MODEL_TENSOR.POSNET_NORM1,
            gguf.MODEL_TENSOR.POSNET_NORM2,
            gguf.MODEL_TENSOR.V_ENC_EMBD_POS,
            gguf.MODEL_TENSOR.A_ENC_EMBD_POS,
            gguf.MODEL_TENSOR.ALTUP_CORRECT_COEF,
            gguf.MODEL_TENSOR.ALTUP_PREDICT_COEF,
            # Kimi KDA conv weights should be F32
            gguf.MODEL_TENSOR.SSM_CONV1D_Q,
            gguf.MODEL_TENSOR.SSM_CONV1D_K,
            gguf.MODEL_TENSOR.SSM_CONV1D_V,
            # DSA indexer weights should be F32
            gguf.MODEL_TENSOR.INDEXER_PROJ,
        )
    )
    or new_name[-7:] not in (".weight", ".lora_a", ".lora_b")
):
    data_qtype = gguf.GGMLQuantizationType.F32
