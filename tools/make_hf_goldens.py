#!/usr/bin/env python3
"""Make the tiny random Hugging Face folders in tests/data/hf/ and what each must answer.

Use: make_hf_goldens.py [NAME …] [--into tests/data/hf] [--list]      (default: all of them)
Needs: pip install -r tools/requirements.txt

For each row of MODELS a folder NAME/ as one is downloaded: config.json, model.safetensors (or shards and their index),
generation_config.json, tokenizer.json, tokenizer_config.json. Tensors have the names and layouts of the published
checkpoints; config.json has the keys of the published ones too, or is transformers 5's own where the row says style="v5".
Beside them, computed by transformers in float32 with eager attention (falcon-rw: sdpa) from the very weights stored:
golden.json   prompt `ids` (40), the 20 `greedy` ids that follow, each computed from the beginning without a cache,
              `smallest_greedy_gap` of two best logits on the way, `notes`, `seed`; `text` and the tokenizer's ids for
              it, `text_ids` without and `text_ids_special` with the special tokens it adds; for some `short_ids` (20)
logits.npy    float32, 40 x vocabulary: the logits after each id; short_logits.npy likewise for `short_ids`
The folder is read back by AutoModelForCausalLM and AutoTokenizer, which must give the same logits and ids.

Weights are drawn so that logits spread over several units, attention is far from uniform, norm weights differ from one
and biases from zero. Seeds are tried in turn until the greedy continuation varies, no step of it is a near-tie (gap at
least 0.05), and no token's choice of experts is one (the last expert taken and the first left out differ by at least
1e-3 in probability), so that a correct engine gives the same 20 ids.
"""
import copy
import json
import math
import os
import pathlib
import tempfile

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import safetensors.torch
import torch
import transformers

from reference import REPOSITORY, ToolError, goldens, hf, metrics, tiny_tokenizers

SMALLEST_ROUTER_GAP = 1e-3
DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def model(architecture, dtype, tokenizer, notes, style="published", shards=1, padding=0, embedding=0.5, post_norm=None,
          short=False, stored_twice=False, leftovers=None, generation=None, attention="eager", **config):
    """padding: ids of the model beyond the tokenizer's. embedding: deviation of its weights. post_norm: range of the
    weights of norms after a block, as in make_model_goldens.py. short: a prompt of 20 ids too. stored_twice: a tied
    head is in the file. leftovers: buffers that old checkpoints hold and nobody reads. generation: further keys of
    generation_config.json. attention: transformers' implementation. config: config.json."""
    return {"architecture": architecture, "dtype": dtype, "tokenizer": tokenizer, "notes": notes, "style": style,
            "shards": shards, "padding": padding, "embedding": embedding, "post_norm": post_norm, "short": short,
            "stored_twice": stored_twice, "leftovers": leftovers, "generation": generation or {},
            "attention": attention, "config": config}


def sizes(layers=2, width=32, heads=4, kv=None, inner=48, positions=128, **further):
    """Those that most families call alike."""
    groups = {} if kv is None else {"num_key_value_heads": kv}
    return {"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads, **groups,
            "intermediate_size": inner, "max_position_embeddings": positions, **further}


def llama_leftovers(config):
    head = config["hidden_size"] // config["num_attention_heads"]
    frequencies = 1 / 10000 ** (torch.arange(0, head, 2).float() / head)
    return {f"model.layers.{layer}.self_attn.rotary_emb.inv_freq": frequencies.clone()
            for layer in range(config["num_hidden_layers"])}


def neox_leftovers(config):
    positions, rotated = config["max_position_embeddings"], 4
    causal = torch.ones(positions, positions, dtype=torch.bool).tril()[None, None]
    made = {}
    for layer in range(config["num_hidden_layers"]):
        stem = f"gpt_neox.layers.{layer}.attention."
        made |= {stem + "bias": causal.clone(), stem + "masked_bias": torch.tensor(-1e9),
                 stem + "rotary_emb.inv_freq": 1 / 10000 ** (torch.arange(0, rotated, 2).float() / rotated)}
    return made


