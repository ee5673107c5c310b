#!/usr/bin/env python3
"""Draws the loss of one or more runs: training and validation, by step.

    tools/plot_loss.py runs/gla-tiny                          writes runs/gla-tiny/loss.png
    tools/plot_loss.py runs/a runs/b --out compare.png        several runs in one picture
    tools/plot_loss.py runs/gla-tiny --line 2.31 "byte given the one before"
"""
import argparse
import json
import math
import os
import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt


def read_metrics(run):
    """Lines of RUN/metrics.jsonl, or of the file itself; a last line under way is left out."""
    path = os.path.join(run, "metrics.jsonl") if os.path.isdir(run) else run
    rows = []
    try:
        with open(path) as f:
            for line in f:
                if line.endswith("\n"):
                    rows.append(json.loads(line))
    except (OSError, ValueError) as e:
        sys.exit(f"plot_loss: {path}: must be a metrics.jsonl that can be read ({e})")
    return rows


def curve(rows, name):
    points = [(r["step"], r[name]) for r in rows if math.isfinite(r.get(name, math.nan))]
    return [p[0] for p in points], [p[1] for p in points]


def smooth(values, weight):
    """Exponential mean, corrected for its start."""
    mean, out = 0.0, []
    for i, v in enumerate(values):
        mean = weight * mean + (1 - weight) * v
        out.append(mean / (1 - weight ** (i + 1)))
    return out


def run_name(run):
    path = os.path.abspath(run)
    return os.path.basename(path if os.path.isdir(path) else os.path.dirname(path))


def draw(runs, line, out):
    fig, ax = plt.subplots(figsize=(8, 4.5), dpi=120)
    for i, run in enumerate(runs):
        rows, color = read_metrics(run), f"C{i}"
        steps, loss = curve(rows, "loss")
        if not steps:
            sys.exit(f"plot_loss: {run}: must hold at least one step with a loss")
        smoothed = smooth(loss, 0.9 if len(loss) >= 50 else 0.0)
        name = run_name(run)
        ax.plot(steps, loss, color=color, alpha=0.25, linewidth=0.8)
        ax.plot(steps, smoothed, color=color, linewidth=1.4, label=f"{name}: training")
        val_steps, val = curve(rows, "val_loss")
        if val:
            ax.plot(val_steps, val, color=color, marker="o", markersize=4, linestyle="--", linewidth=1,
                    label=f"{name}: validation, {val[-1]:.3f} at the end")
    if line:
        ax.axhline(float(line[0]), color="gray", linewidth=1, linestyle=":", label=f"{line[1]}: {float(line[0]):.3f}")
    ax.set_xlabel("step")
    ax.set_ylabel("loss (nats a token)")
    ax.grid(alpha=0.3)
    ax.legend(frameon=False)
    fig.tight_layout()
    fig.savefig(out + ".tmp", format="png")
    os.replace(out + ".tmp", out)
    plt.close(fig)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", metavar="RUN", help="run directory or metrics.jsonl")
    parser.add_argument("--out", help="picture; default: loss.png in the first run directory")
    parser.add_argument("--line", nargs=2, metavar=("LOSS", "LABEL"), help="a horizontal line to compare with")
    args = parser.parse_args()
    first = args.runs[0] if os.path.isdir(args.runs[0]) else os.path.dirname(args.runs[0])
    out = args.out or os.path.join(first, "loss.png")
    draw(args.runs, args.line, out)
    print(out)


if __name__ == "__main__":
    main()
