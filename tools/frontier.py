#!/usr/bin/env python3
"""Quality against weight bytes read per token, for every method of reading less than the whole model: the frontier.

Use: frontier.py --model models/M.gguf [--methods teal,graded-allocated,…] [--windows 8] [--json FILE]
                 [--plot FILE.svg] [--cache FILE] [--head] [--redraw]
Needs: pip install -r tools/requirements.txt, and narrows for its tokenizer.

The reference is the file's model with its weights in Q8_0. A fraction is the mean number of bytes read per token over
the dense weights' in Q8_0, the head among them: bases, encoders, rotations, column norms, block scales and the dense
weights of slow paths all count (the norms' and the embedding's row do not: both sides read them). A ratio is
perplexity over the reference's, on windows of 512 of WikiText-2's test split (tools/wikitext.py), laid out as in
compare_perplexity.py; everything is calibrated on its valid split (8192 tokens), but for gsi-paper. Arithmetic is
float32. The fractions that the settings name are met on calibration text; those printed are of the test text.

The error given with a ratio is the standard error of the mean difference of -log p, of few windows and large;
the KL divergence (dense || method, in nats, every fourth position) orders methods far more surely.

Methods:
  static                      the whole model converted to smaller types
  teal, teal-allocated        columns by |x|, the same share everywhere; by norm and the site's sensitivity
  rotation(-allocated)        a PCA of each site's input (its reading counted; the dashed curve leaves it out)
  shared-rotation(-allocated) one rotation of the residual stream (not for models with norms after each half)
  r-sparse                    columns by |x| and a low-rank rest
  gsi-quarter, gsi-half       gated subspace inference, k = d/4 and d/2, calibrated on other text
  gsi-paper-quarter, -half    the same with the basis calibrated on the evaluated tokens themselves (2 windows)
  output-aware-quarter, -half oblique projection, gated on an estimate of the output's error
  online-quarter, -half       gsi whose basis follows the text
  graded, graded-allocated    columns skipped, at 4 bits or at 8; the same bits everywhere; by sensitivity
  graded-noise                as graded-allocated, sensitivity from noise instead of gradients
  graded-rows                 as graded-allocated, each output weighted by its own Fisher information
  graded-centred              as graded-allocated, columns of x - mean
  graded-five                 as graded-allocated, with 0, 2, 4, 6 or 8 bits
  graded-rotation, graded-head-rotation, graded-shared-rotation
                              as graded-allocated, in rotated bases: every site's own, the head's alone, the stream's
  graded-five-head-rotation   both
--head: the output head alone, its arg max certified by bounds or rescored.
--json: methods that were measured replace those of the same name in FILE, others stay. --redraw: table and plot of
FILE alone.
"""
import argparse
import json
import pathlib
import re
import sys
import time

from reference import DEFAULT_NARROWS, SHARED_DATA, ToolError

FRACTIONS = (0.9, 0.8, 0.7, 0.6, 0.5)
GRADED = (0.85, 0.75, 0.65, 0.55, 0.45, 0.35)
EPSILONS = (0.05, 0.1, 0.2, 0.4, 0.8)
SAVED = (0.1, 0.25, 0.5, 0.75, 0.9)


def all_methods():
    from frontier.columns import Columns, Static
    from frontier.formats import STATIC_TYPES
    from frontier.subspace import Gated, Online, OutputAware, RSparse
    made = [Static(STATIC_TYPES), Columns("teal", FRACTIONS, norms=False),
            Columns("teal-allocated", FRACTIONS, rule="fisher")]
    for name, basis in (("rotation", "site"), ("shared-rotation", "shared")):
        made += [Columns(name, FRACTIONS, basis), Columns(f"{name}-allocated", FRACTIONS, basis, rule="fisher")]
    made.append(RSparse("r-sparse", FRACTIONS))
    for name, share in (("quarter", 1 / 4), ("half", 1 / 2)):
        made += [Gated(f"gsi-{name}", EPSILONS, share), Gated(f"gsi-paper-{name}", EPSILONS, share, paper=True),
                 OutputAware(f"output-aware-{name}", SAVED, share), Online(f"online-{name}", EPSILONS, share)]
    made += [Columns("graded", GRADED, grades=(4, 8)),
             Columns("graded-allocated", GRADED, grades=(4, 8), rule="fisher"),
             Columns("graded-noise", GRADED, grades=(4, 8), rule="noise"),
             Columns("graded-rows", GRADED, grades=(4, 8), rule="rows"),
             Columns("graded-centred", GRADED, grades=(4, 8), rule="fisher", centre=True),
             Columns("graded-shared-rotation", GRADED, "shared", grades=(4, 8), rule="fisher"),
             Columns("graded-five", GRADED, grades=(2, 4, 6, 8), rule="fisher"),
             Columns("graded-five-head-rotation", GRADED, "head", grades=(2, 4, 6, 8), rule="fisher"),
             Columns("graded-head-rotation", GRADED, "head", grades=(4, 8), rule="fisher"),
             Columns("graded-rotation", GRADED, "site", grades=(4, 8), rule="fisher")]
    return {method.name: method for method in made}


def measure(subject, method, paper_windows):
    """The method's points, or why it cannot be."""
    reason = method.prepare(subject)
    if reason:
        return reason
    points = []
    indices = list(range(len(subject.test)))
    if method.per_window:
        return measure_by_window(subject, method, indices[:paper_windows])
    for setting in method.settings:
        method.set(setting)
        points.append({"setting": setting} | subject.evaluate(method, indices))
        if getattr(method, "basis", None) == "site":
            points[-1]["uncounted_fraction"] = round(points[-1]["fraction"] - points[-1]["helper_fraction"], 4)
        show(method.name, points[-1])
    return points


