"""What the tests share: recipes for the small models, built once a session, and the real encoder."""

import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from cases import RECIPES, ROOT

import aotair
from aotair_runtime.errors import OutputHeldWarning

warnings.filterwarnings("ignore", category=OutputHeldWarning)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--accept", action="store_true", help="write the new text into the golden files")


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The artifact of one of RECIPES, built at its first use."""
    folder = tmp_path_factory.mktemp("artifacts")

    def get(name: str) -> Path:
        path = folder / f"{name}.aotair"
        return path if path.exists() else aotair.build(RECIPES[name], path)

    return get


@pytest.fixture(scope="session")
def original() -> Callable[[str], torch.nn.Module]:
    """The original model of one of RECIPES, with the weights that the build saw."""
    from aotair.recipe import parse_recipe
    from aotair.source import load_model

    return lambda name: load_model(parse_recipe(RECIPES[name]))


@pytest.fixture(scope="session")
def minilm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo's artifact: the real encoder in its 15 buckets."""
    return aotair.build(ROOT / "recipes" / "minilm.yaml", tmp_path_factory.mktemp("minilm") / "minilm.aotair")


@pytest.fixture
def golden_text(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compare a text with tests/golden/NAME; `pytest --accept` takes the new text."""

    def check(name: str, text: str) -> None:
        file = Path(__file__).parent / "golden" / name
        if request.config.getoption("--accept"):
            file.write_text(text)
        assert file.exists(), f"no golden text {file.name}; make it with --accept and review it"
        assert text == file.read_text(), f"{file.name} changed; if that is right: pytest --accept"

    return check
