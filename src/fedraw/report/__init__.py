"""Shows runs: tables for the terminal and for papers, figures, an HTML page, the watch screen.

report_data     reads the logs of a report, each once
tables          formats a comparison as text, Markdown, CSV or LaTeX
figures         draws all figures of a report
drawing         has the style of figures, and writes them as SVG and PDF
page            renders the HTML page, with sentences from page_text and tables from page_tables
watch           renders the screen of `fedraw watch`
formatting      formats numbers, changes and rates as short text
"""
