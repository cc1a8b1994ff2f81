"""The audit: predicts, before any training, which labels a federation will lose.

`prediction.audit` (public as `fedraw.audit`) predicts from the closed forms in `presence`,
`influence` and `standing`; `what_if` repeats the prediction for other settings and recommends one.
`methods` describes each method for the audit. `label_counts` and `times` read the inputs from
files. `view` holds everything that the terminal, the page and the JSON document show, and `words`
puts it into words. `terminal` needs rich, so it is imported only by the command line.

The package is not called `audit`, because that name is the public function of `fedraw`.
"""

from fedraw.auditing.label_counts import CountsFile, read_label_counts
from fedraw.auditing.methods import METHODS, Verdict
from fedraw.auditing.prediction import Audit, audit
from fedraw.auditing.times import MeanTimes, read_times
from fedraw.auditing.view import AuditView, json_document
from fedraw.auditing.what_if import Recommendation

__all__ = [
    "METHODS",
    "Audit",
    "AuditView",
    "CountsFile",
    "MeanTimes",
    "Recommendation",
    "Verdict",
    "audit",
    "json_document",
    "read_label_counts",
    "read_times",
]
