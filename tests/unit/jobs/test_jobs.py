"""The batch job on an engine that answers at once: what is done, what is done again, and what is on disk."""

import gzip
import json
import os
import signal
from types import SimpleNamespace as Fake

import pandas as pd
import pytest
from job_fakes import LLM, batch, plain, read, write

from helpers.jobs import Changed, DuplicateIds, JobStopped, JournalProblem, Report, SourceProblem, merge, run_job
from helpers.jobs import rows as job_rows
from helpers.jobs.shards import Incomplete


@pytest.fixture(autouse=True)
def no_pictures(monkeypatch):
    """Drawing takes most of a job's time here; one test wants it."""
    monkeypatch.setattr(Report, "draw", lambda self: Fake(_repr_png_=bytes))


def run(llm, source, sink, **more):
    return run_job(llm, source, sink, progress=False, **more)


def texts(rows):
    return {row["id"]: row["text"] for row in rows}


def test_every_row_comes_back_once_in_the_inputs_order(tmp_path):
    llm, sink = LLM(), tmp_path / "out.jsonl"
    report = run(llm, write(tmp_path / "in.jsonl", map(plain, range(40))), sink)
    rows = read(sink)
    assert [row["id"] for row in rows] == [f"row-{number}" for number in range(40)]
    assert report.passed and report.exit_code() == 0 and report.ended == {"done: stop": 40}
    assert 5 <= llm.llm_engine.most <= 8, "the window is twice the slots, and was full"
    finish_order = [
        json.loads(line)["row"]["id"] for line in sink.with_name("out.jsonl.journal").open() if '"row"' in line
    ]
    assert sorted(finish_order) == sorted(row["id"] for row in rows) and finish_order != [row["id"] for row in rows]


def test_a_second_run_starts_no_engine(tmp_path):
    source, sink = write(tmp_path / "in.jsonl", map(plain, range(5))), tmp_path / "out.jsonl"
    run(LLM(), source, sink, model="/models/fake")
    before = sink.read_bytes()
    report = run(lambda: pytest.fail("nothing was missing"), source, sink, model="/models/fake")
    assert report.complete and report.tokens == 0 and sink.read_bytes() == before


@pytest.mark.parametrize("form", ["jsonl", "gz", "zst", "parquet", "frame", "list", "iterator"])
def test_rows_are_read_from(form, tmp_path):
    rows, path = [plain(number) for number in range(9)], tmp_path / f"in.{form}"
    source = path
    if form == "jsonl":
        write(path, rows)
    elif form == "gz":
        path.write_bytes(gzip.compress(write(tmp_path / "raw", rows).read_bytes()))
    elif form == "zst":
        import pyarrow

        with pyarrow.CompressedOutputStream(str(path), "zstd") as stream:
            stream.write(write(tmp_path / "raw", rows).read_bytes())
    elif form == "parquet":
        pd.DataFrame(rows).to_parquet(path)
    else:
        source = {"frame": pd.DataFrame(rows), "list": rows, "iterator": iter(rows)}[form]
    run(LLM(), source, tmp_path / "out.jsonl")
    assert len(read(tmp_path / "out.jsonl")) == 9


def test_a_frames_missing_values_are_no_settings(tmp_path):
    frame = pd.DataFrame([plain(0, max_tokens=5), plain(1), plain(2, max_tokens=7)])
    llm = LLM()
    run(llm, frame, tmp_path / "out.jsonl")
    assert [params.max_tokens for _, params in llm.given] == [5, None, 7]


def test_openais_format_comes_back_in_openais_format(tmp_path):
    from openai.types import Completion
    from openai.types.chat import ChatCompletion

    completion = batch(1) | {"url": "/v1/completions", "custom_id": "c", "body": {"prompt": "hello", "temperature": 0}}
    run(LLM(), write(tmp_path / "in.jsonl", [batch(0, model="any", user="u"), completion]), tmp_path / "out.jsonl")
    chat, text = read(tmp_path / "out.jsonl")
    assert chat["custom_id"] == "row-0" and chat["error"] is None and chat["response"]["status_code"] == 200
    found = ChatCompletion.model_validate(chat["response"]["body"], strict=True)
    assert (
        found.choices[0].message.content and found.choices[0].finish_reason == "stop" and found.usage.total_tokens > 2
    )
    assert Completion.model_validate(text["response"]["body"], strict=True).choices[0].text


