#!/usr/bin/env python3
"""Write a synthetic model of a real one's shape: llama architecture, random weights, for measurements of speed and memory.

Use: make_synthetic.py -o OUT.gguf --tokenizer MODEL.gguf [--layers 32] [--d 4096] [--inter 11008] [--heads 32]
                       [--kv-heads 32] [--type Q4_0] [--subspace 256] [--vocab 32000]
Needs: pip install -r tools/requirements.txt

Defaults: the shape of LLaMA-2 7B, 3.7 GB. Its text means nothing. All layers hold the same random numbers (each has its own
bytes in the file). With --subspace K every linear map's input has only K coordinates that are not zero, the same for all
tokens: the case in which gated subspace inference must be as fast as its bytes allow. The tokens are those of another model
(tokenizer.* is copied), the first --vocab of them.
"""
import argparse

import gguf
import numpy as np


def copy_tokenizer(writer, path, vocab):
    reader = gguf.GGUFReader(path)
    for key, field in reader.fields.items():
        if not key.startswith("tokenizer."):
            continue
        kind = field.types[0]
        value = field.contents()
        if kind == gguf.GGUFValueType.ARRAY:
            if key.startswith("tokenizer.ggml.") and key.rsplit(".", 1)[1] in ("tokens", "scores", "token_type"):
                value = value[:vocab]
            if key == "tokenizer.ggml.merges":
                known = set(reader.fields["tokenizer.ggml.tokens"].contents()[:vocab])
                value = [m for m in value if "".join(m.split(" ")) in known]
            writer.add_array(key, value)
        elif not (isinstance(value, int) and key.endswith("token_id") and value >= vocab):
            writer.add_key_value(key, value, kind)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", required=True)
    parser.add_argument("--tokenizer", required=True, help="GGUF file whose tokens are used")
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--d", type=int, default=4096)
    parser.add_argument("--inter", type=int, default=11008)
    parser.add_argument("--heads", type=int, default=32)
    parser.add_argument("--kv-heads", type=int, default=32)
    parser.add_argument("--vocab", type=int, default=32000)
    parser.add_argument("--type", default="Q4_0")
    parser.add_argument("--subspace", type=int, default=0, help="coordinates in use; 0: all")
    a = parser.parse_args()
    dtype = gguf.GGMLQuantizationType[a.type]
    random = np.random.default_rng(1)
    head = a.d // a.heads
    used = a.subspace or a.d
    used_heads = min(a.heads, used)

    writer = gguf.GGUFWriter(a.output, "llama", use_temp_file=False)
    writer.add_name("synthetic")
    writer.add_block_count(a.layers)
    writer.add_embedding_length(a.d)
    writer.add_context_length(4096)
    writer.add_feed_forward_length(a.inter)
    writer.add_head_count(a.heads)
    writer.add_head_count_kv(a.kv_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(head)
    copy_tokenizer(writer, a.tokenizer, a.vocab)

    def matrix(rows, cols, live):
        """Random rows; of those, only `live` (a mask) are not zero."""
        values = np.zeros((rows, cols), np.float32)
        values[live] = random.standard_normal((int(live.sum()), cols), dtype=np.float32) * (3 * cols / (used if a.subspace else 1)) ** -0.5
        return gguf.quants.quantize(values, dtype)

    def first(n, count):
        return np.arange(n) < count

    stream = first(a.d, used)                                  # rows of what is added to the residual stream
    values = np.arange(a.kv_heads * head) % head < max(used // used_heads, 1) if a.subspace else first(a.kv_heads * head, a.d)
    neurons = first(a.inter, used if a.subspace else a.inter)
    layer = {
        "attn_q": matrix(a.d, a.d, first(a.d, a.d)),
        "attn_k": matrix(a.kv_heads * head, a.d, first(a.kv_heads * head, a.d)),
        "attn_v": matrix(a.kv_heads * head, a.d, values),
        "attn_output": matrix(a.d, a.d, stream),
        "ffn_gate": matrix(a.inter, a.d, neurons),
        "ffn_up": matrix(a.inter, a.d, neurons),
        "ffn_down": matrix(a.d, a.inter, stream),
    }
    ones = np.ones(a.d, np.float32)
    embedding = np.zeros((a.vocab, a.d), np.float32)
    embedding[:, stream] = random.standard_normal((a.vocab, used), dtype=np.float32)
    writer.add_tensor("token_embd.weight", gguf.quants.quantize(embedding, dtype), raw_dtype=dtype)
    writer.add_tensor("output.weight", matrix(a.vocab, a.d, first(a.vocab, a.vocab)), raw_dtype=dtype)
    writer.add_tensor("output_norm.weight", ones)
    for i in range(a.layers):
        writer.add_tensor(f"blk.{i}.attn_norm.weight", ones)
        writer.add_tensor(f"blk.{i}.ffn_norm.weight", ones)
        for name, data in layer.items():
            writer.add_tensor(f"blk.{i}.{name}.weight", data, raw_dtype=dtype)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
