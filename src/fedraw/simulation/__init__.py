"""The simulator: a federation in virtual time, one arrival after the other.

loop           arrivals and scheduled changes; asks a strategy, an arrival law and an executor
arrivals       how long each training lasts: Poisson, fixed, jittered or recorded
speeds         each client's mean training time
executors      who trains: this process, worker processes, or a Ray cluster
perturbations  attacks and drift, which wrap executors and schedule changes
"""