def test_settings_are_the_checkpoints_then_the_jobs_then_the_rows_then_the_runs(tmp_path):
    rows = [plain(0), plain(1, max_tokens=3, temperature=0.9), {"id": "c", "prompt": "x"}]
    llm = LLM()
    run(llm, rows, tmp_path / "out.jsonl", defaults={"temperature": 0.5, "max_tokens": 7}, override={"max_tokens": 9})
    given = {text: params for text, params in llm.given}
    assert given["x"].temperature == 0.5 and {params.max_tokens for params in given.values()} == {9}
    assert given[rows[1]["prompt"]].temperature == 0.9 and given[rows[0]["prompt"]].temperature == 0


def test_seeds_come_from_seed_and_id_whatever_the_order_or_the_shards(tmp_path):
    rows = [plain(number, temperature=1.0, prompt="the same text") for number in range(8)]

    def seeds(folder, rows, **more):
        llm = LLM()
        (tmp_path / folder).mkdir()
        run(llm, rows, tmp_path / folder / "out.jsonl", **more)
        return {row["id"]: row["text"].split("|")[1] for row in found(tmp_path / folder)}

    def found(folder):
        return [row for path in folder.glob("out*.jsonl") for row in read(path)]

    first = seeds("a", rows)
    assert len(set(first.values())) == 8 and seeds("b", rows[::-1]) == first
    assert seeds("c", rows, shard=(1, 2)) | seeds("d", rows, shard=(2, 2)) == first
    assert seeds("e", rows, seed=1) != first and set(seeds("f", rows, seed=None).values()) == {"None"}


def test_equal_texts_are_fine_and_equal_ids_are_refused_before_the_engine(tmp_path):
    run(LLM(), [plain(0), plain(0, id="other")], tmp_path / "out.jsonl")
    assert len(read(tmp_path / "out.jsonl")) == 2
    with pytest.raises(DuplicateIds, match=r"'row-0' \(again in row 3\)"):
        run(lambda: pytest.fail("no engine"), [plain(0), plain(1), plain(0)], tmp_path / "b.jsonl", model="m")


def test_changed_rows_are_refused_with_the_difference_or_redone_when_asked(tmp_path):
    sink, rows = tmp_path / "out.jsonl", [plain(number, max_tokens=4) for number in range(6)]
    run(LLM(), rows, sink)
    changed = [rows[0] | {"max_tokens": 8}, rows[1] | {"prompt": "another"}, *rows[2:]]
    with pytest.raises(
        Changed, match=r"2 rows changed .*'row-0' in row 1 \(max_tokens 4 -> 8\); 'row-1' in row 2 \(its prompt\)"
    ):
        run(LLM(), changed, sink)
    llm = LLM()
    run(llm, changed, sink, redo=True)
    assert len(llm.given) == 2 and len(read(sink)) == 6
    assert read(sink)[1]["text"].startswith("another") and run(LLM(), changed, sink).tokens == 0


def test_another_way_of_writing_the_same_row_is_no_change(tmp_path):
    row = plain(0, top_p=0.5)
    run(LLM(), write(tmp_path / "a.jsonl", [row]), tmp_path / "out.jsonl")
    backwards = json.dumps(dict(reversed(row.items())), indent=None, separators=(" , ", " :  ")).encode()
    llm = LLM()
    run(llm, write(tmp_path / "b.jsonl", [backwards]), tmp_path / "out.jsonl")
    assert llm.given == []


def test_another_model_or_default_is_refused_with_the_difference(tmp_path):
    sink, rows = tmp_path / "out.jsonl", [plain(0)]
    run(LLM(), rows, sink)
    with pytest.raises(Changed, match=r"defaults max_tokens: None -> 5; seed: 0 -> 3"):
        run(LLM(), rows, sink, defaults={"max_tokens": 5}, seed=3)
    with pytest.raises(Changed, match="model name: 'fake' -> 'other'"):
        run(lambda: None, rows, sink, model="/models/other")
    llm = LLM()
    run(llm, rows, sink, seed=3, redo=True)
    assert len(llm.given) == 1 and len(read(sink)) == 1


