"""Torch's execution traces, read: which products of matrices ran, in which format, phase and layer, with their FLOPs.

A trace (`torch.profiler.ExecutionTraceObserver`) is JSON with a node for each operation that ran in any thread, in
eager or compiled code. `marked` and `layer_mark` put ranges of our own into it.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
from typing import Any, Callable, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, TextIO, Tuple

import torch

from hpcml_train.torch import operations

_SCHEMAS = ("1.0", "1.1")  # of traces that are known, by how they begin
_LAYER, _PRODUCT, _OWN, _STEP = "hpcml:layer:", "hpcml:product:", "hpcml:own", "hpcml:step"
TRACE_IS_CALLED = ("trace", "graph")  # by torch; in 2.0 the latter
_CHUNK = 1 << 20  # characters of a trace that are read at once
_MOST_ROWS = 64  # of a window: the others are summed up without their layers
# FP32 or TF32: the type does not tell
FLOAT32_ON_GPU, FLOAT32_ELSEWHERE = "float32 on a GPU", "float32 on another device than a CPU or a GPU"

_FORMATS = {
    "double": "fp64",
    "float": "fp32",
    "c10::BFloat16": "bf16",
    "c10::Half": "fp16",
    "c10::Float8_e4m3fn": "fp8_e4m3",
    "c10::Float8_e5m2": "fp8_e5m2",
    "signed char": "int8",
    "unsigned char": "uint8",
    "int": "int32",
    "long int": "int64",
    "long": "int64",
    "c10::complex<float>": "complex64",
    "c10::complex<double>": "complex128",
}
# Products of two matrices: the positions of the factors. 2 FLOPs for each element of one and column of the other.
_MATRICES: Mapping[str, Tuple[int, int]] = {
    **dict.fromkeys(("mm", "bmm", "mv", "dot", "vdot", "matmul", "_int_mm", "_scaled_mm", "_scaled_mm_v2"), (0, 1)),
    **dict.fromkeys(("_grouped_mm", "_scaled_grouped_mm", "_scaled_grouped_mm_v2"), (0, 1)),
    **dict.fromkeys(("addmm", "addbmm", "baddbmm", "addmv", "_addmm_activation"), (1, 2)),
}
_LINEAR = ("linear", "mkldnn_linear", "_linear_pointwise", "_mkl_linear")  # the second factor is transposed
_CONVOLUTIONS = (
    *("convolution", "_convolution", "convolution_overrideable", "mkldnn_convolution", "cudnn_convolution"),
    *("cudnn_convolution_relu", "cudnn_convolution_add_relu", "miopen_convolution", "miopen_depthwise_convolution"),
    *("_convolution_pointwise", "_slow_conv2d_forward", "slow_conv3d_forward", "slow_conv_dilated2d"),
    *("slow_conv_dilated3d", "_conv_depthwise2d", "conv_depthwise3d", "thnn_conv2d", "_nnpack_spatial_convolution"),
    *("conv1d", "conv2d", "conv3d"),
)
_TRANSPOSED = (
    *("cudnn_convolution_transpose", "miopen_convolution_transpose", "_convolution_transpose_pointwise"),
    *("conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "slow_conv_transpose2d", "slow_conv_transpose3d"),
)
# Names that sound like a product, of operations that are in no table: a newer torch's.
_SOUNDS_LIKE_ONE = re.compile(
    r"(^|_)(b|add|badd|sp|ss|hs|chain_)?(mm|matmul)(_|$)|conv(?!ert)|attention|(^|_)(rnn|lstm|gru|gemm|linear|dot)(_|$)"
)
_NO_PRODUCTS = (
    *("_cudnn_rnn_flatten_weight", "_use_cudnn_rnn_flatten_weight"),
    *("mkldnn_reorder_conv2d_weight", "mkldnn_reorder_conv3d_weight"),
    # the gates of a cell, whose products come before
    *("_thnn_fused_lstm_cell_backward", "_thnn_differentiable_lstm_cell_backward"),
    "_thnn_differentiable_gru_cell_backward",
)
_HARMLESS_NAMESPACES = (
    *("c10d", "_c10d_functional", "_c10d_functional_autograd", "_dtensor", "fsdp", "symm_mem", "device_mesh"),
    *("prim", "prims", "profiler", "inductor", "torch", "debugprims", "rngprims", "higher_order", "nccl"),
)
_UNSEEN_FORWARD = "the forward pass, by kernels that are none of torch's operations"
_BACKWARD = "autograd::engine::evaluate_function"
_OPTIMIZER = "Optimizer.step#"


class Product(NamedTuple):
    """A product of matrices that ran."""

    format: str
    phase: str
    layer: Optional[str]
    flops: float
    emulated: bool = False
    kind: str = "linear"  # or conv, rnn, attention: of another kind of layer, whose kernels are of another library


class Found(NamedTuple):
    """What a trace tells: its products, and the names of operations that may hold products nobody can see."""

    products: List[Product]
    unknown: Dict[str, Optional[float]]  # FLOPs; None where not even these are known
    nodes: int


class TraceError(ValueError):
    """A trace that cannot be read: another version's, or torn."""


