"""fedraw audit as an operator meets it: real files, real processes, exit codes."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.cli.command import fedraw

from fedraw.auditing.methods import COLUMNS, METHODS

COUNTS = "client,label,count\n" + "".join(
    f"site {i},benign,{60 + i}\nsite {i},malign,{30 + i}\n" for i in range(11)
)
COUNTS += "clinic,benign,40\nclinic,rare one,25\n"
TIMES = "client,seconds\n" + "".join(f"site {i},1.0\n" for i in range(11)) + "clinic,6\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "labels.csv").write_text(COUNTS)
    (tmp_path / "times.csv").write_text(TIMES)
    return tmp_path


def audit(folder: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    return fedraw("audit", "labels.csv", *arguments, cwd=folder)


def document(folder: Path, *arguments: object) -> dict[str, Any]:
    done = audit(folder, *arguments, "--json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_the_text_says_what_is_rare_what_is_lost_and_what_to_do(folder: Path) -> None:
    done = audit(folder, "--times", "times.csv", "--from", "fedfa", "-v")
    assert done.returncode == 0, done.stderr
    assert "12 clients, 3 labels" in done.stdout
    assert (
        "Rare labels (at most half the median coverage): rare one; held by 1 client." in done.stdout
    )
    assert "lost under FedFa" in done.stdout
    assert "Recommendation\n" in done.stdout
    assert '  strategy.name = "fedraw-replay-debt"\n  strategy.buffer = 6\n' in done.stdout
    assert done.stderr == ""


def test_the_table_shows_the_number_that_the_verdict_rests_on(folder: Path) -> None:
    found = document(folder, "--times", "times.csv")
    rare = next(label for label in found["labels"] if label["label"] == "rare one")
    lines = audit(folder, "--times", "times.csv", "-v").stdout.splitlines()
    line = next(line for line in lines if re.match(r"rare one +1 x\d", line))  # held, time
    assert line.split()[4 : 4 + len(COLUMNS)] == [
        f"{100 * rare['standing'][m]:.1f}" for m in COLUMNS
    ]
    assert rare["standing"]["fedfa"] < 0.1, "lost"


def test_json_has_the_contract_s_keys(folder: Path) -> None:
    found = document(folder, "--times", "times.csv")
    methods = set(METHODS)
    assert methods > {"fedfa", "fedbuff", "ca2fl", "fedraw", "fedraw-replay", "mifa", "fedau"}
    assert found["federation"]["clients"] == 12
    assert {label["label"] for label in found["labels"]} == {"benign", "malign", "rare one"}
    rare = next(label for label in found["labels"] if label["label"] == "rare one")
    assert rare["coverage"] == 1
    assert set(rare["influence"]) == methods
    assert rare["verdict"].startswith("lost under FedFa")
    clinic = next(client for client in found["clients"] if client["client"] == "clinic")
    assert set(clinic["presence"]) == set(clinic["influence"]) == methods
    assert clinic["score"] == pytest.approx(40 / 65 / 12 + 25 / 65)
    share = (1 / 6) / (11 + 1 / 6)
    assert clinic["influence"]["fedfa"] == pytest.approx(share)
    assert found["rare_presence"]["fedfa"] == pytest.approx(100 * (1 - (1 - share) ** 10))
    assert set(found["rare_presence"]) == methods
    # The clinic alone is far above the median score: 0.44 of 11/12 and 0.44, so W is a third or so.
    assert found["federation"]["replayed_clients"] == 1
    assert found["rare_presence"]["fedraw-replay"] == 100
    scores = [client["score"] for client in found["clients"]]
    assert clinic["influence"]["fedraw-replay"] == pytest.approx(clinic["score"] / sum(scores))
    assert rare["holders_share"] == pytest.approx(share)
    fair = 25 / found["federation"]["samples"]
    assert rare["influence"]["fedfa"] == pytest.approx(share * 25 / 65 / fair)


def test_what_replay_takes_is_said(folder: Path) -> None:
    from_fedfa = ("--times", "times.csv", "--from", "fedfa", "-v")
    done = " ".join(audit(folder, *from_fedfa).stdout.split())
    # Twelve updates of the clinic's (1/6) / (11 + 1/6) of all arrivals.
    assert (
        "Replay keeps the last update of 1 client. The verdicts on replay and debt replay assume "
        "12 updates from a label's holders; for label rare one this takes 804 arrivals."
    ) in done
    assert (
        "Recommendation Debt replay, K=6: the expected recall of label rare one goes from below 5 %"
        " (lost under FedFa) to"
    ) in done
    assert "clients send differences, and the server stores at most K updates" in done
    (folder / "labels.csv").write_text("client,label,count\na,x,1\nb,x,2\nc,x,3\n")
    assert "Replay equals FedBuff here: no client's rarity score" in audit(folder, "-v").stdout


def test_the_column_of_clients_may_be_called_site_in_every_table(folder: Path) -> None:
    (folder / "online.csv").write_text(TIMES.replace("seconds", "online").replace(",6", ",0.5"))
    given = ("--times", "times.csv", "--availability", "online.csv")
    before = document(folder, *given)
    for name in ("labels.csv", "times.csv", "online.csv"):
        text = (folder / name).read_text()
        (folder / name).write_text(text.replace("client,", "site,", 1))
    assert document(folder, *given) == before


def test_wide_and_parquet_tables_say_the_same(folder: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    long = document(folder)
    rows = [line.split(",") for line in COUNTS.splitlines()[1:]]
    clients = list(dict.fromkeys(row[0] for row in rows))
    labels = list(dict.fromkeys(row[1] for row in rows))
    count = {(client, label): n for client, label, n in rows}
    wide = "\n".join(
        ",".join([client, *(count.get((client, label), "") for label in labels)])
        for client in clients
    )
    (folder / "labels.csv").write_text(f"client,{','.join(labels)}\n{wide}\n")
    assert document(folder)["labels"] == long["labels"]
    columns = {"client": [r[0] for r in rows], "label": [r[1] for r in rows]}
    table = pa.table(columns | {"count": [int(r[2]) for r in rows]})
    pq.write_table(table, folder / "labels.csv")  # known by its content
    assert document(folder)["labels"] == long["labels"]


def test_a_log_of_arrivals_gives_intervals(folder: Path) -> None:
    lines = [f"site {i},{tick + i / 20}" for tick in range(40) for i in range(11)]
    lines += [f"clinic,{tick}" for tick in range(0, 40, 8)]
    (folder / "log.csv").write_text("client,timestamp\n" + "\n".join(lines) + "\n")
    found = document(folder, "--times", "log.csv")
    rare = next(label for label in found["labels"] if label["label"] == "rare one")
    low, high = rare["interval"]["fedraw"]
    assert low < rare["standing"]["fedraw"] < high


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--fail-on", "lost"], 1),
        (["--fail-on", "at-risk"], 1),
        (["--fail-on", "lost", "--method", "FedFa"], 1),
        (["--fail-on", "lost", "--method", "ca2fl"], 0),
        (["--fail-on", "at-risk", "--method", "ca2fl"], 1),
        (["--fail-on", "at-risk", "--method", "Replay"], 0),
    ],
)
def test_fail_on(folder: Path, arguments: list[object], code: int) -> None:
    done = audit(folder, "--times", "times.csv", *arguments)
    assert done.returncode == code, done.stderr
    if code:
        assert "rare one under " in done.stderr


@pytest.mark.parametrize("sites", [3, 40])
@pytest.mark.parametrize("arrivals", [20, 200, 3000, 9000])
def test_the_short_form_has_the_answer_first_and_at_most_25_lines(
    folder: Path, sites: int, arrivals: int
) -> None:
    rows = "".join(
        f"{'clinic of the county ' * 2}{i},{'benign' * 9} {i % 3},50\n" for i in range(sites)
    )
    (folder / "labels.csv").write_text(f"{COUNTS}{rows}nobody,never,0\nnobody,benign,1\n")
    done = audit(folder, "--arrivals", arrivals)
    lines = done.stdout.splitlines()
    assert done.returncode == 0 and len(lines) <= 25 and max(map(len, lines)) <= 80
    assert "under FedAvg" in lines[0]
    advice = next(i for i, line in enumerate(lines) if line.startswith("Recommendation: "))
    assert advice < next(i for i, line in enumerate(lines) if line.startswith("label "))
    whole = " ".join(done.stdout.split())
    assert f"In {arrivals:,} arrivals FedAvg makes " in whole
    assert ("Caution: The verdicts were calibrated on runs of 3,000" in whole) == (arrivals != 3000)
    assert ("with 12 to 32 sites, not with " in whole) == (sites == 40)
    assert len(audit(folder, "-v").stdout.splitlines()) > 25


def test_nothing_is_cut_off_in_the_short_form_s_table(folder: Path) -> None:
    """Names that differ at their end, and a setting with two digits."""
    rows = "".join(f"{n},{label},50\n" for n in range(14) for label in ("common", "a common one"))
    rare = "".join(f"13,an uncommon label {i},40\n" for i in "xy")
    (folder / "labels.csv").write_text(f"{COUNTS}{rows}{rare}")
    lines = audit(folder, "--from", "fedfa", "--arrivals", "300").stdout.splitlines()
    (head,) = (n for n, line in enumerate(lines) if line.startswith("label "))
    assert lines[head].split("  ")[-1].strip().endswith(", K=10")
    assert {line[:20] for line in lines} >= {f"an uncommon label {i} " for i in "xy"}
    assert "…" not in "".join(lines)


def test_the_short_form_says_how_many_labels_it_leaves_out(folder: Path) -> None:
    rows = "".join(f"{site},illness {i},50\n" for site in "abcd" for i in range(30))
    (folder / "labels.csv").write_text(f"{COUNTS}{rows}")
    *lines, last = audit(folder).stdout.splitlines()
    shown = sum(line.startswith("illness ") for line in lines)
    assert 0 < shown < 30
    left_out = int(last.split()[0])
    assert left_out >= 30 - shown and "labels left out; -v shows more" in last


def test_a_label_that_the_run_is_too_short_for_is_late(folder: Path) -> None:
    found = document(folder, "--arrivals", "24")
    benign = next(row for row in found["labels"] if row["label"] == "benign")
    assert found["federation"]["arrivals"] == 24 and found["federation"]["baseline"] == "fedavg"
    assert found["methods"]["fedavg"]["aggregations"] == 2
    assert found["methods"]["fedbuff"]["aggregations"] == 2.4
    assert benign["verdicts"]["fedavg"] == "late"
    assert benign["expected_recall"]["fedavg"] < 0.5
    assert benign["updates"] == pytest.approx(24), "all twelve sites hold it"
    assert audit(folder, "--arrivals", "24", "--fail-on", "at-risk").returncode == 1


@pytest.mark.parametrize("gate", [[], ["--fail-on", "lost"]])
def test_the_headline_follows_the_method(folder: Path, gate: list[object]) -> None:
    asked = ["--times", "times.csv", "--method", "CA2FL", *gate]
    done = audit(folder, *asked, "--out", "page.html")
    assert done.returncode == 0, done.stderr
    headline = "1 of 3 labels is at risk under CA2FL"
    assert done.stdout.startswith(f"{headline}\n")
    assert f"<h1>{headline}</h1>" in (folder / "page.html").read_text()
    assert document(folder, *asked)["headline"] == headline
    baseline = document(folder, "--times", "times.csv", "--from", "FedFa")["headline"]
    assert baseline == "1 of 3 labels is about to be lost under FedFa"


def test_the_gate_agrees_with_the_table(folder: Path) -> None:
    """A label with its fair share of influence is lost if only one site in 200 holds it."""
    sites = "".join(f"s{i},common,100\ns{i},other,100\n" for i in range(200))
    (folder / "labels.csv").write_text(f"client,label,count\n{sites}s0,odd,5\n")
    done = audit(folder, "--fail-on", "lost", "--method", "fedfa", "--json")
    odd = next(row for row in json.loads(done.stdout)["labels"] if row["label"] == "odd")
    assert odd["influence"]["fedfa"] > 0.9
    assert odd["verdicts"]["fedfa"] == "lost"
    assert done.returncode == 1
    assert done.stderr == "fedraw: lost: odd under FedFa\n"


def test_fewer_clients_than_the_default_buffer_are_said(folder: Path) -> None:
    (folder / "labels.csv").write_text("client,label,count\na,x,1\nb,y,2\nc,x,3\n")
    done = audit(folder)
    assert done.returncode == 0
    assert "a buffer of 10 would never fill with 3 clients, so K=3 is used" in done.stdout


def test_rare_labels_by_name_with_and_without_commas(folder: Path) -> None:
    (folder / "labels.csv").write_text(COUNTS.replace("malign", '"odd, but known"'))
    both = document(folder, "--rare", "rare one,benign")
    assert both["federation"]["rare_labels"] == ["rare one", "benign"]
    comma = document(folder, "--rare", "odd, but known", "--rare", "rare one")
    assert comma["federation"]["rare_labels"] == ["odd, but known", "rare one"]


def test_the_page_is_written_and_said(folder: Path) -> None:
    done = audit(folder, "--times", "times.csv", "--out", "out/page.html")
    assert done.returncode == 0, done.stderr
    assert "page: out/page.html" in done.stderr
    assert "rare one" in (folder / "out/page.html").read_text()


@pytest.mark.parametrize("out", ["labels.csv", "../{}/times.csv", "link.csv"])
def test_the_page_does_not_replace_an_input(folder: Path, out: str) -> None:
    (folder / "link.csv").symlink_to(folder / "labels.csv")
    done = audit(folder, "--times", "times.csv", "--out", out.format(folder.name))
    assert done.returncode == 2
    assert "is an input of the audit; name another file for the page" in done.stderr
    assert (folder / "labels.csv").read_text() == COUNTS
    assert (folder / "times.csv").read_text() == TIMES


@pytest.mark.parametrize(
    ("files", "arguments", "words"),
    [
        ({"labels.csv": ""}, [], ["labels.csv"]),
        ({"labels.csv": "client,label,count\n"}, [], ["labels.csv"]),
        ({"labels.csv": COUNTS + "clinic,benign,3\n"}, [], ["clinic", "benign", "26"]),
        ({"labels.csv": COUNTS + "clinic,malign,-3\n"}, [], ["line 26", "-3"]),
        ({"labels.csv": COUNTS + "clinic,malign,many\n"}, [], ["line 26", "many"]),
        ({}, ["--buffer", 13], ["buffer of 13", "12"]),
        ({}, ["--buffer", 0], ["buffer of 0"]),
        ({}, ["--cap", 0.01], ["0.01", "1/10"]),
        ({}, ["--rare", "rare two"], ["'rare two'", "rare one"]),
        ({}, ["--method", "fedrwa", "--fail-on", "lost"], ["fedrwa", "fedraw"]),
        (
            {},
            ["--method", "fedasync", "--fail-on", "lost"],
            [
                "--method: method 'fedasync' has no verdicts, because the audit has no formula for "
                "it; choose one of fedavg, fedfa, fedbuff, ca2fl, mifa, "
            ],
        ),
        (
            {},
            ["--method", "fedraw-dedup-only", "--fail-on", "lost"],
            ["it is an ablation, which only the what-if table shows; choose one of fedavg"],
        ),
        ({}, ["--from", "qfedavg"], ["--from: method 'qfedavg' has no verdicts"]),
        ({}, ["--arrivals", 0], ["--arrivals 0 is no horizon; give at least one arrival"]),
        ({}, ["--fail-on", "kept"], ["kept", "at-risk"]),
        ({}, ["--rare", ""], ["--rare names no label"]),
        ({"labels.csv": TIMES.replace("1.0", "1")}, [], ["seconds", "--times"]),
        ({}, ["--times", "nowhere.csv"], ["nowhere.csv"]),
        ({"times.csv": TIMES + "nobody,3\n"}, ["--times", "times.csv"], ["nobody", "14"]),
        (
            {"times.csv": TIMES.replace("clinic,6", "clinic,0")},
            ["--times", "times.csv"],
            ["line 13", "'0'"],
        ),
        ({"times.csv": TIMES.replace("clinic,6\n", "")}, ["--times", "times.csv"], ["clinic"]),
        (
            {"times.csv": TIMES.replace("clinic,6", "clinic,9e18")},
            ["--times", "times.csv"],
            ["times.csv: client 'clinic' takes 9e+18 seconds"],
        ),
    ],
)
def test_bad_input_is_named(
    folder: Path, files: dict[str, str], arguments: list[object], words: list[str]
) -> None:
    for name, content in files.items():
        (folder / name).write_text(content)
    done = audit(folder, *arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in done.stderr
