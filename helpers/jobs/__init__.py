"""A batch job that survives: each finished row is on disk at once, and a second run does only what is missing."""

from helpers.jobs.hashes import Changed, DuplicateIds
from helpers.jobs.job import Job, JobSettings
from helpers.jobs.journal import JournalProblem
from helpers.jobs.report import Report
from helpers.jobs.rows import SourceProblem
from helpers.jobs.runner import JobStopped, run_job
from helpers.jobs.shards import merge

__all__ = [
    "Changed",
    "DuplicateIds",
    "Job",
    "JobSettings",
    "JobStopped",
    "JournalProblem",
    "Report",
    "SourceProblem",
    "merge",
    "run_job",
]
