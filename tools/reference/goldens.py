"""What the scripts that make tiny random models share: the prompt and its firm continuation, GPT-2's spelling of bytes,
and the command line."""
import argparse
import math
import pathlib
import sys

import numpy as np

from . import ToolError, hf

PROMPT_TOKENS, GREEDY_TOKENS = 40, 20
LARGEST_FILE, SMALLEST_GAP = 150_000, 0.05


def byte_spelling():
    """The character by which GPT-2's byte-level BPE writes each byte."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    spelling = {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(others)}
    return [spelling[byte] for byte in range(256)]


def greedy(model, ids):
    """The continuation of ids, each step computed from the beginning, and the smallest gap between the two best
    logits on its way."""
    ids, smallest = list(ids), math.inf
    for _ in range(GREEDY_TOKENS):
        last = hf.logits(model, ids)[-1]
        second, first = np.sort(last)[-2:]
        smallest = min(smallest, float(first - second))
        ids.append(int(last.argmax()))
    return ids[-GREEDY_TOKENS:], smallest


def with_firm_continuation(build, first_id, end_id, distinct=7, holds=lambda model, ids: True):
    """Tries seeds until build(seed) continues a random prompt of ids in [first_id, end_id) firmly, with at least
    `distinct` different ids out of the same range, and holds(model, all ids) is true.
    Returns model, prompt, continuation, its smallest gap, seed."""
    for seed in range(1, 400):
        model = build(seed)
        ids = [int(id) for id in np.random.default_rng(1000 + seed).integers(first_id, end_id, PROMPT_TOKENS)]
        following, gap = greedy(model, ids)
        if gap >= SMALLEST_GAP and len(set(following)) >= distinct and \
                all(first_id <= id < end_id for id in following) and holds(model, ids + following):
            return model, ids, following, gap, seed
    raise ToolError("no seed below 400 gives a firm and varied continuation")


def main(script, doc, models, folder, make):
    """Command line: make(name, spec, folder) for the models named; a spec is a dict with `notes`."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="models to make (default: all)")
    parser.add_argument("--into", type=pathlib.Path, default=folder)
    parser.add_argument("--list", action="store_true", help="print the names and stop")
    arguments = parser.parse_args()
    if arguments.list:
        width = max(map(len, models)) + 1
        for name, spec in models.items():
            print(f"{name:{width}}{spec['notes']}")
        return
    try:
        arguments.into.mkdir(parents=True, exist_ok=True)
        for name in arguments.names or models:
            if name not in models:
                raise ToolError(f"unknown model {name!r}, expected one of {', '.join(models)}")
            make(name, models[name], arguments.into)
    except (ToolError, OSError) as error:
        sys.exit(f"{script}: {error}")
