"""The audit: predicts, before any training, which labels a federation will lose.

`audit.audit` (public as `fedraw.audit`) makes the prediction from the closed forms in `presence`,
`influence`, `sampling`, `standing` and `staleness`. `label_counts` and `times` read its inputs from
files. `view` holds everything that the renderers `terminal`, `page` and `json_document` show.
`bound` and `aggregations` evaluate the convergence theorem. `methods` is what the audit knows about
each method.

The package is not called `audit`, because that name is the public function of `fedraw`.
"""
