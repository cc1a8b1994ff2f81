"""Experiments: from a spec to one run folder per seed.

simulate     an experiment from keyword arguments: the public entry point
spec         an experiment as data: a SPEC.toml, checked; its sections are in `sections`
plugins      the modules that a spec lists; `parts` has the user's own Python objects
options      how a run is executed, which does not change the results
scenario     one seed of a spec: clients, model, strategy and arrival law
clients      the clients with their data and labels; the attackers and the drift of a spec
loading      the data sets and weights that a spec names
training     how clients train, and the executor of a run
runner       runs seeds and resumes them; `evaluation` evaluates their models
run_folder   the files of one run; `checkpoints` has the state of an unfinished one
cells        runs many seeds at once, each in a process; `progress` estimates the time left
result       the seeds of a run as tables, models and plots
"""