@pytest.mark.parametrize("reason", ["length", "error", "repetition", None, "new_reason"])
def test_only_allowed_reasons_are_done(reason, tmp_path):
    report = run(LLM(reason=lambda text: reason), [plain(0)], tmp_path / "out.jsonl")
    assert report.ended == {f"failed: {reason or 'none'}": 1} and report.exit_code() == 3
    [row] = read(tmp_path / "out.jsonl")
    assert row["status"] == "failed" and row["text"], "what was generated is kept"
    assert "The gate fails: failed is 100.0% of the rows" in repr(report)


def test_length_is_done_when_asked_and_failed_rows_are_retried_with_other_limits(tmp_path):
    sink, rows = tmp_path / "out.jsonl", [plain(number, max_tokens=4) for number in range(10)]
    short = LLM(reason=lambda text: "length" if text.endswith(("3", "7")) else "stop")
    assert run(short, rows, tmp_path / "allowed.jsonl", allow=("stop", "length")).passed
    assert run(short, rows, sink).ended == {"done: stop": 8, "failed: length": 2}
    again = LLM()
    report = run(again, rows, sink, retry=("failed",), override={"max_tokens": 64})
    assert report.passed and [params.max_tokens for _, params in again.given] == [64, 64]
    assert run(LLM(), rows, sink).tokens == 0, "another run without the override asks for nothing"


def test_limits_are_shares_of_statuses_or_reasons(tmp_path):
    llm = LLM(reason=lambda text: "length" if text.endswith("3") else "stop")
    rows = [plain(number) for number in range(10)]
    assert run(llm, rows, tmp_path / "a.jsonl", limits={"failed": 0.1}).passed
    assert run(llm, rows, tmp_path / "b.jsonl", allow=("stop", "length"), limits={"length": 0.05}).exceeded() == {
        "length": 0.1
    }


def test_the_journal_has_a_row_as_soon_as_it_is_finished(tmp_path):
    llm, sink, seen = LLM(slots=2), tmp_path / "out.jsonl", []
    journal = sink.with_name("out.jsonl.journal")
    llm.llm_engine.before_step = lambda: seen.append(journal.read_bytes().count(b'"row":'))
    long = plain(0, prompt="y" * 6)  # 7 steps, while others come and go
    run(llm, [long, *(plain(number, prompt="z" * 7) for number in range(1, 12))], sink, window=3)
    assert seen == sorted(seen) and seen[5] >= 4, "later rows are written while the first still runs"


def test_a_signal_stops_in_order_and_the_next_run_goes_on(tmp_path):
    rows, sink = [plain(number) for number in range(60)], tmp_path / "out.jsonl"
    for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
        llm, path = LLM(), sink.with_name(f"{code}.jsonl")
        llm.llm_engine.before_step = lambda e=llm.llm_engine, n=number: (
            os.kill(os.getpid(), n) if e.steps == 5 else None
        )
        before = signal.getsignal(number)
        report = run(llm, rows, path)
        assert report.stopped == number.name and report.exit_code() == code and signal.getsignal(number) is before
        assert not path.exists() and llm.llm_engine.requests == {} and llm.llm_engine.aborted
        done = sum(report.ended.values())
        assert 0 < done < 60
        rest = LLM()
        assert run(rest, rows, path).complete and len(rest.given) == 60 - done and len(read(path)) == 60


def test_an_engine_that_fails_loses_no_finished_row(tmp_path):
    llm, sink = LLM(), tmp_path / "out.jsonl"

    def fail():
        if llm.llm_engine.steps == 6:
            raise RuntimeError("CUDA error")

    llm.llm_engine.before_step = fail
    with pytest.raises(JobStopped, match=r"CUDA error.*out\.jsonl\.journal"):
        run(llm, map(plain, range(30)), sink)
    rest = LLM()
    assert run(rest, map(plain, range(30)), sink).complete and 0 < len(rest.given) < 30


def test_two_jobs_do_not_write_one_output(tmp_path):
    llm, sink = LLM(), tmp_path / "out.jsonl"
    problems = []

    def second():
        if llm.llm_engine.steps == 0:
            with pytest.raises(JournalProblem, match="Another job writes") as error:
                run(LLM(), [plain(0)], sink)
            problems.append(error)

    llm.llm_engine.before_step = second
    run(llm, [plain(0)], sink)
    assert len(problems) == 1


