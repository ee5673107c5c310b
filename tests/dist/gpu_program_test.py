"""The whole program on one GPU: what it takes is what its plan says."""
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


driver.require_gpus(1)
driver.main()
