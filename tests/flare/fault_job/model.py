"""The model of the fault tests."""

import numpy as np
import numpy.typing as npt


def initial_model() -> dict[str, npt.NDArray[np.float32]]:
    return {"w": np.ones(10, np.float32)}
