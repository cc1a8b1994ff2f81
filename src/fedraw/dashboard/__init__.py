"""The live dashboard: event logs in a browser, for Prometheus, and as alerts.

watcher   follows the logs of several folders in a thread, even if files are moved or damaged
view      the JSON that the page shows, of bounded size
app       the web application: page, event stream, metrics, health
serve     the address, the token and the socket of the web application
metrics   the status of runs in the format of Prometheus
alerts    rules over the status of runs, and delivery to the log, a webhook or a command

This package only reads the folders of runs.
"""
