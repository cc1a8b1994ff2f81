from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.browser import Tab, started

from fedraw.auditing import prediction
from fedraw.auditing.methods import COLUMNS, THRESHOLDS, Verdict, same_rule, title, verdict
from fedraw.auditing.page import (
    CLIENT_METHODS,
    CSS_CLASS,
    HIGH,
    SIGN,
    markup,
    place,
    render_page,
    speeds,
    write_audit_page,
)
from fedraw.auditing.prediction import Audit
from fedraw.auditing.view import AuditView, grid_title
from fedraw.auditing.words import (
    TIED,
    limit,
    percent,
    plain_number,
    standing_percent,
    standing_text,
)
from fedraw.core.labels import LabelTable
from fedraw.errors import BadInput

audit = partial(prediction.audit, baseline="fedfa")
NASTY = "<script>console.error('executed')</script>$title" + "long" * 40
HEBREW = "נדיר מאוד"
INTERVAL = np.array([4.0, 1.3, 0.7]), np.array([24.0, 3.2, 1.4])  # seconds of `small`


class Outline(HTMLParser):
    """Tags in order, the words of the whole page, and the cells of each table, row by row."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.tables: dict[str, list[list[str]]] = {}
        self.cards: list[str] = []  # the words of each label's card
        self.heading = self.words = ""
        self._rows: list[list[str]] = []
        self._inside: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "link", "br", "wbr", "use", "rect", "line", "path"):
            self._inside.append(tag)
        if tag == "table":
            self._rows = self.tables[str(dict(attrs)["id"])] = []
        elif tag == "tr":
            self._rows.append([])
        elif tag in ("td", "th"):
            self._rows[-1].append("")
        elif dict(attrs).get("class") == "who":
            self.cards.append("")

    def handle_endtag(self, tag: str) -> None:
        if tag in self._inside:
            assert self._inside.pop() == tag, f"</{tag}> closes what it did not open"

    def handle_data(self, data: str) -> None:
        if "style" in self._inside:
            return
        self.words += data
        if "h1" in self._inside:
            self.heading += data
        if {"td", "th"} & set(self._inside):
            self._rows[-1][-1] += data
        if "figure" in self._inside and self.cards and "figcaption" not in self._inside:
            self.cards[-1] += data

    @property
    def unclosed(self) -> list[str]:
        return self._inside

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.tags)


def federation(clients: int = 30, slow: float = 20.0) -> Audit:
    """Labels 0 to 7 on two thirds of the clients, 8 and 9 on two slow ones each."""
    rng = np.random.default_rng(42)
    holders = [
        rng.choice(clients, 2 if label > 7 else 2 * clients // 3, False) for label in range(10)
    ]
    counts = {client: {0: 1} for client in range(clients)}
    for label, held in enumerate(holders):
        for client in held:
            counts[int(client)][label] = 10
    seconds = rng.uniform(0.5, 1.5, clients)
    seconds[np.concatenate(holders[8:])] *= slow
    return audit(counts, seconds)


def small(**options: object) -> Audit:
    counts = {
        "a": {"common": 90, HEBREW: 10},
        "b": {"common": 50, NASTY: 50},
        "c": {"common": 100},
    }
    return audit(counts, {"a": 9.0, "b": 2.0, "c": 1.0}, 2, **options)  # type: ignore[arg-type]


def render(found: Audit, name: str = "", source: str = "", notes: tuple[str, ...] = ()) -> str:
    return render_page(AuditView(found, source, notes, name))


def outline(found: Audit, name: str = "A title", source: str = "times.csv") -> Outline:
    page = Outline(render(found, name, source))
    assert page.unclosed == []
    return page


@pytest.fixture(scope="module")
def found() -> Audit:
    return federation()


def test_the_headline_counts_what_is_lost_under_fedfa(found: Audit) -> None:
    lost, risk = (found.verdicts["fedfa"].count(word) for word in ("lost", "at risk"))
    assert (lost, risk) == (2, 0), "else this federation is no example any more"
    page = outline(found)
    headline = "2 of 10 labels are about to be lost under FedFa"
    assert page.heading == AuditView(found, "").headline == headline
    assert "If the server averages the last 10 updates, regardless of sender (FedFa)" in page.words
    assert str(found.recommendation) in page.words
    assert "A label's fair share is its share of all training samples." in page.words


def test_no_label_at_risk_is_said_too() -> None:
    even = audit({i: {"a": 5, "b": 5} for i in range(4)}, buffer=2)
    page = outline(even, source="no times given")
    assert page.heading == "No label is at risk under FedFa"
    assert "none held by at most half as many clients as the median label (4)" in page.words
    assert "slower-grid" not in page.tables
    assert "Seconds" not in page.tables["all-clients"][0], "they are not known"


@pytest.mark.parametrize("slow", [1.0, 2.0, 5.0])
def test_the_headline_agrees_with_the_verdicts(slow: float) -> None:
    one = federation(slow=slow)
    many = AuditView(one, "").tally("fedfa")
    numbers = [int(n) for n in re.findall(r"\d+", AuditView(one, "").headline)]
    if many["lost"]:
        assert numbers == [many["lost"], 10, *([many["at risk"]] if many["at risk"] else [])]
    else:
        assert numbers == ([many["at risk"], 10] if many["at risk"] else [])
    worst = one.worst_first()[0]
    least = standing_percent(float(one.standing["fedfa"][worst]), "fedfa")
    words = markup(AuditView(one, "").lead)
    assert (f"<bdi>{one.labels[worst]}</bdi>" in words) == (many["kept"] < 10)
    assert (f"has a standing of {least}; it would be kept from 30{TIED}% on." in words) == (
        many["kept"] < 10
    )


def test_the_cards_of_labels_have_the_audits_numbers(found: Audit) -> None:
    page = outline(found)
    assert len(page.cards) == 10
    for card, i in zip(page.cards, found.worst_first(), strict=True):
        rare = " rare" if found.labels[i] in found.rare_labels else ""
        first, held, lanes, *_ = card.split("\n")
        assert first == f"{found.labels[i]}{rare}"
        slow = plain_number(float(found.holders_slowness[i]))
        share = percent(100 * found.coverage[i] / 30)
        time = f"{slow}{TIED}× the mean time"
        updates = f"{plain_number(float(3000 * found.holders_share[i]))} updates"
        assert held == f"{found.coverage[i]} clients ({share}), {time}, {updates}"
        words = []
        for method in COLUMNS:
            word = found.verdicts[method][i]
            standing = standing_percent(float(found.standing[method][i]), method)
            words.append(f"{title(method)} {standing} {SIGN[word]} {word}")
        assert lanes.strip(" ").startswith("  ".join(words))


def test_the_labels_as_csv_have_both_numbers(found: Audit) -> None:
    page = render(found)
    csv = page.split('<textarea id="labels-csv"')[1].split("</textarea>")[0].split(">", 1)[1]
    head, *rows = (line.split(",") for line in csv.strip().splitlines())
    i = found.worst_first()[0]
    first = dict(zip(head, rows[0], strict=False))
    assert first["label"] == str(found.labels[i])
    assert float(first["fedraw_standing"]) == pytest.approx(found.standing["fedraw"][i], abs=1e-6)
    influence = found.label_influence["fedraw"][i]
    assert float(first["fedraw_of_fair"]) == pytest.approx(influence, abs=1e-6)


def test_the_picture_has_a_mark_for_each_label_and_method(found: Audit) -> None:
    tags = outline(found).tags
    for method in COLUMNS:
        drawn = [attrs for tag, attrs in tags if tag == "use" and attrs["class"] == method]
        marks = [attrs for attrs in drawn if attrs["href"] == f"#mark-{method}"]
        at = [attrs["x"] for attrs in marks if attrs["x"] != "50%"]  # those of the key
        standing = [float(found.standing[method][i]) for i in found.worst_first()]
        assert at == [f"{place(one):.1f}%" for one in standing]
    bands = [attrs for tag, attrs in tags if tag == "rect" and "x" in attrs]
    lost = [attrs["width"] for attrs in bands if attrs["class"] == "lost"]
    many = len(COLUMNS)
    assert lost[:many] == [f"{place(THRESHOLDS[method][0]):.1f}%" for method in COLUMNS]
    assert len(bands) == 10 * many * 3


def test_the_limits_are_named(found: Audit) -> None:
    words = outline(found).words.replace(TIED, " ")
    assert "FedFa and FedRAW: lost below 10 %, kept from 30 % on" in words
    assert "FedBuff, CA2FL and Replay: lost below 4 %, kept from 13 % on" in words


def test_where_every_label_is_on_few_clients_holders_count_against_that() -> None:
    # Ten labels on 100 clients each: fair influence, times a tenth over two fifths, is a quarter.
    # Standing at a half would keep them, but 3,000 arrivals are only three of each client.
    apart = audit({i: {i // 100: 5} for i in range(1000)})
    page = outline(apart)
    assert all(f"FedFa 50.0{TIED}% ◔ late" in card for card in page.cards)
    assert "held by fewer than a quarter of the clients" in page.words


def test_what_lies_beyond_the_axis_has_an_arrow(found: Audit) -> None:
    assert not {"#below", "#above"} & {attrs.get("href") for _, attrs in outline(found).tags}
    # A label on one client of 20 stands at a half; the one all hold has 99 times its samples a
    # client, so 1980 times its influence, and 20 times its holders: the root of that, halved.
    loud = audit({i: {f"label {i}": 1, "all": 99} for i in range(20)}, buffer=3)
    assert loud.standing["fedfa"][loud.labels.index("all")] == pytest.approx((1980 * 20) ** 0.5 / 2)
    page = render(loud)
    assert page.count('href="#above"') == len(COLUMNS)
    assert 'href="#below"' not in page
    assert f"<b>9,950{TIED}%</b>" in page
    # One of two clients has a billionth of the arrivals, so twice that in standing. CA2FL, to which
    # clients weigh alike, and FedAvg, which waits, hear it.
    slow = audit({0: {"a": 5}, 1: {"b": 5}}, [1.0, 1e9], 1)
    page = render(slow)
    assert page.count('href="#below"') == len(COLUMNS) - 2
    assert 'href="#above"' not in page


def test_at_most_25_labels_are_drawn_and_the_rest_is_counted() -> None:
    many = audit({i: {f"label {i}": 5, "all": 5} for i in range(40)}, buffer=3)
    page = render(many)
    assert "under FedFa. 16 more labels are not shown, all of them kept." in page
    assert page.count('<p class="who">') == 25
    assert len(Outline(page).cards) == 25
    csv = page.split('<textarea id="labels-csv"')[1].split("</textarea>")[0]
    assert len(csv.strip().splitlines()) == 42, "the CSV has them all, after a head"
    assert ",fedfa_standing,fedfa_of_fair,fedbuff_standing,fedbuff_of_fair," in csv


@pytest.mark.parametrize(
    ("arrivals", "cautions"),
    [
        (3000, ()),
        (200, ("The verdicts were calibrated on runs of 3,000 arrivals, not of 200.",)),
    ],
)
def test_the_horizon_and_what_was_not_calibrated_stand_before_the_tables(
    arrivals: int, cautions: tuple[str, ...]
) -> None:
    counts = {i: {"a": 50, "b": 50} for i in range(19)} | {19: {"a": 50, "odd": 900}}
    one = audit(counts, buffer=5, arrivals=arrivals)
    assert one.cautions == cautions
    head = render(one).split("<main>")[0]
    assert f"In {arrivals:,} arrivals FedFa makes {arrivals:,} aggregations" in head
    assert all(words in head for words in cautions)
    assert ('<ul class="cautions">' in head) == bool(cautions)


def test_rare_labels_are_drawn_wherever_they_stand() -> None:
    counts = {i: {f"label {i % 40}": 5, "all": 5} for i in range(80)} | {80: {"quick": 5, "all": 5}}
    times = dict.fromkeys(range(80), 1.0) | {80: 0.1}
    one = audit(counts, times, 3)
    assert one.rare_labels == ("quick",)
    assert one.worst_first().index(one.labels.index("quick")) == 40, "its one holder is quick"
    page = render(one)
    assert (
        "Shown are the 25 labels with the lowest standing under FedFa, and 1 more rare label."
        in page
    )
    assert page.count('<p class="who">') == 26
    assert Outline(page).cards[-1].startswith("quick rare")
    assert "1 client (1.2" in page and "holds it" in page


def test_one_label_left_out_is_no_plural() -> None:
    one = audit({i: {f"label {i}": 5, "all": 5} for i in range(25)}, buffer=3)
    assert "1 more label is not shown; it is kept." in render(one)


def test_the_grid_has_every_setting_and_marks_the_recommended(found: Audit) -> None:
    head, *rows = outline(found).tables["what-if-grid"]
    assert [words.split()[2] for words in head[1:]] == ["3", "5", "10", "20"]
    assert head[3] == "K = 10 as given"
    cells = {
        (row[0], head[n].split()[2]): words for row in rows for n, words in enumerate(row) if n
    }
    assert cells["FedRAW, cap 0.3", "3"] == "–", "a cap below 1/3"
    for setting in found.what_if:
        method, standing = setting.method, float(setting.standing.min())
        word = verdict(method, standing)
        if same_rule(method)[0] != method:  # another method stands for it
            continue
        words = cells.pop((grid_title(setting.method, setting.cap), str(setting.buffer)))
        assert words.removeprefix(f"★{TIED}").replace(TIED, " ") == (
            f"{standing_text(standing, method)} {SIGN[word]} {word}"
        )
        advice = found.recommendation
        recommended = (advice.method, advice.buffer, advice.cap)
        chosen = (setting.method, setting.buffer, setting.cap) == recommended
        assert words.startswith("★") == chosen
    assert set(cells.values()) == {"–"}
    csv = render(found).split('<textarea id="what-if-csv"')[1].split("</textarea>")[0]
    assert len(csv.strip().splitlines()) == len(found.what_if) + 1


@pytest.mark.parametrize(("odd", "slow", "word"), [(900, 1.0, "kept"), (2, 1e4, "lost")])
def test_the_recommendation_has_the_colour_of_its_verdict(
    odd: int, slow: float, word: Verdict
) -> None:
    """One client in 20 holds a label: with many samples and in time, or with two and late."""
    counts = {i: {"a": 50, "b": 50} for i in range(19)} | {19: {"a": 50, "odd": odd}}
    one = audit(counts, [1.0] * 19 + [slow], 5)
    assert one.recommendation.verdict == word
    page = render(one)
    kind = CSS_CLASS[word]
    assert f'<div class="answer {kind}"><p>{SIGN[word]} Recommended: <strong>' in page
    assert f'<td class="{kind} chosen"><b>★' in page
    assert f"<pre><code>strategy.name = &quot;{one.recommendation.method}&quot;\n" in page


def test_slower_holders_stand_in_a_grid_of_their_own(found: Audit) -> None:
    head, *rows = outline(found).tables["slower-grid"]
    assert head[1:] == [f"1{TIED}× as given", *(f"{r}{TIED}×" for r in (2, 5, 10, 20))]
    rare = [found.labels.index(label) for label in found.rare_labels]
    for method, row in zip(COLUMNS, rows, strict=True):
        for slower, words in zip(found.slower, row[1:], strict=True):
            lowest = float(slower.settings[method].standing[rare].min())
            least, word = standing_text(lowest, method), verdict(method, lowest)
            assert words.replace(TIED, " ") == f"{least} {SIGN[word]} {word}"


def test_the_clients_at_both_ends_are_listed(found: Audit) -> None:
    page = outline(found)
    assert "30 clients in total." in page.words
    for method in ("fedfa", "fedraw"):
        weights = AuditView(found, "").relative_influence(method)
        head, most, *rows = page.tables[f"clients-{method}"]
        assert head == ["Client", "Seconds", "Score", "Samples", *map(title, CLIENT_METHODS)]
        assert most == ["Most weight per sample"]
        assert rows.pop(5) == ["Least weight per sample"]
        order = np.argsort(-weights, kind="stable")
        listed = [int(row[0].split()[0]) for row in rows]
        assert listed == [*order[:5], *order[-5:]]
        for client, row in zip(listed, rows, strict=True):
            share = float(found.samples[client] / found.samples.sum())
            shares = [share, *(float(found.influence[m][client]) for m in CLIENT_METHODS)]
            assert [f"{words}{TIED}%" for words in row[3:]] == [percent(100 * s) for s in shares]


def test_the_federation_is_described(found: Audit) -> None:
    words = outline(found, source="from <times>").words.replace(TIED, " ")
    assert "Rare labels2: 8 and 9 held by at most half as many clients as the median label" in words
    holders = int(found.holds_rare.sum())
    assert f"; {holders} clients ({100 * holders / 30:.1f} %) hold one of them" in words
    assert "BufferK = 10 updates" in words
    assert "Timesfrom <times>" in words
    assert f"FedFa {found.rare_presence['fedfa']:.1f} %" in words
    assert found.rare_staleness is not None
    away = f"returns after about {found.rare_staleness:.0f} arrivals on average."
    assert f"A holder of a rare label {away}" in words
    assert "Staleness is not part of the verdict." in words
    assert "in federations of 12 to 32 clients" in words
    assert (
        "A label's standing combines how much influence the label has relative to other labels"
        in words
    )


def test_speeds_are_told_in_words() -> None:
    assert speeds(2.0, 2.0) == (
        "2 seconds per update: the slowest client takes as long as the fastest"
    )
    assert speeds(2.0, 2.002).endswith("takes about as long as the fastest")


def test_rare_labels_and_a_cap_that_were_given_are_named() -> None:
    words = outline(small(rare=["common"], cap=0.6)).words
    assert "Rare labels1: common as given; 3 clients" in words
    assert "Cap0.6: under FedRAW no client has more than 60 % weight" in words


def test_notes_are_shown_only_if_there_are_any(found: Audit) -> None:
    notes = ("Row 7 was <left> out.",)
    page = render(found, notes=notes)
    assert '<ul class="cautions"><li>Row 7 was &lt;left&gt; out.</li></ul>' in page
    assert '<ul class="cautions">' not in render(found)


def test_intervals_are_lines_through_the_marks() -> None:
    sure = small(interval=INTERVAL)
    assert sure.standing_interval is not None
    order, interval = sure.worst_first(), sure.standing_interval["fedfa"]
    lines = [attrs for tag, attrs in outline(sure).tags if tag == "line"]
    for end, values in (("x1", interval.low), ("x2", interval.high)):
        drawn = [attrs[end] for attrs in lines if attrs["class"] == "fedfa"]
        assert drawn == [f"{place(float(values[i])):.1f}%" for i in order]
    lines = [attrs for tag, attrs in outline(small()).tags if tag == "line"]
    assert {attrs["class"] for attrs in lines} == {"tick"}


def test_names_are_shown_and_never_read_as_markup() -> None:
    one = small()
    page = outline(one, NASTY, NASTY)
    assert page.count("script") == 0
    assert NASTY in page.words
    assert any(card.startswith(NASTY) for card in page.cards)
    assert f"<bdi>{HEBREW}</bdi>" in render(one)
    assert str(one.recommendation) in page.words


def test_nothing_comes_from_outside_and_nothing_is_run(found: Audit) -> None:
    page = render(found, "t", "s")
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'"
    assert policy in " ".join(page.split())
    for reference in (
        "http:",
        "https:",
        "src=",
        "url(",
        "@import",
        "<script",
        "javascript:",
        "xmlns",
    ):
        assert reference not in page, reference
    assert set(re.findall(r'href="([^#][^"]*)"', page)) == {"data:,"}


def test_it_can_be_read_without_seeing_it(found: Audit) -> None:
    page = outline(found)
    assert ("html", {"lang": "en"}) in page.tags
    assert page.count("h1") == 1
    assert page.count("table") == page.count("caption") == len(page.tables) == 5
    assert all("scope" in attrs for tag, attrs in page.tags if tag == "th")
    names = [attrs["id"] for _, attrs in page.tags if "id" in attrs]
    assert len(names) == len(set(names))
    targets = {str(attrs["href"])[1:] for tag, attrs in page.tags if tag in ("a", "use")}
    assert targets <= set(names)
    boxes = [attrs for _, attrs in page.tags if "box" in str(attrs.get("class")).split()]
    assert all(attrs["tabindex"] == "0" and attrs["role"] == "region" for attrs in boxes)


def test_one_client_with_one_label() -> None:
    alone = audit({"only": {"it": 3}}, buffer=1)
    page = outline(alone)
    assert page.heading == "No label is at risk under FedFa"
    assert [row[0] for row in page.tables["all-clients"]] == ["Client", "only"]
    assert "1 client in total." in page.words


names = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="nif"), max_size=8)


@given(
    st.dictionaries(
        names,
        st.dictionaries(names, st.integers(1, 10**9), min_size=1, max_size=3),
        min_size=1,
        max_size=3,
    ),
    st.data(),
)
@settings(max_examples=30, deadline=None)
def test_any_federation_has_a_page(counts: dict[str, dict[str, int]], data: st.DataObject) -> None:
    times = [data.draw(st.floats(1e-6, 1e6)) for _ in counts]
    page = Outline(render(audit(counts, times, 1)))
    assert page.unclosed == []
    assert not re.search(r"\b(nan|inf|None)\b", page.words)
    assert len(page.tables["all-clients"]) == len(counts) + 1


def test_numbers_that_are_none_are_not_printed() -> None:
    assert {percent(float("nan")), percent(None), plain_number(float("inf"))} == {"–"}
    assert standing_percent(float("nan"), "fedfa") == "–"
    assert place(float("nan")) == place(0.0)
    assert place(float("inf")) == place(HIGH)


@given(st.floats(0, 40), st.sampled_from(COLUMNS))
def test_a_standing_as_shown_has_its_own_verdict(standing: float, method: str) -> None:
    words = standing_percent(standing, method).removesuffix(f"{TIED}%").replace(",", "")
    if words[0] not in "<>":
        assert verdict(method, float(words) / 100) == verdict(method, standing)
        assert abs(float(words) / 100 - standing) <= (0.0005 if standing < 0.9995 else 0.005)


@pytest.mark.parametrize(
    ("standing", "words"),
    [(0.0999, "9.99 %"), (0.1001, "10.0 %"), (0.09999999, "9.999999 %"), (0.2999, "29.99 %")],
)
def test_near_a_limit_there_are_more_digits(standing: float, words: str) -> None:
    assert standing_percent(standing, "fedfa").replace(TIED, " ") == words
    assert [limit(end).replace(TIED, " ") for end in THRESHOLDS["fedfa"]] == ["10 %", "30 %"]


@pytest.mark.parametrize(("share", "words"), [(0.004, "<0.01"), (0.006, "0.01"), (0.0, "0.0")])
def test_little_is_not_rounded_to_nothing(share: float, words: str) -> None:
    assert percent(share) == f"{words}{TIED}%"


def test_a_million_clients_cost_no_more_than_sorting_them(tmp_path: Path) -> None:
    many = 1_000_000
    table = LabelTable(
        tuple(range(many)),
        ("a", "b"),
        np.arange(many + 1),
        (np.arange(many) % 1000 == 0).astype(np.int64),
        np.ones(many, np.int64),
        np.ones(many),
    )
    write_audit_page(AuditView(audit(table, buffer=5), ""), tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "1,000,000 clients in total." in page
    assert len(page) < 100_000


def test_it_is_written_whole_or_not_at_all(found: Audit, tmp_path: Path) -> None:
    out = tmp_path / "deep" / "page.html"
    write_audit_page(AuditView(found, "", name="caf\udce9.csv"), out)
    assert [path.name for path in out.parent.iterdir()] == ["page.html"]
    assert "caf?.csv" in out.read_text(encoding="utf-8")
    with pytest.raises(BadInput, match="deep is a folder"):
        write_audit_page(AuditView(found, ""), out.parent)


def test_it_needs_no_matplotlib(tmp_path: Path) -> None:
    code = f"""