MPT_ATTENTION = {"alibi": True, "alibi_bias_max": 8, "attn_impl": "torch", "attn_pdrop": 0,
                 "attn_type": "multihead_attention", "attn_uses_sequence_id": False, "clip_qkv": None,
                 "prefix_lm": False, "qk_ln": False, "softmax_scale": None}
MPT = {"emb_pdrop": 0, "embedding_fraction": 1.0, "expansion_ratio": 4, "init_device": "cpu", "learned_pos_emb": True,
       "logit_scale": None, "max_seq_len": 128, "model_type": "mpt", "no_bias": True,
       "norm_type": "low_precision_layernorm", "resid_pdrop": 0, "use_cache": False}
OPT = {"model_type": "opt", "activation_dropout": 0.0, "activation_function": "relu", "attention_dropout": 0.0,
       "do_layer_norm_before": True, "dropout": 0.1, "layerdrop": 0.0, "hidden_size": 32, "ffn_dim": 48,
       "num_attention_heads": 4, "num_hidden_layers": 2, "max_position_embeddings": 64, "word_embed_proj_dim": 32,
       "prefix": "</s>"}
FALCON = {"model_type": "falcon", "alibi": False, "apply_residual_connection_post_layernorm": False,
          "attention_dropout": 0.0, "bias": False, "hidden_dropout": 0.0, "hidden_size": 32, "layer_norm_epsilon": 1e-5,
          "multi_query": True, "new_decoder_architecture": False, "num_attention_heads": 4, "num_hidden_layers": 2,
          "parallel_attn": True}
NEOX = {"model_type": "gpt_neox", "hidden_act": "gelu", "layer_norm_eps": 1e-5, "rotary_emb_base": 10000,
        "tie_word_embeddings": False, "use_parallel_residual": True}
LLAMA = {"model_type": "llama", "hidden_act": "silu", "rms_norm_eps": 1e-5, "tie_word_embeddings": False}
PHI3 = {"model_type": "phi3", "hidden_act": "silu", "rms_norm_eps": 1e-5, "attention_bias": False, "embd_pdrop": 0.0,
        "pad_token_id": "</s>", "resid_pdrop": 0.0, "rope_theta": 10000.0, "tie_word_embeddings": False}
QWEN2 = {"model_type": "qwen2", "attention_dropout": 0.0, "hidden_act": "silu", "rms_norm_eps": 1e-6,
         "rope_theta": 1000000.0, "use_sliding_window": False, "tie_word_embeddings": False}
QWEN3_MOE = {"model_type": "qwen3_moe", "attention_bias": False, "hidden_act": "silu", "rms_norm_eps": 1e-6,
             "rope_theta": 1000000.0, "rope_scaling": None, "head_dim": 12, "moe_intermediate_size": 20,
             "num_experts": 8, "num_experts_per_tok": 3, "sliding_window": None, "use_sliding_window": False,
             "max_window_layers": 2, "output_router_logits": False, "router_aux_loss_coef": 0.001,
             "tie_word_embeddings": False}
GEMMA = {"attention_bias": False, "attention_dropout": 0.0, "rms_norm_eps": 1e-6}
STABLELM = {"model_type": "stablelm", "hidden_act": "silu", "rope_theta": 10000, "tie_word_embeddings": False}
LLAMA3_SCALING = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                  "original_max_position_embeddings": 64, "rope_type": "llama3"}
LONGROPE = {"short_factor": [1.0, 1.05, 1.1, 1.2, 1.3, 1.5], "long_factor": [1.1, 1.6, 2.4, 3.5, 5.0, 7.0],
            "type": "longrope"}

