#!/usr/bin/env python3
"""Compare greedy continuations of narrows with llama.cpp's, token by token, on ten varied prompts.

Use: compare_greedy.py --model models/M.gguf [--narrows build/release/narrows] [-n 128] [--exact] [--llamacpp-only]
                       [--json] [-- extra arguments for narrows run]
Needs: pip install -r tools/requirements.txt

Prompts are tokenized by llama.cpp (specials parsed, a BOS where the model adds one) and handed to narrows as ids, so
that only the arithmetic is compared. The baseline is llama.cpp with flash attention off and an f16 KV cache; as a
control llama.cpp is compared with itself, flash attention on: what differs there is rounding, and narrows may
differ from llama.cpp about as often. At the first difference both tokens are shown, with the gap of their logits as
the baseline sees them: a small gap is a near-tie (below --near, 0.5 by default, a fraction of what the rounding of
activations does to a logit of a 4-bit model), a large one is a fault to look for. A continuation ends at the model's
end-of-generation token, which is not compared, or after n tokens.
llama.cpp rounds activations to 8 bits where weights are quantized, which moves logits by more than many a gap. --exact
takes transformers in float32 over the dequantized weights as the baseline instead, and compares narrows and llama.cpp,
flash attention off and on, with that.
Exit status 1 for errors, 2 if narrows differs from the baseline by more than a near-tie.
"""
import argparse
import json
import sys

from reference import DEFAULT_NARROWS, ToolError, existing_file, narrows
from reference.llamacpp import LlamaCpp

PROMPTS = {
    "story": "Once upon a time, in a village between two rivers, there lived a clockmaker who",
    "fact": "The capital of France is",
    "code": "def binary_search(values, target):\n    \"\"\"Return the index of target in values, or -1.\"\"\"\n",
    "list": "Ten animals that live in the sea:\n1. dolphin\n2. octopus\n3.",
    "numbers": "2, 4, 8, 16, 32, 64,",
    "german": "Die Wettervorhersage für morgen: Im Norden regnet es,",
    "chinese": "人工智能是计算机科学的一个分支,它",
    "json": '{"name": "Ada Lovelace", "born": 1815, "occupation": "',
    "chat": "<|im_start|>user\nExplain in two sentences why the sky is blue.<|im_end|>\n<|im_start|>assistant\n",
    "long": "The lighthouse stood on a rock at the end of the peninsula. " * 12 + "Every night its keeper",
}


def without_end(model, ids):
    return ids[:-1] if ids and model.ends_generation(ids[-1]) else ids


def first_difference(left, right):
    for i, (a, b) in enumerate(zip(left, right)):
        if a != b:
            return i
    return None if len(left) == len(right) else min(len(left), len(right))


def describe(model, baseline, rows, other):
    """None if equal, else where and how the other continuation leaves the baseline. rows: logits of the baseline."""
    at = first_difference(without_end(model, baseline), without_end(model, other))
    if at is None:
        return None
    theirs = baseline[at] if at < len(baseline) else None
    # A side that stopped without printing its end-of-generation token chose one: the likeliest, for want of its id.
    ours = other[at] if at < len(other) else max(filter(model.ends_generation, range(model.vocab_size)),
                                                 key=lambda id: rows[at][id], default=None)
    gap = None if theirs is None or ours is None else float(rows[at][theirs] - rows[at][ours])
    return {"position": at, "baseline": theirs, "other": ours, "gap": gap,
            "baseline_text": None if theirs is None else model.piece(theirs),
            "other_text": None if ours is None else model.piece(ours)}


def report(name, difference, near):
    if difference is None:
        return f"  {name:22} equal"
    gap = difference["gap"]
    kind = "one side ends here"
    if gap is not None:
        kind = f"gap {gap:.3f}, {'near-tie' if gap < near else 'NOT A NEAR-TIE'}"
    return (f"  {name:22} differs at {difference['position']}: {difference['baseline_text']!r} against "
            f"{difference['other_text']!r}, {kind}")


def exact_model(path):
    from reference import hf  # needs torch, which the rest does not
    return hf.load(path)


def exact_greedy(exact, vocabulary, prompt, count):
    from reference import hf
    return hf.greedy(exact, prompt, count, vocabulary.ends_generation)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="GGUF file")
    parser.add_argument("--narrows", default=DEFAULT_NARROWS, help="narrows program (default: build/release/narrows)")
    parser.add_argument("-n", type=int, default=128, help="tokens to generate (default: 128)")
    parser.add_argument("--near", type=float, default=0.5, help="largest gap that counts as a near-tie (default: 0.5)")
    parser.add_argument("-t", "--threads", type=int, default=2, help="threads of llama.cpp (default: 2)")
    parser.add_argument("--exact", action="store_true", help="transformers in float32 is the baseline")
    parser.add_argument("--llamacpp-only", action="store_true", help="the control alone, without narrows")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("extra", nargs="*", help="arguments handed to narrows run, after --")
    arguments = parser.parse_args()
    results, others = [], ["llama.cpp, flash off"] if arguments.exact else []
    others += ["llama.cpp, flash on"] + ([] if arguments.llamacpp_only else ["narrows"])
    try:
        if not arguments.llamacpp_only:
            existing_file(arguments.narrows, "the narrows program; build it, or name it with --narrows")
        context = 1024 + arguments.n  # the longest prompt is some 800 bytes
        plain = LlamaCpp(arguments.model, context, arguments.threads)
        flash = LlamaCpp(arguments.model, context, arguments.threads, flash=True)
        exact = exact_model(arguments.model) if arguments.exact else None
        for name, text in PROMPTS.items():
            ids = plain.tokenize(text, add_special=True, parse_special=True)
            baseline, rows = plain.greedy(ids, arguments.n)
            found = {"llama.cpp, flash on": flash.greedy(ids, arguments.n)[0]}
            if exact:
                found["llama.cpp, flash off"] = baseline
                baseline, rows = exact_greedy(exact, plain, ids, arguments.n)
            if not arguments.llamacpp_only:
                found["narrows"] = narrows.greedy(arguments.narrows, arguments.model, ids, arguments.n,
                                                  arguments.extra)
                if any(not 0 <= id < plain.vocab_size for id in found["narrows"]):
                    raise ToolError(f"{name}: narrows gives an id outside the vocabulary of {plain.vocab_size}")
            differences = {who: describe(plain, baseline, rows, other) for who, other in found.items()}
            results.append({"prompt": name, "tokens": len(baseline), "differences": differences})
            if not arguments.json:
                print(f"{name}: {len(ids)} tokens of prompt, {len(baseline)} generated")
                for who, difference in differences.items():
                    print(report(who, difference, arguments.near), flush=True)
    except (ToolError, OSError, ValueError) as error:
        sys.exit(f"compare_greedy: {error}")
    equal = {who: sum(result["differences"][who] is None for result in results) for who in others}
    if arguments.json:
        print(json.dumps({"model": str(arguments.model), "equal": equal, "prompts": results}))
    else:
        print("; ".join(f"{who}: {count} of {len(results)} equal" for who, count in equal.items()))
    ours = [result["differences"].get("narrows") for result in results]
    if any(d is not None and (d["gap"] is None or d["gap"] >= arguments.near) for d in ours):
        sys.exit(2)


if __name__ == "__main__":
    main()
