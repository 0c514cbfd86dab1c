#!/usr/bin/env python3
"""Draws losses by context length from run directories, as `longreach report --svg` does.

    loss_by_length.py RUN_OR_SWEEP... --out loss.svg

Lines are means over seeds. The bands are one standard error of the mean to each side, as in the report; with --interval
they are its 95% interval, which is wide for few seeds. Only losses of the same tokens are drawn together. The type of
the picture follows the name: .svg, .pdf, .png. Needs matplotlib.
"""

import argparse
import math
import sys

import longreach

try:
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt
except ImportError as missing:
    sys.exit(f"loss_by_length.py needs matplotlib: {missing}; pip install 'longreach[plot]'")

# Those of the report's charts (src/plot/chart.css); colour, dash and marker together tell more than eight series apart.
COLOURS = ["#03256f", "#7f0000", "#306f46", "#d66799", "#968d00", "#2794db", "#7b3bdc", "#4b2a44"]
DASHES = ["-", (0, (6, 3)), (0, (2, 3)), (0, (9, 3, 2, 3)), (0, (12, 4))]
MARKERS = ["o", "s", "^", "D", "v", "P", "X"]


def plain_text(text):
    """A name as it is: matplotlib reads a dollar sign as the start of a formula, and a line feed as a line's end."""
    return str(text).replace("$", r"\$") if str(text).isprintable() else repr(str(text)).replace("$", r"\$")


def series_of(means):
    """(name, index of the variant, index of its evaluation, rows), in the order of the variants."""
    for number, variant in enumerate(dict.fromkeys(means["variant"])):
        rows = means[means["variant"] == variant]
        labels = sorted(set(rows["evaluation"]), key=lambda label: (label != "plain", label))
        for place, label in enumerate(labels):
            name = variant if label == "plain" else f"{variant} + {label}"
            yield name, number, place, rows[rows["evaluation"] == label].sort_values("length")


def draw(axes, means, interval=False):
    for name, number, place, rows in series_of(means):
        colour = COLOURS[number % len(COLOURS)]
        dash = DASHES[(number // len(COLOURS) + place) % len(DASHES)]
        marker = MARKERS[(number + place * (len(MARKERS) - 1)) % len(MARKERS)]
        axes.plot(rows["length"], rows["loss"], color=colour, linestyle=dash, marker=marker, markersize=5,
                  markerfacecolor="white" if place else colour, linewidth=1.6, label=plain_text(name))
        low, high = ((rows["low"], rows["high"]) if interval else
                     (rows["loss"] - rows["standard_error"], rows["loss"] + rows["standard_error"]))
        axes.fill_between(rows["length"], low, high, color=colour, alpha=0.16, linewidth=0)


def figure(study, chosen="", interval=False):
    """(the figure, a line on what the losses were measured on)."""
    lengths = study.lengths()
    rows = lengths[(lengths["set"] == chosen) & ~lengths["apart"] & ~lengths["behind"]]
    if rows.empty:
        raise longreach.RunError(f"no losses on {chosen or 'data.val'} to draw")
    means = study.means()
    means = means[means["set"] == chosen]
    if not means["loss"].map(math.isfinite).any():
        raise longreach.RunError("no loss is finite")
    count, documents = rows["scored"].iloc[0], rows["documents"].iloc[0]
    text = f"{count:,.0f} tokens" + (f" of {documents:,.0f} documents" if documents > 0 else "")
    out, axes = plt.subplots(figsize=(8.2, 4.6), layout="constrained")
    draw(axes, means, interval)
    axes.set_xscale("log", base=2)
    ticks = sorted(set(means["length"]))
    axes.set_xticks(ticks, [f"{t // 1024}K" if t % 1024 == 0 else str(t) for t in ticks])
    axes.minorticks_off()
    axes.set_xlabel("tokens of context")
    axes.set_ylabel("loss" + (f" on {plain_text(chosen)}" if chosen else "") + ", nats per token")
    axes.grid(axis="y", color="#e6e8eb")
    axes.spines[["top", "right"]].set_visible(False)
    trained = {max((s["context"] for s in run.config["stages"]), default=0) for run in study if run.config.get("stages")}
    if len(trained) == 1:
        axes.axvline(trained.pop(), color="#9aa2ad", linestyle=(0, (3, 3)), linewidth=1, zorder=0)
    # Beside the lines, in their order at the longest length.
    last = means[means["length"] == ticks[-1]].set_index(["variant", "evaluation"])["loss"]
    order = [last.get((rows["variant"].iloc[0], rows["evaluation"].iloc[0]), math.nan)
             for _, _, _, rows in series_of(means)]
    handles, labels = axes.get_legend_handles_labels()
    by_loss = sorted(range(len(handles)), key=lambda i: -order[i] if math.isfinite(order[i]) else -math.inf)
    out.legend([handles[i] for i in by_loss], [labels[i] for i in by_loss], loc="outside right upper", frameon=False)
    return out, text


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("runs", nargs="+", metavar="RUN_OR_SWEEP", help="directories, or patterns of them")
    parser.add_argument("--out", default="loss.svg", help="picture to write (default: loss.svg)")
    parser.add_argument("--set", default="", dest="chosen", help="of data.val_sets in place of data.val")
    parser.add_argument("--interval", action="store_true", help="bands are 95%% intervals of the mean")
    options = parser.parse_args()
    # Letters stay letters, and the same losses give the same bytes.
    plt.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "longreach", "font.size": 10})
    try:
        study = longreach.runs(*options.runs)
        picture, measured = figure(study, options.chosen, options.interval)
        picture.savefig(options.out, metadata={"Date": None} if options.out.endswith(".svg") else None)
    except (longreach.RunError, OSError, ValueError) as error:
        sys.exit(f"error: {error}")
    for note in study.notes:
        print(note)
    print(f"{options.out}: {measured}")


if __name__ == "__main__":
    main()
