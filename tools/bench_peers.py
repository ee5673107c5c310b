#!/usr/bin/env python3
"""Joins the figures of `baton bench kernels --json` with those of other programs' kernels, measured on the same device:
a table of ratios in Markdown, and a picture of time a token against length.

    tools/bench_peers.py kernels.jsonl peers.jsonl                     writes kernels.png beside kernels.jsonl
    tools/bench_peers.py kernels.jsonl peers.jsonl --out ratios.png

Each line of the peers' file is a JSON object. A case has case (the program's name), B, T, H, K, V, fwd_ms, fwdbwd_ms, and
may have peak_MiB (the most memory in use above its inputs: outputs, gradients and scratch) and gate. Without a gate, "gla"
in its name stands for vector, "lightning" for fixed; any other stands beside every gate. A line with error or skipped is
no case and is told of below the table; one with gpu names the device.
"""
import argparse
import json
import os
import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

SIZES = ("B", "T", "H", "K", "V")
GATE_BYTES = {"vector": lambda c: 4 * c["K"], "scalar": lambda c: 4, "bilinear": lambda c: 4 * (c["K"] + c["V"])}
PARTS = (("forward", "forward"), ("forward_backward", "forward and backward"))


def read_lines(path):
    try:
        with open(path) as f:
            lines = [json.loads(line) for line in f if line.strip()]
    except (OSError, ValueError) as e:
        sys.exit(f"bench_peers: {path}: must be a file of JSON lines that can be read ({e})")
    if not all(isinstance(line, dict) for line in lines):
        sys.exit(f"bench_peers: {path}: every line must be a JSON object")
    return lines


def peer_case(line):
    """A peer's line as a case of baton's: milliseconds, and its scratch."""
    name = line["case"]
    gate = line.get("gate") or ("vector" if "gla" in name else "fixed" if "lightning" in name else None)
    case = {key: line[key] for key in SIZES} | {"case": name, "gate": gate}
    case |= {"forward": line["fwd_ms"], "forward_backward": line["fwdbwd_ms"]}
    if "peak_MiB" in line:
        # o, dout and dv; dq and dk; the gates' gradients: all a run must have beside its inputs.
        a_token = 2 * (3 * case["V"] + 2 * case["K"]) + GATE_BYTES.get(gate, lambda c: 0)(case)
        case["scratch_MiB"] = line["peak_MiB"] - case["B"] * case["T"] * case["H"] * a_token / 2**20
    return case


def baton_case(line):
    case = {key: line[key] for key in (*SIZES, "case", "gate", "scratch_MiB")}
    return case | {part: line[part]["us"] / 1e3 for part, _ in PARTS}


def cases_of(path, lines, convert):
    try:
        return [convert(line) for line in lines if all(key in line for key in SIZES) and not left_out(line)]
    except (KeyError, TypeError) as e:
        sys.exit(f"bench_peers: {path}: a case has no {e}")


def left_out(line):
    return line.get("error") or line.get("skipped")


def beside(case, peer):
    return all(case[key] == peer[key] for key in SIZES) and peer["gate"] in (None, case["gate"])


def ratios(case, peer):
    """Peer's times over baton's, and baton's scratch over the peer's."""
    text = " / ".join(f"{peer[part] / case[part]:.2f}" for part, _ in PARTS)
    return text + (f" ({case['scratch_MiB'] / peer['scratch_MiB']:.2f})" if peer.get("scratch_MiB", 0) > 0 else "")


def heads(case):
    return f"H{case['H']} {case['K']} x {case['V']}"


def table(cases, peers):
    names = list(dict.fromkeys(peer["case"] for peer in peers))
    columns = ["heads", "gate", "B x T", "forward ms", "with backward ms", "scratch MiB", *names]
    yield "| " + " | ".join(columns) + " |"
    yield "|---" * len(columns) + "|"
    for case in cases:
        row = [heads(case), case["gate"], f"{case['B']} x {case['T']}", f"{case['forward']:.3f}",
               f"{case['forward_backward']:.3f}", f"{case['scratch_MiB']:.0f}"]
        for name in names:
            found = [peer for peer in peers if peer["case"] == name and beside(case, peer)]
            row.append(ratios(case, found[-1]) if found else "")
        yield "| " + " | ".join(row) + " |"


def draw(cases, peers, out):
    shapes = list(dict.fromkeys(map(heads, cases)))
    fig, axes = plt.subplots(2, len(shapes), figsize=(5 * len(shapes), 8), dpi=120, squeeze=False)
    for column, shape in enumerate(shapes):
        lines = {}
        for case in cases + peers:
            if heads(case) == shape:
                lines.setdefault((case["case"], case["gate"]), []).append(case)
        for row, (part, title) in enumerate(PARTS):
            ax = axes[row][column]
            for (name, gate), line in lines.items():
                line = sorted(line, key=lambda c: (c["T"], c["B"]))
                ax.plot([c["T"] for c in line], [1e6 * c[part] / (c["B"] * c["T"]) for c in line],
                        marker="o", markersize=3, linestyle="-" if name == "baton" else "--",
                        label=f"{name} {gate or ''}".strip())
            ax.set(title=f"{shape}, {title}", yscale="log", xlabel="tokens of a sequence",
                   ylabel="ns a token")
            ax.set_xscale("log", base=2)
            ax.grid(alpha=0.3, which="both")
            ax.legend(frameon=False, fontsize=8)
    fig.tight_layout()
    fig.savefig(out + ".tmp", format="png")
    os.replace(out + ".tmp", out)
    plt.close(fig)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kernels", metavar="KERNELS", help="file of baton bench kernels --json")
    parser.add_argument("peers", metavar="PEERS", help="JSON lines of the other programs")
    parser.add_argument("--out", help="picture; default: KERNELS with the ending .png")
    args = parser.parse_args()
    ours, theirs = read_lines(args.kernels), read_lines(args.peers)
    gpus = list(dict.fromkeys(line["gpu"] for line in ours + theirs if "gpu" in line))
    if len(gpus) > 1:
        sys.exit(f"bench_peers: {args.kernels} and {args.peers} must be of one device, not of {' and '.join(gpus)}")
    cases, peers = cases_of(args.kernels, ours, baton_case), cases_of(args.peers, theirs, peer_case)
    if not any(beside(case, peer) for case in cases for peer in peers):
        sys.exit(f"bench_peers: no case of {args.kernels} has the sizes and gate of one in {args.peers}")
    print(f"{', '.join(gpus)}: the peer's time over baton's, forward / forward and backward (baton's scratch over the peer's)\n")
    print("\n".join(table(cases, peers)))
    for line in filter(left_out, theirs):
        print(f"\nleft out: {line.get('case')} B {line.get('B')} T {line.get('T')}: {left_out(line)}")
    out = args.out or os.path.splitext(args.kernels)[0] + ".png"
    draw(cases, peers, out)
    print(f"\n{out}")


if __name__ == "__main__":
    main()
