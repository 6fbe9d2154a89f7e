"""What a pass reports through: leave for each rewrite, its accounts, and the lines of the log."""

import logging
import re

from cases import recipe

import aotair

JOINED = recipe("Joined", {"x": {"shape": ["n", 64], "dtype": "float32"}}, {"n": [4, 8]})


def test_the_debug_log_names_graph_and_line_of_each_rewrite(tmp_path, caplog):
    made = JOINED | {"config": {"debug": {"graph_dump": {"path": str(tmp_path / "dump")}}}}
    with caplog.at_level(logging.DEBUG, logger="aotair"):
        aotair.build(made, tmp_path / "x.aotair")
    said = [m for m in caplog.messages if m.startswith("remove_cat_ops") and "are written where they belong" in m]
    assert [m.partition(":")[0] for m in said] == ["remove_cat_ops (n=4)", "remove_cat_ops (n=8)"]
    line, name = re.search(r"line (\d+), (\w+)", said[0]).groups()
    assert int(line) >= 1 and name.startswith("cat")