def test_shards_are_disjoint_and_merge_checks_that_all_are_there(tmp_path):
    rows, sink = [plain(number) for number in range(50)], tmp_path / "out.jsonl"
    counts = []
    for number in (1, 2, 3):
        if number == 3:
            with pytest.raises(Incomplete, match=r"out-3-of-3\.jsonl\.journal lacks"):
                merge(rows, sink, 3)
        counts.append(run(LLM(), rows, sink, shard=(number, 3)).rows)
    merged = merge(rows, sink, 3)
    assert sum(counts) == merged.rows == 50 and min(counts) > 5 and merged.passed
    assert [row["id"] for row in read(sink)] == [row["id"] for row in rows]
    with pytest.raises(ValueError, match="Shard 4 of 3"):
        run(LLM(), rows, sink, shard=(4, 3))


@pytest.mark.parametrize("count", [0, 2])
def test_shards_without_rows_are_merged_too(count, tmp_path):
    rows, sink = [plain(number) for number in range(count)], tmp_path / "out.jsonl"
    for number in range(1, 6):
        run(LLM, rows, sink, shard=(number, 5), model="/models/fake")
    assert merge(rows, sink, 5).passed and len(read(sink)) == count


def test_the_gate_is_over_the_rows_of_all_shards(tmp_path):
    rows, sink = [plain(number) for number in range(50)] + [plain(50, prompt="")], tmp_path / "out.jsonl"
    shards = [run(LLM(), rows, sink, shard=(number, 3)) for number in (1, 2, 3)]
    assert sorted(shard.exit_code() for shard in shards) == [0, 0, 3], "one shard has the bad row"
    merged = merge(rows, sink, 3)
    assert merged.ended == {"done: stop": 50, "rejected: rejected": 1} and merged.exit_code() == 3
    assert merge(rows, sink, 3, limits={"rejected": 0.02}).passed
    assert json.loads((tmp_path / "out.jsonl.report.json").read_bytes())["passed"]


def test_an_input_that_cannot_be_read_is_one_sentence(tmp_path):
    for source in (tmp_path / "none.jsonl", 5, {"id": "a"}):
        with pytest.raises(SourceProblem):
            run(LLM(), source, tmp_path / "out.jsonl")
    whole = gzip.compress(write(tmp_path / "raw", map(plain, range(999))).read_bytes())
    (tmp_path / "cut.gz").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "torn.parquet").write_bytes(b"PAR1 and no more")
    for name in ("cut.gz", "torn.parquet"):
        with pytest.raises(SourceProblem, match=f"{name} ends in the middle or is damaged"):
            run(LLM(), tmp_path / name, tmp_path / "out.jsonl")


@pytest.mark.parametrize("name", ["in.jsonl", "in.gz", "in.zst", "in.parquet"])
def test_an_input_that_may_not_be_read_is_not_called_damaged(name, tmp_path):
    (tmp_path / name).write_bytes(b"")
    source = job_rows.Source(tmp_path / name)
    (tmp_path / name).unlink()  # root may read everything; what is gone fails the same way
    with pytest.raises(SourceProblem, match=rf"{name} cannot be read: No such file or directory\."):
        list(source)


def test_a_stopped_redo_shows_neither_old_answers_nor_an_old_report(tmp_path):
    sink, rows = tmp_path / "out.jsonl", [plain(number) for number in range(60)]
    run(LLM(), rows, sink)
    new = [row | {"prompt": f"new {row['prompt']}"} for row in rows]
    llm = LLM()
    llm.llm_engine.before_step = lambda: os.kill(os.getpid(), signal.SIGTERM) if llm.llm_engine.steps == 3 else None
    report = run(llm, new, sink, redo=True)
    assert report.stopped and not report.complete and not report.passed and not sink.exists()
    assert run(LLM(), new, sink, redo=True).complete
    assert all(row["text"].startswith("new ") for row in read(sink))


def test_a_redo_whose_engine_does_not_start_forgets_nothing(tmp_path):
    sink, rows = tmp_path / "out.jsonl", [plain(number) for number in range(10)]
    run(LLM(), rows, sink, model="/models/fake")
    before = sink.read_bytes()
    with pytest.raises(ZeroDivisionError):
        run(lambda: 1 / 0, rows, sink, model="/models/other", redo=True)
    assert sink.read_bytes() == before
    run(lambda: pytest.fail("nothing was missing"), rows, sink, model="/models/fake")


