"""The settings of the methods: what each refuses, and in which words."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedraw import (
    ACE,
    ACED,
    AREA,
    CA2FL,
    FADAS,
    MIFA,
    FedAsync,
    FedAU,
    FedAvg,
    FedBuff,
    FedFa,
    FedRAW,
    FedStale,
    FedStaleWeight,
    FedVARP,
    OnePass,
    QFedAvg,
    Replay,
)
from fedraw.errors import BadInput

LOCKED = {"cap": "naive", "cap_at": 0.3, "weighting": "uniform"}
NEEDLESS = {"select": "debt", "target": "samples", "labels": "inferred"}


@pytest.mark.parametrize(
    ("kind", "settings", "words"),
    [
        (FedRAW, {"buffer": 0}, "buffer = 0 must be at least 1"),
        (FedRAW, {"buffer": 2.5}, "buffer = 2.5 must be a whole number"),
        (FedRAW, {"weighting": "rare"}, "weighting = 'rare' must be 'rarity' or 'uniform'"),
        (FedRAW, {"labels": "told"}, "labels = 'told' must be 'declared' or 'checked' or 'inferr"),
        (FedRAW, {"cap": "soft"}, "cap = 'soft' must be 'none' or 'naive' or 'water-filling'"),
        (FedRAW, {"cap": "naive", "cap_at": 0.05}, "cap_at = 0.05 is below 1/10"),
        (FedRAW, {"cap": "water-filling", "cap_at": 2}, "cap_at = 2 is not a weight"),
        (FedRAW, {"cap_at": 0.3}, "cap_at = 0.3 goes with cap = 'naive' or 'water-filling', not"),
        (FedRAW, {"cap": "naive"}, "cap_at = 1.0 has no effect with cap = 'naive'; set it to"),
        (FedRAW, LOCKED, "cap = 'naive' has no effect on uniform weights"),
        (FedRAW, {"robust": "mode"}, "robust = 'mode' must be 'clip' or 'trim'"),
        (FedRAW, {"robust_at": 0.2}, "robust_at = 0.2 goes with robust = 'clip' or 'trim'"),
        (FedFa, {"buffer": 0}, "buffer = 0 must be at least 1"),
        (FedFa, {"robust": "clip", "robust_at": 0}, "robust_at = 0 must be a positive number"),
        (FedAvg, {"weighting": "size"}, "weighting = 'size' must be 'samples' or 'uniform'"),
        (FedAvg, {"robust": "trim", "robust_at": 0.5}, "above 0 and below 0.5"),
        (QFedAvg, {"lr": 0}, "lr = 0 must be a positive number"),
        (QFedAvg, {"q": -1}, "q = -1 must be at least 0"),
        (QFedAvg, {"p": "size"}, "p = 'size' must be 'uniform' or 'samples'"),
        (FedAsync, {"alpha": 0}, "alpha = 0 must be above 0 and at most 1"),
        (FedAsync, {"alpha": 1.1}, "alpha = 1.1 must be above 0 and at most 1"),
        (FedAsync, {"staleness": "old"}, "staleness = 'old' must be 'none' or 'polynomial' or 'h"),
        (FedAsync, {"exponent": -1}, "exponent = -1 must be from 0 to 10"),
        (FedAsync, {"staleness": "hinge", "exponent": 1.0}, "exponent = 1.0 goes with staleness ="),
        (FedAsync, {"hinge_slope": 5.0}, "hinge_slope = 5.0 goes with staleness = 'hinge', not wi"),
        (FedAsync, {"proximal": -1}, "proximal = -1 must be at least 0"),
        (FedBuff, {"buffer": 0}, "buffer = 0 must be at least 1"),
        (FedBuff, {"server_lr": 0}, "server_lr = 0 must be a positive number"),
        (FedBuff, {"server_lr": np.inf}, "server_lr = inf must be a finite number"),
        (FedBuff, {"staleness": "hinge"}, "staleness = 'hinge' must be 'none' or 'polynomial'"),
        (FedBuff, {"exponent": 1.0}, "exponent = 1.0 goes with staleness = 'polynomial', not wit"),
        (CA2FL, {"server_lr": -1}, "server_lr = -1 must be a positive number"),
        (CA2FL, {"refresh": "never"}, "refresh = 'never' must be 'round-start' or 'arrival'"),
        (MIFA, {"buffer": 0}, "buffer = 0 must be at least 1"),
        (ACE, {"init": "later"}, "init = 'later' must be 'zero' or 'wait'"),
        (ACED, {"tau_algo": -1}, "tau_algo = -1 must be at least 0"),
        (ACED, {"tau_algo": "all"}, "tau_algo = 'all' must be a whole number or 'clients'"),
        (ACED, {"age": "old"}, "age = 'old' must be 'contact' or 'start'"),
        (AREA, {"buffer": 0}, "buffer = 0 must be at least 1"),
        (FedVARP, {"refresh": "x"}, "refresh = 'x' must be 'round-start' or 'arrival'"),
        (FedAU, {"cutoff": 0}, "cutoff = 0 must be at least 1"),
        (FedStale, {"beta": 1.5}, "beta = 1.5 must be from 0 to 1"),
        (FedStale, {"participation": "p"}, "participation = 'p' must be 'estimated' or 'buffer'"),
        (FedStale, {"beta": 0, "average": "heard"}, "average = 'heard' needs beta above 0"),
        (FedStaleWeight, {"offset": -1}, "offset = -1 must be at least 0"),
        (FADAS, {"beta1": 1}, "beta1 = 1 must be from 0 to below 1"),
        (FADAS, {"beta2": -0.1}, "beta2 = -0.1 must be from 0 to below 1"),
        (FADAS, {"tau_c": 0}, "tau_c = 0 must be at least 1"),
        (FADAS, {"eps": -1}, "eps = -1 must be at least 0"),
        (Replay, {"threshold": 0.5}, "threshold = 0.5 must be at least 1"),
        (Replay, {"mass": 1.0}, "mass = 1.0 must be above 0 and at most 0.9"),
        (Replay, {"floor": -1}, "floor = -1 must be from 0 to 1"),
        (Replay, {"select": "owed"}, "select = 'owed' must be 'rarity' or 'debt'"),
        (Replay, {"target": "samples"}, "target = 'samples' goes with select = 'debt', not with"),
        (Replay, NEEDLESS, "labels = 'inferred' goes with target = 'rarity' or 'mix', not with '"),
        (Replay, {"select": "debt", "threshold": 3.0}, "threshold = 3.0 goes with select = 'rari"),
        (Replay, {"release": False, "floor": 0.5}, "floor = 0.5 goes with release = True, not wi"),
        (OnePass, {"floor": 0}, "floor = 0 must be at least 1"),
        (OnePass, {"clip": 2.0}, "clip = 2.0 has no effect without epsilon"),
    ],
)
def test_impossible_settings_are_refused(kind: Any, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        kind(**settings)