def measure_by_window(subject, method, indices):
    """A basis for each window: windows outermost."""
    scored = {setting: [] for setting in method.settings}
    tallies = {setting: {} for setting in method.settings}
    for i in indices:
        method.prepare_window(subject.test[i])
        for setting in method.settings:
            method.set(setting)
            subject.evaluate(method, [i])
            scored[setting].append(subject.last)
            for site in subject.sites:
                old = tallies[setting].get(site.name, (0, 0, 0))
                tallies[setting][site.name] = tuple(a + b for a, b in zip(old, site.tally()))
    points = []
    for setting in method.settings:
        for site in subject.sites:
            site.tokens, site.bits, site.helper_bits = tallies[setting][site.name]
        references = [subject.reference_of(i) for i in indices]
        points.append({"setting": setting} | subject.point(scored[setting], references))
        show(method.name, points[-1])
    return points


def as_text(stored):
    """JSON, a line for each point."""
    text = json.dumps(stored, indent=1)
    return re.sub(r"\{[^{}]*(\{[^{}]*\}[^{}]*)?\}", lambda m: re.sub(r"\s*\n\s*", " ", m[0]), text) + "\n"


def show(name, p):
    kinds = " ".join(f"{kind} {share:.3f}" for kind, share in p["kinds"].items())
    print(f"{name:24} {p['setting']!s:>9}  fraction {p['fraction']:.4f} (helpers {p['helper_fraction']:.4f})  "
          f"ratio {p['ratio']:9.4f} ± {p['log_ratio_se']:.4f}  KL {p['kl']:.5f}  "
          f"top-1 {p['top1']:.3f}   {kinds}", flush=True)


def show_head(points):
    for p in points["certified"]:
        what = f"k {p['k']}" if "k" in p else f"skipped {p['skipped']}"
        print(f"head certified, {p['method']}, {what}: {p['surviving_rows']:.2%} of the rows survive, "
              f"fraction {p['fraction']}")
    for p in points["rescored"]:
        print(f"head rescored, fraction {p['fraction']:.4f}, best {p['best']}: {p['misses']} misses of "
              f"{p['positions']}, ratio {p['ratio']}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="GGUF file")
    parser.add_argument("--methods", help="names separated by commas, or none (default: all)")
    parser.add_argument("--windows", type=int, default=8, help="test windows of 512 (default: 8)")
    parser.add_argument("--thin", action="store_true", help="every second setting of each method")
    parser.add_argument("--paper-windows", type=int, default=2, help="for gsi-paper (default: 2)")
    parser.add_argument("--head", action="store_true", help="study the head alone as well")
    parser.add_argument("--head-positions", type=int, default=10000)
    parser.add_argument("--certified-positions", type=int, default=1000)
    parser.add_argument("--narrows", default=DEFAULT_NARROWS)
    parser.add_argument("--valid", default=SHARED_DATA / "wiki.valid.txt", help="calibration text, word-level")
    parser.add_argument("--test", default=SHARED_DATA / "wiki.test.txt", help="held-out text, word-level")
    parser.add_argument("--cache", help="keeps the calibration in this file, or takes it from there")
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--plot")
    parser.add_argument("--redraw", action="store_true", help="measure nothing")
    parser.add_argument("-t", "--threads", type=int, default=1)
    a = parser.parse_args()
    try:
        stored = json.loads(a.json.read_text()) if a.json and a.json.is_file() else {}
        name = pathlib.Path(a.model).stem
        result = stored.setdefault(name, {"methods": {}, "seconds": {}})
        if a.redraw:
            for method, points in result["methods"].items():
                for p in points if isinstance(points, list) else []:
                    show(method, p)
            if "head" in result:
                show_head(result["head"])
        else:
            measure_all(a, stored, result)
        if a.plot:
            from frontier.plot import draw
            draw(name, result["methods"], a.plot)
    except (ToolError, OSError, ValueError) as error:
        sys.exit(f"frontier: {error}")


def measure_all(a, stored, result):
    import torch
    from frontier import heads
    from frontier.subject import Subject
    torch.set_num_threads(a.threads)
    torch.set_grad_enabled(False)
    methods = all_methods()
    wanted = list(methods) if a.methods is None else [m for m in a.methods.split(",") if m != "none"]
    for method in wanted:
        if method not in methods:
            raise ToolError(f"--methods: {method}: expected some of {', '.join(methods)}")

    def keep():
        if a.json:
            a.json.write_text(as_text(stored))

    for method in methods.values():
        method.settings = list(method.settings)[::2 if a.thin else 1]
    begin = time.monotonic()
    subject = Subject(a.model, a.narrows, a.windows, (a.valid, a.test))
    subject.calibrate(a.cache)
    print(f"calibrated in {time.monotonic() - begin:.0f} s", flush=True)
    result["sensitivity"] = {s.name: [float(f"{s.fisher:.4g}"), float(f"{s.noise:.4g}")] for s in subject.sites}
    for name in wanted:
        begin = time.monotonic()
        found = measure(subject, methods.pop(name), a.paper_windows)
        if isinstance(found, str):
            print(f"{name:24} impossible: {found}")
        result["methods"][name] = found
        result["seconds"][name] = round(time.monotonic() - begin)
        print(f"{name:24} took {result['seconds'][name]} s", flush=True)
        keep()
    if a.head:
        result["head"] = {"certified": heads.certified(subject, a.certified_positions),
                          "rescored": heads.rescored(subject, a.head_positions, (0.2, 0.3, 0.4, 0.5))}
        show_head(result["head"])
        keep()


if __name__ == "__main__":
    main()
