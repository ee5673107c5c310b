#!/usr/bin/env python3
"""launch_scripts_test.py SOURCE_DIR: the scripts of launch/, and tools/gpu_check.sh, with a driver's tool and a
scheduler of the test's own."""
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

SOURCE = pathlib.Path(sys.argv[1])


class Scripts(unittest.TestCase):
    """A scratch directory, first in PATH."""

    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.dir = pathlib.Path(scratch.name)
        self.environment = {**os.environ, "PATH": f"{self.dir}:{os.environ['PATH']}"}

    def add_tool(self, name, script):
        (self.dir / name).write_text("#!/bin/sh\n" + script)
        (self.dir / name).chmod(0o755)


class Gpus(Scripts):

    def shell(self, command, capabilities=None, visible=None):
        """What bash prints, with a driver for GPUs of these capabilities, or (None) without one."""
        if capabilities is None:
            self.add_tool("nvidia-smi", "exit 9\n")
        else:
            names = "\n".join(f"GPU {i}: Some GPU (UUID: GPU-{i})" for i in range(len(capabilities)))
            self.add_tool("nvidia-smi", "case $1 in -L) cat <<END\n" + names + "\nEND\n;;\n*) cat <<END\n" +
                          "\n".join(capabilities) + "\nEND\nesac\n")
        environment = {**self.environment, "CUDA_VISIBLE_DEVICES": visible}
        if visible is None:
            del environment["CUDA_VISIBLE_DEVICES"]
        script = f"set -euo pipefail\nsource {SOURCE}/launch/gpus.sh\n{command}"
        done = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True, check=True)
        self.assertEqual(done.stderr, "")
        return done.stdout.strip()

    def test_number(self):
        for capabilities, visible, expected in (
                (None, None, 0), ([], None, 0), (["9.0"], None, 1), (["9.0"] * 8, None, 8), (["9.0"] * 8, "", 0),
                (["9.0"] * 8, "2,5", 2), (["9.0"], "0,1", 1), (["9.0"], "-1", 0), (None, "0", 0)):
            with self.subTest(capabilities=capabilities, visible=visible):
                self.assertEqual(self.shell("num_gpus", capabilities, visible), str(expected))

    def test_architectures(self):
        for capabilities, expected in ((None, ""), (["9.0"] * 2, "90a"), (["8.0"], "80"), (["8.6", "9.0"], "86;90a"),
                                       (["12.0", "9.0", "8.9"], "89;90a;120"), (["7.5"], ""), (["9.0", "7.5"], "")):
            with self.subTest(capabilities=capabilities):
                self.assertEqual(self.shell("gpu_architectures", capabilities), expected)

    def test_build_directory(self):
        build = self.dir / "build"
        build.mkdir()
        ask = lambda wanted: self.shell(f"built_for {build} '{wanted}' && echo yes || echo no")
        self.assertEqual((ask(""), ask("90a")), ("no", "no"))
        (build / "build.ninja").write_text("  DEFINES = -DFMT_SHARED\n")
        (build / "CMakeCache.txt").write_text("BATON_CUDA_ARCHITECTURES:STRING=80;90a\n")
        self.assertEqual((ask(""), ask("90a")), ("yes", "no"))
        (build / "build.ninja").write_text("  DEFINES = -DBATON_HAS_CUDA -DFMT_SHARED\n")
        self.assertEqual((ask(""), ask("90a"), ask("80;90a"), ask("86;90a"), ask("90")), ("no", "yes", "yes", "no", "no"))


