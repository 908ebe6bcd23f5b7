"""A batch job that survives: each finished row is on disk at once, and a second run does only what is missing."""

from helpers.jobs.job import Job, Settings
from helpers.jobs.journal import JournalProblem
from helpers.jobs.keys import Changed, DuplicateIds
from helpers.jobs.report import Report
from helpers.jobs.rows import SourceProblem
from helpers.jobs.runner import JobStopped, run_job
from helpers.jobs.shards import merge

__all__ = [
    "Changed",
    "DuplicateIds",
    "Job",
    "JobStopped",
    "JournalProblem",
    "Report",
    "Settings",
    "SourceProblem",
    "merge",
    "run_job",
]
