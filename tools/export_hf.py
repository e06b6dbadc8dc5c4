#!/usr/bin/env python3
"""Write a GGUF model as a Hugging Face folder: config.json, model.safetensors and, where transformers can read it, the tokenizer.

Use: export_hf.py MODEL.gguf FOLDER [--dtype float16|bfloat16|float32] [--check TEXT] [--narrows build/release/narrows]
Needs: pip install -r tools/requirements.txt; memory for the weights in float32.

For what transformers' own classes can express: architectures llama, qwen2 and gemma3, all layers of one size, heads that are
rotated whole. `narrows compress --portable --allocate uniform` writes such files; ranks that differ by layer or rotary pairs
that differ by head have no place in a config.json and are refused. --check reads the folder back and compares its logits on
the first 256 tokens of TEXT with narrows' on the GGUF; exit status 2 if the mean KL is above 1e-3.
"""
import argparse
import pathlib
import sys

from reference import DEFAULT_NARROWS, ToolError, existing_file, metrics, narrows


def check_expressible(path):
    import gguf
    reader = gguf.GGUFReader(str(existing_file(path, "a GGUF model")))
    architecture = reader.fields["general.architecture"].contents()
    if architecture == "deci":
        raise ToolError(f"{path}: layers of several sizes (deci): compress with --portable --allocate uniform")
    for key in ("attention.head_count", "attention.head_count_kv", "attention.key_length", "attention.value_length",
                "feed_forward_length"):
        field = reader.fields.get(f"{architecture}.{key}")
        if field is not None and isinstance(field.contents(), list):
            raise ToolError(f"{path}: {architecture}.{key} differs by layer: transformers has one for all")
    for key in ("narrows.rope.pairs", f"{architecture}.attention.scale"):
        if key in reader.fields:
            raise ToolError(f"{path}: {key}: heads that have been shrunk have no place in a config.json")
    if any(tensor.name == "rope_freqs.weight" for tensor in reader.tensors):
        raise ToolError(f"{path}: rope_freqs.weight: rotary frequencies of its own have no place in a config.json")


def save_tokenizer(path, folder):
    import transformers
    try:
        transformers.AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name).save_pretrained(folder)
    except Exception as error:  # whatever stops transformers: the weights are there all the same
        print(f"export_hf: no tokenizer written, take the original model's: {str(error).splitlines()[0]}", file=sys.stderr)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="GGUF file")
    parser.add_argument("folder")
    parser.add_argument("--dtype", choices=["float16", "bfloat16", "float32"], default="float16")
    parser.add_argument("--check", metavar="TEXT")
    parser.add_argument("--narrows", default=DEFAULT_NARROWS)
    a = parser.parse_args()
    try:
        path, folder = pathlib.Path(a.model), pathlib.Path(a.folder)
        check_expressible(path)
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise ToolError(f"{folder}: expected a new or empty folder")
        import torch
        import transformers
        transformers.utils.logging.disable_progress_bar()
        from reference import hf
        model = hf.load(path).to(getattr(torch, a.dtype))
        model.save_pretrained(folder)
        save_tokenizer(path, folder)
        print(f"{folder}: {sum(p.numel() for p in model.parameters()):,} parameters in {a.dtype}")
        if a.check:
            from reference.llamacpp import LlamaCpp
            text = existing_file(a.check, "text").read_text(encoding="utf-8")[:8192]
            reader = LlamaCpp(path, context=64)
            ids = reader.tokenize(text, add_special=True)[:256]
            reader.close()
            back = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
            found = metrics.compare(hf.logits(back, ids), narrows.logits(a.narrows, path, ids))
            print(f"{len(ids)} tokens: {found}")
            if not found["mean_kl"] <= 1e-3:
                return 2
    except ToolError as error:
        sys.exit(f"export_hf: {error}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
