#!/usr/bin/env python3
"""bench_peers_test.py TOOL: joins made-up figures of which every ratio is known."""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

TOOL = sys.argv[1]
SIZES = {"B": 16, "T": 2048, "H": 4, "K": 256, "V": 512}


def ours(gate, us, both_us, **sizes):
    return {"case": "baton", "gate": gate, **SIZES, **sizes, "scratch_MiB": 656, "forward": {"us": us},
            "forward_backward": {"us": both_us}}


def theirs(case, ms, both_ms, **more):
    return {"case": case, **SIZES, "fwd_ms": ms, "fwdbwd_ms": both_ms, **more}


class BenchPeers(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.dir = pathlib.Path(scratch.name)

    def run_tool(self, kernels, peers, *args, gpus=("a GPU", "a GPU")):
        for name, lines, gpu in (("kernels.jsonl", kernels, gpus[0]), ("peers.jsonl", peers, gpus[1])):
            lines = [{"gpu": gpu}, *lines]
            (self.dir / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
        return subprocess.run([sys.executable, "-B", TOOL, "kernels.jsonl", "peers.jsonl", *args], cwd=self.dir,
                              capture_output=True, text=True)

    def test_ratios_of_equal_sizes_and_gates(self):
        done = self.run_tool(
            [ours("vector", 500, 2000), ours("fixed", 250, 1000), ours("vector", 800, 3000, B=1, T=32768)],
            [theirs("x.gla", 1.5, 5, peak_MiB=3264), theirs("x.lightning", 0.5, 3), theirs("softmax", 10, 15),
             theirs("x.gla", 2, 9, B=1, T=32768), theirs("x.gla", 7, 7, H=5)])
        self.assertEqual(done.returncode, 0, done.stderr)
        rows = [line for line in done.stdout.splitlines() if line.startswith("| ")]
        self.assertEqual(rows, [
            "| heads | gate | B x T | forward ms | with backward ms | scratch MiB | x.gla | x.lightning | softmax |",
            # 640 MiB of the peer's 3,264 are outputs and gradients: o, dout, dv 128 each, dq, dk 64, float32 gates 128.
            "| H4 256 x 512 | vector | 16 x 2048 | 0.500 | 2.000 | 656 | 3.00 / 2.50 (0.25) |  | 20.00 / 7.50 |",
            "| H4 256 x 512 | fixed | 16 x 2048 | 0.250 | 1.000 | 656 |  | 2.00 / 3.00 | 40.00 / 15.00 |",
            "| H4 256 x 512 | vector | 1 x 32768 | 0.800 | 3.000 | 656 | 2.50 / 3.00 |  |  |",
        ])
        self.assertIn("a GPU: the peer's time over baton's", done.stdout)
        self.assertEqual((self.dir / "kernels.png").read_bytes()[:8], b"\x89PNG\r\n\x1a\n")

    def test_what_a_peer_left_out_is_told(self):
        done = self.run_tool([ours("vector", 500, 2000)],
                             [theirs("x.gla", 1, 4), {"case": "x.gla", **SIZES, "T": 9, "error": "out of memory"}],
                             "--out", "picture.png")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("left out: x.gla B 16 T 9: out of memory", done.stdout)
        self.assertTrue((self.dir / "picture.png").is_file())

    def test_what_cannot_be_joined_is_refused(self):
        done = self.run_tool([ours("fixed", 500, 2000)], [theirs("x.gla", 1, 4)])
        self.assertIn("no case of kernels.jsonl has the sizes and gate of one in peers.jsonl", done.stderr)
        done = self.run_tool([ours("vector", 500, 2000)], [theirs("x.gla", 1, 4)], gpus=("a GPU", "another"))
        self.assertIn("must be of one device, not of a GPU and another", done.stderr)
        done = self.run_tool([ours("vector", 500, 2000)], [{"case": "x.gla", **SIZES, "fwd_ms": 1}])
        self.assertIn("peers.jsonl: a case has no 'fwdbwd_ms'", done.stderr)
        self.assertEqual(done.returncode, 1)
        self.assertFalse((self.dir / "kernels.png").exists())


unittest.main(argv=sys.argv[:1])
