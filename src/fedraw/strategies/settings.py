"""What each setting of a method means, in one sentence; read by `fedraw methods` and the reference.

A key such as "fedfa.buffer" is the meaning of a setting in one method, where it differs from that
of the other methods.
"""

from __future__ import annotations

MEANINGS = {
    "age": (
        "When the age of a cached difference begins: at the last arrival of its client "
        '("contact"), or at the version that it was trained from ("start").'
    ),
    "alpha": "The share that an update without staleness has in the new model.",
    "average": (
        "The clients over which the cache is averaged: all members, or only those that have sent "
        "an update."
    ),
    "beta": "How far cached differences correct a step: 0 not at all, 1 completely.",
    "beta1": "The part of the first moment that a step keeps.",
    "beta2": "The part of the second moment that a step keeps.",
    "buffer": "The number of updates K in a step of the server.",
    "fedfa.buffer": "The number of last updates K whose models are averaged.",
    "fedraw.buffer": "The number of updates K that the buffer holds.",
    "fedraw-replay.buffer": (
        "The number of updates K in a step of the server, and the most clients whose last update "
        "is kept."
    ),
    "cap": (
        "How the weight of one slot is bounded: not at all, by lowering it once, or by lowering "
        "all weights until none is above the bound."
    ),
    "cap_at": "The bound on the weight of one slot, if there is a cap.",
    "corrected": "Whether the moments are corrected for their start at zero.",
    "clip": (
        "With epsilon, the root mean square to which the features of a sample are scaled down; "
        "1 if it is not set."
    ),
    "cutoff": "The longest interval between two participations that is counted, in steps.",
    "delta": ("With epsilon, the probability that its bound does not hold; 1e-5 if it is not set."),
    "dedup": "Whether a client has at most one slot in the buffer.",
    "eps": "The number that is added to the denominator of a step.",
    "epsilon": (
        "The privacy budget of a client's message of sums, to which it adds Gaussian noise; "
        "without it, there is no noise."
    ),
    "exponent": 'The exponent a of the staleness factor (1 + τ)^-a, if staleness is "polynomial".',
    "floor": "The least weight of a kept update, as a multiple of 1/N.",
    "one-pass.floor": (
        "Clients leave out labels of which they have fewer samples, because the sums of a label "
        "with one sample are its features."
    ),
    "group": (
        "With epsilon, the most samples of one person at a client, all of which epsilon covers; "
        "1 if it is not set."
    ),
    "hinge_grace": 'The staleness up to which an update has full weight, if staleness is "hinge".',
    "hinge_slope": 'How fast the weight falls beyond this staleness, if staleness is "hinge".',
    "init": (
        "What happens before all clients have sent an update: absent ones count as zero, or the "
        "first step waits for them."
    ),
    "labels": (
        "What rarity scores are computed from: the declared label counts, these counts checked "
        "against the updates, or the updates alone."
    ),
    "mass": "The most weight that all kept updates have together.",
    "offset": (
        "A number that is added to the mean staleness of every client, so that clients without "
        "staleness have a weight too."
    ),
    "p": "Whether a client's term counts by its number of samples, or all terms count the same.",
    "participation": (
        "The probability that a client takes part in a step: estimated from its past, the same "
        "for all, or one."
    ),
    "prior": (
        "The temper t of the prior: 1 expects labels as often as clients hold them, which is best "
        "for overall accuracy, and 0 expects all labels equally often."
    ),
    "proximal": "The factor of the proximal term in the clients' loss; 0 leaves it out.",
    "q": "How much more a client with a higher loss weighs; 0 weights all clients equally.",
    "readout": (
        'How the linear layer is solved: "discriminant", or "ridge" for ridge regression (Fed3R), '
        'or "regression" for targets that are numbers.'
    ),
    "refresh": (
        "When a cached difference is replaced if its client arrives twice in a buffer: after the "
        "step, or on arrival."
    ),
    "release": (
        "Whether an update is no longer repeated once the model has realised it; false is an "
        "ablation."
    ),
    "robust": (
        'A mean that one bad update cannot move far: "clip" shortens updates that are far from '
        'the model, "trim" leaves out the extreme values of each coordinate.'
    ),
    "robust_at": (
        'The strength of the robust mean: for "clip" a multiple of the median distance, for "trim" '
        "the share of values that is left out on each side."
    ),
    "select": (
        "Whose last update is kept: clients with a high rarity score, or clients that arrive less "
        "often than their target weight asks for."
    ),
    "server_lr": "The server rate: the factor by which a step moves the model.",
    "shrinkage": (
        'The part of the covariance that is replaced by a multiple of the identity; "auto" '
        "computes it from the sums."
    ),
    "staleness": "How the weight of an update falls with its staleness τ in versions.",
    "target": (
        'The target weights with select = "debt": by rarity score, by samples, or half by each.'
    ),
    "tau_algo": (
        'The greatest age at which a cached difference counts; "clients" is the number of members.'
    ),
    "tau_c": "The greatest staleness in a buffer at which the step keeps its full length.",
    "threshold": "The multiple of the median rarity score above which a client's update is kept.",
    "unique": "Whether a client that arrives again before a step replaces its earlier update.",
    "wait": "Whether the first step waits until every client has sent an update.",
    "weighting": "Whether clients are weighted by their samples, or all equally.",
    "fedraw.weighting": "Whether slots are weighted by rarity score, or all equally.",
}
