"""A run: the directory (or the memory) that holds everything about one training.

`RunWriter` is what the engine writes through, `Run` is what people read. The files are listed in `layout`.
"""

from dure.run.describe import data_summary, environment
from dure.run.reader import Run, find_runs
from dure.run.writer import RunWriter

__all__ = ["Run", "RunWriter", "data_summary", "environment", "find_runs"]
