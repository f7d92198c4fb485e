"""The report of a run: one self-contained HTML page made from the files of its directory."""

from ebscfl.report.load import RunData, load_run
from ebscfl.report.page import write_report

__all__ = ["RunData", "load_run", "write_report"]
