"""llama.cpp's own server, as the wheel of xllamacpp has it:
`python llama_server.py MODEL CONTEXT PORT`.
"""

import sys
import time

import xllamacpp

parameters = xllamacpp.CommonParams()
parameters.model.path = sys.argv[1]
parameters.n_ctx = int(sys.argv[2])
parameters.port = int(sys.argv[3])
parameters.n_parallel = 1
parameters.cache_type_k = parameters.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
server = xllamacpp.Server(parameters)
while True:
    time.sleep(60)
