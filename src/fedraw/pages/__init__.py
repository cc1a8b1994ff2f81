"""What HTML pages have in common: the page of an audit and the page of a report."""