MODELS = {
    "gpt2": model(
        "GPT2LMHeadModel", "F16", "gpt2", "learned positions, weights of [in, out], fused q, k, v, biases, tied head",
        model_type="gpt2", activation_function="gelu_new", attn_pdrop=0.1, embd_pdrop=0.1, resid_pdrop=0.1,
        layer_norm_epsilon=1e-5, n_ctx=64, n_positions=64, n_embd=32, n_head=4, n_layer=2),
    "gptj": model(
        "GPTJForCausalLM", "F16", "gpt2", "adjacent rotary pairs on half a head, MLP in parallel, biases in MLP and head "
        "alone", model_type="gptj", activation_function="gelu_new", layer_norm_epsilon=1e-5, n_positions=128, n_embd=32,
        n_head=4, n_inner=64, n_layer=2, rotary=True, rotary_dim=4, tie_word_embeddings=False),
    "opt": model(
        "OPTForCausalLM", "F16", "opt", "learned positions offset by 2, ReLU, biases, tied head", **OPT),
    "opt-350m": model(
        "OPTForCausalLM", "BF16", "opt", "norms after each half, no final norm, embeddings of 24 projected to 32 and back",
        embedding=0.6, **OPT | {"do_layer_norm_before": False, "word_embed_proj_dim": 24}),
    "opt-nobias": model(
        "OPTForCausalLM", "F32", "opt", "no biases, norms without weights",
        **OPT | {"enable_bias": False, "layer_norm_elementwise_affine": False, "ffn_dim": 40}),
    "gpt-neox": model(
        "GPTNeoXForCausalLM", "F16", "neox", "q, k, v of a head side by side, rotary on a quarter of it, parallel "
        "residual, biases; old mask buffers in the file", leftovers=neox_leftovers, padding=2,
        rotary_pct=0.25, **NEOX, **sizes(heads=2, positions=64)),
    "gpt-neox-sequential": model(
        "GPTNeoXForCausalLM", "BF16", "neox", "as gpt-neox, MLP after attention, rotary on half a head",
        rotary_pct=0.5, **NEOX | {"use_parallel_residual": False}, **sizes()),
    "mpt": model(
        "MPTForCausalLM", "BF16", "neox", "ALiBi with 3 heads, no biases, fused q, k, v, tied head",
        attn_config=MPT_ATTENTION, d_model=36, n_heads=3, n_layers=2, **MPT),
    "mpt-clip": model(
        "MptForCausalLM", "F16", "neox", "as mpt with 4 heads, q, k, v clipped to 1.25",
        attn_config=MPT_ATTENTION | {"clip_qkv": 1.25}, d_model=32, n_heads=4, n_layers=2, **MPT),
    "phi2": model(
        "PhiForCausalLM", "F16", "gpt2", "rotary on half a head, MLP in parallel, biases everywhere; more ids than the "
        "tokenizer has", padding=3, model_type="phi", hidden_act="gelu_new", layer_norm_eps=1e-5, rope_theta=10000.0,
        rope_scaling=None, partial_rotary_factor=0.5, qk_layernorm=False, tie_word_embeddings=False, embd_pdrop=0.0,
        resid_pdrop=0.1, **sizes(kv=4)),
    "phi3": model(
        "Phi3ForCausalLM", "BF16", "llama2", "fused q, k, v and gate, up; grouped queries; window of 12",
        rope_scaling=None, sliding_window=12, **PHI3, **sizes(kv=2, original_max_position_embeddings=128)),
    "phi3-longrope": model(
        "Phi3ForCausalLM", "F16", "llama2", "LongRoPE: factors by length, short up to 32 tokens; rotary on three quarters "
        "of a head, tied head", short=True, rope_scaling=LONGROPE, sliding_window=262144, partial_rotary_factor=0.75,
        **PHI3 | {"tie_word_embeddings": True}, **sizes(heads=2, kv=1, original_max_position_embeddings=32)),
    "llama1": model(
        "LlamaForCausalLM", "F16", "llama2", "multi-head attention, head of its own, keys of the first release alone",
        max_sequence_length=128, **LLAMA | {"rms_norm_eps": 1e-6}, **sizes()),
    "llama2": model(
        "LlamaForCausalLM", "F16", "llama2", "grouped queries, three shards; old rotary buffers in the file", shards=3,
        leftovers=llama_leftovers, pretraining_tp=1, rope_scaling=None, **LLAMA, **sizes(kv=2)),
    "llama31": model(
        "LlamaForCausalLM", "BF16", "llama3", "llama3's rotary scaling, tied head, several ids that end",
        attention_bias=False, mlp_bias=False, head_dim=16, rope_theta=500000.0, rope_scaling=LLAMA3_SCALING,
        eos_token_id=["<|end_of_text|>", "<|eot_id|>"], **LLAMA | {"tie_word_embeddings": True}, **sizes(heads=2, kv=1)),
    "mistral": model(
        "MistralForCausalLM", "BF16", "llama2", "window of 12, grouped queries, heads of 12 where width / heads is 8",
        model_type="mistral", hidden_act="silu", head_dim=12, rms_norm_eps=1e-5, rope_theta=10000.0, sliding_window=12,
        tie_word_embeddings=False, **sizes(kv=2)),
    "qwen2": model(
        "Qwen2ForCausalLM", "BF16", "qwen2", "biases on q, k, v; a window that is switched off; tied head", sliding_window=12,
        max_window_layers=1, **QWEN2 | {"tie_word_embeddings": True}, **sizes(kv=2)),
    "qwen2-window": model(
        "Qwen2ForCausalLM", "F16", "qwen2", "window of 12 from the second layer on, tied head", sliding_window=12,
        max_window_layers=1, **QWEN2 | {"use_sliding_window": True, "tie_word_embeddings": True},
        **sizes(layers=3, kv=2)),
    "qwen3": model(
        "Qwen3ForCausalLM", "BF16", "qwen2", "QK-norm, heads of 16 where width / heads is 8; tied head, two shards", style="v5",
        shards=2, generation={"eos_token_id": ["<|im_end|>", "<|endoftext|>"]}, model_type="qwen3", attention_bias=False, head_dim=16,
        rms_norm_eps=1e-6, rope_theta=1000000.0, tie_word_embeddings=True, **sizes(kv=2)),
    "gemma1": model(
        "GemmaForCausalLM", "F16", "gemma", "1 + weight in norms, scaled embeddings, one KV head, heads of 16",
        embedding=0.35, post_norm=(1.5, 2.5),
        model_type="gemma", hidden_act="gelu", hidden_activation=None, head_dim=16, rope_theta=10000.0, rope_scaling=None,
        **GEMMA, **sizes(kv=1)),
    "gemma2": model(
        "Gemma2ForCausalLM", "BF16", "gemma", "attention and final soft-capping, windows of 12 in every other layer, norms "
        "around each half, an attention scale of its own", embedding=0.4, post_norm=(2.0, 4.0), model_type="gemma2",
        hidden_act="gelu_pytorch_tanh", hidden_activation="gelu_pytorch_tanh", head_dim=16, rope_theta=10000.0,
        query_pre_attn_scalar=9, sliding_window=12, attn_logit_softcapping=3.0, final_logit_softcapping=8.0, **GEMMA,
        **sizes(kv=2)),
    "gemma3": model(
        "Gemma3ForCausalLM", "BF16", "gemma", "QK-norm, windows of 12 in two layers of three, two rotary bases",
        style="v5", post_norm=(2.0, 4.0), model_type="gemma3_text", hidden_activation="gelu_pytorch_tanh", head_dim=8,
        query_pre_attn_scalar=12, sliding_window=12, sliding_window_pattern=3, rope_theta=1000000.0,
        rope_local_base_freq=10000.0, **GEMMA, **sizes(layers=3, kv=2)),
    "gemma3-linear": model(
        "Gemma3ForCausalLM", "F16", "gemma", "as gemma3 with the published keys, windows in every other layer, linear rotary "
        "scaling in the global one alone", post_norm=(2.0, 4.0), model_type="gemma3_text", hidden_activation="gelu_pytorch_tanh", head_dim=8,
        query_pre_attn_scalar=8, sliding_window=12, sliding_window_pattern=2, rope_theta=1000000.0,
        rope_local_base_freq=5000.0, rope_scaling={"factor": 8.0, "rope_type": "linear"}, final_logit_softcapping=None,
        attn_logit_softcapping=None, **GEMMA, **sizes(kv=1)),
    "stablelm": model(
        "StableLmForCausalLM", "F16", "neox", "norms with biases, biases on q, k, v, rotary on a quarter of a head",
        partial_rotary_factor=0.25, use_qkv_bias=True, layer_norm_eps=1e-5, **STABLELM, **sizes(heads=2, kv=2)),
    "stablelm-parallel": model(
        "StableLmForCausalLM", "BF16", "neox", "MLP in parallel, a norm for each head of q and k, grouped queries, heads "
        "of 12", partial_rotary_factor=0.5, use_qkv_bias=False, use_parallel_residual=True, qk_layernorm=True,
        layer_norm_eps=1e-5, **STABLELM, **sizes(width=36, heads=3, kv=1)),
    "falcon-7b": model(
        "FalconForCausalLM", "BF16", "falcon", "one KV head in the fused q, k, v, MLP in parallel on the same norm; tied "
        "head stored twice", stored_twice=True, **FALCON),
    "falcon-40b": model(
        "FalconForCausalLM", "F16", "falcon", "fused q, k, v in groups of 2 KV heads, MLP in parallel on a norm of its "
        "own; three shards", shards=3, **FALCON | {"new_decoder_architecture": True, "num_kv_heads": 2}),
    "falcon-rw": model(
        "FalconForCausalLM", "BF16", "falcon", "ALiBi, MLP after attention, q, k, v of a head side by side, biases",
        attention="sdpa",  # transformers 5.24 adds the ALiBi bias twice in its eager attention
        **FALCON | {"alibi": True, "bias": True, "multi_query": False, "parallel_attn": False}),
    "starcoder2": model(
        "Starcoder2ForCausalLM", "F16", "gpt2", "biases everywhere, LayerNorm, grouped queries, window of 12, tied head",
        model_type="starcoder2", hidden_act="gelu_pytorch_tanh", mlp_type="default", norm_type="layer_norm",
        norm_epsilon=1e-5, rope_theta=100000.0, sliding_window=12, use_bias=True, **sizes(kv=2, inner=64)),
    "olmo2": model(
        "Olmo2ForCausalLM", "F16", "gpt2", "norms only after each half, q and k normed over all heads together",
        model_type="olmo2", attention_bias=False, hidden_act="silu", rms_norm_eps=1e-6, rope_theta=500000.0,
        rope_scaling=None, tie_word_embeddings=False, **sizes(kv=2)),
    "smollm3": model(
        "SmolLM3ForCausalLM", "BF16", "smollm3", "every third layer without rotary positions, tied head", style="v5",
        model_type="smollm3", attention_bias=False, hidden_act="silu", mlp_bias=False, rms_norm_eps=1e-6,
        rope_theta=5000000.0, no_rope_layers=[1, 1, 0], no_rope_layer_interval=3, pad_token_id="<|end_of_text|>", use_sliding_window=False,
        tie_word_embeddings=True, **sizes(layers=3, kv=2)),
    "mixtral": model(
        "MixtralForCausalLM", "BF16", "llama2", "2 of 8 experts of 24, their weights normalised",
        model_type="mixtral", hidden_act="silu", num_experts_per_tok=2, num_local_experts=8, output_router_logits=False,
        rms_norm_eps=1e-5, rope_theta=1000000.0, router_aux_loss_coef=0.02, sliding_window=None,
        tie_word_embeddings=False, **sizes(kv=2, inner=24)),
    "qwen3-moe": model(
        "Qwen3MoeForCausalLM", "F16", "qwen2", "3 of 8 experts of 20, their weights normalised, QK-norm; a dense layer "
        "first", norm_topk_prob=True, mlp_only_layers=[0], decoder_sparse_step=1, **QWEN3_MOE, **sizes(kv=2)),
    "qwen3-moe-raw": model(
        "Qwen3MoeForCausalLM", "BF16", "qwen2", "as qwen3-moe, the experts' weights not normalised; the dense layer by "
        "decoder_sparse_step", norm_topk_prob=False, mlp_only_layers=[], decoder_sparse_step=2, **QWEN3_MOE,
        **sizes(kv=2)),
}


