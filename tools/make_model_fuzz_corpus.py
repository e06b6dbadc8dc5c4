#!/usr/bin/env python3
"""Make the seed models of tests/fuzz/model_fuzz.cc: one or two layers, 16 tokens, random weights, a few KB each.

Use: make_model_fuzz_corpus.py [--into tests/fuzz/corpus/model]
Needs: pip install -r tools/requirements.txt
"""
import argparse
import pathlib

import gguf
import numpy as np

TOKENS = ["<unk>", "<s>", "</s>", "\u2581", "a", "b", "c", "\u2581a", "ab", "bc", "<0x0A>", "<0x41>", "1", ".", "!", "abc"]
KINDS = [2, 3, 3, 1, 1, 1, 1, 1, 1, 1, 6, 6, 1, 1, 1, 1]  # unknown, control, normal, byte
F16, Q8_0, Q4_0 = (gguf.GGMLQuantizationType[name] for name in ("F16", "Q8_0", "Q4_0"))

MODELS = {
    "llama": dict(d=8, heads=2, kv_heads=1, layers=1, inter=12, dtype=F16, divisors=True),
    "qwen2": dict(d=32, heads=2, kv_heads=2, layers=1, inter=32, dtype=Q4_0, biases=True, yarn=True),
    "gemma3": dict(d=32, heads=2, kv_heads=1, layers=2, inter=32, dtype=Q8_0, norms=True, window=2),
}


def write(path, architecture, d, heads, kv_heads, layers, inter, dtype, divisors=False, biases=False, yarn=False,
          norms=False, window=0):
    random = np.random.default_rng(1)
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(layers)
    writer.add_embedding_length(d)
    writer.add_context_length(64)
    writer.add_feed_forward_length(inter)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    if yarn:
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(4.0)
        writer.add_rope_scaling_orig_ctx_len(16)
    if window:
        writer.add_sliding_window(window)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(TOKENS)
    writer.add_token_scores([-float(i) for i in range(len(TOKENS))])
    writer.add_token_types(KINDS)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)

    def vector(name, n, mean):
        writer.add_tensor(name, random.normal(mean, 0.2, n).astype(np.float32))

    def matrix(name, cols, rows):
        values = random.normal(0, cols ** -0.5, (rows, cols)).astype(np.float32)
        writer.add_tensor(name, gguf.quants.quantize(values, dtype), raw_dtype=dtype)

    head = d // heads
    if divisors:
        vector("rope_freqs.weight", head // 2, 2)
    matrix("token_embd.weight", d, len(TOKENS))
    vector("output_norm.weight", d, 1)
    if biases:
        matrix("output.weight", d, len(TOKENS))
    for block in (f"blk.{i}." for i in range(layers)):
        for name, cols, rows in (("attn_q", d, d), ("attn_k", d, head * kv_heads), ("attn_v", d, head * kv_heads),
                                 ("attn_output", d, d), ("ffn_gate", d, inter), ("ffn_up", d, inter),
                                 ("ffn_down", inter, d)):
            matrix(f"{block}{name}.weight", cols, rows)
            if biases:
                vector(f"{block}{name}.bias", rows, 0)
        vector(block + "attn_norm.weight", d, 1)
        vector(block + "ffn_norm.weight", d, 1)
        if norms:
            vector(block + "attn_q_norm.weight", head, 1)
            vector(block + "attn_k_norm.weight", head, 1)
            vector(block + "post_attention_norm.weight", d, 1)
            vector(block + "post_ffw_norm.weight", d, 1)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = pathlib.Path(__file__).resolve().parent.parent / "tests/fuzz/corpus/model"
    parser.add_argument("--into", type=pathlib.Path, default=default)
    into = parser.parse_args().into
    into.mkdir(parents=True, exist_ok=True)
    for name, sizes in MODELS.items():
        write(into / f"{name}.gguf", name, **sizes)


if __name__ == "__main__":
    main()