class Marks:
    """Whether `marked` does anything: while a trace is taken."""

    is_on = False


@contextlib.contextmanager
def marked(name: str, flops: Callable[[], float], *, is_emulated: bool) -> Iterator[None]:
    """Let what the block computes count as one product of *flops* in the arithmetic *name*, whatever it is made of."""
    if not Marks.is_on:
        yield
        return
    kind = "emulated" if is_emulated else "native"
    with Mark(f"{_PRODUCT}{name}:{kind}:{flops():.0f}"):
        yield


class Mark:
    """A range in the trace. Torch's own `record_function` is an operation, which modes of the program would see."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._handle: Any = None

    def __enter__(self) -> None:
        autograd: Any = torch.autograd
        self._handle = autograd._record_function_with_args_enter(self._name)  # noqa: SLF001

    def __exit__(self, *_: object) -> None:
        autograd: Any = torch.autograd
        autograd._record_function_with_args_exit(self._handle)  # noqa: SLF001


def layer_mark(name: str) -> Mark:
    """Return a range for the forward pass of the layer *name*: enter it before, leave it after."""
    return Mark(f"{_LAYER}{name}")


def own_mark() -> Mark:
    """Return a range whose operations are an observer's and not the program's."""
    return Mark(_OWN)


def step_mark() -> Mark:
    """Return a range that says where an optimizer's step begins: the window ends in it, before the step's own does."""
    return Mark(_STEP)


def tracing(what: str) -> Any:  # noqa: ANN401
    """Return torch's function that can *what* (add, enable, disable, remove) the trace of this process, or None."""
    from torch._C import _profiler

    names = (f"_{what}_execution_{called}_observer" for called in TRACE_IS_CALLED)
    return next((getattr(_profiler, name) for name in names if hasattr(_profiler, name)), None)


def autocast_dtype(device: str) -> Optional[str]:
    """Return the dtype of the autocast that this thread is in on *device* (``cpu`` or ``cuda``), or None."""
    if hasattr(torch, "get_autocast_dtype"):  # torch 2.4 and later
        return str(torch.get_autocast_dtype(device)).rpartition(".")[2] if torch.is_autocast_enabled(device) else None
    is_on = torch.is_autocast_cpu_enabled() if device == "cpu" else torch.is_autocast_enabled()
    dtype = torch.get_autocast_cpu_dtype() if device == "cpu" else torch.get_autocast_gpu_dtype()
    return str(dtype).rpartition(".")[2] if is_on else None


def rows(products: Sequence[Product]) -> List[Dict[str, Any]]:
    """Return *products* summed up as the rows of an event ``precision_observed``, largest first."""
    found: Dict[Tuple[str, str, Optional[str], bool], float] = {}
    for one in products:
        key = (one.format, one.phase, one.layer, one.emulated)
        found[key] = found.get(key, 0.0) + one.flops
    for key in sorted(found, key=lambda one: (-found[one], str(one)))[_MOST_ROWS:]:
        form, phase, _, emulated = key
        rest = found.pop(key)
        found[form, phase, None, emulated] = found.get((form, phase, None, emulated), 0.0) + rest
    return [
        {"format": form, "phase": phase, "layer": layer, "flops": flops, "emulated": emulated}
        for (form, phase, layer, emulated), flops in sorted(found.items(), key=lambda item: (-item[1], str(item[0])))
    ]