import sys
sys.modules.update(dict.fromkeys(["matplotlib", "torch", "sklearn", "pyarrow", "PIL"]))
from pathlib import Path
from fedraw.auditing.prediction import audit
from fedraw.auditing.page import write_audit_page
from fedraw.auditing.view import AuditView
view = AuditView(audit({{1: {{"a": 1}}}}, buffer=1), "")
write_audit_page(view, Path({str(tmp_path / "a.html")!r}))
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
    assert (tmp_path / "a.html").exists()


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    with started(tmp_path_factory.mktemp("profile")) as browser:
        yield Tab(browser)


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory, found: Audit) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    nasty = small(interval=INTERVAL)
    written = {"found": found, "nasty": nasty}
    for name, one in written.items():
        words = NASTY if name == "nasty" else "Thirty clients"
        view = AuditView(one, words, (words,), words)
        write_audit_page(view, folder / f"{name}.html")
    return {name: folder / f"{name}.html" for name in written}


@pytest.mark.parametrize("name", ["found", "nasty"])
@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_in_a_browser(tab: Tab, pages: dict[str, Path], name: str, width: int, dark: bool) -> None:
    tab.open(pages[name], width=width, dark=dark)
    assert tab.complaints == []
    assert [url for url in tab.requests if url != "data:,"] == [pages[name].as_uri()]
    assert tab.evaluate("document.documentElement.scrollWidth") == width
    ground = tab.evaluate("getComputedStyle(document.body).backgroundColor")
    assert ground == ("rgb(19, 21, 24)" if dark else "rgb(250, 250, 248)")
    if name == "found":
        # No table is wider than its box, and a cell of the grids has at most two lines.
        assert tab.evaluate(
            "[...document.querySelectorAll('.box')].every(b => b.scrollWidth <= b.clientWidth)"
        )
        assert tab.evaluate(
            "[...document.querySelectorAll('#what-if-grid td, #slower-grid td')].every(c =>"
            " new Set([...c.children].flatMap(e => [...e.getClientRects()].map(r => r.top))).size"
            " <= 2)"
        )
        # Explanations and numbers to copy are folded.
        assert tab.evaluate("document.querySelectorAll('details').length") >= 4
        assert tab.evaluate("document.querySelectorAll('details[open]').length") == 0
    # Every lane has room for its marks, and every mark is drawn inside it.
    lanes = tab.evaluate("[...document.querySelectorAll('.plot')].map(p => p.clientWidth)")
    assert min(lanes) > 90
    assert tab.evaluate(
        "[...document.querySelectorAll('.plot use')].every(u => {"
        " const a = u.getBoundingClientRect(), b = u.closest('svg').getBoundingClientRect();"
        " return a.width > 4 && a.left >= b.left - 4 && a.right <= b.right + 4 })"
    )


