#!/usr/bin/env python3
"""Convert Hugging Face folders with narrows and run the files in llama.cpp: does it load them, and say the same?

Use: compare_convert.py [FOLDER …] [--portable TEXT] [--narrows build/release/narrows] [--json]
     (default: the tiny models of tests/data/hf that llama.cpp's architectures cover)
Needs: pip install -r tools/requirements.txt

Of each folder: `narrows convert FOLDER -o FILE`, then in llama.cpp (f32 KV cache, flash attention off) the logits of the
folder's golden prompt and 20 greedy ids, against narrows on the folder. The mean KL is of llama.cpp from narrows: llama.cpp
rounds activations to the type of the weights, F16 or BF16. Where llama.cpp ignores something that transformers computes, the
prompt is cut to what it does not touch (LIMITS), and the greedy ids are not compared; a folder without golden.json gets 40 ids.
--portable: what is compared is the model that `narrows compress --portable --ratio 0.2` makes of the folder and the text.
Also counted: how many of a few texts get the same ids (a tokenizer that GGUF's keys cannot express differs by design).
Exit status 2 if a KL is above 0.01 or greedy ids differ.
"""
import argparse
import json
import pathlib
import shutil
import sys
import tempfile

from reference import DEFAULT_NARROWS, REPOSITORY, ToolError, metrics, narrows
from reference.llamacpp import LlamaCpp

# What llama.cpp has no name for, or cannot express; tests/model/golden_test.cc covers them.
NOT_IN_LLAMACPP = {
    "gptj": "llama.cpp has no graph for the architecture", "opt": "not in llama.cpp", "opt-350m": "not in llama.cpp",
    "opt-nobias": "not in llama.cpp", "falcon-rw": "llama.cpp's falcon has no ALiBi and only parallel blocks",
    "qwen3-moe": "llama.cpp wants experts in every layer", "qwen3-moe-raw": "llama.cpp always norms the experts' shares",
}
# Tokens up to which llama.cpp computes the same: it has no sliding windows in these architectures.
LIMITS = {"mistral": 12, "mixtral": 12, "phi3": 12, "qwen2-window": 12, "starcoder2": 12,
          # It scales gemma's scores by the head's size, and rotates all but every fourth layer of SmolLM 3.
          "gemma2": 1, "gemma3": 1, "smollm3": 1}
GREEDY, WORST_KL = 20, 0.01
TEXTS = ["The quick brown fox, 1234 times.", "  two  spaces\n\nand lines\t.", "naïve café 北京 🙂"]


def compare(folder, binary, file, text):
    name = folder.name
    copy = file.with_name("model")  # llama.cpp goes by a model's name, and asks one called phi3 for tokens of Phi-3
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(folder, copy)
    ours_model = copy
    if text:
        narrows.run(binary, "compress", "-m", copy, "-f", text, "-o", file, "--ratio", 0.2, "--portable", "-c", 48)
        ours_model = file
    else:
        narrows.run(binary, "convert", copy, "-o", file)
    golden = folder / "golden.json"
    ids = json.loads(golden.read_text())["ids"] if golden.exists() else list(range(5, 45))
    limit = LIMITS.get(name)
    ids = ids[:limit] if limit else ids
    peer = LlamaCpp(file, context=64, threads=1, kv="f32")
    found = metrics.compare(narrows.logits(binary, ours_model, ids, ("-ctk", "f32")), peer.logits(ids))
    result = {"model": name, "prompt": len(ids), "mean_kl": found["mean_kl"], "max_difference": found["max_abs_difference"]}
    if not limit:
        ours = narrows.greedy(binary, ours_model, ids, GREEDY, ("-ctk", "f32", "-c", "64"))
        result["greedy"] = ours == peer.greedy(ids, GREEDY)[0][:len(ours)]
    result["texts"] = sum(narrows.tokenize(binary, file, text) == peer.tokenize(text) for text in TEXTS)
    peer.close()
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", type=pathlib.Path, metavar="FOLDER")
    parser.add_argument("--portable", metavar="TEXT", help="compress first")
    parser.add_argument("--narrows", default=DEFAULT_NARROWS)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    tiny = REPOSITORY / "tests" / "data" / "hf"
    folders = arguments.folders or sorted(f for f in tiny.iterdir() if (f / "config.json").exists())
    results, faults = [], 0
    with tempfile.TemporaryDirectory() as scratch:
        for folder in folders:
            if not arguments.folders and NOT_IN_LLAMACPP.get(folder.name):
                results.append({"model": folder.name, "skipped": NOT_IN_LLAMACPP[folder.name]})
                continue
            try:
                results.append(compare(folder, arguments.narrows, pathlib.Path(scratch) / "model.gguf",
                                       arguments.portable))
            except ToolError as error:
                results.append({"model": folder.name, "error": str(error)})
            last = results[-1]
            faults += "error" in last or last["mean_kl"] > WORST_KL or last.get("greedy") is False
            if not arguments.json:
                print(line(last), flush=True)
    if arguments.json:
        print(json.dumps(results, indent=1))
    sys.exit(2 if faults else 0)


def line(r):
    if "mean_kl" not in r:
        return f"{r['model']:22} {r.get('skipped') or r['error']}"
    greedy = {True: "the same greedy ids", False: "OTHER GREEDY IDS", None: "greedy ids not compared"}[r.get("greedy")]
    return (f"{r['model']:22} {r['prompt']:2} tokens: KL {r['mean_kl']:.1e}, largest difference {r['max_difference']:.1e}; {greedy}; "
            f"{r['texts']} of {len(TEXTS)} texts")


if __name__ == "__main__":
    try:
        main()
    except (ToolError, OSError) as error:
        sys.exit(f"compare_convert: {error}")
