"""torch.export, once, with symbolic dimensions: the original model becomes one graph with classified inputs."""

import contextlib
import functools
import inspect
import keyword
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import sympy
import torch
from torch.export import Dim, ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind, OutputKind, OutputSpec, TensorArgument
from torch.fx.graph import _Namespace
from torch.fx.node import Node
from torch.utils import _pytree

from aotair_runtime.format.schema import Expr, Scalar, Tree
from aotair_runtime.format.torch_names import dtype

from ..errors import ExportError, ModelError, SizesError, UnsupportedError, user_frame
from ..graph.alias import root
from ..graph.fake import quiet_torch
from ..graph.kept_whole import KEPT_WHOLE
from ..graph.operand import operands
from ..graph.resolve import resolve_views
from ..graph.user_line import source
from ..graph.verify import refuse_unsupported
from ..model.aliases import refuse_layouts, refuse_shared_writes
from ..model.arguments import MethodArguments, plain_defaults
from ..model.hidden_state import hidden_tensors
from ..model.reference import calling
from ..model.tied_names import Names, names_of
from ..ops import air
from ..recipe.entry import EntryJob
from .auto_functionalized import decompose
from .dims import to_expr, to_tree
from .guards import Assumptions, Size, assumptions_of, guard_lines, shape_env, solved
from .host_lists import with_lists

# What .safetensors files cannot hold, and so neither weights nor golden tensors.
_UNSTORABLE = frozenset({torch.complex32, torch.complex128})


@dataclass(frozen=True)
class NamedTensor:
    """A parameter, buffer or lifted constant: the model's name for it and its value."""

    name: str
    tensor: torch.Tensor


@dataclass(frozen=True)
class Exported:
    """A graph with symbolic sizes, whose mutations are `copy_` epilogues, and what its placeholders are.

    `constants` and `states` go by placeholder name; `inputs` are the placeholders of the recipe's inputs, by input
    name in the model's signature order; `outputs` are size expressions (schema.Expr); `structure` is a schema.Tree;
    `names` are those of the model's checkpoints. It serves these `buckets` of the entry point, or all where none is
    given; `why` says why another graph does not serve them. `defaults`
    are the plain values that the method gives its other arguments.
    """

    module: torch.fx.GraphModule
    constants: Mapping[str, NamedTensor]
    states: Mapping[str, NamedTensor]
    inputs: Mapping[str, str]
    outputs: tuple[tuple[Expr, ...], ...]
    structure: Tree
    names: Names = field(default_factory=Names)
    entry: str = "forward"
    buckets: tuple[tuple[int, ...], ...] = ()
    why: str = ""
    defaults: tuple[tuple[str, Scalar], ...] = ()

    def serves(self, sizes: tuple[int, ...]) -> bool:
        """Whether the graph is right for a bucket."""
        return not self.buckets or sizes in self.buckets

    def placeholder(self, name: str) -> Node:
        """The placeholder of an input."""
        found: Node = next(node for node in self.module.graph.nodes if node.name == self.inputs[name])
        return found

    def read_constants(self) -> dict[str, NamedTensor]:
        """Those of the constants that the graph reads."""
        read = {node.name for node in self.module.graph.find_nodes(op="placeholder") if node.users}
        return {name: constant for name, constant in self.constants.items() if name in read}


def export(model: torch.nn.Module, job: EntryJob) -> Exported:
    """One graph for all buckets. Raises SizesError where there is none, another ExportError where torch.export refuses
    altogether, UnsupportedError where the graph cannot be an artifact's."""
    dims = {name: Dim(name, min=low, max=high) for name, (low, high) in dynamic_dims(job).items()}
    return _exported(model, job, _example_sizes(job), dims)


def export_at(model: torch.nn.Module, job: EntryJob, bucket: tuple[int, ...]) -> tuple[Exported, Assumptions]:
    """A graph for one bucket, and what it assumes of sizes: it is right for all buckets for which that holds. Raises as
    `export` does."""
    ranges = dynamic_dims(job)
    dims = {name: Dim.AUTO(min=low, max=high) for name, (low, high) in ranges.items()}
    at = dict(zip(job.dims(), bucket))
    with guard_lines() as lines:
        try:
            one = _exported(model, job, at, dims)
        except SizesError:  # not even one that assumes things of sizes: the model looks sizes up
            one = _exported(model, job, at, {})
    sizes, shapes = [], None
    for name, item in job.inputs.items():
        value = one.placeholder(name).meta["val"]
        shapes = shapes or shape_env(value)
        for dim, size in ((d, s) for d, s in zip(item.shape, value.shape) if isinstance(d, str)):
            sizes.append(Size(job.dims().index(dim), size.node.expr if isinstance(size, torch.SymInt) else size))
    return one, assumptions_of(sizes, job.dims(), shapes, lines)


