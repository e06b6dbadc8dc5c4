#!/usr/bin/env python3
"""Make the tiny random models in tests/data/models/ and what each must answer.

Use: make_model_goldens.py [NAME …] [--into tests/data/models] [--list]      (default: all of them)
Needs: pip install -r tools/requirements.txt

For each row of MODELS: a transformers model with seeded random weights, written as NAME.gguf with llama.cpp's tensor
names, layouts and metadata; NAME.json with the prompt `ids` (40), the 20 `greedy` ids that follow it, and `notes`;
NAME.logits.npy, float32, 40 x vocabulary: the logits after each id of the prompt, computed by transformers in
float32 from the very weights in the file (those stored as F16 are rounded first).
Each file is read back and must give the same logits. llama.cpp (f32 KV cache, flash attention off) must give the same
greedy ids, and agree in its logits: from a copy of the file with F32 matrices to a mean KL below 1e-9 nats (gemma3:
1e-5, because llama.cpp looks GELU up in an F16 table; 1e-3 where 62 layers amplify that); from the file itself to ten
times the larger of these, because llama.cpp rounds activations to F16 where the matrix is F16.

Weights are drawn so that logits spread over several units, attention is far from uniform, norm weights differ from
one and biases from zero. Seeds are tried in turn until the greedy continuation varies and no step of it is a
near-tie (gap of the two best logits at least 0.05), so that a correct engine gives the same 20 ids.
"""
import json
import math
import pathlib
import tempfile

import gguf
import numpy as np
import torch
import transformers

from reference import REPOSITORY, ToolError, goldens, hf, metrics
from reference.llamacpp import LlamaCpp

SPECIAL = ["<|start|>", "<|end|>"]
MERGES = [("h", "e"), ("Ġ", "t"), ("Ġt", "he"), ("i", "n"), ("Ġ", "a")]


def model(architecture, dtype, notes, metadata=None, post_norm=(2.0, 4.0), distinct=7, **config):
    """post_norm: range of gemma3's post-norm weights; if small, the scaled embedding drowns what layers add, if
    large, a deep random model amplifies every rounding error. distinct: fewest different ids among the greedy
    ones."""
    return {"architecture": architecture, "dtype": dtype, "notes": notes, "metadata": metadata or {},
            "post_norm": post_norm, "distinct": distinct, "config": config}


def rope(kind="default", base=10000.0, **parameters):
    return {"rope_type": kind, "rope_theta": base, **parameters}