def read_trace(path: str) -> Found:
    """Return what the trace in the file *path* tells; raise `TraceError` where it is not to be read."""
    trace = _Trace()
    with open(path, encoding="utf-8", errors="replace") as file:
        for node in _nodes(file):
            trace.add(node)
    return trace.found()


def _nodes(file: TextIO) -> Iterator[Mapping[str, Any]]:
    """Yield the nodes one by one: a large step's trace is hundreds of megabytes."""
    text = file.read(_CHUNK)
    schema = re.search(r'"schema":\s*"([^"]*)"', text)
    begin = re.search(r'"nodes":\s*\[', text)
    if schema is None or begin is None:
        raise TraceError("it has no schema or no nodes")
    if not schema.group(1).startswith(_SCHEMAS):
        raise TraceError(f"schema {schema.group(1)} is not known")
    decoder, at = json.JSONDecoder(), begin.end()
    while True:
        while at < len(text) and text[at] in " \r\n\t,":
            at += 1
        if at < len(text) and text[at] == "]":
            return
        try:
            node, at = decoder.raw_decode(text, at)
        except ValueError:
            more = file.read(_CHUNK)
            if not more:
                raise TraceError("it is torn") from None
            text, at = text[at:] + more, 0
            continue
        if not isinstance(node, dict):
            raise TraceError("a node is none")
        yield node


