"""Bad input (V20): one plain sentence from one rank, exit code 2, at once, and nothing written or lost."""
import os
import struct

import driver

BOUND_S = 10


def llmc_shard(tokens):
    """A token shard of llm.c with uint16 tokens."""
    header = struct.pack("<3i", 20240520, 1, len(tokens)).ljust(1024, b"\0")
    return header + struct.pack(f"<{len(tokens)}H", *tokens)


class BadInput(driver.Test):
    def setUp(self):
        super().setUp()
        self.train(3, "run", train__steps=4, checkpoint__every=2)

    def refuse(self, name, args, *words):
        """baton ARGS on three ranks is refused with a sentence that holds all words."""
        with self.subTest(name):
            before = driver.files_of(self.dir)
            done = self.run_baton(3, *args)
            self.assertEqual(done.code, 2, done)
            lines = [line for line in done.err.splitlines() if "rank" in line or line.startswith("baton: ")]
            self.assertEqual(len(lines), 1, done)
            self.assertTrue(lines[0].startswith("baton: "), done)
            for word in words:
                self.assertIn(word, lines[0])
            self.assertLess(done.seconds, BOUND_S)
            after = driver.files_of(self.dir)
            self.assertEqual([path for path in {**before, **after} if before.get(path) != after.get(path)], [])

    def refuse_keys(self, keys, *words, command="train", run_dir="run"):
        args = [command, "--config", "tiny.cfg", "--run.dir", run_dir]
        for key, value in keys.items():
            args += [f"--{key}", value]
        self.refuse(f"{command} {keys}", args, *words)

    def test_command_line(self):
        self.refuse("command", ["trian"], "trian", "train")
        self.refuse("no command", ["--config", "tiny.cfg"], "--config", "command")
        self.refuse("missing config", ["train", "--config", "nowhere.cfg"], "--config = nowhere.cfg", "exist")
        self.refuse("no value", ["train", "--config", "tiny.cfg", "--train.steps"], "train.steps", "value")
        self.refuse("positional", ["train", "tiny.cfg"], "tiny.cfg")
        self.refuse_keys({"train.stesp": 5}, "train.stesp", "--train.steps")
        self.refuse_keys({"train.step": 5}, "train.step ", "--train.steps")
        (self.dir / "bad.cfg").write_text("[train]\nstesp = 5\n")
        self.refuse("key in a file", ["train", "--config", "bad.cfg"], "bad.cfg", "train.stesp", "train.steps")
        (self.dir / "bad.cfg").write_text("[train]\nsteps\n")
        self.refuse("line in a file", ["train", "--config", "bad.cfg"], "bad.cfg", "steps", "key = value")
        (self.dir / "bad.cfg").write_text("")
        self.refuse("empty file", ["train", "--config", "bad.cfg"], "data.train")
        self.refuse("replay without a file", ["replay"], "replay", "FILE.h5")
        self.refuse("replay dtype", ["replay", driver.SOURCE / "tests/data/gla.h5", "--dtype", "float16"],
                    "--dtype = float16", "float32")
        self.refuse("replay out", ["replay", driver.SOURCE / "tests/data/gla.h5", "--out", "nowhere/out.h5"],
                    "nowhere/out.h5")

    def test_values(self):
        for key, value, *words in (
                ("train.steps", "ten", "integer"), ("train.steps", -1, "0"), ("train.lr", -1, "least 0"),
                ("run.dtype", "float16", "float32"), ("run.device", "gpu", "cuda"), ("run.profile", "3:2", "first:last"),
                ("model.layers", 0, "1"), ("model.family", "gpt", "gla"), ("train.window", 200, "data.seq_len = 96"),
                ("dump.what", "foo", "state"), ("parallel.scan", "ring", "chain"),
                ("plan.ranks", "8,x", "8,64"), ("plan.ranks", "8,,64", "integers"), ("plan.ranks_per_node", 0, "between 1"),
                ("plan.bandwidth", -1, "least 0"), ("plan.early", 1.5, "between 0 and 1"),
                ("plan.both_ways", 0.5, "least 1"), ("eval.by_position", "yes", "true")):
            self.refuse_keys({key: value}, f"{key} = {value}", *words)

    def test_shapes_and_ranks(self):
        self.refuse_keys({"model.width": 33}, "model.width = 33", "model.heads = 2")
        self.refuse_keys({"model.expand_k": 0.3}, "model.expand_k = 0.3", "multiple of model.heads = 2")
        self.refuse_keys({"parallel.sp": 2}, "parallel.sp = 2", "divide", "3")
        self.refuse_keys({"parallel.sp": 4}, "parallel.sp = 4", "divide", "3")
        self.refuse_keys({"parallel.sp": 1}, "train.batch = 4", "multiple of the 3")
        self.refuse_keys({"parallel.sp": 1, "train.batch": 2}, "train.batch = 2", "multiple of the 3")
        self.refuse_keys({"train.micro_batch": 3}, "train.micro_batch = 3", "divide")
        self.refuse_keys({"model.vocab": 100}, "model.vocab = 100", "256")

    def test_devices(self):
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        self.refuse_keys({"run.device": "cuda"}, "run.device = cuda")
        for device in ("auto", "cpu"):
            self.refuse_keys({"run.dtype": "bfloat16", "run.device": device}, "run.dtype = bfloat16", "float32")

    def test_data(self):
        (self.dir / "empty.txt").write_text("")
        (self.dir / "short.txt").write_text("x" * 96)
        good = [i % 50257 for i in range(2000)]
        (self.dir / "good.bin").write_bytes(llmc_shard(good))
        (self.dir / "bad.bin").write_bytes(llmc_shard([60000] * 2000))
        (self.dir / "cut.bin").write_bytes(llmc_shard(good)[:-10])
        self.refuse_keys({"data.train": "nowhere*.txt"}, "data.train = nowhere*.txt", "match")
        self.refuse_keys({"data.val": "nowhere.txt"}, "data.val = nowhere.txt", "match")
        self.refuse_keys({"data.train": "empty.txt"}, "data.train = empty.txt", "empty")
        for key in ("data.train", "data.val"):
            self.refuse_keys({key: "short.txt"}, f"{key} = short.txt: must hold at least data.seq_len + 1 = 97 tokens, but has 96")
        for command in ("train", "eval"):
            self.refuse_keys({"eval.seq_len": 6000, **({"checkpoint.resume": "auto"} if command == "train" else {})},
                             "data.val = val.txt: must hold at least eval.seq_len + 1 = 6001 tokens, but has 6000",
                             command=command)
        self.refuse_keys({"data.format": "llmc"}, "data.train = train.txt", "token shard")
        self.refuse_keys({"data.train": "cut.bin"}, "data.train = cut.bin", "2000")
        self.refuse_keys({"data.val": "good.bin"}, "data.val = good.bin", "50257")
        self.refuse_keys({"data.separator": 300}, "data.separator = 300", "256")
        self.refuse("no data.train", ["train", "--run.dir", "other"], "data.train")
        self.refuse("no data.val", ["eval", "--run.dir", "run"], "data.val")
        self.refuse("no vocabulary", ["plan"], "model.vocab")

    def test_token_out_of_range(self):
        (self.dir / "bad.bin").write_bytes(llmc_shard([7] * 500 + [60000] * 1500))
        done = self.start(3, "train", "bad", data__train="bad.bin", data__val="").finish()
        self.assertEqual(done.code, 2, done)
        lines = [line for line in done.err.splitlines() if "rank" in line or line.startswith("baton: ")]
        self.assertEqual(len(lines), 1, done)
        for word in ("baton: data.train = ", "bad.bin", "token 60000", "50257"):
            self.assertIn(word, lines[0])
        self.assertEqual(self.checkpoints("bad"), [])

    def test_checkpoints(self):
        run = {"checkpoint.resume": "auto"}
        self.refuse_keys({"checkpoint.resume": "nowhere"}, "checkpoint.resume", "nowhere", "no such directory")
        self.refuse_keys({"checkpoint.load": "nowhere"}, "checkpoint.load", "nowhere", run_dir="other")
        self.refuse_keys({"checkpoint.resume": "latest"}, "checkpoint.resume = latest", "other", run_dir="other")
        for key, value in (("model.width", 64), ("model.layers", 3), ("model.family", "tnl"), ("model.vocab", 300)):
            self.refuse_keys({**run, key: value}, key, "run/checkpoints/step-00000004", "match")
        self.refuse_keys({"checkpoint.load": "run/checkpoints/step-00000004", "model.width": 64}, "model.width",
                         "checkpoint.load", run_dir="other")
        # A start from step 0 would mix two runs in one directory.
        self.refuse_keys({}, "run.dir = run", "checkpoint.resume")
        self.refuse_keys({}, "other", "checkpoint", command="eval", run_dir="other")
        self.refuse_keys({}, "other", "checkpoint", command="sample", run_dir="other")
        part = self.dir / "run/checkpoints/step-00000004/part-00001.h5"
        data = bytearray(part.read_bytes())
        data[len(data) // 2] ^= 1
        part.write_bytes(data)
        self.refuse_keys(run, "part-00001.h5", "damaged", "run/checkpoints/step-00000002")
        part.unlink()
        self.refuse_keys(run, "part-00001.h5", "missing", "run/checkpoints/step-00000002")
        self.refuse_keys({}, "part-00001.h5", "missing", command="eval")

    def test_stream_order(self):
        stream = {"data.order": "stream"}
        self.refuse_keys({**stream, "train.batch": 300},
                         "data.train = train.txt: must hold at least train.batch x data.seq_len + 1 = 28801 tokens")
        self.refuse_keys({"checkpoint.state": "run"}, "checkpoint.state = run: must come with data.order = stream")
        self.refuse_keys({**stream, "checkpoint.state": "nowhere"}, "checkpoint.state = nowhere", "no such directory",
                         run_dir="other")
        permuted = "run/checkpoints/step-00000004"
        for key, value, run_dir in (("checkpoint.state", permuted, "other"), ("checkpoint.resume", "latest", "run")):
            self.refuse_keys({**stream, key: value}, f"{key} = {permuted}: keeps no state/position",
                             "data.order = stream", run_dir=run_dir)
        self.train(3, "streamed", train__steps=2, data__order="stream")
        kept = {**stream, "checkpoint.state": "streamed/checkpoints/step-00000002"}
        for key, value, *words in (("train.batch", 8, "train.batch: 4 -> 8", "must match"),
                                   ("model.width", 64, "model.width: 32 -> 64", "must match"),
                                   ("model.layers", 3, "model.layers: 2 -> 3", "must match")):
            self.refuse_keys({**kept, key: value}, "checkpoint.state = streamed/checkpoints/step-00000002", *words,
                             run_dir="other")
        for key, value in (("train.batch", 8), ("data.seq_len", 48)):
            self.refuse_keys({**stream, "checkpoint.resume": "latest", key: value},
                             "checkpoint.resume = streamed/checkpoints/step-00000002", key, f"-> {value}", "must match",
                             run_dir="streamed")

    def test_run_directory(self):
        (self.dir / "file").write_text("x")
        self.refuse_keys({}, "run.dir = file", run_dir="file")
        self.refuse_keys({}, "run.dir = file/below", run_dir="file/below")


driver.main()
