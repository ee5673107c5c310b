"""Runs that are repeated, killed and resumed (V10, V11, V12)."""
import os
import signal

import driver


class Resume(driver.Test):
    def test_v10_two_runs_are_the_same_bits(self):
        for ranks, keys in ((1, {"run__threads": 2}), (3, {}), (4, {"parallel__sp": 2, "train__window": 48})):
            a, b = (self.train(ranks, f"{name}{ranks}", eval__every=5, **keys) for name in "ab")
            self.assertEqual(driver.losses(a), driver.losses(b))
            self.assertEqual(driver.losses(a, key="val_loss"), driver.losses(b, key="val_loss"))
            self.assertEqual(len(driver.losses(a)), 10)
            self.assert_same_tensors(self.checkpoints(a)[-1], self.checkpoints(b)[-1])
        other = self.train(3, "seed", run__seed=2)
        self.assertNotEqual(driver.losses(other), driver.losses(self.dir / "a3"))

    def kill_all(self, job, run_dir):
        mark = f"\0--run.dir\0{run_dir}\0"
        job.process.kill()
        for pid in driver.processes_with(mark):
            if pid != job.process.pid:
                os.kill(pid, signal.SIGKILL)
        job.finish()
        self.wait_for("end of all ranks", lambda: not driver.processes_with(mark))

    def test_v11_killed_and_resumed(self):
        whole = self.train(3, "whole", train__steps=20, checkpoint__every=10)
        # Many more steps would follow: the job is killed somewhere after step 10's checkpoint.
        name = f"killed-{os.getpid()}"
        killed = self.dir / name
        job = self.start(3, "train", name, train__steps=100000, checkpoint__every=10, checkpoint__keep=0)
        self.wait_for("checkpoint", lambda: self.checkpoints(name))
        self.kill_all(job, name)
        step10 = killed / "checkpoints" / "step-00000010"
        self.assertTrue(step10.is_dir())
        metrics = (killed / "metrics.jsonl").read_text()
        (killed / "metrics.jsonl").write_text(metrics + '{"step": 11, "loss": 0.5}\n{"step": 12, "lo')
        done = self.start(3, "train", name, train__steps=20, checkpoint__resume=step10).finish()
        self.assertEqual(done.code, 0, done)
        self.assertEqual(driver.losses(killed), driver.losses(whole))
        self.assertEqual(len(driver.losses(killed)), 20)
        self.assert_same_tensors(whole / "checkpoints/step-00000020", killed / "checkpoints/step-00000020")
        self.assertIn("changed since the checkpoint: train.steps: 100000 -> 20", done.out)

    def test_an_older_checkpoint_begins_another_branch(self):
        first = self.train(2, "run", train__steps=30, checkpoint__every=10, checkpoint__keep=0)
        losses, saved = driver.losses(first), first / "checkpoints"
        step20, step30 = (driver.files_of(saved / f"step-000000{step}") for step in (20, 30))
        self.train(2, "run", train__steps=15, checkpoint__resume=saved / "step-00000010", checkpoint__keep=1)
        self.assertEqual([x.name for x in self.checkpoints("run")], ["step-00000015"])
        self.train(2, "run", train__steps=25, checkpoint__resume="auto")
        self.assertEqual(driver.losses(first), {step: losses[step] for step in range(1, 26)})
        for step, files in ((20, step20), (30, step30)):
            aside = driver.files_of(saved / f"abandoned-1/step-000000{step}")
            self.assertEqual(list(files.values()), list(aside.values()))
        # Back to the first branch, where the second one has a checkpoint of a later step.
        self.train(2, "run", train__steps=20, checkpoint__resume=saved / "abandoned-1/step-00000020")
        self.assertEqual([x.name for x in self.checkpoints("run")], ["step-00000015", "step-00000020"])
        self.assertTrue((saved / "abandoned-2/step-00000025").is_dir())

    def test_v12_on_another_number_of_ranks(self):
        whole = self.train(4, "whole", train__steps=20)
        self.train(4, "base", train__steps=10)
        base = self.checkpoints("base")[-1]
        runs = {}
        for ranks in (4, 1, 2, 3, 8):
            # No step is left to do, so what is saved is what was loaded.
            loaded = self.train(ranks, f"loaded{ranks}", train__steps=10, checkpoint__resume=base)
            self.assert_same_tensors(self.checkpoints(loaded)[-1], base)
            runs[ranks] = self.train(ranks, f"run{ranks}", train__steps=20, checkpoint__resume=base,
                                     checkpoint__every=11)
        self.assertEqual(driver.losses(whole, 11), driver.losses(runs[4]))
        for ranks in (1, 2, 3, 8):
            self.assertEqual(len(driver.losses(runs[ranks], 11, 20)), 10)
            self.assert_close_losses(driver.losses(runs[4]), driver.losses(runs[ranks]))
        self.assertNotEqual(driver.losses(runs[4]), driver.losses(runs[1]))


driver.main()
