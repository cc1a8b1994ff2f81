"""A test that another worker runs while one dies."""

import time


def test_that_takes_long() -> None:
    time.sleep(1000)
