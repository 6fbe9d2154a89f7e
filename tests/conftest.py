"""What the tests share: recipes for the small models, built once a session, and the real encoder."""

import gc
import importlib.util
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from cases import RECIPES, ROOT
from nodes import Node, present
from once import made_once

import aotair
from aotair_runtime.errors import OutputHeldWarning

if importlib.util.find_spec("simcann"):  # this process has the simulated NPU: see simnpu/run.py
    import kernel_lists
    import simnpu

    from aotair.ops import npu as npu_ops

    NPU_KERNELS = kernel_lists.npu()
    simnpu.install()
    simnpu.register_fused({op.name: op.kernel for op in npu_ops.OPS})
    torch.npu.set_device(0)
    torch.npu.Stream()  # makes the pool of streams, so that counters change only by what a test does

warnings.filterwarnings("ignore", category=OutputHeldWarning)
gc.set_threshold(20_000, 50, 100)  # each look for cycles goes over all that torch and transformers have loaded
torch.set_num_threads(1)  # small models gain nothing from threads, and lose much where others want the cores too


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--accept", action="store_true", help="write the new text into the golden files")
    parser.addoption("--graphs", type=int, help="random graphs, or plans, to try  [by the test, 10 to 200]")
    parser.addoption("--sequences", type=int, help="random sequences of calls to try  [300, on the simulated NPU 60]")
    parser.addoption("--long", action="store_true", help="run all tests  [not those marked long]")
    parser.addoption("--faults", action="store_true", help="plant every fault in every model  [some in some]")
    parser.addoption("--browser", action="store_true", help="open the pages of reports in Chromium  [not at all]")
    parser.addoption("--devices", default=",".join(present()), help="where to run the runtime's tests  [all present]")


def pytest_report_header(config: pytest.Config) -> str | None:
    if _wants_all(config):
        return None
    others = "" if _on_cpu(config) else "; so are those that need none of these devices"
    return f"tests marked long are left out{others}: --long runs them too, or make test-long"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what takes long, and where the CPU is not asked for what runs there, unless all is asked for."""
    if _wants_all(config):
        return
    kept, left_out = list[pytest.Item](), list[pytest.Item]()
    for item in items:
        is_wanted = not item.get_closest_marker("long") and (_on_cpu(config) or _needs_device(item))
        (kept if is_wanted else left_out).append(item)
    config.hook.pytest_deselected(items=left_out)
    items[:] = kept


def _wants_all(config: pytest.Config) -> bool:
    """By the option, or by a test's own name."""
    return config.getoption("--long") or any("::" in name for name in config.args)


def _on_cpu(config: pytest.Config) -> bool:
    return "cpu" in config.getoption("--devices").split(",")


def _needs_device(item: pytest.Item) -> bool:
    return "node" in getattr(item, "fixturenames", ()) or "simnpu" in item.path.parts


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that takes `node` runs once on each device."""
    if "node" in metafunc.fixturenames:
        metafunc.parametrize("node", metafunc.config.getoption("--devices").split(","), indirect=True)


@pytest.fixture(scope="session")
def common_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of this run that all workers see, each of which has one of its own below."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if own.name.startswith("popen-") else own


@pytest.fixture(scope="session")
def artifacts(common_folder: Path) -> Path:
    return common_folder / "artifacts"


@pytest.fixture(scope="session")
def npu_kernels() -> str:
    """The aten ops that torch_npu implements, as it was before the simulation gave it more."""
    return NPU_KERNELS


@pytest.fixture
def node(request: pytest.FixtureRequest, artifacts: Path) -> Iterator[Node]:
    """A device to load artifacts on; tensors that the test makes lie there unless it says otherwise."""
    found = Node(request.param, artifacts / request.param)
    with found.device:
        yield found


@pytest.fixture(scope="session")
def built(artifacts: Path) -> Callable[[str], Path]:
    """The artifact of one of RECIPES for the CPU, built by the first worker that asks for it."""
    return Node("cpu", artifacts / "cpu").path


@pytest.fixture
def original(request: pytest.FixtureRequest) -> Callable[[str], torch.nn.Module]:
    """The original model of one of RECIPES, with the weights that the build saw, on the test's device."""
    from aotair.model.load import load_model
    from aotair.recipe.job import job_of
    from aotair.recipe.read import parse_recipe

    device = request.getfixturevalue("node").device if "node" in request.fixturenames else torch.device("cpu")

    def get(name: str) -> torch.nn.Module:
        with torch.device("cpu"):
            return load_model(job_of(parse_recipe(RECIPES[name]))).to(device)

    return get


@pytest.fixture(scope="session")
def minilm(common_folder: Path, pytestconfig: pytest.Config) -> Path:
    """The demo's artifact: the real encoder, with --long in all its 15 buckets, else in 6."""
    from aotair.recipe.read import read_recipe

    fewer = () if pytestconfig.getoption("--long") else ("buckets={batch: [1, 32], seq: [16, 64, 224]}",)
    recipe = read_recipe(ROOT / "recipes" / "minilm.yaml", fewer)
    return made_once(common_folder / "minilm.aotair", lambda path: aotair.build(recipe, path))


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
