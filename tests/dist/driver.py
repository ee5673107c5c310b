"""What the tests of the whole program share: runs of build/baton under mpirun on a tiny model, and what they leave.

A test file ends with driver.main(); CTest calls it as FILE BATON SOURCE_DIR MPIRUN [OPTION...]."""
import glob
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

BATON = SOURCE = None
MPIRUN = []
DEVICE = os.environ.get("BATON_TEST_DEVICE", "cpu")

CONFIG = f"""[run]
device = {DEVICE}
peak_tflops = 1
threads = 1
[model]
layers = 2
width = 32
heads = 2
ffn = 64
[data]
train = train.txt
val = val.txt
seq_len = 96
[train]
steps = 10
batch = 4
lr = 1e-2
schedule = constant
[eval]
tokens = 1000
"""


def main():
    global BATON, SOURCE, MPIRUN
    BATON, SOURCE, MPIRUN = os.path.abspath(sys.argv[1]), pathlib.Path(sys.argv[2]).resolve(), sys.argv[3:]
    unittest.main(module="__main__", argv=sys.argv[:1], verbosity=2)


def num_gpus():
    listing = shutil.which("nvidia-smi") and subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True).stdout
    return (listing or "").count("GPU ")


def require_gpus(count):
    """Ends with CTest's code for a skipped test where there are fewer."""
    if num_gpus() < count:
        print(f"no {count} GPUs")
        sys.exit(77)


def bytes_of_text(count, seed):
    """Words from a small dictionary, so that there is something to learn."""
    draw = random.Random(seed)
    words = ["".join(draw.choices("abcdefghijklmnop", k=draw.randint(2, 7))) for _ in range(200)]
    return " ".join(draw.choices(words, k=count // 2))[:count].encode()


def processes_with(word):
    """Ids of the running processes whose command line holds word."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as f:
                if word.encode() in f.read():
                    found.append(int(pid))
        except OSError:
            pass  # ended meanwhile
    return found


def losses(run_dir, first=1, last=10**9, key="loss"):
    """The texts of a figure of steps first..last: equal texts are equal bits."""
    with open(run_dir / "metrics.jsonl") as file:
        lines = [json.loads(line, parse_float=str) for line in file]
    return {line["step"]: line[key] for line in lines if first <= line["step"] <= last and key in line}


def tensors(checkpoint):
    """Every tensor of a checkpoint, whole: name -> array."""
    import h5py  # not every machine with GPUs has it
    found = {}
    with h5py.File(checkpoint / "index.h5") as file:
        file.visititems(lambda name, x: found.update({name: x[()]}) if isinstance(x, h5py.Dataset) else None)
    return found


def files_of(directory):
    """path -> bytes of everything below a directory."""
    return {str(p): p.read_bytes() for p in sorted(directory.rglob("*")) if p.is_file()}


class Done:
    def __init__(self, code, out, err, seconds):
        self.code, self.out, self.err, self.seconds = code, out, err, seconds

    def __str__(self):
        return f"exit code {self.code} after {self.seconds:.1f} s\n{self.out[-3000:]}\n{self.err[-3000:]}"


class Job:
    """A program, baton unless named, under mpirun (ranks = 0: alone), started and not waited for."""

    def __init__(self, directory, ranks, *args, program=None):
        self.start = time.monotonic()
        command = [*MPIRUN, "-np", str(ranks)] if ranks else []
        command += [program or BATON, *map(str, args)]
        # Into files: a pipe that nobody reads would stop the job. A sample may be any bytes, a character each.
        self.files = [tempfile.TemporaryFile("w+", encoding="latin-1") for _ in range(2)]
        self.process = subprocess.Popen(command, cwd=directory, stdout=self.files[0], stderr=self.files[1],
                                        stdin=subprocess.DEVNULL, start_new_session=True)

    def finish(self, timeout=60):
        try:
            code = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            code = None
        seconds = time.monotonic() - self.start
        texts = []
        for file in self.files:
            file.seek(0)
            texts.append(file.read())
            file.close()
        return Done(code, *texts, seconds)

    def running(self):
        return self.process.poll() is None


class Test(unittest.TestCase):
    """A scratch directory with data and tiny.cfg in it; runs are directories below it."""

    def setUp(self):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="baton-dist-"))
        self.addCleanup(shutil.rmtree, self.dir, ignore_errors=True)
        (self.dir / "train.txt").write_bytes(bytes_of_text(24000, 1))
        (self.dir / "val.txt").write_bytes(bytes_of_text(6000, 2))
        (self.dir / "tiny.cfg").write_text(CONFIG)

    def start(self, ranks, command, run_dir, **keys):
        """keys: train__steps=20 is --train.steps 20."""
        args = [command, "--config", "tiny.cfg", "--run.dir", run_dir]
        for key, value in keys.items():
            args += ["--" + key.replace("__", "."), value]
        return Job(self.dir, ranks, *args)

    def run_baton(self, ranks, *args):
        return Job(self.dir, ranks, *args).finish()

    def train(self, ranks, run_dir, *, code=0, **keys):
        """Trains to the end and returns the run's directory."""
        done = self.start(ranks, "train", run_dir, **keys).finish()
        self.assertEqual(done.code, code, done)
        return self.dir / run_dir

    def checkpoints(self, run_dir):
        return [pathlib.Path(p) for p in sorted(glob.glob(str(self.dir / run_dir / "checkpoints" / "step-*[0-9]")))]

    def wait_for(self, what, condition, timeout=30):
        deadline = time.monotonic() + timeout
        while not condition():
            self.assertLess(time.monotonic(), deadline, f"no {what} within {timeout} s")
            time.sleep(0.01)

    def assert_same_tensors(self, a, b):
        """Bitwise, all names."""
        a, b = tensors(a), tensors(b)
        self.assertEqual(a.keys(), b.keys())
        self.assertTrue(a)
        for name, x in a.items():
            self.assertEqual(x.tobytes(), b[name].tobytes(), name)

    def assert_close_losses(self, a, b, bound=1e-5):
        self.assertEqual(a.keys(), b.keys())
        self.assertTrue(a)
        for step, x in a.items():
            x, y = float(x), float(b[step])
            self.assertLessEqual(abs(x - y), bound * abs(x), f"step {step}: {x} and {y}")
