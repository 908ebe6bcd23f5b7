"""`python -m helpers.jobs run IN OUT` and `merge IN OUT --shards N`."""

import argparse
import json
import sys

from helpers.jobs import merge, run_job
from helpers.jobs.report import LIMITS
from helpers.problems import Problem, Refused

INTERRUPTED = 130


def main(arguments: list[str] | None = None) -> int:
    """Ends with 0 when all is well, 3 when the gate fails or rows are missing, 2 when the input is refused, 1 when the
    engine or the disk fails, 130 after Ctrl-C and 143 after SIGTERM."""
    given = _parser().parse_args(arguments)
    try:
        return given.act(given)
    except KeyboardInterrupt:  # while the engine starts; later a job stops in order
        print("Stopped by SIGINT: run the same command again to go on.", file=sys.stderr)
        return INTERRUPTED
    except Problem as problem:
        print(f"{'Refused: ' if isinstance(problem, Refused) else ''}{problem}", file=sys.stderr)
        return problem.exit_code


def _run(given: argparse.Namespace) -> int:
    from helpers import get_llm, models, release_llm

    model = given.model or models.model()

    def engine():
        try:
            return get_llm(model, **dict(given.engine))
        except TypeError as error:  # an argument that vLLM does not have
            raise Refused(str(error)) from error

    report = run_job(
        engine,
        given.input,
        given.output,
        model=model,
        defaults=dict(given.default),
        override=dict(given.override),
        seed=given.seed,
        allow=[name.strip() for name in given.allow.split(",")],
        limits=LIMITS | dict(given.limit),
        retry=given.retry,
        redo=given.redo,
        shard=given.shard,
        window=given.window,
        fsync=given.fsync,
    )
    print(report)
    if report.load_seconds:
        release_llm()
    return report.exit_code()


def _merge(given: argparse.Namespace) -> int:
    report = merge(given.input, given.output, given.shards, limits=LIMITS | dict(given.limit))
    print(report)
    return report.exit_code()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m helpers.jobs", description=sys.modules[__name__].__doc__, epilog=main.__doc__
    )
    commands = parser.add_subparsers(required=True)
    run = commands.add_parser(
        "run", help="run every row of IN and write one row for each to OUT; again: what is missing", epilog=main.__doc__
    )
    run.set_defaults(act=_run)
    for name in ("input", "output"):
        run.add_argument(name)
    run.add_argument("--model", help="a hub id or a folder (default: the workbook's)")
    run.add_argument(
        "--engine", type=_pair, action="append", default=[], metavar="NAME=VALUE", help="argument of vllm.LLM"
    )
    run.add_argument(
        "--default", type=_pair, action="append", default=[], metavar="NAME=VALUE", help="for rows without it"
    )
    run.add_argument(
        "--override", type=_pair, action="append", default=[], metavar="NAME=VALUE", help="for all rows run now"
    )
    run.add_argument("--seed", type=int, default=0, help="from which rows that sample get their own")
    run.add_argument("--allow", default="stop", help="finish reasons that count as done: stop,length")
    run.add_argument("--retry", action="append", default=[], choices=["failed", "rejected"], help="run these again")
    run.add_argument("--redo", action="store_true", help="do rows again whose settings or model changed")
    run.add_argument("--shard", type=_shard, default=(1, 1), metavar="I/N", help="only this part of the rows")
    run.add_argument("--window", type=int, help="requests in the engine at once")
    run.add_argument("--fsync", choices=["row", "seconds", "off"], default="seconds")
    join = commands.add_parser("merge", help="one output from the shards'")
    join.set_defaults(act=_merge)
    for name in ("input", "output"):
        join.add_argument(name)
    join.add_argument("--shards", type=int, required=True)
    for command in (run, join):
        command.add_argument(
            "--limit",
            type=_share,
            action="append",
            default=[],
            metavar="NAME=SHARE",
            help="largest share by status or reason; failed=0.01 is the default",
        )
    return parser


def _pair(text: str) -> tuple[str, object]:
    name, given, value = text.partition("=")
    if not given:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def _share(text: str) -> tuple[str, float]:
    name, value = _pair(text)
    if not isinstance(value, int | float) or not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=SHARE, as failed=0.05")
    return name, float(value)


def _shard(text: str) -> tuple[int, int]:
    try:
        number, count = map(int, text.split("/"))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not I/N, as 1/8") from None
    return number, count


if __name__ == "__main__":
    sys.exit(main())
