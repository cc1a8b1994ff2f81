"""A probe tells a processor that refuses an instruction from a mistake in the probe."""

import pytest
from tests.suite.processor import skip_if_killed

DIES = "import os, signal; os.kill(os.getpid(), signal.SIGILL)"


def test_a_test_is_skipped_only_if_the_probe_dies_from_a_signal() -> None:
    skip_if_killed("pass")
    with pytest.raises(pytest.skip.Exception, match="a child process that tried it died from SIGI"):
        skip_if_killed(DIES)
    with pytest.raises(AssertionError, match="exit code 3"):
        skip_if_killed("raise SystemExit(3)")
