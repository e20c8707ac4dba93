"""The report as one HTML file, without network: for people who look at a run in a browser.

Imported only when a report is asked for; nothing else of the harness needs it.
"""
