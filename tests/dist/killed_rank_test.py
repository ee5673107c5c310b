"""A rank that is killed while the others wait for it, in three ways, takes the job down."""
import os
import time
import uuid

import driver

BOUND_S = 10
PROGRAM = "tests/killed_rank"  # beside baton


class KilledRank(driver.Test):
    def test_takes_the_job_down(self):
        program = os.path.join(os.path.dirname(driver.BATON), PROGRAM)
        for way in ("recv", "all_reduce", "finalize"):
            with self.subTest(way):
                mark = uuid.uuid4().hex
                start = time.monotonic()
                done = driver.Job(self.dir, 4, way, mark, program=program).finish(BOUND_S)
                self.assertNotIn(done.code, (0, None), done)
                self.assertIn("signal 9", done.err)
                self.wait_for("end of all ranks", lambda: not driver.processes_with(mark),
                              BOUND_S - (time.monotonic() - start))


driver.main()
