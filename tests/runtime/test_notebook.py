"""What notebooks show of a model, its promise, its counts and a build's explanation: tables whose texts do nothing."""

import shutil
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import torch
from cases import RECIPES

import aotair
from aotair.builder import explain
from aotair_runtime.artifact.open import open_artifact
from aotair_runtime.format import codec
from aotair_runtime.format.html import html_table, html_text

IDS = torch.ones(1, 3, dtype=torch.int64)


class Tables(HTMLParser):
    """The rows of all tables, and every tag."""

    def __init__(self, text: str):
        super().__init__()
        self.rows: list[list[str]] = []
        self.tags: set[str] = set()
        self.depth = 0
        self.feed(text)
        assert self.depth == 0, "each tag that is opened is closed"

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.add(tag)
        self.depth += 1
        assert not attrs
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        self.depth -= 1

    def handle_data(self, data: str) -> None:
        if self.rows and self.rows[-1]:
            self.rows[-1][-1] += data


PLAIN = {"table", "caption", "thead", "tbody", "tr", "th", "td", "pre"}


def test_a_model_its_promise_and_its_counts_are_tables(built):
    with aotair.load(built("encoder")) as model:
        model(IDS, IDS)
        shown = Tables(model._repr_html_())
        (row,) = shown.rows[1:]
        assert row[0] == "forward" and row[2] == "; ".join(model.buckets["forward"]) and "int64[" in row[1]
        counts = Tables(model.stats()._repr_html_())
        assert [int(cell) for _, _, cell, _, _ in counts.rows[1:]] == [one.calls for one in model.stats().buckets]
        promise = Tables(model.promise._repr_html_())
        assert promise.rows[-1][0] == "on the host, to load other weights"
        (whole,) = [row for row in promise.rows if row[0] == "in all"]
        assert whole[1] == f"{model.promise.nbytes:,}"
        with model.profile(rounds=1, seconds=0) as profile:
            model(IDS, IDS)
        assert "aten::" in profile._repr_html_()
        assert shown.tags | counts.tags | promise.tags | Tables(profile._repr_html_()).tags <= PLAIN


def test_what_passes_did_is_a_table():
    found = explain(RECIPES["npu_block"])
    shown = Tables(found._repr_html_().partition("<pre>")[0])
    assert {row[0]: (int(row[1]), int(row[2])) for row in shown.rows[1:]} == found.counts() != {}
    assert Tables(found._repr_html_()).tags <= PLAIN


def test_names_of_an_artifact_are_no_tags(built, tmp_path: Path):
    path = tmp_path / "h.aotair"
    shutil.copytree(built("linear"), path)
    name = "<script>alert(1)</script>\x1b[2J&\n'\""
    (path / "program.msgpack").write_bytes(codec.dump(replace(open_artifact(path).program, name=name)))
    with aotair.load(path) as model:
        text = model._repr_html_()
    assert "<script" not in text and "\x1b" not in text and Tables(text).tags <= PLAIN
    assert "<b>" not in html_text("<b>\x1b") + html_table(["<b>"], [["<b>"]], "<b>") and "\x1b" not in html_text("\x1b")
