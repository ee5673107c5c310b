#!/usr/bin/env python3
"""dump_test.py BATON MPIRUN...: dumps of training on 1 and on 3 ranks, compared by h5diff; sample and plan where
parallel.sp is larger than the number of ranks."""
import os
import random
import subprocess
import sys
import tempfile

BATON, MPIRUN = sys.argv[1], sys.argv[2:]
MODEL = ["--model.layers", "2", "--model.width", "32", "--model.heads", "2", "--run.dtype", "float64"]
TRAIN = ["--data.seq_len", "150", "--train.steps", "4", "--train.batch", "4", "--train.micro_batch", "2",
         "--train.window", "80", "--dump.every", "2", "--dump.grid", "24"]


def run(command):
    result = subprocess.run(command, capture_output=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    if result.returncode != 0:
        sys.exit(f"{command}\nexit {result.returncode}\n{result.stdout.decode()}{result.stderr.decode()}")
    return result.stdout


def check_dumps(dirs):
    for step in (2, 4):
        files = [f"{d}/dumps/step-{step:08d}.h5" for d in dirs]
        for dataset in (f"layer.{i}/{what}" for i in (0, 1) for what in ("state", "dstate", "gate")):
            run(["h5diff", "-d", "1e-12", *files, dataset])
    if sorted(os.listdir(f"{dirs[1]}/dumps")) != ["step-00000002.h5", "step-00000004.h5"]:
        sys.exit(f"the dumps are {os.listdir(f'{dirs[1]}/dumps')}")
    if subprocess.run(["h5diff", "-q", f"{dirs[0]}/dumps/step-00000002.h5", f"{dirs[0]}/dumps/step-00000004.h5",
                       "layer.0/state"]).returncode != 1:
        sys.exit("the dumps of two steps are equal")


def check_sample_and_plan(run_dir):
    sample = ["sample", *MODEL, "--run.dir", run_dir, "--parallel.sp", "4", "--sample.prompt", "in the",
              "--sample.tokens", "30"]
    alone, on_two = run([BATON, *sample]), run([*MPIRUN, "-np", "2", BATON, *sample])
    if alone != on_two or not alone.startswith(b"in the") or len(alone) != len("in the") + 30 + 1:
        sys.exit(f"samples alone and on two ranks: {alone} {on_two}")
    plan = run([BATON, "plan", *MODEL, "--model.vocab", "256", "--parallel.sp", "8"]).decode()
    if "8 ranks (dp 1 x sp 8)" not in plan:
        sys.exit(f"a plan of 8 ranks:\n{plan}")


def main():
    random.seed(1)
    words = "in the beginning was word and light upon earth waters of day night".split()
    with tempfile.TemporaryDirectory() as tmp:
        with open(f"{tmp}/text", "w") as f:
            f.write(" ".join(random.choice(words) for _ in range(4000)))
        dirs = [f"{tmp}/run{n}" for n in (1, 3)]
        for n, run_dir in zip((1, 3), dirs):
            run([*MPIRUN, "-np", str(n), BATON, "train", *MODEL, *TRAIN, "--data.train", f"{tmp}/text", "--run.dir",
                 run_dir])
        check_dumps(dirs)
        check_sample_and_plan(dirs[1])


if __name__ == "__main__":
    main()
