"""Run directories of longreach as pandas data frames, and its models as torch modules.

    study = longreach.runs("runs/*")
    study.table, study.train(), study.val(), study.lengths(), study.means()
    model = longreach.load("runs/quickstart-rope")
"""

from ._files import RunError
from ._load import find_program, load
from ._runs import Runs, runs
from ._statistics import MeanInterval, mean_interval, paired_difference, student_quantile
from ._version import version as __version__

__all__ = ["MeanInterval", "RunError", "Runs", "find_program", "load", "mean_interval", "paired_difference", "runs",
           "student_quantile"]
