"""`python -m helpers.jobs`: what it says and how it ends."""

import json

import pytest
from job_fakes import LLM, batch, plain, read, write

import helpers
from helpers.jobs import Report
from helpers.jobs.__main__ import main


@pytest.fixture
def engine(monkeypatch):
    """The engine that the command will get; None until it asks."""
    made = []

    def get_llm(model, **settings):
        made.append((LLM(reason=lambda text: "length" if "cut" in text else "stop"), settings))
        return made[-1][0]

    monkeypatch.setattr(helpers, "get_llm", get_llm)
    monkeypatch.setattr(Report, "write", lambda self, sink: None)
    return made


def run(tmp_path, rows, *more):
    source = write(tmp_path / "in.jsonl", rows)
    return main(["run", str(source), str(tmp_path / "out.jsonl"), "--model", "/models/fake", *more])


def test_it_runs_and_ends_with_0(tmp_path, engine, capsys):
    assert run(tmp_path, [plain(0), batch(1)], "--engine", "max_num_seqs=8", "--default", "max_tokens=5") == 0
    [(llm, settings)] = engine
    assert settings == {"max_num_seqs": 8} and {params.max_tokens for _, params in llm.given} == {5}
    assert "2 of 2 rows have ended (2 done: stop)" in capsys.readouterr().out and len(read(tmp_path / "out.jsonl")) == 2


def test_the_gate_ends_it_with_3_unless_a_limit_allows(tmp_path, engine, capsys):
    rows = [plain(0), plain(1, prompt="cut")]
    assert run(tmp_path, rows) == 3 and "The gate fails" in capsys.readouterr().out
    assert run(tmp_path, rows, "--limit", "failed=0.5") == 0 and len(engine) == 1
    assert run(tmp_path, rows, "--retry", "failed", "--allow", "stop, length", "--override", "max_tokens=9") == 0


@pytest.mark.parametrize(
    "rows, more, said",
    [
        ([plain(0), plain(0)], (), "Ids must differ"),
        ([plain(0)], ("--shard", "3/2"), "Shard 3 of 2 does not exist"),
        ([plain(0)], ("--default", "temprature=1"), "unknown field `temprature`"),
        ([plain(0)], ("--override", "best_of=2"), "best_of is no setting any more"),
        ([plain(0)], ("--allow", "stop,lenght"), "allow knows stop, length"),
        ([plain(0)], ("--limit", "lenght=0.1"), "The limit lenght=0.1 is none"),
        ([plain(0)], ("--window", "0"), "A window of 0"),
    ],
)
def test_what_is_refused_is_one_sentence_and_2(tmp_path, engine, capsys, rows, more, said):
    assert run(tmp_path, rows, *more) == 2 and engine == []
    error = capsys.readouterr().err
    assert error.startswith("Refused: ") and said in error and error.count("\n") == 1


def test_a_changed_input_is_refused_and_redone_when_asked(tmp_path, engine, capsys):
    run(tmp_path, [plain(0)])
    assert run(tmp_path, [plain(0, top_p=0.5)]) == 2 and "--redo" in capsys.readouterr().err
    assert run(tmp_path, [plain(0, top_p=0.5)], "--redo") == 0


def test_a_missing_file_and_a_wrong_word(tmp_path, engine, capsys):
    assert main(["run", str(tmp_path / "none.jsonl"), str(tmp_path / "out.jsonl"), "--model", "m"]) == 2
    wrong = {"--shard half": "not I/N", "--engine fast": "not NAME=VALUE", "--limit failed=half": "not NAME=SHARE"}
    for words, said in wrong.items():
        with pytest.raises(SystemExit):
            run(tmp_path, [plain(0)], *words.split())
        assert said in capsys.readouterr().err


def test_shards_and_merge(tmp_path, engine, capsys):
    rows = [plain(number) for number in range(10)]
    assert run(tmp_path, rows, "--shard", "1/2") == 0
    merge = ["merge", str(tmp_path / "in.jsonl"), str(tmp_path / "out.jsonl"), "--shards", "2"]
    assert main(merge) == 2 and "out-2-of-2.jsonl.journal lacks" in capsys.readouterr().err
    assert run(tmp_path, rows, "--shard", "2/2") == 0 and main(merge) == 0
    assert [json.loads(line)["id"] for line in (tmp_path / "out.jsonl").open()] == [row["id"] for row in rows]


def test_ctrl_c_while_the_engine_starts_is_one_sentence(tmp_path, monkeypatch, capsys):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(helpers, "get_llm", interrupted)
    assert run(tmp_path, [plain(0)]) == 130
    assert capsys.readouterr().err == "Stopped by SIGINT: run the same command again to go on.\n"


def test_nothing_is_released_where_nothing_was_started(tmp_path, engine, capsys):
    run(tmp_path, [plain(0)])
    capsys.readouterr()
    assert run(tmp_path, [plain(0)]) == 0 and len(engine) == 1 and "o engine" not in capsys.readouterr().out
