#!/usr/bin/env python3
"""Where narrows stands between the memory's limit and the arithmetic's: a roofline plot as SVG.

Use: plot_roofline.py models/A.gguf [models/B.gguf …] -o docs/roofline.svg [--narrows build/release/narrows]
                      [--bench build/bench/bench_matmul] [-t 2]
Needs: pip install matplotlib; bench_matmul: cmake --preset bench && cmake --build --preset bench

Each model is measured on the spot: decode at depths 0 and 2048, 8 sequences together, a prompt of 512 tokens. x: products
(multiply-adds) of weights for each byte of weights and cache read; y: products a second. The slope is the read bandwidth
that `narrows bench` measures, the ceiling the fastest product with 512 tokens that bench_matmul finds (one layer of 7B
shape, quantized types). Attention's own products are left out of both.
"""
import argparse
import json
import pathlib
import subprocess

from reference import DEFAULT_NARROWS, REPOSITORY, ToolError, existing_file


def run_json(*command):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    if done.returncode:
        raise ToolError(f"{command[0]}: {(done.stderr.strip().splitlines() or ['failed'])[-1]}")
    return json.loads(done.stdout)


def points(narrows, model, threads):
    """(label, products per byte, products per second), and the bandwidth."""
    info = run_json(narrows, "info", model, "--json")
    head = info["vocab_size"] * info["embedding_length"]
    blocks = info["parameters"] - head * (1 if info.get("tied_head", True) else 2)
    common = [narrows, "bench", "-m", model, "-t", threads, "-n", 64, "-r", 3, "-o", "json"]
    rows = run_json(*common, "-p", 512, "-d", "0,2048") + run_json(*common, "-p", 0, "-d", 0, "-np", 8)
    found = []
    for row in rows:
        rate = max(row["samples_ts"])
        if row["n_gen"]:
            label = f"decode × {row['n_parallel']}" if row["n_parallel"] > 1 else f"decode at {row['n_depth']}"
            found.append((label, (blocks + head) / row["bytes_per_token"], (blocks + head) * rate))
        else:
            per_token = info["weight_bytes_per_token"] / row["n_prompt"]
            found.append((f"prompt of {row['n_prompt']}", blocks / per_token, blocks * rate))
    return found, max(row["bandwidth"] for row in rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+")
    parser.add_argument("-o", "--output", required=True)
    parser.add_argument("--narrows", default=DEFAULT_NARROWS)
    parser.add_argument("--bench", default=REPOSITORY / "build" / "bench" / "bench_matmul")
    parser.add_argument("-t", "--threads", type=int, default=2)
    a = parser.parse_args()
    try:
        import matplotlib
        matplotlib.use("svg")
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise ToolError(f"pip install matplotlib ({error})") from None
    for path in [a.narrows, a.bench, *a.models]:
        existing_file(path, "needed to measure")

    kernels = run_json(a.bench, f"--benchmark_filter=(Q4_1|Q8_0)/[^/]*/tokens:512/threads:{a.threads}/",
                       "--benchmark_format=json")["benchmarks"]
    ceiling = max(k["GMAC/s"] for k in kernels) * 1e9
    measured = {pathlib.Path(m).stem: points(a.narrows, m, a.threads) for m in a.models}
    bandwidth = max(b for _, b in measured.values())

    plt.rcParams["svg.hashsalt"] = "narrows"
    figure, axes = plt.subplots(figsize=(8, 5))
    knee = ceiling / bandwidth
    axes.plot([0.5, knee, 3000], [0.5 * bandwidth / 1e9, ceiling / 1e9, ceiling / 1e9], color="black", linewidth=1.2)
    axes.annotate(f"memory: {bandwidth / 1e9:.0f} GB/s", (knee / 3, ceiling / 3e9), textcoords="offset points",
                  xytext=(-8, 0), ha="right", fontsize=8)
    axes.annotate(f"8-bit products: {ceiling / 1e9:.0f} G/s", (knee * 1.3, ceiling / 1e9), textcoords="offset points",
                  xytext=(0, 6), fontsize=8)
    for (name, (found, _)), marker in zip(measured.items(), "osD^v"):
        axes.scatter([x for _, x, _ in found], [y / 1e9 for _, _, y in found], marker=marker, s=28, label=name)
        for label, x, y in found:
            axes.annotate(label, (x, y / 1e9), textcoords="offset points", xytext=(6, -3), fontsize=7)
    axes.set(xscale="log", yscale="log", xlabel="products per byte read", ylabel="10⁹ products per second",
             title=f"{a.threads} threads")
    axes.set_ylim(0.4 * bandwidth / 1e9, 2 * ceiling / 1e9)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter("{x:g}")
        axis.set_minor_formatter("")
    axes.legend(fontsize=8, loc="lower right")
    axes.grid(True, which="major", alpha=0.3)
    figure.tight_layout()
    figure.savefig(a.output, metadata={"Date": None})


if __name__ == "__main__":
    try:
        main()
    except ToolError as error:
        raise SystemExit(f"plot_roofline: {error}") from None
