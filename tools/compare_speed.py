#!/usr/bin/env python3
"""Speed of llama.cpp and of narrows on the same file, in alternating rounds, and the ratios of the medians.

Use: compare_speed.py --model models/M.gguf [--narrows build/release/narrows] [-p 512] [-n 64] [-d 0,2048] [--parallel 8]
                      [-t 2] [--rounds 5] [--json] [-- extra arguments for narrows bench]
Needs: pip install -r tools/requirements.txt

  pp512          tokens/s of a prompt of 512 tokens
  tg64@d2048     tokens/s of one sequence, 64 tokens after 2048 in the cache
  tg64x8@d0      tokens/s of 8 sequences that decode together, all of them counted (--parallel; at the first depth)
  start          milliseconds from opening the file (in the page cache) to the logits after a prompt of 16 tokens

llama.cpp runs through its C API in this process, f16 KV cache; each of its figures is the better one of flash
attention on and off. narrows is its own program: `narrows bench -o json`, and for `start` `narrows run -n 1`, the start of
the process included (llama.cpp's is not). No token is sampled but that one. Exit status 0 whatever the figures.
"""
import argparse
import json
import statistics
import subprocess
import sys
import time

from reference import DEFAULT_NARROWS, ToolError, existing_file


class Peer:
    """llama.cpp with one context for prompts and one sequence, one for `parallel` sequences."""

    def __init__(self, path, threads, context, parallel, parallel_context, flash):
        import llama_cpp as C
        from reference import llamacpp  # sets the log aside
        C.llama_log_set(llamacpp._silent, None)
        C.llama_backend_init()
        self.C, self.path, self.threads, self.flash = C, path, threads, flash
        self.model = C.llama_model_load_from_file(str(path).encode(), C.llama_model_default_params())
        if not self.model:
            raise ToolError(f"{path}: llama.cpp cannot load it")
        self.one = self._context(self.model, context, 1)
        self.many = self._context(self.model, parallel_context * parallel, parallel) if parallel > 1 else None
        self.parallel = parallel
        vocab = C.llama_vocab_n_tokens(C.llama_model_get_vocab(self.model))
        self.ids = [(i * 7919 + 13) % min(vocab, 30000) for i in range(context)]

    def _context(self, model, tokens, sequences):
        C = self.C
        params = C.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch, params.n_seq_max = tokens, 2048, 512, sequences
        params.n_threads = params.n_threads_batch = self.threads
        params.flash_attn_type = 1 if self.flash else 0
        context = C.llama_init_from_model(model, params)
        if not context:
            raise ToolError("llama.cpp cannot make a context")
        return context

    def _decode(self, context, entries):
        """entries: (token, position, sequence); logits of each sequence's last one."""
        C = self.C
        for at in range(0, len(entries), 2048):
            part = entries[at:at + 2048]
            batch = C.llama_batch_init(len(part), 0, 1)
            batch.n_tokens = len(part)
            last = {sequence: i for i, (_, _, sequence) in enumerate(part)}
            for i, (token, position, sequence) in enumerate(part):
                batch.token[i], batch.pos[i] = token, position
                batch.n_seq_id[i], batch.seq_id[i][0] = 1, sequence
                batch.logits[i] = last[sequence] == i
            failed = C.llama_decode(context, batch)
            C.llama_batch_free(batch)
            if failed:
                raise ToolError("llama_decode failed")
        C.llama_get_logits_ith(context, -1)

    def _clear(self, context):
        self.C.llama_memory_clear(self.C.llama_get_memory(context), True)

    def prompt(self, n):
        self._clear(self.one)
        self._decode(self.one, [(t, i, 0) for i, t in enumerate(self.ids[:16])])
        self._clear(self.one)
        entries = [(t, i, 0) for i, t in enumerate(self.ids[:n])]
        start = time.perf_counter()
        self._decode(self.one, entries)
        return n / (time.perf_counter() - start)

    def generate(self, n, depth, sequences=1):
        context = self.one if sequences == 1 else self.many
        self._clear(context)
        for s in range(sequences):
            self._decode(context, [(t, i, s) for i, t in enumerate(self.ids[:depth + 1])])
        start = time.perf_counter()
        for i in range(depth + 1, depth + 1 + n):
            self._decode(context, [(self.ids[i], i, s) for s in range(sequences)])
        return n * sequences / (time.perf_counter() - start)

    def start(self):
        C = self.C
        start = time.perf_counter()
        model = C.llama_model_load_from_file(str(self.path).encode(), C.llama_model_default_params())
        context = self._context(model, 512, 1)
        self._decode(context, [(t, i, 0) for i, t in enumerate(self.ids[:16])])
        milliseconds = (time.perf_counter() - start) * 1e3
        C.llama_free(context)
        C.llama_model_free(model)
        return milliseconds


