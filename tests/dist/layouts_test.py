"""The same numbers however the work is cut: ranks, dp x sp, accumulation, windows; validation and baton eval."""
import re

import driver


class Layouts(driver.Test):
    def test_dp_and_sp_layouts(self):
        one = self.train(1, "one", eval__every=5)
        self.assertEqual(len(driver.losses(one)), 10)
        layouts = {"sp2": (2, {}), "dp2": (2, {"parallel__sp": 1}), "dp2_sp2": (4, {"parallel__sp": 2}),
                   "micro": (1, {"train__micro_batch": 1}),
                   "dp2_micro": (2, {"parallel__sp": 1, "train__micro_batch": 1}),
                   "sp3_micro": (3, {"train__micro_batch": 2}), "dp4": (4, {"parallel__sp": 1}), "sp8": (8, {})}
        for family in ("gla", "tnl"):
            if family == "tnl":
                one = self.train(1, "one_tnl", eval__every=5, model__family="tnl")
                layouts = {name + "_tnl": layouts[name] for name in ("sp2", "dp2_sp2", "sp3_micro")}
            for name, (ranks, keys) in layouts.items():
                with self.subTest(layout=name):
                    run = self.train(ranks, name, eval__every=5, model__family=family, **keys)
                    for key, count in (("loss", 10), ("grad_norm", 10), ("val_loss", 2)):
                        self.assert_close_losses(driver.losses(one, key=key), driver.losses(run, key=key),
                                                 1e-4 if key == "grad_norm" else 1e-5)
                        self.assertEqual(len(driver.losses(run, key=key)), count)

    def test_more_ranks_than_tokens(self):
        # Of gradients of 10 tokens many are nearly 0, and AdamW makes a whole step of each: in float32 rounding decides.
        keys = {"data__seq_len": 5, "train__batch": 2, "run__dtype": "float64"}
        one, eight = self.train(1, "one", **keys), self.train(8, "eight", **keys)
        self.assert_close_losses(driver.losses(one), driver.losses(eight), 1e-11)

    def test_packed_documents(self):
        keys = {"data__separator": 32}
        one, three = self.train(1, "one", **keys), self.train(3, "three", train__window=50, **keys)
        self.assert_close_losses(driver.losses(one), driver.losses(three))
        plain = self.train(1, "plain")
        self.assertNotEqual(driver.losses(plain), driver.losses(one))

    def test_every_strategy_of_the_scan(self):
        for family, mixer in (("gla", "vector"), ("gla", "bilinear"), ("gla", "fixed"), ("tnl", "vector")):
            keys = {"data__separator": 32, "train__window": 50, "model__family": family, "model__mixer": mixer}
            one = self.train(1, f"{family}-{mixer}-one", **keys)
            for scan, ranks in (("doubling", 3), ("doubling", 8), ("all_gather", 3), ("hierarchical", 4)):
                with self.subTest(family=family, mixer=mixer, scan=scan, ranks=ranks):
                    run = self.train(ranks, f"{family}-{mixer}-{scan}{ranks}", parallel__scan=scan, **keys)
                    self.assert_close_losses(driver.losses(one), driver.losses(run))

    def test_each_strategy_sends_its_own_number_of_messages(self):
        def handed_on(ranks, scan, **keys):
            run = self.start(ranks, "train", f"{scan}{ranks}{len(keys)}", parallel__scan=scan, train__steps=2, **keys).finish()
            self.assertEqual(run.code, 0, run)
            return int(re.search(r"handed on: (\d+) bytes between ranks", run.out)[1])

        fixed = {"model__mixer": "fixed"}  # messages are states alone
        for ranks, messages in ((3, {"chain": 2, "doubling": 3, "all_gather": 3}), (5, {"chain": 4, "doubling": 8})):
            sent = {scan: handed_on(ranks, scan, **fixed) for scan in messages}
            state = sent["chain"] // messages["chain"]
            self.assertEqual(sent, {scan: count * state for scan, count in messages.items()})
        self.assertGreater(handed_on(3, "doubling"), 3 * handed_on(3, "chain") // 2)  # decays beside the states

    def test_the_measured_choice_is_the_strategy_it_names(self):
        run = self.start(3, "train", "auto", parallel__scan="auto").finish()
        self.assertEqual(run.code, 0, run)
        chosen = re.search(r"parallel.scan = auto: (\w+)\. Estimated for a step: chain [\d.e+-]+ ms, doubling", run.out)[1]
        self.assertIn(f"scan = {chosen}\n", (self.dir / "auto/config.cfg").read_text())
        named = self.train(3, "named", parallel__scan=chosen)
        self.assert_same_tensors(self.checkpoints("auto")[-1], self.checkpoints("named")[-1])
        again = self.run_baton(3, "eval", "--config", "tiny.cfg", "--run.dir", "auto", "--parallel.scan", "auto")
        self.assertIn("parallel.scan = auto: ", again.out, again)

    def test_windows(self):
        whole = self.train(1, "whole", eval__every=10)
        for ranks in (1, 3):
            for window in (32, 36):  # the last window of 36 is shorter
                with self.subTest(ranks=ranks, window=window):
                    exact = self.train(ranks, f"exact{ranks}.{window}", train__window=window, eval__every=10)
                    self.assert_close_losses(driver.losses(whole), driver.losses(exact))
                    self.assert_close_losses(driver.losses(whole, key="val_loss"), driver.losses(exact, key="val_loss"))
                    cut = self.train(ranks, f"cut{ranks}.{window}", train__window=window,
                                     train__window_mode="truncated")
                    # The state flows on, so the first loss is the whole's; its gradient does not.
                    self.assert_close_losses(driver.losses(whole, 1, 1), driver.losses(cut, 1, 1))
                    self.assertEqual(len(driver.losses(cut)), 10)
                    norms = [float(driver.losses(run, 1, 1, "grad_norm")[1]) for run in (whole, cut)]
                    self.assertGreater(abs(norms[0] - norms[1]), 1e-4 * norms[0])


class Eval(driver.Test):
    def eval(self, ranks, run_dir, **keys):
        done = self.start(ranks, "eval", run_dir, **keys).finish()
        self.assertEqual(done.code, 0, done)
        line = re.search(r"loss ([\d.]+) nats a token, perplexity ([\d.]+), ([\d.]+) bits a byte, (\d+) tokens",
                         done.out)
        self.assertIsNotNone(line, done)
        return float(line[1]), int(line[4]), done.out

    def test_v3_eval_equals_validation(self):
        run = self.train(3, "run", eval__every=10)
        val = float(driver.losses(run, key="val_loss")[10])
        before = driver.files_of(run)
        for ranks in (1, 3):
            loss, tokens, _ = self.eval(ranks, "run")
            self.assertAlmostEqual(loss, val, delta=1e-5 * val + 0.5e-4)  # four digits are printed
            self.assertEqual(tokens, 1000 // 96 * 96)
        self.assertEqual(driver.files_of(run), before)

    def test_longer_than_training(self):
        self.train(1, "run", train__steps=30)
        short, _, _ = self.eval(1, "run", eval__tokens=3072)
        keys = {"eval__seq_len": 8 * 96, "eval__tokens": 3072}
        long, tokens, text = self.eval(1, "run", eval__by_position="true", **keys)
        self.assertEqual(tokens, 3072)
        self.assertLess(long, short * 1.1)
        buckets = [float(x) for x in re.findall(r"positions +\d+ \.\. +\d+: loss ([\d.]+)", text)]
        sizes = [1, 2, 4, 8, 16, 32, 64, 128, 256, 257]
        self.assertEqual(len(buckets), len(sizes), text)
        self.assertAlmostEqual(sum(n * x for n, x in zip(sizes, buckets)) / 768, long, delta=2e-4)
        # The whole sequence at once, three ranks, and other windows: the same loss.
        for ranks, window in ((3, 0), (1, 40), (3, 40)):
            other, _, text = self.eval(ranks, "run", train__window=window, eval__by_position="true", **keys)
            self.assertAlmostEqual(other, long, delta=2e-4)
            self.assertEqual(len(re.findall("positions", text)), len(sizes))
        # The first 96 positions are those of the shorter sequences that begin at the same places.
        whole, _, _ = self.eval(1, "run", data__seq_len=768, eval__tokens=3072)
        self.assertAlmostEqual(whole, long, delta=2e-4)


driver.main()
