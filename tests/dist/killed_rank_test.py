"""A rank that is killed takes the job down: killed_rank_test.py PROGRAM MPIRUN [OPTION...]

mpirun must return non-zero within 10 s, and no process of the job may be left."""
import os
import subprocess
import sys
import time
import uuid

BOUND_S = 10


def processes_with(word):
    """Ids of the processes whose command line holds word."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as f:
                if word.encode() in f.read():
                    found.append(int(pid))
        except OSError:
            pass  # ended meanwhile
    return found


def main():
    program, mpirun = sys.argv[1], sys.argv[2:]
    for way in ("recv", "all_reduce", "finalize"):
        mark = uuid.uuid4().hex
        start = time.monotonic()
        job = subprocess.Popen(mpirun + ["-np", "4", program, way, mark], stderr=subprocess.PIPE, text=True)
        try:
            _, stderr = job.communicate(timeout=BOUND_S)
        except subprocess.TimeoutExpired:
            job.kill()
            sys.exit(f"{way}: mpirun still runs {BOUND_S} s after a rank was killed")
        seconds = time.monotonic() - start
        if job.returncode == 0:
            sys.exit(f"{way}: mpirun returned 0 though a rank was killed")
        if "signal 9" not in stderr:
            sys.exit(f"{way}: mpirun does not speak of the killed rank: {stderr}")
        while processes_with(mark):
            if time.monotonic() - start > BOUND_S:
                sys.exit(f"{way}: processes {processes_with(mark)} are left")
            time.sleep(0.1)
        print(f"{way}: mpirun returned {job.returncode} after {seconds:.1f} s, no process left")


main()
