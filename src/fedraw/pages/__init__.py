"""The common parts of the HTML pages of audits, reports and the dashboard."""