def with_ids(values, tokenizer):
    """values with the ids of special tokens where it has their texts."""
    def ids(value):
        return [ids(token) for token in value] if isinstance(value, list) else tokenizer.tokenizer.token_to_id(value)

    return {key: ids(value) if key.endswith("_token_id") else value for key, value in values.items()}


def published_config(spec, tokenizer):
    return {"architectures": [spec["architecture"]], **tokenizer.ids, **with_ids(spec["config"], tokenizer),
            "torch_dtype": str(DTYPES[spec["dtype"]]).removeprefix("torch."),
            "vocab_size": tokenizer.size() + spec["padding"]}


def write_json(path, value):
    path.write_text(json.dumps(value, indent=2) + "\n")


def read_config(values, attention):
    """values as transformers understands a config.json that holds them."""
    with tempfile.TemporaryDirectory() as folder:
        write_json(pathlib.Path(folder) / "config.json", values)
        config = transformers.AutoConfig.from_pretrained(folder)
    config._attn_implementation, config._experts_implementation = attention, "eager"
    return config


def draw(spec, gemma, random, module, name, shape):
    """Values of one parameter: `name` is its full name, `module` what holds it."""
    kind = type(module).__name__
    if name.endswith("bias"):
        return random.normal(0, 0.3, shape)
    if len(shape) == 1:  # the weight of a norm
        post_norm = spec["post_norm"] and ("post_attention" in name or "post_feedforward" in name)
        if any(part in name for part in ("q_norm", "k_norm", "q_layernorm", "k_layernorm")):
            low, high = 1.0, 2.0
        else:
            low, high = spec["post_norm"] if post_norm else (0.5, 1.5)
        return random.uniform(low, high, shape) - (1 if gemma else 0)
    if "Embedding" in kind:
        return random.normal(0, spec["embedding"], shape)
    wide = name.startswith(("lm_head", "embed_out"))
    inputs = shape[0] if kind == "Conv1D" else shape[-1]
    return random.normal(0, (3.0 if wide else 1.5) / math.sqrt(inputs), shape)


