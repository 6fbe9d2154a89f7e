"""What did torch.export give back? Each placeholder and output by its purpose, and mutations as copies at the end."""

import inspect
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import sympy
import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind, OutputKind, OutputSpec, TensorArgument
from torch.fx.graph import _Namespace
from torch.fx.node import Node
from torch.utils import _pytree

from aotair_runtime.format.schema import Expr, Tree

from ..errors import UnsupportedError
from ..graph.alias import root
from ..graph.operand import operands, results_of
from ..graph.resolve import resolve_views
from ..graph.user_line import source
from ..graph.verify import refuse_unsupported
from ..model.aliases import refuse_layouts
from ..ops import air
from ..parallel.world import in_own_words
from ..recipe.entry import EntryJob
from .auto_functionalized import decompose
from .dims import Symbols, to_expr, to_tree
from .exported import Exported, NamedTensor
from .guards import solved
from .keywords import keywords

# What .safetensors files cannot hold, and so neither weights nor golden tensors.
_UNSTORABLE = frozenset({torch.complex32, torch.complex128})


def _said_plainly(module: torch.fx.GraphModule, where: str) -> None:
    """Without what other libraries say in words of their own. Raises UnsupportedError for what cannot be said."""
    resolve_views(module)
    air.in_plain_words(module.graph)
    in_own_words(module.graph, where)
    decompose(module)
    refuse_unsupported(module, where)


def classify(program: ExportedProgram, model: torch.nn.Module, job: EntryJob) -> Exported:
    """The graph of an entry point's method. Raises UnsupportedError where it cannot be an artifact's."""
    signature = program.graph_signature
    module = torch.fx.GraphModule(program.graph_module, program.graph_module.graph)
    _said_plainly(module, job.where)
    places = _with_lasting_names(module)
    placeholders = _inputs(program)
    inputs = {name: places[placeholders[word]] for name, word in keywords(job).items()}
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
    _refuse_unstorable(module, tensors, job, _place(model, job))
    undeclared = sorted(n for n, placeholder in inputs.items() if placeholder in mutated and not job.inputs[n].mutated)
    if undeclared:
        raise UnsupportedError(
            f"the model writes into its input {undeclared[0]!r}",
            where=job.where,
            expected="only inputs with mutated: true are written to",
            fix=f"add mutated: true to inputs.{undeclared[0]}",
        )
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
                f"the model returns a size as the output {position}{place}",
                where=job.where,
                expected="tensors, and values that are the same for all sizes",
                fix="leave it out: the caller knows the sizes of what it sent",
            )
        held[f"the output {position}{source(node)}"] = node.meta["val"].dtype
    for what, kind in held.items():
        if kind in _UNSTORABLE:
            raise UnsupportedError(
                f"{what} is {kind}".replace("torch.", ""),
                where=job.where,
                expected="a dtype of .safetensors files",
                fix="make it complex64, or two tensors of its real and imaginary parts",
            )


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
            )
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
    values: dict[sympy.Symbol, Collection[int]] = {}
    placeholders = {node.name: node for node in module.graph.nodes if node.op == "placeholder"}
    for name, item in job.inputs.items():
        for axis, dim in enumerate(item.shape):
            size = placeholders[inputs[name]].meta["val"].shape[axis]
            if isinstance(dim, str) and isinstance(size, torch.SymInt):
                symbols |= _in_terms_of(size.node.expr, ("dim", dims.index(dim)))
                values |= {size.node.expr: _sizes_of_calls(job, dim)} if size.node.expr.is_Symbol else {}
    known = Symbols(symbols, values)
    return tuple(_output_shape(node, number, job, known) for number, node in enumerate(results_of(module.graph)))


def _output_shape(node: Node, number: int, job: EntryJob, symbols: Symbols) -> tuple[Expr, ...]:
    try:
        return tuple(to_expr(size, symbols) for size in node.meta["val"].shape)
    except UnsupportedError as error:
        raise UnsupportedError(
            f"output {number}{source(node)}: {error.what}",
            where=job.where,
            expected=error.expected,
            got=error.got,
            fix=error.fix or "make a size that a sum, product or floor division of the inputs' sizes gives",
        ) from error


def _sizes_of_calls(job: EntryJob, dim: str) -> Collection[int]:
    """The sizes along a dimension of the calls that a bucket serves."""
    sizes = {bucket[job.dims().index(dim)] for bucket in job.bucket_sizes()}
    return range(job.least(dim), max(sizes) + 1) if job.paddable(dim) else sizes


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
                f"the model returns a size as the output {len(leaves)}",
                where=job.where,
                fix="return tensors; the caller knows the sizes it sent",
            )
    return to_tree(program.call_spec.out_spec, leaves)