def _as_of_today(node: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a *node* of torch 2.0 or 2.1 in the form of later ones; raise `TraceError` where it is of neither."""
    try:
        sides = {
            f"{side}s": {name: node[f"{side}_{name}"] for name in ("shapes", "types")} for side in ("input", "output")
        }
        for side, has in sides.items():
            has["values"] = node[side]
        attributes = [{"name": name, "value": node[name]} for name in ("seq_id", "tid", "fw_tid")]
        return {"name": node["name"], "id": node["id"], "ctrl_deps": node["parent"], "attrs": attributes, **sides}
    except KeyError as error:
        raise TraceError(f"a node has no {error}") from error


class _Leaf(NamedTuple):
    format: Optional[str]  # None: nobody knows
    flops: Optional[float]
    is_whole: bool = False  # what it contains is no product of its own
    is_emulated: bool = False

    @property
    def is_known(self) -> bool:
        return self.format is not None and self.flops is not None


class _Node(NamedTuple):
    parent: Optional[int]
    name: str
    seq: int  # of the node of the graph that it makes, or is; -1: none
    thread: int
    forward_thread: int
    leaf: Optional[_Leaf]  # what it multiplies


class _Trace:
    """All nodes of a trace, of which little is kept."""

    def __init__(self) -> None:
        self._nodes: Dict[int, _Node] = {}  # in the order in which they ended
        self._steps: Dict[int, int] = {}  # the last optimizer's step that began, by thread

    def add(self, node: Mapping[str, Any]) -> None:
        if "attrs" not in node:
            node = _as_of_today(node)
        attributes = {one["name"]: one["value"] for one in node.get("attrs", ())}
        parent, name = node["ctrl_deps"], str(node["name"])
        self._nodes[node["id"]] = _Node(
            None if parent == node["id"] else parent,
            name,
            int(attributes.get("seq_id", -1)),
            int(attributes.get("tid", 0)),
            int(attributes.get("fw_tid", 0)),
            _leaf_of(name, node),
        )

    def _nest(self) -> None:
        """Put each node whose parent is not known to have been there all the while into the one that was.

        Where an operation ends by an exception, as a checkpoint stops computing again, torch writes no node of it, and
        takes it for the parent of what comes later.
        """
        ended = {at: order for order, at in enumerate(self._nodes)}
        open_ones: Dict[int, List[int]] = {}  # of each thread, the outermost first
        for at in sorted(self._nodes):
            node = self._nodes[at]
            around = open_ones.setdefault(node.thread, [])
            while around and ended[around[-1]] < ended[at]:
                around.pop()
            if node.parent is None or ended.get(node.parent, -1) < ended[at]:
                self._nodes[at] = node._replace(parent=around[-1] if around else None)
            around.append(at)
            if node.name == _STEP:
                self._steps[node.thread] = at

    def found(self) -> Found:
        self._nest()
        inner = self._products()
        layers = self._forward_layers(inner)
        products: List[Product] = []
        unknown: Dict[str, Optional[float]] = {}
        for at in inner:
            leaf, up = self._leaf(at), list(self._up(at))
            if any(node.name == _OWN for node in up):
                continue
            if leaf.format is None or leaf.flops is None:
                name, before = self._nodes[at].name, unknown.get(self._nodes[at].name, 0.0)
                unknown[name] = None if before is None or leaf.flops is None else before + leaf.flops
                continue
            if leaf.format == "meta":
                continue
            phase = self._phase(at, up)
            layer = _layer(up) if phase != "backward" else self._layer_of_backward(up, layers)
            kind = _kind(self._nodes[at].name)
            products.append(Product(leaf.format, phase, layer, leaf.flops, leaf.is_emulated, kind))
        if products and all(one.phase == "backward" for one in products) and not self._has_solver():
            unknown[_UNSEEN_FORWARD] = None
        return Found(products, unknown, len(self._nodes))

    def _has_solver(self) -> bool:
        """Whether something was solved, decomposed or transformed: its backward pass alone may be products."""
        names = (node.name.rpartition("::")[2].rstrip("_") for node in self._nodes.values())
        return any(operations.is_solver_name(name) for name in names)

    def _ids_above(self, at: int) -> Iterator[int]:
        """Yield the nodes that the node lies in, from inside."""
        current = self._nodes[at].parent
        while current is not None and current in self._nodes:
            yield current
            current = self._nodes[current].parent

    def _up(self, at: int) -> Iterator[_Node]:
        """Yield the node and all that it lies in."""
        yield self._nodes[at]
        for above in self._ids_above(at):
            yield self._nodes[above]

    def _products(self) -> List[int]:
        """Return the nodes that multiply, by id: of those that lie in each other the innermost that is known.

        What lies in a whole one is passed over.
        """
        candidates = {at for at, node in self._nodes.items() if node.leaf is not None}
        for at in [at for at in candidates if self._nodes[at].name.startswith(_PRODUCT)]:
            candidates -= {up for up in self._ids_above(at) if not self._nodes[up].name.startswith(_PRODUCT)}
        for at in [*candidates]:  # autocast calls the same operation again, with other types
            candidates -= {up for up in self._ids_above(at) if self._nodes[up].name == self._nodes[at].name}
        for at in [*candidates]:
            above = [self._leaf(up) for up in self._ids_above(at) if up in candidates]
            if any(leaf.is_whole for leaf in above) or (
                not self._leaf(at).is_known and any(leaf.is_known for leaf in above)
            ):
                candidates.discard(at)
        outer = {up for at in candidates for up in self._ids_above(at)}
        return sorted(at for at in candidates if at not in outer or self._leaf(at).is_whole)

    def _leaf(self, at: int) -> _Leaf:
        return self._nodes[at].leaf or _Leaf(None, None)

    def _forward_layers(self, products: Sequence[int]) -> Dict[Tuple[int, int], str]:
        """Return the layer of each number that autograd gave to a product in the forward pass, by thread.

        It may be computed again in the backward pass, which has no layers else.
        """
        layers: Dict[Tuple[int, int], str] = {}
        for at in products:
            up = list(self._up(at))
            layer = _layer(up)
            if layer is None:
                continue
            for node in up:
                if node.name.startswith(_LAYER):
                    break
                if node.seq >= 0:
                    layers[node.thread, node.seq] = layer
        return layers

    def _phase(self, at: int, up: Sequence[_Node]) -> str:
        """Return where a product ran; ``evaluation`` is what nothing is differentiated of.

        What an optimizer's closure computes is no work of the optimizer. A window ends inside of an optimizer's step:
        its range, which is not over, is no node of the trace.
        """
        has_graph = False
        for node in up:
            if node.name.startswith(_BACKWARD):
                return "backward"
            has_graph = has_graph or node.seq >= 0
            if node.name.startswith(_OPTIMIZER) and not has_graph:
                return "optimizer"
        if has_graph:
            return "forward"
        return "optimizer" if at > self._steps.get(up[0].thread, at) else "evaluation"

    @staticmethod
    def _layer_of_backward(up: Sequence[_Node], layers: Mapping[Tuple[int, int], str]) -> Optional[str]:
        if (again := _layer(up)) is not None:  # a checkpoint is computed again
            return again
        for node in up:
            if node.seq >= 0 and (node.forward_thread, node.seq) in layers:
                return layers[node.forward_thread, node.seq]
        return None


def _kind(operation: str) -> str:
    name = operation.rpartition("::")[2].rstrip("_")
    if _RECURRENT.match(name):
        return "rnn"
    if _ATTENTION.match(name):
        return "attention"
    return "conv" if "conv" in name else "linear"


def _layer(up: Sequence[_Node]) -> Optional[str]:
    return next((node.name[len(_LAYER) :] for node in up if node.name.startswith(_LAYER)), None)


def _leaf_of(full: str, node: Mapping[str, Any]) -> Optional[_Leaf]:
    """Return what the operation of *node* multiplies, or None where it is no product."""
    if full.startswith(_PRODUCT):
        form, kind, flops = full[len(_PRODUCT) :].rsplit(":", 2)
        return _Leaf(form, float(flops), is_whole=True, is_emulated=kind == "emulated")
    namespace, colons, name = full.rpartition("::")
    if not colons or "::" in namespace or " " in full:
        return None  # a range, or a step of autograd's engine
    name = name.rstrip("_")
    if namespace in ("aten", "mkldnn", "mkl", "mkldnn_prepacked"):
        try:
            return _multiplied(name, _Tensors(node))
        except (IndexError, TypeError, KeyError, ValueError):  # a factor that is no plain tensor
            return _Leaf(None, None)
    if namespace in _HARMLESS_NAMESPACES or full in operations.HARMLESS_ELSEWHERE or _has_no_numbers(node):
        return None
    return _Leaf(None, None)  # of another library: nobody has looked, unless products are seen in it


class _Tensors:
    """The inputs and outputs of a node."""

    def __init__(self, node: Mapping[str, Any]) -> None:
        self.inputs, self.values = node["inputs"], node["inputs"]["values"]
        self.shapes, self.types = self.inputs["shapes"], self.inputs["types"]
        self.out: List[int] = node["outputs"]["shapes"][0] if node["outputs"]["shapes"] else []

    def shape(self, at: int) -> List[int]:
        shape = self.shapes[at]
        if not all(isinstance(size, int) for size in shape):
            raise TypeError(f"input {at} is no tensor")
        return list(shape)

    def format(self, *positions: int) -> str:
        """Return the format of the factors at *positions*, by their type and device."""
        found = set()
        for at in positions:
            kind = re.fullmatch(r"Tensor\((.*)\)", self.types[at])
            if kind is None:
                raise TypeError(f"input {at} is no tensor")
            device = str(self.values[at][-1])
            if device == "meta":
                return "meta"
            form = _FORMATS.get(kind.group(1), kind.group(1))
            if form == "fp32" and not device.startswith("cpu"):
                form = FLOAT32_ON_GPU if device.startswith("cuda") else FLOAT32_ELSEWHERE
            found.add(form)
        return "x".join(sorted(found))


def _multiplied(name: str, of: _Tensors) -> Optional[_Leaf]:
    """Return what torch's own operation *name* multiplies, or None where it does not."""
    for fits, leaf in _RULES:
        if fits(name):
            return leaf(name, of)
    if name in _NO_PRODUCTS or operations.is_harmless_name(name) or _MADE_OF_PLAIN_PRODUCTS in name:
        return None
    return _Leaf(None, None) if operations.is_refused_name(name) or _SOUNDS_LIKE_ONE.search(name) else None


def _matrices(name: str, of: _Tensors) -> _Leaf:
    a, b = _MATRICES[name]
    rows, columns = of.shape(a), of.shape(b)
    flops = 2.0 * math.prod(rows) * (columns[-1] if len(columns) > 1 else 1)
    return _Leaf(of.format(a, b), flops)


def _linear(_: str, of: _Tensors) -> _Leaf:
    return _Leaf(of.format(0, 1), 2.0 * math.prod(of.shape(0)) * of.out[-1] if of.out else None)


def _convolution(name: str, of: _Tensors) -> _Leaf:
    is_transposed = name in _TRANSPOSED or (name in ("convolution", "_convolution") and of.values[6] is True)
    result = of.shape(0) if is_transposed else of.out
    flops = 2.0 * math.prod(result) * math.prod(of.shape(1)[1:]) if result else None
    return _Leaf(of.format(0, 1), flops)


def _convolution_backward(_: str, of: _Tensors) -> _Leaf:
    result = of.shape(1) if of.values[7] is True else of.shape(0)
    asked = sum(bool(one) for one in of.values[10][:2])  # the gradients of input and weight; a bias' is a sum
    flops = 2.0 * asked * math.prod(result) * math.prod(of.shape(2)[1:])
    return _Leaf(of.format(0, 1, 2), flops, is_whole=True)


def _attention(name: str, of: _Tensors) -> _Leaf:
    """Return the FLOPs of attention: two products forward, five backward, each of all queries and keys."""
    is_backward = "backward" in name
    first = 1 if is_backward else 0  # a backward one begins with the gradient
    query, key = of.shape(first), of.shape(first + 1)
    flops = 2.0 * (5 if is_backward else 2) * math.prod(query) * key[-2] if len(key) == 4 else None
    return _Leaf(of.format(first, first + 1, first + 2), flops, is_whole=True)


def _recurrent(name: str, of: _Tensors) -> _Leaf:
    """Return the FLOPs of a recurrent layer: each weight times the input of each step; twice that backward."""
    steps, weights = of.shape(0), of.shapes[1]
    matrices = weights if weights and isinstance(weights[0], list) else of.shapes[1:3]
    of_one = sum(math.prod(shape) for shape in matrices if len(shape) > 1)
    times = 2 if name.endswith("_backward") else 1
    return _Leaf(of.format(0), 2.0 * math.prod(steps[:-1]) * of_one * times, is_whole=True)


def _has_no_numbers(node: Mapping[str, Any]) -> bool:
    """Whether an operation gets fewer than two tensors of floating point: it is no product then."""
    kinds = " ".join(map(str, node["inputs"]["types"]))
    return len(re.findall(r"Tensor\((float|double|c10::\w+)\)", kinds)) < 2


_MADE_OF_PLAIN_PRODUCTS = "scaled_dot_product_attention"  # and ..._math: torch computes them by others, which are seen
_ATTENTION = re.compile(
    r"(_scaled_dot_product_(flash|efficient|cudnn|fused)_attention\w*|_(flash|efficient|cudnn)_attention_\w+)$"
)
_RECURRENT = re.compile(r"(mkldnn_rnn_layer|_cudnn_rnn|miopen_rnn)(_backward)?$")
_RULES: Sequence[Tuple[Callable[[str], object], Callable[[str, _Tensors], _Leaf]]] = (
    (_MATRICES.__contains__, _matrices),
    (_LINEAR.__contains__, _linear),
    ((*_CONVOLUTIONS, *_TRANSPOSED).__contains__, _convolution),
    (operations.CONVOLUTION_BACKWARD.__eq__, _convolution_backward),
    (_ATTENTION.match, _attention),
    (_RECURRENT.match, _recurrent),
)
