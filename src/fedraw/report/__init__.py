"""Shows runs: tables for the terminal and for papers, figures, an HTML page, the watch screen.

report_data     reads the logs of a report, each once
tables          a comparison as text, Markdown, CSV or LaTeX
curves          figures with lines over the events of a run
figures         the other figures, and all figures of a report as files
drawing         the style of figures, and how they become SVG and PDF
page            the HTML page; page_text, page_tables, page_influence and page_confusion fill it
watch           the screen of `fedraw watch`; watch_detail draws one run on it
formatting      numbers, durations and rates as short text
"""
