"""The live dashboard: event logs in a browser, for Prometheus, and as alerts.

watcher   follows the logs of several folders in a thread, whatever happens to the files
view      what the page shows of a run, as bounded JSON
app       the web application: page, event stream, metrics, health
metrics   the same status in the format of Prometheus
alerts    rules over the status of runs; delivery to the log, a webhook or a command
monitor   the process that a server starts for its dashboard and its alerts

Everything here only reads the folders of runs.
"""