def test_the_keyboard_stops_at_what_scrolls(tab: Tab, pages: dict[str, Path]) -> None:
    tab.open(pages["nasty"], width=360)
    tab.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true })")
    scrolls = (
        "[...document.querySelectorAll('*')].filter(e => e.scrollWidth > e.clientWidth + 1 &&"
        " ['auto', 'scroll'].includes(getComputedStyle(e).overflowX))"
    )
    assert tab.evaluate(f"{scrolls}.length") >= 2
    assert tab.evaluate(f"{scrolls}.every(e => e.tabIndex === 0)")
    stops = tab.evaluate("document.querySelectorAll('a, summary, textarea, [tabindex]').length")
    seen = []
    for _ in range(stops):
        tab.press("Tab")
        seen.append(
            tab.evaluate("[...document.querySelectorAll('*')].indexOf(document.activeElement)")
        )
    assert len(set(seen)) == stops
    assert seen == sorted(seen), "in the order of the page"


def test_printed_it_hides_nothing(tab: Tab, pages: dict[str, Path]) -> None:
    tab.open(pages["found"], width=700)  # A4 within its margins
    tab.call("Emulation.setEmulatedMedia", media="print")
    boxes = "[...document.querySelectorAll('.box')]"
    assert tab.evaluate(f"{boxes}.every(b => getComputedStyle(b).overflow === 'visible')")
    assert tab.evaluate("document.documentElement.scrollWidth") == 700
    limits = "document.querySelector('.limits').getBoundingClientRect().height"
    assert tab.evaluate(limits) > 100, "printed, what is folded is open"
    tab.call("Emulation.setEmulatedMedia", media="")
