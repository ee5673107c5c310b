"""Stream order: rows that go on from step to step, through checkpoints and from saved states, on BATON_TEST_DEVICE."""
import driver

BOUND = 1e-5
LAYOUTS = [{"ranks": 1}, {"ranks": 2}, {"ranks": 3}, {"ranks": 4, "parallel__sp": 2, "train__micro_batch": 1}]
if driver.DEVICE == "cuda":
    driver.require_gpus(2)
    LAYOUTS, BOUND = LAYOUTS[:2], 1e-4
SEQ_LEN, ROWS, STEPS = 96, 4, 5  # steps of one round over the text


class Stream(driver.Test):
    def setUp(self):
        super().setUp()
        self.text = (self.dir / "train.txt").read_bytes()[:ROWS * STEPS * SEQ_LEN + 1]
        (self.dir / "train.txt").write_bytes(self.text)

    def assert_same_checkpoint(self, a, b):
        """Of two runs, the last one; where there is h5py."""
        if driver.DEVICE == "cpu":
            self.assert_same_tensors(self.checkpoints(a)[-1], self.checkpoints(b)[-1])

    def stream(self, ranks, run_dir, **keys):
        """Blanks end documents, so that some of them, and not all, go on in the next step."""
        return self.train(ranks, run_dir, data__order="stream", data__separator=ord(" "), **keys)

    def test_losses_are_those_of_one_sequence(self):
        if driver.DEVICE == "cuda":
            self.skipTest("in float64, on the CPU")
        keys = {"run__dtype": "float64", "train__lr": 0, "data__separator": "none"}
        whole = self.train(1, "whole", train__steps=1, data__seq_len=STEPS * SEQ_LEN, **keys)
        for i, layout in enumerate(LAYOUTS):
            run = self.train(run_dir=f"run{i}", data__order="stream", train__steps=STEPS, **layout, **keys)
            losses = [float(x) for x in driver.losses(run).values()]
            mean = float(driver.losses(whole)[1])
            self.assertLessEqual(abs(sum(losses) / STEPS - mean), 1e-12 * mean)

    def test_v11_v12_resumed(self):
        for i, layout in enumerate(LAYOUTS):
            whole = self.stream(run_dir=f"whole{i}", train__steps=2 * STEPS + 3, **layout)
            base = self.stream(run_dir=f"base{i}", train__steps=STEPS + 2, **layout)
            for j, other in enumerate(LAYOUTS):
                name = f"run{i}{j}"
                loaded = self.stream(run_dir=name, train__steps=STEPS + 2,
                                     checkpoint__resume=self.checkpoints(base)[-1], **other)
                self.assert_same_checkpoint(loaded, base)
                run = self.stream(run_dir=name, train__steps=2 * STEPS + 3, checkpoint__resume="auto", **other)
                self.assertEqual(len(driver.losses(run)), STEPS + 1)
                if i == j:
                    self.assertEqual(driver.losses(run), driver.losses(whole, STEPS + 3))
                    self.assert_same_checkpoint(run, whole)
                else:
                    self.assert_close_losses(driver.losses(run), driver.losses(whole, STEPS + 3), BOUND)

    def test_a_saved_state_starts_another_run(self):
        """Of another text, which goes on where the first one ended: as if both were one."""
        if driver.DEVICE == "cuda":
            self.skipTest("in float64, on the CPU")
        cut = 3 * SEQ_LEN
        for name, text in (("first", self.text[:cut + 1]), ("second", self.text[cut:])):
            (self.dir / name).write_bytes(text)
        keys = {"run__dtype": "float64", "train__lr": 0, "train__batch": 1, "model__family": "tnl",
                "model__lrpe_layers": "all", "data__order": "stream"}
        whole = self.train(1, "whole", train__steps=6, **keys)
        first = self.train(2, "first_run", data__train="first", train__steps=3, **keys)
        second = self.train(3, "second_run", data__train="second", train__steps=3, **keys,
                            checkpoint__state=self.checkpoints(first)[-1])
        anew = self.train(3, "anew", data__train="second", train__steps=3, **keys)
        later = {step - 3: loss for step, loss in driver.losses(whole, 4).items()}
        self.assert_close_losses(later, driver.losses(second), 1e-12)
        self.assertGreater(abs(float(driver.losses(anew)[1]) - float(later[1])), 1e-6)


driver.main()
