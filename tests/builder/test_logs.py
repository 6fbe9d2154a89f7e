"""What a build says: the logger, and lines that are those of a dump."""

import logging
import subprocess
import sys

import pytest
import torch
from cases import ROOT
from graphs import trace

import aotair
from aotair.graph.show import position, show

SETTINGS = {
    "nothing": ("", "[DEBUG] aotair "),
    "the root": ("logging.basicConfig(format='APP %(message)s')", "APP "),
    "the root, after": ("aotair.logger; logging.basicConfig(format='APP %(message)s')", "APP "),
    "a handler of its own": (
        "own = logging.StreamHandler(); own.setFormatter(logging.Formatter('OWN %(message)s'))\n"
        "aotair.logger.addHandler(own)",
        "OWN ",
    ),
    "the root, out of reach": (
        "logging.basicConfig(format='APP %(message)s'); aotair.logger.propagate = False",
        "[DEBUG]",
    ),
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_each_line_is_seen_once_whoever_configures_logging(setting: str):
    script, start = SETTINGS[setting]
    script = f"import logging, aotair\n{script}\naotair.logger.setLevel(logging.DEBUG)\naotair.logger.debug('one line')"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    (line,) = done.stderr.splitlines()
    assert line.startswith(start) and line.endswith("one line") and not done.stdout


def test_it_is_the_logger_that_the_builder_logs_to_and_it_is_quiet_by_default():
    assert aotair.logger is logging.getLogger("aotair")
    script = "import aotair; aotair.logger.info('nothing'); aotair.logger.warning('something')"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "something" in done.stderr and "nothing" not in done.stderr


def test_the_line_is_that_of_a_dump():
    module = trace(lambda x: (x.relu() + 1,), torch.ones(2))
    for number, line in enumerate(show(module).splitlines()[:-1], 1):
        (node,) = (node for node in module.graph.nodes if node.name == line.partition(":")[0])
        assert position(node) == number
    (node,) = module.graph.find_nodes(op="call_function", target=torch.ops.aten.relu.default)
    node.replace_all_uses_with(node.args[0])
    module.graph.erase_node(node)
    assert position(node) is None


def test_the_help_says_how_a_run_is_meant():
    command = [sys.executable, "-m", "aotair.cli", "build", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    assert "PASS:2" in done.stdout
