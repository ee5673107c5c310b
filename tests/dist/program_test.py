"""The program as users meet it: help, an installed copy, and baton plan."""
import os
import re
import subprocess
import time

import driver


class Program(driver.Test):
    def test_help(self):
        for ranks in (0, 2):
            for args in (["--help"], [], ["train", "--help"], ["train", "-h"], ["replay", "--help"], ["help"]):
                done = self.run_baton(ranks, *args)
                self.assertEqual(done.code, 0, done)
                self.assertNotRegex(done.err, r"(?m)^(?!\[hwloc).+", done)  # which complains of machines without /sys
                self.assertEqual(done.out.count("[FILE]") + done.out.count("--help") > 0, True, done)
        whole = self.run_baton(0, "--help").out
        for command in ("train", "eval", "sample", "plan", "replay"):
            self.assertRegex(whole, rf"(?m)^  {command} ")
        self.assertRegex(self.run_baton(0, "train", "--help").out, r"--train\.window INTEGER \(=0\)")
        self.assertEqual(self.run_baton(2, "train", "--help").out.count("[train]"), 1)

    def test_install(self):
        build = os.path.dirname(driver.BATON)
        prefix = self.dir / "prefix"
        subprocess.run(["cmake", "--install", build, "--prefix", prefix], check=True, stdout=subprocess.DEVNULL)
        done = subprocess.run([prefix / "bin/baton", "--help"], capture_output=True, text=True, cwd=self.dir)
        self.assertEqual(done.returncode, 0, done)
        self.assertIn("baton COMMAND", done.stdout)

    def plan(self, ranks, config, *args):
        done = self.run_baton(ranks, "plan", "--config", config, *args)
        self.assertEqual(done.code, 0, done)
        return done.out

    def peak_kib(self, out, *args):
        """Peak memory of one process; its output goes to the file `out`."""
        pid = os.posix_spawn(driver.BATON, [driver.BATON, *args], os.environ,
                             file_actions=[(os.POSIX_SPAWN_OPEN, 1, str(out), os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)])
        _, status, usage = os.wait4(pid, 0)
        self.assertEqual(status, 0)
        return usage.ru_maxrss

    def test_plan_of_large_models(self):
        D, F = 2048, 5632
        gla_layer = 4 * D * D + 16 * D + 17 * D // 2 + 512 + 3 * D * F + 2 * D
        tnl_layer = 5 * D * D + 3 * D * F
        for name, parameters in (("gla-1.3b", 2 * 32000 * D + 24 * gla_layer + D),
                                 ("tnl-1b", 2 * 64000 * D + 16 * tnl_layer + 16 * 128)):
            config = driver.SOURCE / "configs" / f"{name}.cfg"
            help_kib = self.peak_kib(self.dir / "help.txt", "--help")  # the program and its libraries alone
            plan_kib = self.peak_kib(self.dir / "plan.txt", "plan", "--config", str(config))
            self.assertLess(plan_kib, help_kib + (64 << 10))
            text = (self.dir / "plan.txt").read_text()
            total = int(re.search(r"(?m)^  total +(\d+)$", text)[1])
            self.assertEqual(total, parameters)
            self.assertRegex(text, r"parameters +\d{10} ")
            start = time.monotonic()
            self.assertIn("8 ranks (dp 1 x sp 8)", self.plan(8, config))
            self.assertLess(time.monotonic() - start, 10)

    def test_plan_of_the_largest_window(self):
        config = driver.SOURCE / "configs" / "gla-1.3b.cfg"
        args = ["--train.micro_batch", 1, "--plan.memory", 80]

        def gpu_bytes(*more):
            return int(re.search(r"total on a GPU +(\d+) ", self.plan(1, config, *args, *more))[1])

        for seq_len in (2048, 1 << 20):  # in one window and in many
            text = self.plan(1, config, *args, "--data.seq_len", seq_len)
            window = int(re.search(r"with 80.0 GiB a GPU: windows of up to (\d+) tokens", text)[1])
            self.assertEqual(window > seq_len, seq_len == 2048)
            for tokens in (window, window + 1):
                used = gpu_bytes("--data.seq_len", max(seq_len, tokens), "--train.window", tokens)
                self.assertEqual(used <= 80 << 30, tokens == window)
        self.assertIn("with 8.0 GiB a GPU: no window fits", self.plan(1, config, *args[:-1], 8))
        self.assertNotIn("GPU", self.plan(1, config, "--run.device", "cpu", "--run.dtype", "float32"))

    def test_plan_of_more_ranks(self):
        links = ["--plan.latency", 20, "--plan.bandwidth", 40, "--plan.compose_bandwidth", 2000]
        text = self.plan(1, "tiny.cfg", "--plan.ranks", "8,64", "--plan.step_s", 0.25, *links)
        rows = re.findall(r"(?m)^ +(\d+) +(\d+) +(\d+) +(\d+)  (\w+)", text)
        self.assertEqual(rows, [(str(n), str(n), str(n // 8), str(96 * n), scan) for n in (8, 64)
                                for scan in ("chain", "doubling", "all_gather", "hierarchical")])
        for ranks_per_node, scan in ((8, "hierarchical"), (1, "doubling")):
            self.assertIn(f"parallel.scan = auto: {scan}. ",
                          self.plan(1, "tiny.cfg", "--parallel.sp", 8, "--parallel.scan", "auto",
                                    "--plan.ranks_per_node", ranks_per_node, *links))
        for args, word in ((["--plan.ranks", 8, *links], "plan.step_s = 0"),
                           (["--parallel.sp", 8, "--parallel.scan", "auto"], "plan.bandwidth = 0"),
                           (["--plan.ranks", 9, "--plan.step_s", 1, "--parallel.sp", 2, *links], "parallel.sp = 2")):
            done = self.run_baton(2, "plan", "--config", "tiny.cfg", *args)
            self.assertEqual(done.code, 2, done)
            self.assertIn(word, done.err)

    def test_bench_of_messages(self):
        done = self.run_baton(2, "bench", "comm", "--shape", "H2_K8_V16", "--gate", "vector", "--tokens", 70,
                              "--repeat", 1, "--threads", 1)
        self.assertEqual(done.code, 0, done)
        plan = re.search(r"baton plan (--plan.latency .*)", done.out)[1].split()
        self.assertIn("doubling", self.plan(1, "tiny.cfg", "--plan.ranks", 2, "--plan.step_s", 0.1, *plan))
        done = self.run_baton(1, "bench", "comm")
        self.assertEqual(done.code, 2, done)
        self.assertIn("must run on two ranks or more", done.err)

    def test_plan_equals_the_run(self):
        """Memory by group and parameters of a plan are those that the run prints."""
        for family in ("gla", "tnl"):
            args = ["--model.family", family, "--train.window", "48"]
            plan = self.plan(3, "tiny.cfg", *args)
            done = self.run_baton(3, "train", "--config", "tiny.cfg", "--run.dir", family, "--train.steps", 1, *args)
            self.assertEqual(done.code, 0, done)
            table = re.search(r"(?s)memory a rank.*?  total +\d+[^\n]*\n", done.out)[0]
            self.assertIn(table, plan)
            total = int(re.search(r"(?m)^  total +(\d+)$", plan)[1])
            self.assertIn(f"{total} parameters, 3 ranks", done.out)
            counted = sum(x.size for name, x in driver.tensors(self.checkpoints(family)[-1]).items()
                          if name.startswith("param/"))
            self.assertEqual(total, counted)

    def test_profile_changes_nothing(self):
        plain = self.train(2, "plain", train__steps=4)
        profiled = self.train(2, "profiled", train__steps=4, run__profile="2:3")
        self.assertEqual(driver.losses(plain), driver.losses(profiled))
        self.assert_same_tensors(self.checkpoints("plain")[-1], self.checkpoints("profiled")[-1])

    def test_v13_bytes_handed_on(self):
        """What a run sends is what its plan says, and the same however long the sequence is."""
        ranks, layers, steps = 4, 2, 3
        for family in ("gla", "tnl"):
            for seq_len, window in ((96, 0), (384, 0), (1536, 0), (384, 96)):
                args = ["--model.family", family, "--data.seq_len", seq_len, "--train.window", window,
                        "--train.micro_batch", 2, "--parallel.sp", 2, "--train.batch", 8, "--data.val="]
                with self.subTest(family=family, seq_len=seq_len, window=window):
                    plan = self.plan(ranks, "tiny.cfg", *args)
                    lines = [int(x) for x in re.findall(r"layer \d+ on: (\d+) = ", plan)]
                    states = sum(lines) if len(lines) == layers else layers * lines[0]
                    H, K, V = 2, 8 if family == "gla" else 16, 16
                    self.assertEqual(states, 4 * 2 * H * V * K * (2 if family == "gla" else 3))
                    run = f"{family}{seq_len}.{window}"
                    done = self.run_baton(ranks, "train", "--config", "tiny.cfg", "--run.dir", run, "--train.steps",
                                          steps, *args)
                    self.assertEqual(done.code, 0, done)
                    sent, wrapped = map(int, re.search(r"handed on: (\d+) bytes between ranks, (\d+) bytes between w",
                                                       done.out).groups())
                    windows, micro_batches, groups = (4 if window else 1), 2, 2
                    passes = steps * micro_batches * groups * 2  # forward and backward, one sender of two ranks
                    self.assertEqual(sent, passes * windows * states)
                    self.assertEqual(wrapped, passes * (windows - 1) * states)


driver.main()
