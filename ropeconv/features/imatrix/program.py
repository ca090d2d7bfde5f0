"""Runs a text through a model in llama.cpp and sums the squares of the inputs of each weight.

A program of its own with one argument, JSON. It prints a line of JSON after each piece of text, the
tokens that were read. It writes the sums and the counts to an .npz file, and imports nothing of
ropeconv. The rules are those of `IMatrixCollector` in llama.cpp's tools/imatrix/imatrix.cpp.
"""

import ctypes
import json
import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

FEWEST_INPUT_ROWS = 16
"""Products with fewer rows of inputs are left out."""
ALL_LAYERS = 999
"""More layers than any model has."""
F32 = 0
INT32 = 26
MOST_DIMS = 4
MOST_SOURCES = 10


class GgmlTensor(ctypes.Structure):
    """The beginning of struct ggml_tensor (ggml.h)."""


GgmlTensor._fields_ = [
    ("type", ctypes.c_int),
    ("buffer", ctypes.c_void_p),
    ("ne", ctypes.c_int64 * MOST_DIMS),
    ("nb", ctypes.c_size_t * MOST_DIMS),
    ("op", ctypes.c_int),
    ("op_params", ctypes.c_int32 * 16),
    ("flags", ctypes.c_int32),
    ("src", ctypes.POINTER(GgmlTensor) * MOST_SOURCES),
    ("view_src", ctypes.c_void_p),
    ("view_offs", ctypes.c_size_t),
    ("data", ctypes.c_void_p),
    ("name", ctypes.c_char * 64),
]