def test_an_input_that_changes_while_the_engine_starts_is_noticed(tmp_path):
    source, sink = write(tmp_path / "in.jsonl", map(plain, range(5))), tmp_path / "out.jsonl"

    def engine():
        write(source, [plain(99), *map(plain, range(5))])
        return LLM()

    with pytest.raises(SourceProblem, match=r"Row 1 of .* changed while the job ran"):
        run(engine, source, sink, model="/models/fake")
    assert run(LLM(), source, sink).complete and [row["id"] for row in read(sink)][:2] == ["row-99", "row-0"]

    def shorter():
        write(source, [plain(99), plain(0, prompt="other"), plain(1)])
        return LLM()

    write(source, [plain(99), plain(0, prompt="other"), *map(plain, range(1, 5)), plain(50)])
    with pytest.raises(SourceProblem, match="had 7 rows and now has 3"):
        run(shorter, source, sink, model="/models/fake", redo=True)


def test_what_an_engine_aborts_is_no_answer(tmp_path):
    sink, rows = tmp_path / "out.jsonl", [plain(number) for number in range(12)]
    going = LLM(reason=lambda text: "abort" if text.endswith("7") else "stop")
    assert not run(going, rows, sink).complete and not sink.exists()
    rest = LLM()
    assert run(rest, rows, sink).passed and len(rest.given) == 1


def test_the_output_is_never_the_input_nor_of_another_kind(tmp_path):
    source = write(tmp_path / "in.jsonl", [plain(0)])
    before = source.read_bytes()
    for sink in (source, tmp_path / "." / "in.jsonl", tmp_path / "out.jsonl.gz", tmp_path / "out.parquet"):
        with pytest.raises(SourceProblem):
            run(LLM(), source, sink)
    assert source.read_bytes() == before
    (tmp_path / "in.csv").write_text("id,prompt\na,b\n")
    with pytest.raises(SourceProblem, match="no known kind"):
        run(lambda: pytest.fail("no engine"), tmp_path / "in.csv", tmp_path / "out.jsonl", model="m")


def test_a_file_that_no_journal_backs_is_never_taken_for_the_output(tmp_path):
    rows = [plain(number) for number in range(6)]
    source, sink = write(tmp_path / "in.jsonl", rows), tmp_path / "out.jsonl"
    run(LLM(), source, sink)
    before = source.read_bytes(), sink.read_bytes()
    no_engine = {"model": "/models/fake"}
    with pytest.raises(SourceProblem, match=r"in\.jsonl is there, and no journal has its rows"):
        run(lambda: pytest.fail("arguments swapped"), sink, source, **no_engine)
    with pytest.raises(SourceProblem, match="is the input"):
        run(lambda: pytest.fail("what merge would write"), source, source, shard=(1, 2), **no_engine)
    part = write(tmp_path / "out-1-of-2.jsonl", rows)
    with pytest.raises(SourceProblem, match="is the input"):
        run(lambda: pytest.fail("its own shard"), part, sink, shard=(1, 2), **no_engine)
    journal = tmp_path / "out.jsonl.journal"
    journal.write_bytes(b"?" + journal.read_bytes()[1:])  # the job's line is damaged: no row counts
    with pytest.raises(SourceProblem, match="no journal has its rows"):
        run(lambda: pytest.fail("a damaged journal"), source, sink, **no_engine)
    with pytest.raises(SourceProblem, match="is the input"):
        merge(source, source, 2)
    for folder in (tmp_path, "."):
        with pytest.raises(SourceProblem, match=r"is a folder: name a \.jsonl file in it"):
            run(lambda: pytest.fail("a folder"), source, folder, **no_engine)
    assert before == (source.read_bytes(), sink.read_bytes()) and len(read(part)) == 6
    assert not (tmp_path / "in.jsonl.journal").exists(), "a refused run leaves no empty journal"


