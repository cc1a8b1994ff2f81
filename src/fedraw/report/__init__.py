"""Shows runs: tables for the terminal and for papers, figures, an HTML page, the watch screen.

report_data     reads the logs of a report, each once
tables          a comparison as text, Markdown, CSV or LaTeX
figures         all figures of a report
drawing         the style of figures, and how they become SVG and PDF
page            the HTML page; page_text has its sentences, page_tables its tables
watch           the screen of `fedraw watch`
formatting      numbers and rates as short text
"""
