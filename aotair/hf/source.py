"""A checkpoint on disk as Hugging Face's hub lays it out: its configuration, and the model with its weights."""

import contextlib
import copy
import functools
import io
import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from aotair_runtime.artifact.checkpoint import open_checkpoint
from aotair_runtime.artifact.listed import listed
from aotair_runtime.errors import WeightsError

from ..errors import ModelError
from ..model.tied_names import JOINED
from ..target.target import Target
from . import gguf_once
from .pieces import held_in_pieces
from .quantised import is_quantised, load_quantised

try:
    import transformers
except ImportError as _error:
    raise ModelError(
        f"model.pretrained needs transformers: {_error}",
        where="model.pretrained",
        fix="pip install 'aotair[hf]'",
    ) from _error

# What belongs to a model beside its weights, and travels with it: data that other programs read.
COMPANIONS = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "tokenizer.model",
    "spiece.model",
    "chat_template.jinja",
    "chat_template.json",
    "preprocessor_config.json",
    "processor_config.json",
    "modules.json",
    "sentence_bert_config.json",
)


@dataclass(frozen=True)
class Source:
    """`path` is the directory, or the GGUF file, which holds everything in one; `config` is transformers' own."""

    path: Path
    config: Any

    @property
    def is_gguf(self) -> bool:
        return self.path.suffix == ".gguf"

    @property
    def text_config(self) -> Any:
        """The part of the configuration that describes the decoder, of models that have several."""
        return self.config.get_text_config()

    def place(self) -> dict[str, Any]:
        """The arguments by which transformers' `from_pretrained` finds it, and nothing but what is on disk."""
        folder = self.path.parent if self.is_gguf else self.path
        given: dict[str, Any] = {"pretrained_model_name_or_path": str(folder), "local_files_only": True}
        return given | ({"gguf_file": self.path.name} if self.is_gguf else {})

    def version(self) -> tuple[int, ...]:
        """Says that files have changed: what was read of them is true no longer."""
        files = [self.path] if self.is_gguf else sorted(file for file in self.path.iterdir() if file.is_file())
        found = [file.stat() for file in files]
        return tuple(part for one in found for part in (one.st_ino, one.st_mtime_ns, one.st_size))

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Within the block transformers reads it, without a word, and a GGUF file once for all purposes."""
        with quietly(), gguf_once.parsed_once(self.version()) if self.is_gguf else contextlib.nullcontext():
            yield


def open_source(path: Path, where: str) -> Source:
    """Read the configuration. Raises ModelError, which says what is missing."""
    if path.suffix == ".gguf" and path.is_file():
        _need_gguf(where)
        config = _read_config(Source(path, None), where)
        return Source(path, config)
    if not path.is_dir() or not (path / "config.json").is_file():
        raise ModelError(
            "model.pretrained: this is no checkpoint",
            where=where,
            expected="a directory with config.json and .safetensors files, as the Hugging Face hub has them, or a "
            ".gguf file",
            got=f"{path}" + ("" if path.exists() else ", which does not exist"),
            fix="download the checkpoint first; nothing is fetched from a network here",
        )
    _refuse_code(path, where)
    return Source(path, _read_config(Source(path, None), where))


def _need_gguf(where: str) -> None:
    try:
        import accelerate  # noqa: F401  transformers asks for it
        import gguf  # noqa: F401
    except ImportError as error:
        raise ModelError(
            f"model.pretrained: a .gguf file needs gguf and accelerate: {error}",
            where=where,
            fix="pip install 'aotair[hf]'",
        ) from error


def _refuse_code(path: Path, where: str) -> None:
    """Raises ModelError where the checkpoint brings Python code of its own: it is never run."""
    try:
        said = json.loads((path / "config.json").read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ModelError(
            f"model.pretrained: config.json cannot be read: {error}", where=str(path / "config.json")
        ) from error
    if not isinstance(said, dict) or not isinstance(said.get("model_type"), str):
        raise ModelError(
            "model.pretrained: config.json does not say which architecture this is",
            where=str(path / "config.json"),
            expected="a model_type that transformers knows",
            got=repr(said.get("model_type") if isinstance(said, dict) else said)[:60],
        )
    if "auto_map" in said and said["model_type"] not in transformers.CONFIG_MAPPING:
        raise ModelError(
            f"model.pretrained: the architecture {said['model_type']} is code in the checkpoint, which is not run",
            where=where,
            expected="an architecture of transformers",
            fix="read the code, put it beside the recipe, and name a factory of yours in model.factory",
        )


def _read_config(source: Source, where: str) -> Any:
    try:
        return copy.deepcopy(_config_of(source.path, source.version()))
    except Exception as error:
        raise ModelError(
            f"model.pretrained: its configuration cannot be read: {_first_line(error)}",
            where=where,
            expected=f"an architecture that transformers {transformers.__version__} knows",
            got=str(source.path),
        ) from error


@functools.lru_cache(maxsize=1)
def _config_of(path: Path, version: tuple[int, ...]) -> Any:
    """The configuration, which is copied before anybody may change it. Of a GGUF file transformers reads all that
    stands before the weights, for seconds."""
    source = Source(path, None)
    with source.reading():
        return transformers.AutoConfig.from_pretrained(**source.place())


@functools.lru_cache(maxsize=1)
def _tokenizer_of(path: Path, version: tuple[int, ...]) -> Any:
    source = Source(path, None)
    with source.reading():
        return transformers.AutoTokenizer.from_pretrained(**source.place())


def load(source: Source, kind: Any, dtype: torch.dtype, target: Target, where: str) -> torch.nn.Module:
    """The model of one of transformers' auto classes, with all its weights, in `dtype`, or as they are quantised for
    the kernels of `target`. Raises ModelError where a weight is missing, unknown or of another shape: what is missing
    would be random."""
    if not source.is_gguf:
        _check_files(source, where)
        if is_quantised(source.config):
            return _quantised(source, kind, dtype, target, where)
    try:
        with source.reading():
            model, report = kind.from_pretrained(
                **source.place(), dtype=dtype, output_loading_info=True, **_by_kind(source)
            )
    except Exception as error:
        raise ModelError(
            f"model.pretrained: transformers cannot load it: {_first_line(error)}",
            where=where,
            expected=f"a checkpoint of {type(source.config).__name__}",
            got=str(source.path),
        ) from error
    finally:
        gguf_once.forget()
    _refuse_unfit(report, type(model).__name__, source, where)
    if not source.is_gguf:
        setattr(model, JOINED, held_in_pieces(model, open_checkpoint(source.path)))
    found: torch.nn.Module = model.eval()
    return found


def _by_kind(source: Source) -> dict[str, Any]:
    return {"config": copy.deepcopy(source.config)} if source.is_gguf else {"use_safetensors": True}


def _check_files(source: Source, where: str) -> None:
    """Raises ModelError where a shard is missing, cut or no safetensors file."""
    if not any(source.path.glob("*.safetensors*")) and any(source.path.glob("*.bin")):
        raise ModelError(
            "model.pretrained: the weights are pickles, whose loading runs what they hold",
            where=where,
            expected=".safetensors files",
            got=", ".join(sorted(file.name for file in source.path.glob("*.bin"))[:3]),
            fix="convert them with safetensors, or take the checkpoint's safetensors revision",
        )
    try:
        open_checkpoint(source.path)
    except WeightsError as error:
        raise ModelError(
            f"model.pretrained: {error.what}", where=error.where, expected=error.expected, got=error.got, fix=error.fix
        ) from error


def _quantised(source: Source, kind: Any, dtype: torch.dtype, target: Target, where: str) -> torch.nn.Module:
    try:
        with quietly():
            return load_quantised(source.path, source.config, kind, dtype, target).eval()
    except (ModelError, WeightsError) as error:
        raise ModelError(
            f"model.pretrained: {error.what.removeprefix('model.weights: ')}",
            where=error.where,
            expected=error.expected,
            got=error.got,
            fix=error.fix,
        ) from error
    except Exception as error:
        raise ModelError(
            f"model.pretrained: transformers cannot make it: {_first_line(error)}",
            where=where,
            expected=f"a configuration of {type(source.config).__name__}",
            got=str(source.path),
        ) from error


def _refuse_unfit(report: Mapping[str, Any], kind: str, source: Source, where: str) -> None:
    missing = sorted(report.get("missing_keys") or ())
    unknown = sorted(report.get("unexpected_keys") or ())
    other = sorted(str(item) for item in report.get("mismatched_keys") or ())
    if missing or other:
        raise ModelError(
            f"model.pretrained: the weights are not those of {kind}, which config.json asks for",
            where=where,
            expected=f"every weight; missing: {listed(missing)}; of another shape: {listed(other)}",
            got=f"{source.path}, with weights that the model does not have: {listed(unknown)}",
            fix="copy config.json and the weights from the same checkpoint",
        )


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)[:300]


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Without transformers' progress bars and warnings, whose faults are errors here."""
    log = transformers.utils.logging
    level, bars = log.get_verbosity(), log.is_progress_bar_enabled()
    log.set_verbosity_error()
    log.disable_progress_bar()
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # some bars ask nobody
            yield
    finally:
        log.set_verbosity(level)
        if bars:
            log.enable_progress_bar()


def tokenizer(source: Source, where: str) -> Any:
    """transformers' tokenizer of a checkpoint. Raises ModelError."""
    try:
        return _tokenizer_of(source.path, source.version())
    except Exception as error:
        raise ModelError(
            f"model.pretrained: its tokenizer cannot be read: {type(error).__name__}: {_first_line(error)}",
            where=where,
            got=str(source.path),
        ) from error


def write_companions(source: Source, into: Path) -> None:
    """Copy what belongs to the model beside its weights; of a GGUF file, which holds it too, what transformers reads
    of it."""
    if not source.is_gguf:
        for file in (source.path / name for name in COMPANIONS):
            if file.is_file():
                shutil.copyfile(file, into / file.name)
        return
    tokenizer(source, "model.pretrained").save_pretrained(into)
    (into / "config.json").write_text(source.config.to_json_string(), encoding="utf-8")
