#!/usr/bin/env python3
"""Compares a step of RANKS ranks with what `baton plan` predicts for it from a step of one rank and the measured links.

    tools/plan_check.py 2 --config configs/gla-tiny.cfg --run.threads 1
    tools/plan_check.py 2 --config configs/gla-1.3b.cfg --data.train data/train.txt --data.format text --data.seq_len 16384 \\
        --train.batch 1 --train.micro_batch 1

All that stands after the number goes to baton. One rank trains on sequences of data.seq_len tokens (train.window, where
given, is that of one rank too), RANKS ranks on sequences RANKS times as long, 12 steps each; the median of the last 11
counts. `baton bench comm` measures the sum of gradients, the strategy and the links are those of parallel.scan = auto.
Exits 1 where the prediction is more than 10% off. BATON and MPIRUN in the environment name other programs.
"""
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile

BATON = os.environ.get("BATON", "build/baton")
MPIRUN = os.environ.get("MPIRUN", "mpirun --oversubscribe --bind-to none").split()
BOUND = 0.10


def run(ranks, *args):
    command = (MPIRUN + ["-np", str(ranks)] if ranks > 1 else []) + [BATON, *args]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"plan_check: {' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


def key(config_text, name):
    """A value of the resolved configuration, config.cfg."""
    section, entry = name.split(".")
    part = config_text.split(f"[{section}]")[1].split("\n[")[0]
    return re.search(rf"(?m)^{entry} = ?(.*)$", part)[1]


def train(ranks, run_dir, keys, *more):
    out = run(ranks, "train", *keys, "--run.dir", run_dir, "--train.steps", "12", "--data.val=", "--run.peak_tflops", "1",
              "--checkpoint.every", "0", "--parallel.scan", "auto", *more)
    with open(f"{run_dir}/metrics.jsonl") as f:
        steps = [json.loads(line)["step_s"] for line in f]
    with open(f"{run_dir}/config.cfg") as f:
        return statistics.median(steps[1:]), f.read(), out


def main():
    if "--help" in sys.argv:
        return print(__doc__)
    if len(sys.argv) < 3 or not sys.argv[1].isdigit() or int(sys.argv[1]) < 2:
        sys.exit(__doc__)
    ranks, keys = int(sys.argv[1]), sys.argv[2:]
    with tempfile.TemporaryDirectory() as scratch:
        one, config, _ = train(1, f"{scratch}/one", keys)
        longer = [word for name in ("data.seq_len", "train.window")
                  for word in (f"--{name}", str(ranks * int(key(config, name))))]
        many, config, out = train(ranks, f"{scratch}/many", keys, *longer)
    links = re.search(r"with (--plan\.latency .*)", out)[1].split()
    device = ["--device", key(config, "run.device")]
    bench = run(ranks, "bench", "comm", *device, "--shape", "H4_K32_V64", "--gate", "none", "--tokens", "64", "--repeat", "5")
    links += re.search(r"--plan\.sum_.*", bench)[0].split()
    table = run(1, "plan", *keys, "--data.val=", "--plan.ranks", str(ranks), "--plan.step_s", str(one), *links)
    strategy = key(config, "parallel.scan")
    predicted = float(re.search(rf"(?m)^ +{ranks} .* {strategy} .* (\S+) +\S+% +\S+$", table)[1]) / 1e3
    print(" ".join(links))
    print(f"one rank {one:.4f} s a step, {ranks} ranks by {strategy} {many:.4f} s, predicted {predicted:.4f} s "
          f"({predicted / many - 1:+.1%})")
    sys.exit(abs(predicted / many - 1) > BOUND)


if __name__ == "__main__":
    main()
