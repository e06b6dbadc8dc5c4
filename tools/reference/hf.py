"""GGUF weights and transformers' models, both ways: llama.cpp's names and layouts on one side, Hugging Face's on
the other. Architectures: llama, qwen2, gemma3 (text)."""
import numpy as np

from . import ToolError, existing_file

try:
    import gguf
    import torch
    import transformers
except ImportError as error:
    raise SystemExit(f"transformers is needed: pip install -r tools/requirements.txt ({error})") from None

# A GGUF layer of gemma3 normalises before and after each half; the others only before.
_COMMON = {
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj", "attn_norm": "input_layernorm",
}
_LAYER_NAMES = {
    "llama": _COMMON | {"ffn_norm": "post_attention_layernorm"},
    "qwen2": _COMMON | {"ffn_norm": "post_attention_layernorm"},
    "gemma3": _COMMON | {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm",
                         "post_attention_norm": "post_attention_layernorm", "ffn_norm": "pre_feedforward_layernorm",
                         "post_ffw_norm": "post_feedforward_layernorm"},
}
_TOP_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


def gguf_name(architecture, name):
    """llama.cpp's name of a parameter of the Hugging Face model."""
    stem, kind = name.rsplit(".", 1)
    for ours, theirs in _TOP_NAMES.items():
        if stem == theirs:
            return f"{ours}.{kind}"
    _, _, layer, inner = stem.split(".", 3)
    for ours, theirs in _LAYER_NAMES[architecture].items():
        if inner == theirs:
            return f"blk.{layer}.{ours}.{kind}"
    raise ToolError(f"{name}: no name for it in a GGUF of architecture {architecture}")


