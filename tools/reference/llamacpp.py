"""llama.cpp through its C API (package llama-cpp-python), greedy and quiet."""
import ctypes

import numpy as np

from . import ToolError, existing_file

try:
    import llama_cpp as C
except ImportError as error:
    raise SystemExit(f"llama.cpp is needed: pip install -r tools/requirements.txt ({error})") from None

_KV_TYPES = {"f32": 0, "f16": 1}


@C.llama_log_callback
def _silent(level, text, user):
    pass


class LlamaCpp:
    """One model and one context. kv: "f16" (llama.cpp's default) or "f32"; flash: flash attention on or off."""

    def __init__(self, path, context=512, threads=2, flash=False, kv="f16"):
        existing_file(path, "a GGUF model")
        C.llama_log_set(_silent, None)
        C.llama_backend_init()
        self.model = C.llama_model_load_from_file(str(path).encode(), C.llama_model_default_params())
        if not self.model:
            raise ToolError(f"{path}: llama.cpp cannot load it")
        self.vocabulary = C.llama_model_get_vocab(self.model)
        self.vocab_size = C.llama_vocab_n_tokens(self.vocabulary)
        self.add_bos = bool(C.llama_vocab_get_add_bos(self.vocabulary))
        self.bos = C.llama_vocab_bos(self.vocabulary)
        self.capacity = context
        self.context = self._new_context(context, threads, flash, kv)
        self.position = 0

    def _new_context(self, context, threads, flash, kv):
        params = C.llama_context_default_params()
        params.n_ctx = params.n_batch = context
        params.n_ubatch = min(context, 512)
        params.n_threads = params.n_threads_batch = threads
        params.flash_attn_type = 1 if flash else 0
        params.type_k = params.type_v = _KV_TYPES[kv]
        made = C.llama_init_from_model(self.model, params)
        if not made:
            raise ToolError("llama.cpp cannot make a context")
        return made

    def close(self):
        C.llama_free(self.context)
        C.llama_model_free(self.model)

    def tokenize(self, text, add_special=False, parse_special=False):
        data = text.encode()
        buffer = (C.llama_token * (len(data) + 8))()
        count = C.llama_tokenize(self.vocabulary, data, len(data), buffer, len(buffer), add_special, parse_special)
        if count < 0:
            raise ToolError("llama.cpp cannot tokenize the text")
        return list(buffer[:count])

    def piece(self, token):
        buffer = ctypes.create_string_buffer(256)
        length = C.llama_token_to_piece(self.vocabulary, token, buffer, len(buffer), 0, True)
        return buffer.raw[:max(length, 0)].decode(errors="replace")

    def ends_generation(self, token):
        return bool(C.llama_vocab_is_eog(self.vocabulary, token))

    def reset(self):
        C.llama_memory_clear(C.llama_get_memory(self.context), True)
        self.position = 0

    def decode(self, ids, every=True):
        """Appends ids and returns the logits after each of them (or after the last alone): a copy, float32."""
        if self.position + len(ids) > self.capacity:
            raise ToolError(f"{self.position + len(ids)} tokens do not fit a context of {self.capacity}")
        batch = C.llama_batch_init(len(ids), 0, 1)
        try:
            batch.n_tokens = len(ids)
            for i, token in enumerate(ids):
                batch.token[i] = token
                batch.pos[i] = self.position + i
                batch.n_seq_id[i] = 1
                batch.seq_id[i][0] = 0
                batch.logits[i] = every or i == len(ids) - 1
            if C.llama_decode(self.context, batch):
                raise ToolError("llama_decode failed")
        finally:
            C.llama_batch_free(batch)
        self.position += len(ids)
        rows = len(ids) if every else 1
        return np.ctypeslib.as_array(C.llama_get_logits(self.context), shape=(rows, self.vocab_size)).copy()

    def logits(self, ids):
        """Logits of a fresh sequence, tokens x vocabulary."""
        self.reset()
        return self.decode(ids)

    def greedy(self, prompt, count):
        """Up to count arg max tokens after the prompt, an end-of-generation token being the last, and the logits
        that each was taken from."""
        self.reset()
        row, tokens, rows = self.decode(prompt, every=False)[0], [], []
        while True:
            tokens.append(int(row.argmax()))
            rows.append(row)
            if len(tokens) == count or self.ends_generation(tokens[-1]):
                return tokens, rows
            row = self.decode(tokens[-1:], every=False)[0]
