"""Dumps do not show the number of ranks (h5diff finds no difference); sample and plan take any parallel.sp."""
import subprocess

import driver

MODEL = {"run__dtype": "float64", "data__seq_len": 150, "train__steps": 4, "train__micro_batch": 2,
         "train__window": 80, "dump__every": 2, "dump__grid": 24}


def h5diff(*args):
    return subprocess.run(["h5diff", *map(str, args)], capture_output=True, text=True)


class Dump(driver.Test):
    def test_dumps_of_one_and_three_ranks(self):
        runs = [self.train(ranks, f"run{ranks}", **MODEL) for ranks in (1, 3)]
        names = ["step-00000002.h5", "step-00000004.h5"]
        for run in runs:
            self.assertEqual(sorted(path.name for path in (run / "dumps").iterdir()), names)
        for name in names:
            files = [run / "dumps" / name for run in runs]
            for dataset in (f"layer.{i}/{what}" for i in (0, 1) for what in ("state", "dstate", "gate")):
                done = h5diff("-d", "1e-12", *files, dataset)
                self.assertEqual(done.returncode, 0, done)
        self.assertEqual(h5diff("-q", *(runs[0] / "dumps" / name for name in names), "layer.0/state").returncode, 1)

    def test_sample_and_plan_take_more_ranks_than_there_are(self):
        self.train(3, "run")
        alone, on_two = (self.start(ranks, "sample", "run", parallel__sp=4, sample__prompt="in the",
                                    sample__tokens=30).finish() for ranks in (0, 2))
        self.assertEqual(alone.code, 0, alone)
        self.assertEqual(alone.out, on_two.out)
        self.assertTrue(alone.out.startswith("in the"))
        self.assertEqual(len(alone.out), len("in the") + 30 + 1)
        plan = self.run_baton(0, "plan", "--config", "tiny.cfg", "--parallel.sp", 8)
        self.assertIn("8 ranks (dp 1 x sp 8)", plan.out)


driver.main()