class Slurm(Scripts):
    def job(self, *args, doctor=0, train=0):
        """The batch script's exit code, and the calls it made."""
        calls = self.dir / "calls"
        calls.write_text("")
        self.add_tool("srun", f'echo srun "$@" >>{calls}\ncase " $* " in *" doctor "*) exit {doctor};; esac\nexit {train}\n')
        self.add_tool("scontrol", f'echo scontrol "$@" >>{calls}\n')
        environment = {**self.environment, "SLURM_JOB_ID": "42", "SLURM_CPUS_PER_TASK": "8", "BATON": "/opt/baton"}
        done = subprocess.run(["bash", SOURCE / "launch/slurm.sbatch", *args], env=environment, capture_output=True)
        return done.returncode, calls.read_text().splitlines()

    def test_job(self):
        self.assertEqual(self.job(), (2, []))
        code, calls = self.job("big.cfg", "--run.dir", "runs/big")
        self.assertEqual((code, len(calls)), (0, 2))
        self.assertRegex(calls[0], r"^srun --mpi=pmix .*--cpus-per-task=8 .*/opt/baton doctor$")
        self.assertRegex(calls[1], "/opt/baton train --config big.cfg --checkpoint.resume auto --run.dir runs/big$")

    def test_ends(self):
        """Stopped on request: back in the queue. A failure is not tried again, and a doctor's ends the job."""
        code, calls = self.job("big.cfg", train=75)
        self.assertEqual((code, calls[2:]), (75, ["scontrol requeue 42"]))
        code, calls = self.job("big.cfg", train=4)
        self.assertEqual((code, len(calls)), (4, 2))
        code, calls = self.job("big.cfg", doctor=1)
        self.assertEqual((code, len(calls)), (1, 1))


class GpuCheck(Scripts):
    """tools/gpu_check.sh on programs that only print and write what the real ones would."""

    def check(self, num_gpus, **tests):
        names = "\n".join(f"GPU {i}: Some GPU" for i in range(num_gpus))
        self.add_tool("nvidia-smi", f"case $1 in -L) echo '{names}';; *) echo Some GPU;; esac\n")
        skip_options = 'while [ "${1#/}" = "$1" ]; do shift; done\n'
        self.add_tool("mpirun", skip_options + 'exec "$@"\n')
        self.add_tool("compute-sanitizer", skip_options + '"$@" && echo "ERROR SUMMARY: 0 errors"\n')
        metrics = "\n".join('{"step":%d,"tokens":1,"loss":%g,"tokens_per_s":1000.5}' % (i, 5 - i / 50) for i in range(1, 61))
        self.add_tool("baton", f"""case $1 in
            replay) echo '9 tensors, 0 failed';;
            train) mkdir -p $5; cat >$5/metrics.jsonl <<'END'\n{metrics}\nEND\nesac\n""")
        for name in ("cuda_ops_test", "cuda_linear_attention_test", "cuda_linear_attention_walk_test", "nccl_dist_test"):
            self.add_tool(name, tests.get(name, "echo '[  PASSED  ] 3 tests.'\n"))
        done = subprocess.run(["bash", SOURCE / "tools/gpu_check.sh", self.dir], env=self.environment, capture_output=True,
                              text=True)
        table = done.stdout[done.stdout.index("step    "):].splitlines()[1:-1]
        return done.returncode, {line[:42].strip(): line[42:55].strip() for line in table}, done.stdout

    def test_all_passes(self):
        for num_gpus, num_steps in ((1, 15), (2, 25)):
            code, results, out = self.check(num_gpus)
            self.assertEqual((code, set(results.values()), len(results)), (0, {"ok"}, num_steps), out)
        self.assertRegex(out, r"train gla-tiny, 2 GPU +ok +\d+ +loss 4.9800, 3.8000 after 60 steps, 1000 tokens/s")
        self.assertRegex(out, r"memcheck cuda_ops_test +ok +\d+ +ERROR SUMMARY: 0 errors")

    def test_failures_are_seen(self):
        none = "echo '[  PASSED  ] 0 tests.'\n"
        code, results, out = self.check(1, cuda_ops_test="echo broken; exit 1\n", cuda_linear_attention_test=none,
                                        cuda_linear_attention_walk_test=none)
        self.assertEqual(code, 1)
        failed = {name for name, result in results.items() if result == "FAILED (1)"}
        self.assertEqual(failed, {name for name in results if "cuda_" in name}, out)
        self.assertIn("broken", out)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