def _exported(model: torch.nn.Module, job: EntryJob, sizes: Mapping[str, int], dims: Mapping[str, object]) -> Exported:
    keywords = _keywords(job)
    examples = {
        keywords[name]: torch.zeros(item.shape_at(sizes), dtype=dtype(item.dtype)) for name, item in job.inputs.items()
    }
    shapes = {
        keywords[name]: {axis: dims[d] for axis, d in enumerate(item.shape) if isinstance(d, str) and d in dims}
        for name, item in job.inputs.items()
    }
    try:
        with quiet_torch(), torch.no_grad(), calling(model, job.method), _with_inputs(model, job):
            program = torch.export.export(model, (), examples, dynamic_shapes=shapes, strict=False)
            program = program.run_decompositions(_composites_to_decompose())
    except ModelError:  # of the recipe's arguments
        raise
    except Exception as error:
        if isinstance(error, UnsupportedError):
            raise UnsupportedError(
                error.what + user_frame(error), where=job.where, expected=error.expected, got=error.got,
                fix=error.fix,
            ) from error  # fmt: skip
        if "compiled_fn to be GraphModule" in str(error):  # what torch says of writes to memory that tensors share
            refuse_shared_writes(model, job, dict(hidden_tensors(model)))
        if "Sparse" in str(error):
            refuse_layouts(dict(hidden_tensors(model)), job.where)
        raise _explain(error, job) from error
    one = _classify(program, job, _place(model, job))
    defaults = plain_defaults(getattr(model, job.method), (*job.inputs, *job.constants))
    return replace(one, names=names_of(model), entry=job.entry, defaults=tuple(defaults.items()))


