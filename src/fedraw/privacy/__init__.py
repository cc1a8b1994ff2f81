"""Label summaries that tell the server less than a histogram per client: docs/privacy.md."""