def narrows_start(narrows, model, threads, ids):
    command = [narrows, "run", "-m", model, "-t", str(threads), "-c", "512", "-n", "1", "-no-cnv", "--no-perf",
               "--prompt-ids", ",".join(map(str, ids))]
    start = time.perf_counter()
    subprocess.run(command, capture_output=True, check=True)
    return (time.perf_counter() - start) * 1e3


def main():
    argv, extra = sys.argv[1:], []
    if "--" in argv:
        at = argv.index("--")
        argv, extra = argv[:at], argv[at + 1:]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="GGUF file")
    parser.add_argument("--narrows", default=DEFAULT_NARROWS, help="narrows program (default: build/release/narrows)")
    parser.add_argument("-p", type=int, default=512, help="tokens of the prompt; 0: no such test (default: 512)")
    parser.add_argument("-n", type=int, default=64, help="tokens generated (default: 64)")
    parser.add_argument("-d", default="0,2048", help="depths (default: 0,2048)")
    parser.add_argument("--parallel", type=int, default=8, help="sequences of the batched test; 1: none (default: 8)")
    parser.add_argument("-t", type=int, default=2, help="threads (default: 2)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--no-start", action="store_true", help="leave the start-up test out")
    parser.add_argument("--json", action="store_true")
    a = parser.parse_args(argv)
    existing_file(a.model, "a GGUF model")
    existing_file(a.narrows, "the narrows program")
    depths = [int(d) for d in a.d.split(",")]
    context = max(a.p, max(depths) + a.n + 8, 64) + 64
    peers = {flash: Peer(a.model, a.t, context, a.parallel, depths[0] + a.n + 64, flash) for flash in (True, False)}
    seen = {}

    def note(who, key, value):
        seen.setdefault((who, key), []).append(value)

    keys = ([f"pp{a.p}"] if a.p else []) + [f"tg{a.n}@d{d}" for d in depths]
    if a.parallel > 1:
        keys.append(f"tg{a.n}x{a.parallel}@d{depths[0]}")
    if not a.no_start:
        keys.append("start")
    bench = [a.narrows, "bench", "-m", a.model, "-t", str(a.t), "-r", "1", "-o", "json"] + extra
    fraction = {}
    for r in range(a.rounds):
        if sys.stderr.isatty():
            print(f"\rround {r + 1} of {a.rounds}", end="", file=sys.stderr, flush=True)
        for flash, peer in peers.items():
            if a.p:
                note(flash, f"pp{a.p}", peer.prompt(a.p))
            for d in depths:
                note(flash, f"tg{a.n}@d{d}", peer.generate(a.n, d))
            if a.parallel > 1:
                note(flash, f"tg{a.n}x{a.parallel}@d{depths[0]}", peer.generate(a.n, depths[0], a.parallel))
            if not a.no_start:
                note(flash, "start", peer.start())
        runs = [["-p", str(a.p), "-n", str(a.n), "-d", a.d]]
        if a.parallel > 1:
            runs.append(["-p", "0", "-n", str(a.n), "-d", str(depths[0]), "-np", str(a.parallel)])
        for arguments in runs:
            output = subprocess.run(bench + arguments, capture_output=True, text=True, check=True).stdout
            for row in json.loads(output):
                many = f"x{row['n_parallel']}" if row["n_parallel"] > 1 else ""
                key = f"tg{row['n_gen']}{many}@d{row['n_depth']}" if row["n_gen"] else f"pp{row['n_prompt']}"
                note("narrows", key, row["avg_ts"])
                if row["bandwidth_fraction"]:
                    fraction.setdefault(key, []).append(row["bandwidth_fraction"])
        if not a.no_start:
            note("narrows", "start", narrows_start(a.narrows, a.model, a.t, peers[True].ids[:16]))
    if sys.stderr.isatty():
        print(file=sys.stderr)

    rows = []
    for key in keys:
        medians = [statistics.median(seen[(flash, key)]) for flash in peers]
        better = min(medians) if key == "start" else max(medians)
        mine = statistics.median(seen[("narrows", key)])
        rows.append({"test": key, "llama_cpp": round(better, 1), "narrows": round(mine, 1),
                     "ratio": round(better / mine if key == "start" else mine / better, 2),
                     "bandwidth_fraction": round(statistics.median(fraction[key]), 2) if key in fraction else None})
    if a.json:
        print(json.dumps(rows, indent=1))
        return
    print("| test | llama.cpp | narrows | ratio | of read bandwidth |\n| --- | ---: | ---: | ---: | ---: |")
    for row in rows:
        share = f"{row['bandwidth_fraction']:.0%}" if row["bandwidth_fraction"] else ""
        print(f"| {row['test']} | {row['llama_cpp']} | {row['narrows']} | {row['ratio']} | {share} |")


if __name__ == "__main__":
    try:
        main()
    except ToolError as error:
        raise SystemExit(f"compare_speed: {error}") from None