class Collector:
    """Sums the squares of the inputs of each weight."""

    def __init__(self, ggml: Any) -> None:
        """Declare the types of ggml's functions, and begin with empty sums.

        Args:
            ggml: The library of ggml, as ctypes loads it.
        """
        # ctypes takes results for int, and does not check arguments, unless they are declared
        ggml.ggml_op_name.restype = ctypes.c_char_p
        ggml.ggml_op_name.argtypes = [ctypes.c_int]
        ggml.ggml_nbytes.restype = ctypes.c_size_t
        ggml.ggml_nbytes.argtypes = [ctypes.c_void_p]
        ggml.ggml_backend_tensor_get.restype = None
        ggml.ggml_backend_tensor_get.argtypes = [
            ctypes.c_void_p,
            ctypes.c_void_p,
            ctypes.c_size_t,
            ctypes.c_size_t,
        ]
        self.ggml = ggml

        # by the name of a weight: for each of its matrices, the sum of the squares of the inputs
        # of each column, [matrices, columns]
        self.sums: dict[str, NDArray[np.float32]] = {}

        # by the name of a weight: by how many rows of inputs it was multiplied, [1]. The weight of
        # a mixture of experts has a number for each expert, [experts]
        self.counts: dict[str, NDArray[np.int64]] = {}

        # the error that stopped the run, in words; empty without one
        self.problem = ""

    def seen(self, address: int, is_question: bool) -> bool:
        """Answer whether the inputs of an operation of the model are needed, or read them.

        llama.cpp calls this twice for each operation of the model: before it, with a question, and
        after it, if the answer was yes.

        Args:
            address: The ggml_tensor with the result of the operation.
            is_question: Whether llama.cpp asks, before it computes it.
        """
        node = ctypes.cast(address, ctypes.POINTER(GgmlTensor)).contents
        kind = self.ggml.ggml_op_name(node.op)
        if is_question:
            return self._is_wanted(node, kind)
        try:
            if kind == b"MUL_MAT_ID":
                self._add_experts(node)
            else:
                self._add(node)
        except Exception as problem:  # an error must not leave a function that C has called
            self.problem = f"{type(problem).__name__}: {problem}"
            return False
        return True

    def _is_wanted(self, node: GgmlTensor, kind: bytes) -> bool:
        if kind == b"MUL_MAT_ID":
            return True
        if kind != b"MUL_MAT":
            return False
        inputs = node.src[1].contents
        is_large = inputs.ne[1] >= FEWEST_INPUT_ROWS and inputs.type == F32
        return is_large and weight_name(node).startswith("blk.")

    def _add(self, node: GgmlTensor) -> None:
        """Add the squares of the inputs of a matrix product to the importance matrix.

        The importance matrix has a sum of squares for each column of each weight.

        Args:
            node: The product in ggml, with the weight as `src[0]` and its inputs as `src[1]`.
        """
        name = weight_name(node)

        # Both tensors have four dimensions: [outer, inner, rows, columns]. The last two are a
        # matrix, and most weights have only one. `ne` of ggml has the sizes in reverse order.
        _columns, _rows, inner_matrices, outer_matrices = node.src[0].contents.ne
        matrix_count = int(inner_matrices * outer_matrices)
        inputs = self._numbers(node.src[1], np.float32)
        outer_inputs, inner_inputs, rows, columns = inputs.shape

        no_sums = np.zeros((matrix_count, columns), np.float32)
        sums = self.sums.setdefault(name, no_sums)
        for outer in range(outer_inputs):
            for inner in range(inner_inputs):
                # ggml uses the matrices in turn if there are more inputs (broadcast): with two
                # matrices, the first gets the inputs 0, 2, 4, ...
                outer_matrix = outer % outer_matrices
                inner_matrix = inner % inner_matrices
                # the index of the matrix, which is a row of `sums`
                matrix = outer_matrix * inner_matrices + inner_matrix
                sums[matrix] = _add_squares(sums[matrix], inputs[outer, inner])

        # every matrix of the weight was multiplied by the same number of rows
        all_rows = outer_inputs * inner_inputs * rows
        rows_per_matrix = all_rows // matrix_count
        counts = self.counts.setdefault(name, np.zeros(1, np.int64))
        counts += rows_per_matrix
        self._check(name)

    def _add_experts(self, node: GgmlTensor) -> None:
        """Add the squares of the inputs of experts to the sums of each expert.

        Each token has chosen some of the experts of a mixture, so only these get its inputs. With
        four choices for each token, one product computes four experts for it.

        Args:
            node: The product, whose sources are the stacked weights of all experts, the inputs, and
                the numbers of the experts that each token has chosen.
        """
        # ggml's tensors have four dimensions, of which the unused ones have the size 1
        name = weight_name(node)
        _columns, _rows, expert_count, _ = node.src[0].contents.ne
        (inputs,) = self._numbers(node.src[1], np.float32)
        ((chosen,),) = self._numbers(node.src[2], np.int32)
        _tokens, choices = chosen.shape

        # The first matrix of an expert gets the state of the token, which all chosen experts share,
        # [tokens, 1, columns]. The last one gets what each expert has computed, [tokens, choices,
        # columns]. ggml takes the inputs of a token again in turn where there are more choices.
        _tokens, inputs_of_token, columns = inputs.shape

        no_sums = np.zeros((int(expert_count), columns), np.float32)
        sums = self.sums.setdefault(name, no_sums)
        counts = self.counts.setdefault(name, np.zeros(int(expert_count), np.int64))
        for choice in range(choices):
            experts_of_choice = chosen[:, choice]  # [tokens]
            inputs_of_choice = inputs[:, choice % inputs_of_token]  # [tokens, columns]
            for expert in np.unique(experts_of_choice):
                inputs_of_expert = inputs_of_choice[experts_of_choice == expert]
                sums[expert] = _add_squares(sums[expert], inputs_of_expert)
                counts[expert] += len(inputs_of_expert)
        self._check(name)

    def _numbers(self, pointer: Any, dtype: Any) -> NDArray[Any]:
        """Return the numbers of a tensor with its dimensions from the slowest to the fastest."""
        tensor = pointer.contents
        data = np.empty(self.ggml.ggml_nbytes(pointer), np.uint8)
        self.ggml.ggml_backend_tensor_get(pointer, data.ctypes.data, 0, data.nbytes)
        return np.ndarray(tuple(tensor.ne)[::-1], dtype, data, strides=tuple(tensor.nb)[::-1])

    def _check(self, name: str) -> None:
        if not np.isfinite(self.sums[name]).all():
            raise ValueError(f"the inputs of {name} are not finite")