@contextlib.contextmanager
def _with_inputs(model: torch.nn.Module, job: EntryJob) -> Iterator[None]:
    """Within the block, the model's parameters are the recipe's inputs, each by its keyword though the model may take
    it among `*args` or `**kwargs` or as a part of an argument; constants are what they are, and host inputs what stands
    for lists."""
    parameters = inspect.signature(model.forward).parameters
    named = {n for n, p in parameters.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    hosts = any(item.host for item in job.inputs.values())
    if named >= set(job.inputs) and not hosts and not job.constants:
        yield
        return
    had, forward, keywords = model.__dict__.get("forward"), model.forward, _keywords(job)
    arguments = MethodArguments(forward, job)

    @functools.wraps(forward)
    def call(*given: torch.Tensor, **named: torch.Tensor) -> object:
        values = dict(zip(keywords, given)) | {name: named[k] for name, k in keywords.items() if k in named}
        args, kwargs = arguments(with_lists(values, job))
        return forward(*args, **kwargs)

    model.forward = call
    call.__dict__["__signature__"] = inspect.Signature(
        [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in keywords.values()]
    )
    try:
        yield
    finally:
        del model.forward
        if had is not None:
            model.forward = had


def _keywords(job: EntryJob) -> dict[str, str]:
    """What each input is called while the model is exported: `batch.ids` is no name in Python."""
    found: dict[str, str] = {}
    plain = {name for name in job.inputs if _is_keyword(name)}
    for name in job.inputs:
        word = re.sub(r"\W", "_", name)
        while name not in plain and (word in plain or word in found.values() or not _is_keyword(word)):
            word += "_"
        found[name] = word
    return found


def _is_keyword(name: str) -> bool:
    return name.isidentifier() and not keyword.iskeyword(name)


# ---- what to ask of torch.export -----------------------------------------------------------------------------------


def dynamic_dims(job: EntryJob) -> dict[str, tuple[int, int]]:
    """The range of each dimension that is exported symbolically: all but those with one size and no padding."""
    ranges = {}
    for index, dim in enumerate(job.dims()):
        sizes = {bucket[index] for bucket in job.bucket_sizes()}
        low, high = min(sizes), max(sizes)
        if low < high:
            ranges[dim] = (low, high)
        elif job.paddable(dim) and high > job.least(dim):
            ranges[dim] = (max(job.least(dim), high // 2), high)
    return ranges


def _example_sizes(job: EntryJob) -> dict[str, int]:
    """A size for each dimension, different ones where possible: equal sizes would pass for the same dimension."""
    chosen: dict[str, int] = {}
    ranges = dynamic_dims(job)
    fixed = {size for item in job.inputs.values() for size in item.shape if isinstance(size, int)}
    for index, dim in enumerate(job.dims()):
        buckets = sorted({bucket[index] for bucket in job.bucket_sizes()}, reverse=True)
        if dim not in ranges:
            chosen[dim] = buckets[0]
            continue
        low, high = ranges[dim]
        taken = fixed | set(chosen.values()) | {0, 1}
        candidates = [*buckets, *range(high, low - 1, -1)]
        chosen[dim] = next((size for size in candidates if size not in taken), buckets[0])
    return chosen


def _composites_to_decompose() -> dict[torch._ops.OperatorBase, Callable[..., object]]:
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    return {
        op: decomposition
        for op, decomposition in torch.export.default_decompositions().items()
        if has(op.name(), "CompositeImplicitAutograd") and op._schema.name.split("::")[1] not in KEPT_WHOLE
    }


# ---- what came back ------------------------------------------------------------------------------------------------


def _classify(program: ExportedProgram, job: EntryJob, place: str) -> Exported:
    signature = program.graph_signature
    module = torch.fx.GraphModule(program.graph_module, program.graph_module.graph)
    resolve_views(module)
    air.in_plain_words(module.graph)
    decompose(module)
    refuse_unsupported(module, job.where)
    places = _with_lasting_names(module)
    placeholders = _inputs(program)
    inputs = {name: places[placeholders[word]] for name, word in _keywords(job).items()}
    tensors: dict[str, NamedTensor] = {}
    for spec in signature.input_specs:
        if spec.kind is InputKind.USER_INPUT:
            continue
        if spec.kind in (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR):
            kept = spec.kind is InputKind.PARAMETER or (spec.kind is InputKind.BUFFER and spec.persistent)
            table = program.state_dict if kept else program.constants
            tensors[places[spec.arg.name]] = NamedTensor(spec.target, table[spec.target].detach())
        else:
            raise UnsupportedError(f"the model holds {spec.target}, a {spec.kind.name.lower()}", where=job.where)
    targets = {(OutputKind.USER_INPUT_MUTATION, name): place for name, place in places.items()}
    targets |= {(OutputKind.BUFFER_MUTATION, constant.name): place for place, constant in tensors.items()}
    mutated = _make_epilogues(module, signature.output_specs, targets)
    _refuse_unstorable(module, tensors, job, place)
    undeclared = sorted(n for n, placeholder in inputs.items() if placeholder in mutated and not job.inputs[n].mutated)
    if undeclared:
        raise UnsupportedError(
            f"the model writes into its input {undeclared[0]!r}", where=job.where,
            expected="only inputs with mutated: true are written to",
            fix=f"add mutated: true to inputs.{undeclared[0]}",
        )  # fmt: skip
    return Exported(
        module,
        {name: constant for name, constant in tensors.items() if name not in mutated},
        {name: constant for name, constant in tensors.items() if name in mutated},
        {name: inputs[name] for name in job.inputs},
        _output_shapes(module, job, inputs),
        _structure(program, job),
    )


def _inputs(program: ExportedProgram) -> dict[str, str]:
    """The placeholder of each argument. By position: torch.export gives an argument another name where its own is that
    of a Python builtin, of another argument in other case, or of a node."""
    specs = program.graph_signature.input_specs
    placeholders = [spec.arg.name for spec in specs if spec.kind is InputKind.USER_INPUT]
    by_name = _pytree.tree_unflatten(placeholders, program.call_spec.in_spec)[1]
    return dict(by_name)


def _place(model: torch.nn.Module, job: EntryJob) -> str:
    """Where the entry point's method is written: what torch makes of sizes has no line of its own."""
    code = getattr(inspect.unwrap(getattr(model, job.method)), "__code__", None)
    return f" ({Path(code.co_filename).name}:{code.co_firstlineno}, in {code.co_name})" if code else ""


def _refuse_unstorable(
    module: torch.fx.GraphModule, tensors: Mapping[str, NamedTensor], job: EntryJob, place: str
) -> None:
    held = {constant.name: constant.tensor.dtype for constant in tensors.values()}
    refuse_layouts({constant.name: constant.tensor for constant in tensors.values()}, job.where)
    for position, node in enumerate(operands(module.graph.output_node())):
        if not isinstance(node.meta["val"], torch.Tensor):
            raise UnsupportedError(
                f"the model returns a size as the output {position}{place}", where=job.where,
                expected="tensors, and values that are the same for all sizes",
                fix="leave it out: the caller knows the sizes of what it sent",
            )  # fmt: skip
        held[f"the output {position}{source(node)}"] = node.meta["val"].dtype
    for what, kind in held.items():
        if kind in _UNSTORABLE:
            raise UnsupportedError(
                f"{what} is {kind}".replace("torch.", ""), where=job.where, expected="a dtype of .safetensors files",
                fix="make it complex64, or two tensors of its real and imaginary parts",
            )  # fmt: skip


def _with_lasting_names(module: torch.fx.GraphModule) -> dict[str, str]:
    """Rename the placeholders whose names a copy of the graph would not keep, as `input`; all by their old names."""
    graph, places = module.graph, {}
    names = {node.name for node in graph.nodes}
    for node in graph.find_nodes(op="placeholder"):
        name, taken = node.name, names - {node.name}
        while (lasting := _Namespace().create_name(name, None)) != name or name in taken:
            name = lasting if lasting not in taken else f"{name}_"
        names.add(name)
        places[node.name] = node.name = node.target = name
    return places


def _make_epilogues(
    module: torch.fx.GraphModule, specs: Sequence[OutputSpec], targets: Mapping[tuple[OutputKind, str], str]
) -> set[str]:
    """Turn outputs that stand for mutations into `copy_` nodes at the end; returns the mutated placeholders. `targets`
    gives the placeholder of what is mutated."""
    graph = module.graph
    output = graph.output_node()
    returned = output.args[0]
    assert isinstance(returned, Sequence), "torch.export returns a tuple of all results and mutations"
    placeholders = {node.name: node for node in graph.nodes if node.op == "placeholder"}
    pairs, results = [], []
    for spec, value in zip(specs, returned, strict=True):
        if spec.kind is OutputKind.USER_OUTPUT:
            results.append(value)
        elif spec.target is not None and (spec.kind, spec.target) in targets:
            assert isinstance(value, Node), "only tensors are written"
            pairs.append((placeholders[targets[spec.kind, spec.target]], value))
        elif spec.kind is OutputKind.PARAMETER_MUTATION:
            raise UnsupportedError(
                f"the model writes into its parameter {spec.target!r}",
                expected="writes into buffers and mutated inputs",
                fix="make it a buffer: self.register_buffer(…)",
            )  # fmt: skip
        else:
            raise UnsupportedError(f"the graph has an output of the kind {spec.kind.name}")
    written = {target for target, _ in pairs}
    with graph.inserting_before(output):
        # A new value that is another mutated tensor's old one must be saved before that is overwritten.
        saved = [_saved(graph, value) if root(value) in written else value for _, value in pairs]
        # So must one that is returned: what the graph calls by the input's name is its old value.
        results = [_saved(graph, r) if isinstance(r, Node) and root(r) in written else r for r in results]
        for (target, _), value in zip(pairs, saved, strict=True):
            node = graph.call_function(torch.ops.aten.copy_.default, (target, value))
            node.meta["val"] = target.meta["val"]
    output.args = (tuple(r for r in results if isinstance(r, torch.fx.Node)),)
    module.recompile()
    return {target.name for target in written}


def _saved(graph: torch.fx.Graph, value: torch.fx.Node) -> torch.fx.Node:
    node = graph.call_function(torch.ops.aten.clone.default, (value,))
    node.meta.update(value.meta)
    return node


def _output_shapes(
    module: torch.fx.GraphModule, job: EntryJob, inputs: Mapping[str, str]
) -> tuple[tuple[Expr, ...], ...]:
    dims = job.dims()
    symbols: dict[sympy.Symbol, Expr] = {}
    placeholders = {node.name: node for node in module.graph.nodes if node.op == "placeholder"}
    for name, item in job.inputs.items():
        for axis, dim in enumerate(item.shape):
            size = placeholders[inputs[name]].meta["val"].shape[axis]
            if isinstance(dim, str) and isinstance(size, torch.SymInt):
                symbols |= _in_terms_of(size.node.expr, ("dim", dims.index(dim)))
    shapes = []
    for node in operands(module.graph.output_node()):
        shapes.append(tuple(to_expr(size, symbols) for size in node.meta["val"].shape))
    return tuple(shapes)


def _in_terms_of(size: sympy.Expr, dim: Expr) -> dict[sympy.Symbol, Expr]:
    """The symbol of a linear size, as an expression of the dimension that has this size."""
    zero, one = solved(size, 0), [found for want in range(1, 65) if (found := solved(size, want)) is not None]
    if size.is_Symbol:
        return {size: dim}
    if len(size.free_symbols) != 1 or not (zero or one):
        return {}
    (symbol,) = size.free_symbols
    start, slope = int(size.xreplace({symbol: sympy.Integer(0)})), int(size.diff(symbol))
    return {symbol: ("//", ("+", dim, -start), slope)}


def _structure(program: ExportedProgram, job: EntryJob) -> Tree:
    leaves: list[Tree] = []
    count = 0
    for spec in program.graph_signature.output_specs:
        if spec.kind is not OutputKind.USER_OUTPUT:
            continue
        if isinstance(spec.arg, TensorArgument):
            leaves.append(("tensor", count))
            count += 1
        elif isinstance(spec.arg, ConstantArgument):
            leaves.append(("const", spec.arg.value))
        else:
            raise UnsupportedError(
                f"the model returns a size as the output {len(leaves)}", where=job.where,
                fix="return tensors; the caller knows the sizes it sent",
            )  # fmt: skip
    return to_tree(program.call_spec.out_spec, leaves)


# ---- why it was refused --------------------------------------------------------------------------------------------


def _explain(error: Exception, job: EntryJob) -> ExportError:
    text = str(error).strip()
    at = user_frame(error)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if "unhashable type" in text and "SymInt" in text:
        return SizesError(
            f"buckets: the model keeps things by size{at}", where=job.where, got=lines[0],
            expected="the same for all sizes: a size is looked up in a dict or a cache",
            fix="leave out the dict or the cache there, or make an artifact for each size",
        )  # fmt: skip
    if "Constraints violated" in text or "Not all values" in text or "specialized" in text:
        fixes = re.findall(r"^ {2}(\w+ = .+)$", text, re.MULTILINE)
        named = [fix for fix in fixes if f"You marked {fix.split()[0]} " in text] or fixes
        dims = "; ".join(f"{dim} from {low} to {high}" for dim, (low, high) in dynamic_dims(job).items())
        return SizesError(
            "buckets: the model does not allow these sizes", where=job.where, expected=f"a model that takes {dims}",
            got="torch.export found that it needs " + (", ".join(named) or lines[0]),
            fix="leave out the buckets that the model excludes, or write a number for a dimension that cannot vary",
        )  # fmt: skip
    if unknown := re.search(r"Found <class '(?:.*\.)?(\w+)'> in output, which is not a known type", text):
        return ExportError(
            f"model: it returns a {unknown[1]}{at}", where=job.where,
            expected="tensors, numbers and texts in tuples, lists, dicts, named tuples or registered records",
            got=unknown[1], fix="return the tensors in it, or wrap the model in one that leaves it out (a language "
            "model's cache: call it with use_cache=False, or keep the cache in buffers)",
        )  # fmt: skip
    if "copy__default" in text and "expand" in text:
        return ExportError(
            f"model: it puts a tensor of another shape in the place of a buffer{at}", where=job.where,
            expected="buffers that keep their shapes, for all buckets", got=lines[0],
            fix="make it for the largest size in __init__, or compute it in each call and keep it in no buffer",
        )  # fmt: skip
    if "unresolved conjugated" in text:
        return ExportError(
            f"model: it takes apart, or writes through, a conjugate of a complex tensor{at}", where=job.where,
            expected="conjugates that are tensors of their own where they are viewed as real, or written",
            got=lines[0], fix="call .resolve_conj() on it first, and register complex buffers with .resolve_conj()",
        )  # fmt: skip
    if "data-dependent" in text or "unbacked" in text or type(error).__name__ == "GuardOnDataDependentSymNode":
        return ExportError(
            f"inputs: the model's control flow or shapes depend on the values of a tensor{at}", where=job.where,
            expected="shapes that follow from the shapes of the inputs", got=lines[0],
            fix="replace .item(), nonzero(), boolean indexing or `if tensor:` by torch.where and masks",
        )  # fmt: skip
    return ExportError(
        f"model: torch.export cannot make one graph of it{at}", where=job.where,
        got=f"{type(error).__name__}: {' '.join(lines[:3])[:400]}",
        fix="run torch.export.export(model, (), inputs, strict=False) yourself to see the whole trace",
    )  # fmt: skip