def test_another_number_of_shards_does_no_row_again(tmp_path):
    rows, sink = [plain(number) for number in range(20)], tmp_path / "out.jsonl"
    run(LLM(), rows, sink, shard=(2, 3))
    for shard in ((1, 2), (1, 1)):
        with pytest.raises(SourceProblem, match=r"out-2-of-3\.jsonl\.journal is of another number of shards"):
            run(lambda: pytest.fail("no engine"), rows, sink, shard=shard, model="/models/fake")
    single = tmp_path / "single.jsonl"
    run(LLM(), rows, single)
    with pytest.raises(SourceProblem, match=r"single\.jsonl\.journal is of another number of shards"):
        run(lambda: pytest.fail("no engine"), rows, single, shard=(1, 2), model="/models/fake")
    assert run(LLM(), rows, tmp_path / "o*t.jsonl").complete and run(LLM(), rows, sink, shard=(1, 3)).complete


@pytest.fixture
def checkpoint(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    return folder


def test_a_model_that_changes_while_the_engine_starts_costs_no_finished_row(tmp_path, checkpoint):
    sink, rows = tmp_path / "out.jsonl", [plain(number) for number in range(6)]
    run(LLM(), rows[:5], sink, model=str(checkpoint))

    def newer():
        (checkpoint / "config.json").write_text('{"newer": true}')
        return LLM()

    with pytest.raises(Changed, match=r"model settings: '.+' -> '.+'"):
        run(newer, rows, sink, model=str(checkpoint))
    assert len(read(sink)) == 5
    (checkpoint / "config.json").write_text("{}")
    rest = LLM()
    assert run(rest, rows, sink, model=str(checkpoint)).complete and len(rest.given) == 1
    again = LLM()
    assert run(lambda: (newer(), again)[1], [*rows, plain(6)], sink, model=str(checkpoint), redo=True).complete
    assert len(again.given) == 7, "rows of the earlier model are done again too"


def test_another_precision_or_quantization_is_another_model(tmp_path):
    sink, rows = tmp_path / "out.jsonl", [plain(0), plain(1)]
    run(LLM(), rows[:1], sink)
    other = LLM()
    other.llm_engine.model_config.quantization = "fp8"
    with pytest.raises(Changed, match="model quantization: None -> 'fp8'"):
        run(lambda: other, rows, sink, model="/models/fake")
    run(LLM(), rows[:1], sink)


def test_a_fresh_machine_without_the_model_goes_on_with_a_journal(tmp_path, checkpoint, monkeypatch):
    import huggingface_hub

    sink, rows, here = tmp_path / "out.jsonl", [plain(0), plain(1)], [True]

    def snapshot(name, revision=None, local_files_only=False):
        assert (name, revision, local_files_only) == ("org/model", None, True)
        if not here[0]:
            raise FileNotFoundError(name)
        return str(checkpoint)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    assert run(LLM(), rows[:1], sink, model="org/model").complete
    here[0] = False

    def fetched():
        here[0] = True
        return LLM()

    assert run(lambda: pytest.fail("nothing is missing"), rows[:1], sink, model="org/model").complete
    assert run(fetched, rows, sink, model="org/model").complete and len(read(sink)) == 2
    here[0] = False
    with pytest.raises(Changed, match="model name: 'org/model' -> 'other/model'"):
        run(lambda: pytest.fail("no engine"), rows, sink, model="other/model")
    with pytest.raises(Changed, match="model template: None -> "):
        run(lambda: pytest.fail("no engine"), rows, sink, model="org/model", chat_template="{{ messages }}")


def test_a_rejected_row_that_was_corrected_is_done_without_being_asked_for(tmp_path):
    sink, rows = tmp_path / "out.jsonl", [plain(0), plain(1, temperature=9), plain(2)]
    assert run(LLM(), rows, sink).ended == {"done: stop": 2, "rejected: rejected": 1}
    rows[1]["temperature"] = 1
    llm = LLM()
    assert run(llm, rows, sink).passed and len(llm.given) == 1 and len(read(sink)) == 3
    with pytest.raises(Changed, match=r"1 row changed .*'row-2' in row 3 \(top_p None -> 0.5\)"):
        run(LLM(), [*rows[:2], rows[2] | {"top_p": 0.5}], sink)


def test_fields_that_decide_nothing_are_no_change_and_no_difference(tmp_path):
    sink = tmp_path / "out.jsonl"
    run(LLM(), [batch(0, model="gpt-4o"), batch(1, model="gpt-4o")], sink)
    llm = LLM()
    run(llm, [batch(0, model="gpt-5", user="u"), batch(1)], sink)
    assert llm.given == []
    with pytest.raises(Changed, match=r"'row-0' in row 1 \(its prompt\)"):
        run(LLM(), [batch(0, model="any", messages=[{"role": "user", "content": "new"}]), batch(1)], sink)


@pytest.mark.parametrize(
    "given, said",
    [
        ({"allow": ("stop", "lenght")}, "allow knows stop, length.* and not 'lenght'"),
        ({"retry": "fialed"}, "retry knows rejected, failed, and not 'fialed'"),
        ({"limits": {"lenght": 0.1}}, "lenght=0.1 is none"),
        ({"limits": {"failed": 5}}, "failed=5 is none: it is a share"),
        ({"window": 0}, "A window of 0 requests runs none"),
        ({"shard": (0, 2)}, "Shard 0 of 2 does not exist"),
    ],
)
def test_a_wrong_argument_is_refused_before_anything_is_done(given, said, tmp_path):
    with pytest.raises(ValueError, match=said):
        run(lambda: pytest.fail("no engine"), [plain(0)], tmp_path / "out.jsonl", model="m", **given)
    assert list(tmp_path.iterdir()) == []


def test_one_name_is_as_good_as_a_list_of_one(tmp_path):
    llm = LLM(reason=lambda text: "length" if llm.llm_engine.count == 1 else "stop")
    assert run(llm, [plain(0)], tmp_path / "out.jsonl", allow="stop").ended == {"failed: length": 1}
    assert run(llm, [plain(0)], tmp_path / "out.jsonl", retry="failed").passed


def test_an_engine_that_fails_at_one_row_names_it(tmp_path):
    llm, sink = LLM(), tmp_path / "out.jsonl"
    add = llm.llm_engine.add

    def fail(text, params):
        if text == "bad":
            raise RuntimeError("boom")
        return add(text, params)

    llm.llm_engine.add = fail
    rows = [*map(plain, range(20)), plain(20, prompt="bad"), plain(21)]
    with pytest.raises(JobStopped, match=r"failed at row 21, 'row-20' \(boom\)\. .*take this row out if it fails here"):
        run(llm, rows, sink)
    assert run(llm, rows[:20] + rows[21:], sink).complete


def test_missing_rows_are_said(tmp_path):
    report = run(LLM(reason=lambda text: "abort"), [plain(0)], tmp_path / "out.jsonl")
    assert report.exit_code() == 3
    assert "The engine gave no answer to 1 rows: run the same command again." in repr(report)


def test_whole_numbers_as_ids_come_back_as_they_were(tmp_path):
    run(LLM(), [batch(0, temperature=9) | {"custom_id": 0}], tmp_path / "batch.jsonl")
    assert read(tmp_path / "batch.jsonl")[0]["custom_id"] == "0", "OpenAI's ids are text"
    rows = [plain(0, id=7), plain(1, id="8"), plain(2, id=9, temperature=9)]
    run(LLM(), rows, tmp_path / "out.jsonl")
    found = read(tmp_path / "out.jsonl")
    assert [row["id"] for row in found] == [7, "8", 9]
    assert found[2].keys() - {"line"} == found[0].keys(), "a rejected row has the same fields"
    with pytest.raises(DuplicateIds, match=r"'7' \(again in row 2\)"):
        run(LLM(), [plain(0, id=7), plain(1, id="7")], tmp_path / "b.jsonl")


def test_equal_ids_are_named_in_lines_that_cannot_be_read_further(tmp_path):
    line = b'{"id": "a", "prompt": "\xff"}'
    with pytest.raises(DuplicateIds, match=r"'a' \(again in row 2\)"):
        run(LLM(), write(tmp_path / "in.jsonl", [line, line]), tmp_path / "out.jsonl")


def test_an_iterator_that_raises_leaves_no_temporary_file(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(ZeroDivisionError):
        run(LLM(), (plain(1 // (3 - number)) for number in range(9)), tmp_path / "out.jsonl")
    assert list(tmp_path.iterdir()) == []


def test_a_report_that_cannot_be_written_is_one_sentence(tmp_path):
    llm = LLM()
    llm.llm_engine.before_step = lambda: (tmp_path / "out.jsonl.report.json").mkdir(exist_ok=True)
    said = r"The report of .* cannot be written \(Is a directory\); no result is lost"
    with pytest.raises(JournalProblem, match=said):
        run(llm, [plain(0)], tmp_path / "out.jsonl")
    assert len(read(tmp_path / "out.jsonl")) == 1


def test_one_limit_whatever_its_name(tmp_path):
    llm = LLM()
    rows = [plain(0, max_completion_tokens=100), plain(1, max_tokens=5), plain(2)]
    run(llm, rows, tmp_path / "out.jsonl", defaults={"max_completion_tokens": 50})
    assert [params.max_tokens for _, params in llm.given] == [100, 5, 50]
    again = LLM()
    run(again, rows, tmp_path / "b.jsonl", override={"max_tokens": 9})
    assert {params.max_tokens for _, params in again.given} == {9}


def test_parquet_rows_that_share_a_schema_have_no_empty_fields(tmp_path):
    completion = {
        "custom_id": "c",
        "method": "POST",
        "url": "/v1/completions",
        "body": {"prompt": "x", "messages": None},
    }
    chat = batch(0) | {"body": batch(0)["body"] | {"prompt": None, "logit_bias": {"6": None, "7": 1.0}}}
    parts = plain(5) | {"prompt": None, "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]}
    pd.DataFrame([chat, completion, parts]).to_parquet(tmp_path / "in.parquet")
    assert run(LLM(), tmp_path / "in.parquet", tmp_path / "out.jsonl").ended == {"done: stop": 3}


def test_a_byte_order_mark_costs_no_row_and_tuples_are_lists(tmp_path):
    source = write(tmp_path / "in.jsonl", [plain(0), plain(1)])
    source.write_bytes(b"\xef\xbb\xbf" + source.read_bytes())
    for _ in range(2):
        assert run(LLM(), source, tmp_path / "out.jsonl", defaults={"stop": ("\n",)}).ended == {"done: stop": 2}


def test_a_row_that_no_json_can_hold_is_rejected_and_the_spool_is_removed(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "spool"))
    (tmp_path / "spool").mkdir()
    odd = plain(0, metadata={"k": object()})
    assert run(LLM(), [odd, plain(1)], tmp_path / "a.jsonl").ended == {"done: stop": 1, "rejected: rejected": 1}
    assert run(LLM(), iter([plain(0), plain(1)]), tmp_path / "b.jsonl").complete
    assert list((tmp_path / "spool").iterdir()) == []


def test_an_empty_input_is_an_empty_output(tmp_path):
    report = run(LLM(), write(tmp_path / "in.jsonl", []), tmp_path / "out.jsonl")
    assert report.rows == 0 and report.passed and read(tmp_path / "out.jsonl") == []


def test_the_report_is_for_machines_and_for_people(tmp_path, monkeypatch):
    monkeypatch.undo()
    sink = tmp_path / "out.jsonl"
    report = run(LLM(), map(plain, range(20)), sink)
    data = json.loads(sink.with_name("out.jsonl.report.json").read_bytes())
    assert (
        data["passed"]
        and data["rows"] == 20
        and data["ended"] == {"done: stop": 20}
        and data["completion_tokens"]["median"]
    )
    page = sink.with_name("out.jsonl.report.html").read_text()
    assert "data:image/png;base64," in page and "20 of 20 rows" in page and "20 of 20 rows" in repr(report)


def test_a_load_that_outlasts_the_work_says_so(tmp_path):
    report = run(LLM(), [plain(0)], tmp_path / "out.jsonl")
    report.load_seconds, report.seconds = 60.0, 70.0
    assert "a server that stays warm" in repr(report)
    report.rows = 1000  # the last row of a large job was resumed
    assert "a server that stays warm" not in repr(report)


def test_memory_does_not_grow_with_the_rows(tmp_path):
    import tracemalloc

    def peak(count: int) -> int:
        llm = LLM(slots=32)
        llm.given = Fake(append=lambda row: None)
        tracemalloc.start()
        run(llm, (plain(number) for number in range(count)), tmp_path / f"{count}.jsonl")
        top = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return top

    peak(100)  # what is imported on the way
    small, large = peak(500), peak(3500)
    assert (large - small) / 3000 < 300, "bytes for each further row; its answer alone takes more"
