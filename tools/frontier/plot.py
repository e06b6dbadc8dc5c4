"""The frontier as an SVG: fractions of the dense bytes across; upwards, on log scales, perplexity ratio - 1 and, in the
lower panel, the KL divergence, which few windows measure far more precisely."""
try:
    import matplotlib
    matplotlib.use("svg")
    import matplotlib.pyplot as plt
except ImportError as error:
    raise SystemExit(f"matplotlib is needed: pip install -r tools/requirements.txt ({error})") from None

LEFT, RIGHT = 0.28, 1.45
PANELS = (  # what, least (points below it stand on it), most, label
    (lambda p: p["ratio"] - 1, 2e-3, 4.0, "perplexity ratio − 1 (on the lowest line: that or less)"),
    (lambda p: p["kl"], 5e-4, 4.0, "KL(dense ‖ method) in nats"),
)

# One color a family; variants differ by line and marker.
STYLES = {
    "static": ("black", ":", "*"), "teal": ("tab:blue", "-", "o"), "teal-allocated": ("tab:blue", "--", "o"),
    "rotation": ("tab:green", "-", "s"), "rotation-allocated": ("tab:green", "-.", "s"),
    "shared-rotation": ("tab:olive", "-", "D"), "shared-rotation-allocated": ("tab:olive", "-.", "D"),
    "r-sparse": ("tab:cyan", "-", "v"), "gsi-quarter": ("tab:orange", "-", "<"), "gsi-half": ("tab:orange", "-", ">"),
    "gsi-paper-quarter": ("tab:orange", ":", "<"), "gsi-paper-half": ("tab:orange", ":", ">"),
    "output-aware-quarter": ("tab:purple", "-", "<"), "output-aware-half": ("tab:purple", "-", ">"),
    "online-quarter": ("tab:pink", "-", "<"), "online-half": ("tab:pink", "-", ">"),
    "graded": ("tab:red", "-", "o"), "graded-allocated": ("darkred", "-", "o"), "graded-noise": ("darkred", ":", "x"),
    "graded-rows": ("tab:brown", "-", "^"), "graded-centred": ("tab:brown", "--", "x"),
    "graded-shared-rotation": ("tab:gray", "--", "D"), "graded-rotation": ("tab:green", ":", "s"),
    "graded-head-rotation": ("black", "-", "D"), "graded-five": ("magenta", "-", "."),
    "graded-five-head-rotation": ("magenta", "--", "D"),
}


def draw(title, methods, output):
    plt.rcParams["svg.hashsalt"] = "narrows"
    figure, panels = plt.subplots(2, 1, figsize=(11, 14))
    for axes, (value, least, most, label) in zip(panels, PANELS):
        axes.set(yscale="log", xlim=(LEFT, RIGHT), ylim=(least / 1.15, most), ylabel=label,
                 xlabel="bytes of weights and helpers read per token / dense Q8_0")
        axes.axvline(1, color="black", linewidth=0.8)
        axes.yaxis.set_major_formatter("{x:g}")
        axes.grid(True, which="major", alpha=0.3)
    panels[0].set_title(title)
    figure.tight_layout()
    for axes, (value, least, most, _) in zip(panels, PANELS):
        ends = []
        for name, points in methods.items():
            if not isinstance(points, list):
                continue
            color, line, marker = STYLES.get(name, ("gray", "-", "."))
            label = f"{name} (calibrated on the evaluated text)" if name.startswith("gsi-paper") else name
            pairs = [(p["fraction"], max(value(p), least)) for p in points]
            ends += _curve(axes, pairs, most, color, line, marker, label)
            if "uncounted_fraction" in points[0]:
                pairs = [(p["uncounted_fraction"], max(value(p), least)) for p in points]
                ends += _curve(axes, pairs, most, color, "--", None, f"{name}, matrices not counted")
        _labels(axes, ends)
    figure.savefig(output, metadata={"Date": None})


def _curve(axes, pairs, most, color, line, marker, label):
    pairs = sorted(pairs)
    axes.plot(*zip(*pairs), color=color, linestyle=line, marker=marker, markersize=4, linewidth=1.3)
    inside = [pair for pair in pairs if LEFT <= pair[0] <= RIGHT and pair[1] <= most]
    return [(*inside[0], label, color)] if inside else []


def _labels(axes, ends):
    """At each curve's left end, moved upwards until it touches no other label."""
    taken, border = [], axes.transData.transform((LEFT, 1))[0]
    for x, y, label, color in sorted(ends, key=lambda e: e[1]):
        px, py = axes.transData.transform((x, y))
        width, height = 5.2 * len(label), 11
        left = px - 6 - width if px - 6 - width > border else px + 6
        while any(abs(py - ty) < height and left < right and begin < left + width for begin, right, ty in taken):
            py += 2
        taken.append((left, left + width, py))
        axes.annotate(label, (x, y), xytext=axes.transData.inverted().transform((left, py)), textcoords="data",
                      fontsize=7.5, color=color, va="center",
                      arrowprops={"arrowstyle": "-", "color": color, "linewidth": 0.4})
