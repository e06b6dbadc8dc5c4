#!/usr/bin/env python3
"""Compare the logits of narrows with those of transformers or llama.cpp on the same GGUF and the same passage.

Use: compare_logits.py --model models/M.gguf [--narrows build/release/narrows] [--ids-from TEXT] [-n 256]
                       [--reference transformers|llama.cpp] [--candidate narrows|llama.cpp] [--json]
Needs: pip install -r tools/requirements.txt; memory for the weights in float32.

The reference `transformers` loads the weights dequantized to float32 and computes in float32: the exact answer for
this file. `llama.cpp` runs in this process with an f32 KV cache and flash attention off (--flash: on); it quantizes
activations for quantized weights, so it differs from transformers by more than rounding. --candidate llama.cpp
measures that distance.
The passage is the first n tokens (a BOS included, where the model adds one) of TEXT, as llama.cpp tokenizes them; by
default ../shared/data/wiki.test.txt, normalised as tools/wikitext.py does. Any other TEXT is taken as it is.
Printed: largest |difference| of logits, mean and largest KL(reference || candidate) in nats, top-1 agreement.
Exit status 1 only for errors: it judges nothing.
"""
import argparse
import json
import sys

import wikitext
from reference import DEFAULT_NARROWS, SHARED_DATA, ToolError, existing_file, metrics, narrows
from reference.llamacpp import LlamaCpp


def passage(arguments):
    source = existing_file(arguments.ids_from or SHARED_DATA / "wiki.test.txt", "text; name one with --ids-from")
    text = source.read_text(encoding="utf-8")[:arguments.n * 40]  # no token that matters is longer
    if not arguments.ids_from:
        text = wikitext.normalise(text)
    model = LlamaCpp(arguments.model, context=64)
    ids = model.tokenize(text, add_special=True)[:arguments.n]
    model.close()
    if len(ids) < arguments.n:
        raise ToolError(f"{source}: {len(ids)} tokens, expected {arguments.n}")
    return ids


def logits_of(engine, arguments, ids):
    if engine == "narrows":
        return narrows.logits(arguments.narrows, arguments.model, ids)
    if engine == "llama.cpp":
        model = LlamaCpp(arguments.model, len(ids), arguments.threads, arguments.flash, "f32")
        rows = model.logits(ids)
        model.close()
        return rows
    from reference import hf  # slow to import
    return hf.logits(hf.load(arguments.model), ids)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="GGUF file")
    parser.add_argument("--narrows", default=DEFAULT_NARROWS, help="narrows program (default: build/release/narrows)")
    parser.add_argument("--ids-from", metavar="TEXT", help="text file (default: the normalised WikiText-2 test split)")
    parser.add_argument("-n", type=int, default=256, help="tokens (default: 256)")
    parser.add_argument("--reference", choices=["transformers", "llama.cpp"], default="transformers")
    parser.add_argument("--candidate", choices=["narrows", "llama.cpp"], default="narrows")
    parser.add_argument("--flash", action="store_true", help="flash attention in llama.cpp")
    parser.add_argument("-t", "--threads", type=int, default=2, help="threads of llama.cpp (default: 2)")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    try:
        ids = passage(arguments)
        candidate = logits_of(arguments.candidate, arguments, ids)
        reference = logits_of(arguments.reference, arguments, ids)
        result = {"model": str(arguments.model), "tokens": len(ids), "reference": arguments.reference,
                  "candidate": arguments.candidate, **metrics.compare(reference, candidate)}
    except (ToolError, OSError, ValueError) as error:
        sys.exit(f"compare_logits: {error}")
    if arguments.json:
        print(json.dumps(result))
    else:
        print(f"{arguments.candidate} against {arguments.reference}, {len(ids)} tokens of {arguments.model}")
        print(f"  largest |difference|  {result['max_abs_difference']:.6g}")
        print(f"  KL mean / largest     {result['mean_kl']:.3e} / {result['max_kl']:.3e} nats")
        print(f"  top-1 agreement       {result['top1_agreement']:.4f}")


if __name__ == "__main__":
    main()