def build(spec, config, seed):
    """The model with its random weights, float32, rounded to what the file stores."""
    made = transformers.AutoModelForCausalLM.from_config(copy.deepcopy(config), dtype=torch.float32).eval()
    random = np.random.default_rng(seed)
    gemma = config.model_type.startswith("gemma")
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            module = made.get_submodule(name.rpartition(".")[0])
            values = draw(spec, gemma, random, module, name, tuple(parameter.shape)).astype(np.float32)
            parameter.copy_(torch.from_numpy(values).to(DTYPES[spec["dtype"]]).float())
    return made


def routers_are_firm(made, ids):
    """Whether no token's choice of experts is a near-tie."""
    gaps = []

    def watch(module, inputs, output):
        ordered = torch.softmax(output[0].float(), dim=-1).sort(dim=-1, descending=True).values
        gaps.append(float((ordered[:, module.top_k - 1] - ordered[:, module.top_k]).min()))

    routers = [module for module in made.modules() if type(module).__name__.endswith("TopKRouter")]
    if ("num_experts_per_tok" in made.config.to_dict()) != bool(routers):
        raise ToolError(f"{made.config.model_type}: transformers' routers are not where they were")
    hooks = [router.register_forward_hook(watch) for router in routers]
    hf.logits(made, ids)
    for hook in hooks:
        hook.remove()
    return all(gap >= SMALLEST_ROUTER_GAP for gap in gaps)


