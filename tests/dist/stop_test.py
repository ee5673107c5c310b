"""Stopping on request (V25): signals to mpirun, to one rank, to the ranks; in steps, validation and between windows."""
import os
import signal
import time

import driver

STOPPED = 75


class Stop(driver.Test):
    def ranks_of(self, job, name):
        """Process ids of the ranks alone."""
        return [pid for pid in driver.processes_with(f"\0--run.dir\0{name}\0") if pid != job.process.pid]

    def stop(self, name, send, ranks=3, ready=None, **keys):
        """Starts a run without end, sends the signal once it is at work, and sees it stop in good order."""
        keys = {"train__steps": 100000, **keys}
        job = self.start(ranks, "train", name, **keys)
        metrics = self.dir / name / "metrics.jsonl"
        self.wait_for("work", ready or (lambda: metrics.exists() and metrics.stat().st_size > 0))
        send(job, self.ranks_of(job, name))
        done = job.finish(30)
        self.assertEqual(done.code, STOPPED, done)
        self.wait_for("end of all ranks", lambda: not driver.processes_with(f"\0--run.dir\0{name}\0"), 5)
        saved = self.checkpoints(name)
        self.assertEqual(len(saved), 1, done)
        self.assertIn("stopped on request after step", done.out)
        self.assertNotIn("rank ", done.err.replace("mpirun", ""), done)
        return int(saved[0].name[5:]), done

    def assert_goes_on(self, name, step, ranks=3, **keys):
        """Resumed, the next 5 steps and the parameters are those of a run that was never stopped."""
        run = self.train(ranks, name, train__steps=step + 5, checkpoint__resume="auto", **keys)
        whole = self.train(ranks, name + "-whole", train__steps=step + 5, checkpoint__keep=0, **keys)
        self.assertEqual(driver.losses(run), driver.losses(whole))
        self.assertEqual(len(driver.losses(run)), step + 5)
        self.assert_same_tensors(self.checkpoints(name)[-1], self.checkpoints(name + "-whole")[-1])

    def test_v25_in_training(self):
        pid = os.getpid()
        ways = {"mpirun": lambda job, ranks: os.kill(job.process.pid, signal.SIGUSR1),
                "one": lambda job, ranks: os.kill(ranks[-1], signal.SIGUSR1),
                "term": lambda job, ranks: [os.kill(rank, signal.SIGTERM) for rank in ranks]}
        for way, send in ways.items():
            with self.subTest(way):
                step, _ = self.stop(f"{way}-{pid}", send)
                self.assertGreaterEqual(step, 1)
                self.assert_goes_on(f"{way}-{pid}", step)

    def test_v25_in_validation(self):
        name = f"validation-{os.getpid()}"
        # The step is over in no time; the validation would last for minutes.
        (self.dir / "val.txt").write_bytes(driver.bytes_of_text(1 << 20, 3) * 64)
        tb = self.dir / name / "tb"
        step, _ = self.stop(name, lambda job, ranks: os.kill(ranks[0], signal.SIGUSR1), eval__every=1,
                            eval__tokens=1 << 26, ready=lambda: self.at_work(tb))
        self.assertEqual(step, 1)
        self.assertEqual(driver.losses(self.dir / name, key="val_loss"), {})
        self.assertEqual(len(driver.losses(self.dir / name)), 1)

    def at_work(self, tb):
        """A run says nothing inside a step or a validation: a second after its files were made it is there."""
        return tb.exists() and time.time() - tb.stat().st_mtime > 1

    def test_v25_between_windows(self):
        name = f"windows-{os.getpid()}"
        (self.dir / "train.txt").write_bytes(driver.bytes_of_text(1 << 20, 3) * 64)
        keys = {"data__seq_len": 1 << 24, "train__window": 4096, "train__batch": 1, "run__grace": 0.2, "data__val": ""}
        tb = self.dir / name / "tb"
        step, _ = self.stop(name, lambda job, ranks: os.kill(ranks[1], signal.SIGUSR1), ready=lambda: self.at_work(tb),
                            **keys)
        # The step would have lasted for minutes and was dropped; what stands is the start.
        self.assertEqual(step, 0)
        self.assertEqual(driver.losses(self.dir / name), {})

    def test_v25_between_windows_goes_on(self):
        for order in ("permuted", "stream"):
            name = f"dropped-{order}-{os.getpid()}"
            keys = {"train__window": 16,
                    "run__grace": 0, "train__batch": 16, "data__seq_len": 960, "data__order": order}
            step, _ = self.stop(name, lambda job, ranks: os.kill(job.process.pid, signal.SIGUSR1), **keys)
            self.assert_goes_on(name, step, **keys)

    def test_v25_without_mpirun(self):
        name = f"alone-{os.getpid()}"
        step, _ = self.stop(name, lambda job, ranks: os.kill(job.process.pid, signal.SIGTERM), ranks=0)
        self.assert_goes_on(name, step, ranks=1)


driver.main()