MODELS = {
    "llama-gqa": model(
        "llama", "F16", "grouped-query attention, head of its own", hidden_size=48, num_hidden_layers=2,
        num_attention_heads=6, num_key_value_heads=2, intermediate_size=72, rope_parameters=rope()),
    "llama3-tied": model(
        "llama", "F16", "tied head, one KV head, rotary frequencies divided by rope_freqs.weight", hidden_size=40,
        num_hidden_layers=3, num_attention_heads=5, num_key_value_heads=1, intermediate_size=72,
        tie_word_embeddings=True, max_position_embeddings=512,
        rope_parameters=rope("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                             original_max_position_embeddings=64)),
    "llama-linear": model(
        "llama", "F32", "one layer, width 36, heads of 12, linear rotary scaling", hidden_size=36,
        num_hidden_layers=1, num_attention_heads=3, num_key_value_heads=1, intermediate_size=72,
        rope_parameters=rope("linear", factor=2.5)),
    "llama-yarn": model(
        "llama", "F16", "YaRN rotary scaling with its default betas, heads of 14", hidden_size=56,
        num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, intermediate_size=72,
        tie_word_embeddings=True, max_position_embeddings=2048,
        rope_parameters=rope("yarn", factor=4.0, original_max_position_embeddings=512)),
    "llama-bias": model(
        "llama", "F16", "biases everywhere, heads of 16 where width / heads is 12", hidden_size=48,
        num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=16, intermediate_size=72,
        attention_bias=True, mlp_bias=True, tie_word_embeddings=True, rope_parameters=rope()),
    "qwen2": model(
        "qwen2", "F16", "biases on q, k, v; rotary pairs half a head apart", hidden_size=40, num_hidden_layers=2,
        num_attention_heads=5, num_key_value_heads=1, intermediate_size=72, rms_norm_eps=1e-6,
        rope_parameters=rope(base=1e6)),
    "qwen2-yarn": model(
        "qwen2", "F32", "YaRN on rotary pairs half a head apart, multi-head attention, tied head", hidden_size=32,
        num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2, intermediate_size=56,
        tie_word_embeddings=True, rms_norm_eps=1e-6, max_position_embeddings=1024,
        rope_parameters=rope("yarn", factor=4.0, original_max_position_embeddings=256)),
    "gemma3": model(
        "gemma3", "F16", "QK-norm, windows of 12 in five layers of six, two rotary bases, the local one implied",
        hidden_size=36, num_hidden_layers=7, num_attention_heads=3, num_key_value_heads=1, head_dim=16,
        intermediate_size=24, query_pre_attn_scalar=16, sliding_window=12, rms_norm_eps=1e-6,
        rope_parameters={"full_attention": rope(base=1e6), "sliding_attention": rope()}),
    "gemma3-linear": model(
        "gemma3", "F16", "linear rotary scaling in the global layers alone; the local rotary base and a pattern of "
        "one global layer in three stated", metadata={"attention.sliding_window_pattern": 3},
        hidden_size=32, num_hidden_layers=7, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
        intermediate_size=40, query_pre_attn_scalar=8, sliding_window=7, sliding_window_pattern=3, rms_norm_eps=1e-6,
        rope_parameters={"full_attention": rope("linear", 1e6, factor=8.0), "sliding_attention": rope(base=5000.0)}),
    "gemma3-27b": model(
        "gemma3", "F16", "62 layers: the attention scale of the 27B model, 1 / sqrt(width / heads), not of the heads' "
        "4 dimensions", post_norm=(0.15, 0.4), distinct=1, hidden_size=12, num_hidden_layers=62,
        num_attention_heads=2, num_key_value_heads=1, head_dim=4, intermediate_size=6,
        query_pre_attn_scalar=6, sliding_window=9, rms_norm_eps=1e-6,
        rope_parameters={"full_attention": rope(base=1e6), "sliding_attention": rope()}),
}


def vocabulary():
    """A byte-level BPE vocabulary of 263 tokens: two specials, the 256 bytes in GPT-2's spelling, five merges."""
    return SPECIAL + goldens.byte_spelling() + [left + right for left, right in MERGES]


def build(spec, seed):
    """The model with its random weights, those to be stored as F16 already rounded."""
    tokens = vocabulary()
    config_class = {"llama": transformers.LlamaConfig, "qwen2": transformers.Qwen2Config,
                    "gemma3": transformers.Gemma3TextConfig}[spec["architecture"]]
    config = config_class(**({"vocab_size": len(tokens), "max_position_embeddings": 256, "rms_norm_eps": 1e-5,
                              "tie_word_embeddings": spec["architecture"] == "gemma3", "bos_token_id": 0,
                              "eos_token_id": 1, "pad_token_id": None} | spec["config"]))
    made = hf.new_model(spec["architecture"], config)
    random = np.random.default_rng(seed)
    gemma = spec["architecture"] == "gemma3"
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            shape = tuple(parameter.shape)
            if "q_norm" in name or "k_norm" in name:
                values = random.uniform(1.0, 2.0, shape) - 1
            elif gemma and ("post_attention" in name or "post_feedforward" in name):
                values = random.uniform(*spec["post_norm"], shape) - 1
            elif "norm" in name:
                values = random.uniform(0.5, 1.5, shape) - (1 if gemma else 0)
            elif name.endswith(".bias"):
                values = random.normal(0, 0.3, shape)
            elif "embed_tokens" in name:
                values = random.normal(0, 0.5, shape)
            else:
                values = random.normal(0, (3.0 if "lm_head" in name else 1.5) / math.sqrt(shape[1]), shape)
            values = values.astype(np.float32)
            if spec["dtype"] == "F16" and len(shape) == 2:
                values = values.astype(np.float16).astype(np.float32)
            parameter.copy_(torch.from_numpy(values))
    return made


def llama3_factors(config):
    """What llama3's scaling divides each rotary frequency by, as rope_freqs.weight stores it."""
    parameters = config.rope_parameters
    frequencies = parameters["rope_theta"] ** (-np.arange(0, config.head_dim, 2) / config.head_dim)
    wavelengths = 2 * np.pi / frequencies
    low, high, factor = (parameters[key] for key in ("low_freq_factor", "high_freq_factor", "factor"))
    smooth = np.clip((parameters["original_max_position_embeddings"] / wavelengths - low) / (high - low), 0, 1)
    return (1 / ((1 - smooth) / factor + smooth)).astype(np.float32)


def write_metadata(writer, name, spec, config, dtype):
    architecture, head_dim = spec["architecture"], config.head_dim if "head_dim" in spec["config"] else None
    gemma = architecture == "gemma3"
    writer.add_type("model")
    writer.add_name(f"tiny random {name}")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16 if dtype == "F16" else gguf.LlamaFileType.ALL_F32)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    if head_dim:
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    if architecture == "llama":
        writer.add_rope_dimension_count(head_dim or config.hidden_size // config.num_attention_heads)
    parameters = config.rope_parameters
    if gemma:
        writer.add_sliding_window(config.sliding_window)
        local_base = parameters["sliding_attention"]["rope_theta"]
        parameters = parameters["full_attention"]
        if local_base != 10000.0:
            writer.add_rope_freq_base_swa(local_base)
    writer.add_rope_freq_base(parameters["rope_theta"])
    kind = parameters["rope_type"]
    if kind in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(kind))
        writer.add_rope_scaling_factor(parameters["factor"])
    if kind == "yarn":
        writer.add_rope_scaling_orig_ctx_len(parameters["original_max_position_embeddings"])
    for key, value in spec["metadata"].items():
        writer.add_uint32(f"{architecture}.{key}", value)


def write_tokenizer(writer):
    tokens = vocabulary()
    kinds = [gguf.TokenType.CONTROL] * len(SPECIAL) + [gguf.TokenType.NORMAL] * (len(tokens) - len(SPECIAL))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges([" ".join(pair) for pair in MERGES])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_add_bos_token(False)


def write_gguf(path, name, spec, made, dtype):
    writer = gguf.GGUFWriter(str(path), spec["architecture"])
    write_metadata(writer, name, spec, made.config, dtype)
    write_tokenizer(writer)
    if spec["architecture"] == "llama" and made.config.rope_parameters["rope_type"] == "llama3":
        writer.add_tensor("rope_freqs.weight", llama3_factors(made.config))
    for parameter_name, parameter in made.named_parameters():
        values = hf.to_gguf(spec["architecture"], made.config, parameter_name, parameter.detach().numpy())
        if dtype == "F16" and values.ndim == 2:
            values = values.astype(np.float16)
        writer.add_tensor(hf.gguf_name(spec["architecture"], parameter_name), np.ascontiguousarray(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def llamacpp_answers(path, ids):
    peer = LlamaCpp(path, context=256, threads=1, kv="f32")
    answers = peer.logits(ids), peer.greedy(ids, goldens.GREEDY_TOKENS)[0]
    peer.close()
    return answers


def verify(path, name, spec, made, ids, following, logits):
    """Throws unless the file gives the golden answers by every engine at hand; returns a line of figures."""
    read_back = metrics.compare(logits, hf.logits(hf.load(path), ids))
    if read_back["max_abs_difference"] > 1e-4:
        raise ToolError(f"{path}: read back, its logits differ by {read_back['max_abs_difference']}")
    with tempfile.TemporaryDirectory() as folder:
        exact = pathlib.Path(folder) / "exact.gguf"
        write_gguf(exact, name, spec, made, "F32")
        exact_figures = metrics.compare(logits, llamacpp_answers(exact, ids)[0])
    peer_logits, peer_greedy = llamacpp_answers(path, ids)
    figures = metrics.compare(logits, peer_logits)
    line = (f"llama.cpp with F32 matrices: largest difference {exact_figures['max_abs_difference']:.1e}, mean KL "
            f"{exact_figures['mean_kl']:.1e}; with {spec['dtype']}: {figures['max_abs_difference']:.1e}, "
            f"{figures['mean_kl']:.1e}")
    if peer_greedy != following:
        raise ToolError(f"{path}: llama.cpp's greedy ids {peer_greedy}, expected {following}; {line}")
    rounding = 1e-3 if made.config.num_hidden_layers > 20 else 1e-5
    if exact_figures["mean_kl"] > (rounding if spec["architecture"] == "gemma3" else 1e-9) or \
            figures["mean_kl"] > 10 * rounding:
        raise ToolError(f"{path}: llama.cpp disagrees: {line}")
    return line


def make(name, spec, folder):
    made, ids, following, gap, seed = goldens.with_firm_continuation(
        lambda seed: build(spec, seed), len(SPECIAL), len(vocabulary()), spec["distinct"])
    path = folder / f"{name}.gguf"
    write_gguf(path, name, spec, made, spec["dtype"])
    if path.stat().st_size > goldens.LARGEST_FILE:
        raise ToolError(f"{path}: {path.stat().st_size} bytes, expected at most {goldens.LARGEST_FILE}")
    logits = hf.logits(made, ids)
    line = verify(path, name, spec, made, ids, following, logits)
    np.save(folder / f"{name}.logits.npy", logits.astype(np.float32))
    (folder / f"{name}.json").write_text(json.dumps({
        "ids": ids, "greedy": following, "notes": spec["notes"],
        "weights": f"{spec['dtype']} matrices, F32 norms and biases, seed {seed}", "smallest_greedy_gap": round(gap, 4),
    }) + "\n")
    print(f"{name}: {path.stat().st_size} bytes, seed {seed}, logits' deviation {logits.std():.2f}, smallest gap "
          f"{gap:.3f}; {line}")


if __name__ == "__main__":
    goldens.main("make_model_goldens", __doc__, MODELS, REPOSITORY / "tests" / "data" / "models", make)
