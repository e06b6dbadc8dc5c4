#!/usr/bin/env python3
"""Bits times ratio: models shrunk by A3 and then quantized, against quantization alone, at equal bytes.

Use: pareto.py --model M.gguf --calibration VALID --text TEST --work FOLDER [--shares 0.1,0.2,0.4] [--types Q8_0,Q5_0,Q4_1,Q4_0]
               [--max-tokens 8192] [--json FILE] [--threads 2] [--narrows build/release/narrows] [-- further flags of compress]
     pareto.py --plot FILE.json OUT.svg
Needs: pip install matplotlib for --plot alone.

For each share: `narrows compress --ratio` (FOLDER/a10.gguf, …; one that is there is used as it is), then `narrows quantize`
to each type, then `narrows eval --reference M` on the text. Share 0 is the model itself. Bytes are the weights that a token
reads. FOLDER keeps the compressed models; the others are removed. Figures that FILE holds already are not measured again.
"""
import argparse
import json
import pathlib
import sys

from reference import DEFAULT_NARROWS, ToolError, narrows

COLOURS = {0: "#444444", 0.1: "#0072b2", 0.2: "#009e73", 0.4: "#d55e00"}


def measure(arguments, path, label, share):
    described = json.loads(narrows.run(arguments.narrows, "info", path, "--json"))
    result = json.loads(narrows.run(arguments.narrows, "eval", "-m", path, "--reference", arguments.model, "-f", arguments.text,
                                    "--max-tokens", arguments.max_tokens, "-t", arguments.threads, "--json"))
    return {"label": label, "share": share, "bytes": described["weight_bytes_per_token"],
            "ratio": float(result["perplexity_ratio"]), "error": result.get("log_ratio_error"), "kl": float(result["kl_mean"]),
            "top1": float(result["top1_agreement"])}


def points(arguments, extra):
    known = json.loads(arguments.json.read_text()) if arguments.json and arguments.json.exists() else []
    done = {point["label"] for point in known}
    arguments.work.mkdir(parents=True, exist_ok=True)
    for share in [0.0, *arguments.shares]:
        name = f"a{round(100 * share)}"
        base = pathlib.Path(arguments.model) if share == 0 else arguments.work / f"{name}.gguf"
        if not base.exists():
            narrows.run(arguments.narrows, "compress", "-m", arguments.model, "-f", arguments.calibration, "-o", base, "--ratio",
                        share, "-t", arguments.threads, *extra)
        for kind in ["", *arguments.types]:
            label = f"{name} {kind or ('as it is' if share == 0 else 'as compressed')}"
            if label in done:
                continue
            path = base
            if kind:
                path = arguments.work / f"{name}.{kind}.gguf"
                narrows.run(arguments.narrows, "quantize", base, path, kind)
            known.append(measure(arguments, path, label, share))
            if kind:
                path.unlink()
            if arguments.json:
                arguments.json.write_text(json.dumps(known, indent=1) + "\n")
            point = known[-1]
            print(f"{label:12} {point['bytes'] / 1e6:7.1f} MB  ratio {point['ratio']:.3f}  KL {point['kl']:.3f}  top-1 "
                  f"{100 * point['top1']:.0f} %", flush=True)


def plot(source, target):
    import matplotlib
    matplotlib.use("svg")
    import matplotlib.pyplot as plt
    figure, axes = plt.subplots(figsize=(7, 4.2))
    found = json.loads(source.read_text())
    for share in sorted({point["share"] for point in found}):
        mine = sorted((p for p in found if p["share"] == share), key=lambda p: p["bytes"])
        axes.plot([p["bytes"] / 1e6 for p in mine], [p["ratio"] for p in mine], "o-", color=COLOURS.get(share),
                  label="quantization alone" if share == 0 else f"A3, {100 * share:.0f} % removed")
        for p in mine:
            axes.annotate(p["label"].split(" ", 1)[1], (p["bytes"] / 1e6, p["ratio"]), fontsize=7, xytext=(3, 3),
                          textcoords="offset points")
    axes.set_xlabel("MB of weights that a token reads")
    axes.set_ylabel("perplexity ratio")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(target)


def main():
    if "--plot" in sys.argv[1:2]:
        return plot(pathlib.Path(sys.argv[2]), sys.argv[3])
    given, extra = sys.argv[1:], []
    if "--" in given:
        at = given.index("--")
        given, extra = given[:at], given[at + 1:]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--calibration", required=True)
    parser.add_argument("--text", required=True)
    parser.add_argument("--work", required=True, type=pathlib.Path)
    parser.add_argument("--shares", default="0.1,0.2,0.4", type=lambda s: [float(v) for v in s.split(",")])
    parser.add_argument("--types", default="Q8_0,Q5_0,Q4_1,Q4_0", type=lambda s: s.split(","))
    parser.add_argument("--max-tokens", default=8192)
    parser.add_argument("--threads", default=2)
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--narrows", default=DEFAULT_NARROWS)
    return points(parser.parse_args(given), extra)


if __name__ == "__main__":
    try:
        main()
    except (ToolError, OSError, IndexError) as error:
        sys.exit(f"pareto: {error}")
