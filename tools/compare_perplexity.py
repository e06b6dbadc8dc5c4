#!/usr/bin/env python3
"""Perplexity of llama.cpp and of narrows on the same text and the same windows, and their ratio.

Use: compare_perplexity.py --model models/M.gguf [--narrows build/release/narrows] [--text TEXT] [--windows 64]
                           [--flash] [--llamacpp-only] [--json] [-- extra arguments for narrows eval]
Needs: pip install -r tools/requirements.txt

The protocol, for both sides. The text becomes one stream of token ids without special tokens. Each window holds 512
tokens in all (--ctx), including the BOS that begins it where the model adds one: so it takes 511 tokens of the stream
with a BOS, 512 without. Windows follow each other without overlap and share no state; an incomplete one is dropped.
In each, the predictions of tokens 2 to 512 are scored, 511 of them; with a BOS, the BOS is the first token.
Perplexity is exp of the mean of -log p over all scored predictions. narrows is told --max-tokens windows x 512: it
counts the tokens that are computed, a BOS included.

llama.cpp runs in this process with an f16 KV cache, flash attention off (--flash: on). TEXT is taken as it is; the
default is ../shared/data/wiki.test.txt, normalised as tools/wikitext.py does.

llama.cpp's figures (llama-cpp-python 0.3.36, AVX-512, default text, 64 windows):
  SmolLM2-135M-Instruct.Q4_1.gguf   23.1928, flash attention on 23.1987   (no BOS)
  gemma-3-270m-Q4_K_M.gguf          19.0076                               (BOS)
"""
import argparse
import json
import math
import pathlib
import sys
import tempfile

import wikitext
from reference import DEFAULT_NARROWS, SHARED_DATA, ToolError, existing_file, metrics, narrows
from reference.llamacpp import LlamaCpp


def llamacpp_perplexity(arguments, text):
    """Perplexity, and the number of windows."""
    model = LlamaCpp(arguments.model, arguments.ctx, arguments.threads, arguments.flash)
    first = [model.bos] if model.add_bos else []
    taken = arguments.ctx - len(first)
    stream = model.tokenize(text)
    windows = min(arguments.windows, len(stream) // taken)
    if windows == 0:
        raise ToolError(f"the text holds {len(stream)} tokens, expected at least {taken}")
    loss = 0.0
    for i in range(windows):
        ids = first + stream[i * taken:(i + 1) * taken]
        loss += metrics.negative_log_likelihood(model.logits(ids)[:-1], ids[1:])
        if sys.stderr.isatty():
            print(f"\rllama.cpp: window {i + 1} of {windows}", end="", file=sys.stderr, flush=True)
    if sys.stderr.isatty():
        print(file=sys.stderr)
    model.close()
    return math.exp(loss / (windows * (arguments.ctx - 1))), windows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="GGUF file")
    parser.add_argument("--narrows", default=DEFAULT_NARROWS, help="narrows program (default: build/release/narrows)")
    parser.add_argument("--text", help="text file (default: the normalised WikiText-2 test split)")
    parser.add_argument("--windows", type=int, default=64, help="windows at most (default: 64)")
    parser.add_argument("--ctx", type=int, default=512, help="tokens in a window (default: 512)")
    parser.add_argument("--flash", action="store_true", help="flash attention in llama.cpp")
    parser.add_argument("-t", "--threads", type=int, default=2, help="threads of llama.cpp (default: 2)")
    parser.add_argument("--llamacpp-only", action="store_true", help="do not run narrows")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("extra", nargs="*", help="arguments handed to narrows eval, after --")
    arguments = parser.parse_args()
    try:
        if arguments.windows < 1 or arguments.ctx < 2:
            raise ToolError("--windows: expected at least 1; --ctx: at least 2")
        source = existing_file(arguments.text or SHARED_DATA / "wiki.test.txt", "text; name one with --text")
        text = source.read_text(encoding="utf-8")
        if not arguments.text:
            text = wikitext.normalise(text)
        if not arguments.llamacpp_only:
            existing_file(arguments.narrows, "the narrows program; build it, or name it with --narrows")
        peer, windows = llamacpp_perplexity(arguments, text)
        result = {"model": str(arguments.model), "windows": windows, "ctx": arguments.ctx, "flash": arguments.flash,
                  "llamacpp_perplexity": peer}
        if not arguments.llamacpp_only:
            with tempfile.TemporaryDirectory() as folder:
                path = pathlib.Path(folder) / "text.txt"
                path.write_text(text, encoding="utf-8", newline="\n")
                found = narrows.perplexity(arguments.narrows, arguments.model, path, arguments.ctx,
                                           windows * arguments.ctx, arguments.extra)
            result |= {"narrows_perplexity": found["perplexity"], "ratio": found["perplexity"] / peer}
    except (ToolError, OSError, ValueError) as error:
        sys.exit(f"compare_perplexity: {error}")
    if arguments.json:
        print(json.dumps(result))
        return
    print(f"{arguments.model}: {windows} windows of {arguments.ctx}")
    print(f"  llama.cpp, flash attention {'on' if arguments.flash else 'off'}   {peer:.4f}")
    if "ratio" in result:
        print(f"  narrows                        {result['narrows_perplexity']:.4f}   ratio {result['ratio']:.5f}")


if __name__ == "__main__":
    main()