def _add_squares(sums: NDArray[np.float32], rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """Sums with the squares of some rows, added one after another in float32 as llama.cpp does."""
    result: NDArray[np.float32] = np.add.reduce(np.vstack([sums[None], rows * rows]), axis=0)
    return result


def weight_name(node: GgmlTensor) -> str:
    """Return the name of the weight of a product, which a backend may have put into its own.

    CUDA0#blk.0.attn_k.weight#0 is a copy of blk.0.attn_k.weight on another device.
    """
    parts = bytes(node.src[0].contents.name).decode(errors="replace").split("#")
    return parts[1] if len(parts) > 1 else parts[0]


def tokens_of(llama: Any, vocabulary: Any, text: bytes) -> list[int]:
    """Return the tokens of a text, with those that the model puts around it."""
    room = len(text) + 8
    array = (llama.llama_token * room)()
    count = llama.llama_tokenize(vocabulary, text, len(text), array, room, True, False)
    if count < 0:
        raise SystemExit("llama.cpp does not tokenise the text")
    return list(array[:count])


def load_model(llama: Any, path: str) -> Any:
    """Return a model, with all its layers on a GPU if there is one; None where that fails."""
    settings = llama.llama_model_default_params()
    settings.n_gpu_layers = ALL_LAYERS if llama.llama_supports_gpu_offload() else 0
    return llama.llama_model_load_from_file(path.encode(), settings)


def make_context(llama: Any, model: Any, callback: Any, size: int, threads: int) -> Any:
    """Return a context, in which the model reads pieces of text; None where that fails.

    Args:
        llama: The module of the bindings.
        model: The model.
        callback: Called before and after each operation of the model.
        size: The tokens of a piece.
        threads: How many threads compute.
    """
    options = llama.llama_context_default_params()
    # a piece is read at once: it is the whole context and one batch
    options.n_ctx = size
    options.n_batch = size
    options.n_ubatch = size
    options.n_threads = threads
    options.n_threads_batch = threads
    options.cb_eval = callback
    # keys and values in F32 and no flash attention: llama-imatrix has F16, and so less exact sums
    options.type_k = F32
    options.type_v = F32
    options.flash_attn_type = 0
    return llama.llama_init_from_model(model, options)


def fill_batch(batch: Any, tokens: list[int]) -> None:
    """Put the tokens of a piece into llama.cpp's batch, at the positions 0, 1, 2, ..."""
    for place, token in enumerate(tokens):
        batch.token[place] = token
        batch.pos[place] = place
        # all tokens are of one sequence, number 0
        batch.n_seq_id[place] = 1
        batch.seq_id[place][0] = 0
        # all positions, since the last layer otherwise computes only those that are asked for
        batch.logits[place] = True
    batch.n_tokens = len(tokens)


def fail(reason: str) -> int:
    """Write why there is no importance matrix on stderr, and return the exit code."""
    sys.stderr.write(f"error: {reason}\n")
    return 1


def main() -> int:
    """Collect as the settings say, and return the exit code.

    The settings are such as {"model": "model.gguf", "text": "wiki.txt", "chunk_size": 512,
    "chunks": 0, "threads": 8, "out": "sums.npz"}; 0 chunks are the whole text.
    """
    given = json.loads(sys.argv[1])
    import llama_cpp as llama
    from llama_cpp._ggml import libggml

    # the model, and how many whole pieces the text has
    llama.llama_backend_init()
    model = load_model(llama, given["model"])
    if not model:
        return fail("llama.cpp does not load the model")
    vocabulary = llama.llama_model_get_vocab(model)
    with open(given["text"], "rb") as file:
        tokens = tokens_of(llama, vocabulary, file.read())
    size = given["chunk_size"]
    pieces = len(tokens) // size
    if given["chunks"]:
        pieces = min(pieces, given["chunks"])
    print(json.dumps({"tokens": len(tokens), "chunks": pieces}), flush=True)
    if not pieces:
        return 0

    # llama.cpp calls this function for each operation while it reads; ctypes frees it with its name
    collector = Collector(libggml)

    @llama.ggml_backend_sched_eval_callback  # type: ignore[untyped-decorator, unused-ignore]
    def callback(address: int, is_question: bool, user_data: Any) -> bool:
        return collector.seen(address, is_question)

    context = make_context(llama, model, callback, size, given["threads"])
    if not context:
        return fail("llama.cpp makes no context for the model")

    # every piece is a text of its own, and begins with the token for that where the model has one
    begins_with_token = llama.llama_vocab_get_add_bos(vocabulary)
    beginning_token = llama.llama_vocab_bos(vocabulary)
    batch = llama.llama_batch_init(size, 0, 1)
    for number in range(pieces):
        piece = tokens[number * size : (number + 1) * size]
        if begins_with_token:
            piece[0] = beginning_token
        llama.llama_memory_clear(llama.llama_get_memory(context), True)
        fill_batch(batch, piece)
        has_failed = llama.llama_decode(context, batch) != 0
        if has_failed or collector.problem:
            return fail(collector.problem or "llama.cpp does not run the text")
        print(json.dumps({"read": size}), flush=True)

    arrays: dict[str, Any] = {}
    for name, sums in collector.sums.items():
        arrays[f"sums {name}"] = sums
        arrays[f"counts {name}"] = collector.counts[name]
    np.savez(given["out"], **arrays)
    return 0


if __name__ == "__main__":
    sys.exit(main())
