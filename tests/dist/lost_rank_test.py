"""Jobs that lose a rank (V23), on BATON_TEST_DEVICE: killed or stopped while they train, save or validate, the launcher
ends within the deadline + 10 s, no process is left, and a rank that waited says where."""
import os
import signal
import time

import driver

BOUND_S = 10
RANKS = 2
DEADLINE_S = 4 if driver.DEVICE == "cpu" else 10  # NCCL connects at start and in the first step


class LostRank(driver.Test):
    def lose(self, name, how, allowed_s, delay_s, **keys):
        """Sends a signal to the last rank of a job at work; returns what the job left."""
        name = f"{name}-{os.getpid()}"
        mark = f"\0--run.dir\0{name}\0"
        job = self.start(RANKS, "train", name, train__steps=1000000, parallel__deadline=DEADLINE_S, **keys)
        self.addCleanup(lambda: job.running() and job.finish(0))
        metrics = self.dir / name / "metrics.jsonl"
        self.wait_for("step", lambda: metrics.exists() and metrics.read_text().count("\n") >= 2, timeout=60)
        time.sleep(delay_s)
        ranks = sorted(pid for pid in driver.processes_with(mark) if pid != job.process.pid)
        self.assertEqual(len(ranks), RANKS)
        start = time.monotonic()
        os.kill(ranks[-1], how)
        done = job.finish(timeout=allowed_s)
        self.assertNotIn(done.code, (0, None), done)
        self.wait_for("end of all ranks", lambda: not driver.processes_with(mark),
                      allowed_s - (time.monotonic() - start))
        return done

    def stop(self, name, words, delay_s=0.0, **keys):
        done = self.lose(name, signal.SIGSTOP, DEADLINE_S + BOUND_S, delay_s, **keys)
        lines = [line for line in done.err.splitlines() if f"within {DEADLINE_S}" in line]
        self.assertTrue(lines, done)
        print(lines[0])
        self.assertRegex(lines[0], words)

    def test_v23_killed(self):
        for delay_s in (0.0, 0.13):
            done = self.lose(f"killed{delay_s}", signal.SIGKILL, BOUND_S, delay_s)
            self.assertIn("signal 9", done.err)

    def test_v23_stopped(self):
        """Steps of many layers and windows, so that the signal comes in the middle of one."""
        keys = {"model__layers": 6, "data__seq_len": 768, "train__window": 384, "train__batch": 2}
        for delay_s in (0.0, 0.21):
            self.stop(f"stopped{delay_s}", r"rank \d.* in (after )?step \d+", delay_s, **keys)
        self.stop("data_parallel", r"rank \d.* in (after )?step \d+", parallel__sp=1, **keys)

    def test_v23_stopped_in_validation(self):
        (self.dir / "val.txt").write_bytes(driver.bytes_of_text(1 << 20, 3) * 16)
        self.stop("validation", r"rank \d.* in after step \d+, validation", delay_s=2, eval__every=3,
                  eval__tokens=1 << 24)


if driver.DEVICE == "cuda":
    driver.require_gpus(RANKS)
driver.main()