def write_tensors(folder, tensors, shards):
    metadata = {"format": "pt"}
    if shards == 1:
        safetensors.torch.save_file(tensors, folder / "model.safetensors", metadata=metadata)
        return
    total = sum(tensor.nbytes for tensor in tensors.values())
    parts, sizes_so_far = [{} for _ in range(shards)], 0
    for name, tensor in tensors.items():
        parts[min(sizes_so_far * shards // total, shards - 1)][name] = tensor
        sizes_so_far += tensor.nbytes
    placed = {}
    for number, part in enumerate(parts, 1):
        file = f"model-{number:05}-of-{shards:05}.safetensors"
        safetensors.torch.save_file(part, folder / file, metadata=metadata)
        placed |= dict.fromkeys(part, file)
    write_json(folder / "model.safetensors.index.json",
               {"metadata": {"total_size": total}, "weight_map": dict(sorted(placed.items()))})


def write_folder(folder, spec, values, tokenizer, made):
    for old in folder.glob("*"):
        old.unlink()
    with tempfile.TemporaryDirectory() as scratch:
        copy.deepcopy(made).to(DTYPES[spec["dtype"]]).save_pretrained(scratch)
        saved = pathlib.Path(scratch)
        tensors = safetensors.torch.load_file(saved / "model.safetensors")
        generation = saved / "generation_config.json"
        if generation.exists():
            write_json(folder / generation.name, json.loads(generation.read_text()) |
                       with_ids(spec["generation"], tokenizer))
        if spec["style"] == "v5":
            values = json.loads((saved / "config.json").read_text())
    write_json(folder / "config.json", values)
    if spec["stored_twice"]:
        tensors["lm_head.weight"] = made.get_output_embeddings().weight.detach().to(DTYPES[spec["dtype"]]).clone()
    if spec["leftovers"]:
        tensors |= spec["leftovers"](values)
    write_tensors(folder, tensors, spec["shards"])
    tokenizer.write(folder)
    for file in folder.glob("*.safetensors"):
        file.chmod(0o644)


def verify(folder, made, ids, tokenizer, attention):
    """Throws unless transformers reads the folder back as the same model and the same tokenizer."""
    back, report = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation=attention, experts_implementation="eager",
        output_loading_info=True)
    missing = [*report["missing_keys"], *report["mismatched_keys"]]
    if missing:
        raise ToolError(f"{folder}: read back, it lacks {missing}")
    difference = metrics.compare(hf.logits(made, ids), hf.logits(back.eval(), ids))["max_abs_difference"]
    if difference > 1e-5:
        raise ToolError(f"{folder}: read back, its logits differ by {difference}")
    text = tiny_tokenizers.SAMPLE
    for special in False, True:
        expected = tokenizer.tokenizer.encode(text, add_special_tokens=special).ids
        found = transformers.AutoTokenizer.from_pretrained(folder).encode(text, add_special_tokens=special)
        if found != expected:
            raise ToolError(f"{folder}: read back, its tokenizer gives {found}, expected {expected}")
    return sorted(report["unexpected_keys"])


def make(name, spec, into):
    folder = into / name
    folder.mkdir(exist_ok=True)
    tokenizer = getattr(tiny_tokenizers, spec["tokenizer"])()
    values = published_config(spec, tokenizer)
    config = read_config(values, spec["attention"])
    made, ids, following, gap, seed = goldens.with_firm_continuation(
        lambda seed: build(spec, config, seed), *tokenizer.words, holds=routers_are_firm)
    write_folder(folder, spec, values, tokenizer, made)
    unread = verify(folder, made, ids, tokenizer, spec["attention"])
    if unread and not spec["leftovers"]:
        raise ToolError(f"{folder}: transformers does not read {unread}")
    weights = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    if weights > goldens.LARGEST_FILE:
        raise ToolError(f"{folder}: {weights} bytes of weights, expected at most {goldens.LARGEST_FILE}")
    logits = hf.logits(made, ids).astype(np.float32)
    np.save(folder / "logits.npy", logits)
    text = tiny_tokenizers.SAMPLE
    golden = {"ids": ids, "greedy": following, "notes": spec["notes"], "seed": seed,
              "smallest_greedy_gap": round(gap, 4), "text": text,
              "text_ids": tokenizer.tokenizer.encode(text, add_special_tokens=False).ids,
              "text_ids_special": tokenizer.tokenizer.encode(text).ids}
    if spec["short"]:
        golden["short_ids"] = ids[:goldens.PROMPT_TOKENS // 2]
        np.save(folder / "short_logits.npy", hf.logits(made, golden["short_ids"]).astype(np.float32))
    (folder / "golden.json").write_text(json.dumps(golden) + "\n")
    print(f"{name}: {weights} bytes of {spec['dtype']}, {sum(file.stat().st_size for file in folder.glob('*'))} in all, "
          f"seed {seed}, logits' deviation {logits.std():.2f}, smallest gap {gap:.3f}", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    goldens.main("make_hf_goldens", __doc__, MODELS, REPOSITORY / "tests" / "data" / "hf", make)
