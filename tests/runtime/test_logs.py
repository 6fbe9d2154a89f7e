"""The logger `aotair.runtime`: a line for each load, each capture and each capture again, with the reason."""

import logging
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from nodes import Node

import aotair
from aotair_runtime.artifact.open import open_artifact, read_golden
from aotair_runtime.format import codec
from aotair_runtime.weights.golden import key


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "aotair.runtime"]


def test_a_load_says_what_it_did_and_how_long_it_took(node: Node, caplog):
    path = node.path("encoder")
    with caplog.at_level(logging.INFO, "aotair"), aotair.load(path, device=node.kind) as model:
        captured = [line for line in lines(caplog) if " captured in " in line]
        (loaded,) = [line for line in lines(caplog) if " loaded on " in line]
    assert len(captured) == model.stats().captures > 1
    assert loaded.startswith(f"encoder loaded on {model.device} in ") and loaded.endswith(f", {len(captured)} captured")
    assert "check " in loaded and "map " in loaded


def test_a_capture_at_new_addresses_says_so(node: Node, caplog):
    with node.load("cache", clone_input=False) as model:
        spec = model.entry_points["forward"].spec
        golden = read_golden(model.artifact)
        kept = []
        with caplog.at_level(logging.INFO, "aotair"):
            for _ in range(3):
                kept.append([golden[key("forward", 0, "in", i.name)].to(model.device, copy=True) for i in spec.inputs])
                model(*kept[-1])
        again = [line for line in lines(caplog) if " captured again in " in line]
        reasons = [one.reason for one in model.stats().recaptures for _ in range(one.times)]
    assert len(again) == len(reasons) > 0
    assert [line.rpartition(": ")[2] for line in again] == reasons


def test_new_weights_are_said(built, caplog):
    with aotair.load(built("linear")) as model, caplog.at_level(logging.INFO, "aotair"):
        model.load_weights(built("linear"))
    assert [line for line in lines(caplog) if line.startswith("linear has other weights")]


def test_calls_say_nothing(built, caplog):
    with aotair.load(built("linear")) as model, caplog.at_level(logging.DEBUG, "aotair"):
        given = read_golden(model.artifact)[key("forward", 0, "in", model.entry_points["forward"].spec.inputs[0].name)]
        for _ in range(3):
            model(given)
        assert lines(caplog) == []


def test_names_of_an_artifact_are_escaped(built, tmp_path: Path, caplog):
    path = tmp_path / "h.aotair"
    shutil.copytree(built("linear"), path)
    program = open_artifact(path).program
    (path / "program.msgpack").write_bytes(codec.dump(replace(program, name="\x1b[2J\nfine loaded on cpu")))
    with caplog.at_level(logging.INFO, "aotair"), aotair.load(path) as model:
        model(torch.zeros(1, 4))
    assert all(line.isprintable() for line in lines(caplog)) and lines(caplog)