def interleave_pairs(rows, heads):
    """Rows of a q or k projection (weight or bias): dimensions j and j + half of a head, which Hugging Face rotates
    together, become neighbours, as llama.cpp's llama architecture wants them."""
    shape = rows.shape
    return rows.reshape(heads, 2, shape[0] // heads // 2, *shape[1:]).swapaxes(1, 2).reshape(shape)


def split_pairs(rows, heads):
    """The inverse of interleave_pairs."""
    shape = rows.shape
    return rows.reshape(heads, shape[0] // heads // 2, 2, *shape[1:]).swapaxes(1, 2).reshape(shape)


def _convert(architecture, config, name, values, to_gguf):
    if architecture == "llama" and (".q_proj." in name or ".k_proj." in name):
        heads = config.num_attention_heads if ".q_proj." in name else config.num_key_value_heads
        return (interleave_pairs if to_gguf else split_pairs)(values, heads)
    if architecture == "gemma3" and "norm" in name:  # Hugging Face multiplies by 1 + w, a GGUF holds the sum
        return values + np.float32(1 if to_gguf else -1)
    return values


def to_gguf(architecture, config, name, values):
    return _convert(architecture, config, name, values, True)


def from_gguf(architecture, config, name, values):
    return _convert(architecture, config, name, values, False)


class _Metadata:
    def __init__(self, reader):
        self.fields = {key: field.contents() for key, field in reader.fields.items()}
        self.architecture = self.fields["general.architecture"]

    def get(self, key, default=None):
        return self.fields.get(f"{self.architecture}.{key}", default)


def _rope(meta, base):
    kind = meta.get("rope.scaling.type", "none")
    if kind == "none":
        return {"rope_type": "default", "rope_theta": base}
    rope = {"rope_type": kind, "rope_theta": base, "factor": meta.get("rope.scaling.factor")}
    if kind == "yarn":
        rope["original_max_position_embeddings"] = meta.get("rope.scaling.original_context_length")
        for beta in ("beta_fast", "beta_slow"):
            if (value := meta.get(f"rope.scaling.yarn_{beta}")) is not None:
                rope[beta] = value
    elif kind != "linear":
        raise ToolError(f"rotary scaling {kind!r}: expected none, linear or yarn")
    return rope


def _config(meta, tensors):
    architecture, heads, width = meta.architecture, meta.get("attention.head_count"), meta.get("embedding_length")
    head_dim = meta.get("attention.key_length", width // heads)
    base = meta.get("rope.freq_base", 10000.0)
    common = {
        "vocab_size": int(tensors["token_embd.weight"].shape[1]), "hidden_size": width,
        "intermediate_size": meta.get("feed_forward_length"), "num_hidden_layers": meta.get("block_count"),
        "num_attention_heads": heads, "num_key_value_heads": meta.get("attention.head_count_kv", heads),
        "head_dim": head_dim, "max_position_embeddings": meta.get("context_length"),
        "rms_norm_eps": meta.get("attention.layer_norm_rms_epsilon"),
        "tie_word_embeddings": "output.weight" not in tensors, "bos_token_id": None, "eos_token_id": None,
        "pad_token_id": None,
    }
    if architecture == "llama":
        return transformers.LlamaConfig(**common, rope_parameters=_rope(meta, base),
                                        attention_bias="blk.0.attn_q.bias" in tensors,
                                        mlp_bias="blk.0.ffn_up.bias" in tensors)
    if architecture == "qwen2":
        return transformers.Qwen2Config(**common, rope_parameters=_rope(meta, base), use_sliding_window=False)
    # llama.cpp knows the 27B model, whose attention scale is its own, by its number of layers.
    scale = width // heads if meta.get("block_count") == 62 else head_dim
    local_base = meta.get("rope.freq_base_swa", 10000.0)
    return transformers.Gemma3TextConfig(
        **common, query_pre_attn_scalar=scale, sliding_window=meta.get("attention.sliding_window"),
        sliding_window_pattern=meta.get("attention.sliding_window_pattern", 6),
        final_logit_softcapping=meta.get("final_logit_softcapping"),
        rope_parameters={"full_attention": _rope(meta, base),
                         "sliding_attention": {"rope_type": "default", "rope_theta": local_base}})


MODEL_CLASSES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "gemma3": "Gemma3ForCausalLM"}


def new_model(architecture, config):
    """A float32 model with eager attention: the plain arithmetic, no fused kernel."""
    config._attn_implementation = "eager"
    return getattr(transformers, MODEL_CLASSES[architecture])(config).float().eval()


def load(path):
    """The model of a GGUF, weights dequantized to float32, as a transformers model."""
    reader = gguf.GGUFReader(str(existing_file(path, "a GGUF model")))
    meta = _Metadata(reader)
    if meta.architecture not in MODEL_CLASSES:
        raise ToolError(f"{path}: architecture {meta.architecture}: expected one of {', '.join(MODEL_CLASSES)}")
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    config = _config(meta, tensors)
    model = new_model(meta.architecture, config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            stored = tensors.pop(gguf_name(meta.architecture, name), None)
            if stored is None:
                raise ToolError(f"{path}: tensor {gguf_name(meta.architecture, name)} is missing")
            values = gguf.quants.dequantize(stored.data, stored.tensor_type).astype(np.float32)
            values = from_gguf(meta.architecture, config, name, values.reshape(tuple(parameter.shape)))
            parameter.copy_(torch.from_numpy(np.ascontiguousarray(values)))
    factors = tensors.pop("rope_freqs.weight", None)
    if factors is not None:  # what llama3's scaling divides each frequency by
        rotary = model.model.rotary_emb
        rotary.inv_freq = rotary.inv_freq / torch.from_numpy(np.array(factors.data, dtype=np.float32))
    if tensors:
        raise ToolError(f"{path}: tensor {next(iter(tensors))} has no place in a {meta.architecture} model")
    return model


def logits(model, ids):
    """Logits after each id, float32 tokens x vocabulary."""
    with torch.no_grad():
        return model(torch.tensor([ids]), use_cache=False).logits[0].numpy()


def greedy(model, prompt, count, ends_generation):
    """As LlamaCpp.greedy: up to count arg max tokens, and the logits that each was taken from."""
    tokens, rows, cache, ids = [], [], None, list(prompt)
    with torch.no_grad():
        while True:
            result = model(torch.tensor([ids]), past_key_values=cache, use_cache=True)
            cache, row = result.past_key_values, result.logits[0, -1].numpy()
            tokens.append(int(row.argmax()))
            rows.append(row)
            if len(tokens) == count or ends_generation(tokens[-1]):
                return tokens, rows
            ids = tokens[-1:]
