"""The whole program on one GPU: what it takes is what its plan says, and what it measures of its kernels."""
import json
import re

import driver

BOUND = 0.05


class Gpu(driver.Test):
    def test_memory_is_the_plans(self):
        config = driver.SOURCE / "configs" / "gla-340m.cfg"
        done = self.run_baton(1, "train", "--config", config, "--run.dir", "run", "--run.device", "cuda", "--run.dtype",
                              "bfloat16", "--data.train", "train.txt", "--data.val=", "--train.steps", 3,
                              "--train.batch", 8, "--train.micro_batch", 8)
        self.assertEqual(done.code, 0, done)
        planned = int(re.search(r"total on a GPU +(\d+) ", done.out)[1])
        lines = (self.dir / "run/metrics.jsonl").read_text().splitlines()
        used = [json.loads(line)["mem_bytes"] for line in lines]
        print(f"{used} bytes in use after each step, {planned} planned")
        self.assertEqual(used, used[:1] * 3)
        self.assertLessEqual(abs(planned - used[-1]), BOUND * used[-1])

    def test_bench_measures_every_gate_and_replays_it(self):
        done = self.run_baton(1, "bench", "kernels", "--device", "cuda", "--shape", "H2_K64_V64", "--gate", "all",
                              "--tokens", 256, "--repeat", 3, "--graph", "--stages", "--json", "kernels.jsonl")
        self.assertEqual(done.code, 0, done)
        device, *cases = map(json.loads, (self.dir / "kernels.jsonl").read_text().splitlines())
        self.assertEqual(device["dtype"], "bfloat16")
        self.assertEqual([case["gate"] for case in cases], ["none", "fixed", "scalar", "vector", "bilinear"])
        for case in cases:
            self.assertEqual([case["B"], case["T"], len(case["stages"])], [128, 256, 6])
            for part in (case["forward"], case["forward_backward"]):
                self.assertGreater(part["graph us"], 0)
                self.assertAlmostEqual(part["launch us"], part["us"] - part["graph us"], places=6)
                self.assertGreater(part["floor %"], 0)

    def test_bench_measures_what_handing_on_takes(self):
        if driver.num_gpus() < 2:
            self.skipTest("no 2 GPUs")
        done = self.run_baton(2, "bench", "comm", "--device", "cuda", "--shape", "H2_K64_V64", "--gate", "vector,fixed",
                              "--tokens", 256, "--repeat", 3, "--graph", "--json", "comm.jsonl")
        self.assertEqual(done.code, 0, done)
        device, gradients, *cases = map(json.loads, (self.dir / "comm.jsonl").read_text().splitlines())
        self.assertEqual([device["ranks"], len(cases)], [2, 2])
        for case in cases:
            for piece in ("message", "message, defaults", "hand-over", "composition", "scan, chain", "scan, doubling",
                          "scan, all_gather", "scan, hierarchical"):
                self.assertGreater(case[piece]["graph us"], 0, piece)
            for how in ("alone", "stages", "chain", "doubling", "all_gather", "hierarchical"):
                self.assertGreater(case["operator"][how]["24 with backward"]["graph us"], 0, how)


driver.require_gpus(1)
driver.main()
