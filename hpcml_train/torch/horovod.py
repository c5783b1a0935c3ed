"""A torch model shared by processes whose gradients Horovod averages."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any

import horovod
import horovod.torch as hvd
import torch
from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
from horovod.runner.http.http_server import RendezvousServer
from torch import distributed, nn

from hpcml_client.client import Client
from hpcml_train.errors import RecipeError
from hpcml_train.task import by_mpi
from hpcml_train.torch.team import Stopwatch, Team

if not hasattr(hvd, "init"):  # it has printed why, and goes on
    raise ImportError("Horovod is here, but was not built for this torch")

_PATIENCE = timedelta(minutes=5)  # until all have come: some import torch from a cold file system


@contextlib.contextmanager
def averaging(module: nn.Module, device: torch.device, run: Client) -> Iterator[Team]:
    """Have the ranks of *run* meet in Horovod, and share *module* between them.

    Raises `RecipeError` where they do not find each other.
    """
    if not hvd.is_initialized():
        _meet(run)
    yield Averaged(module, device, world_size=run.world_size)
    # Not in a `finally`: a rank that failed must not wait for the others.
    hvd.barrier()  # nobody leaves while another still talks to it
    hvd.shutdown()


class Averaged(Team):
    """Every process has the whole model and a share of each batch; Horovod averages gradients while they are computed.

    A gradient is handed over as soon as it is there, and Horovod sends several together. That is what its
    DistributedOptimizer does, which waits for them in the optimiser's step only: too late where a loss is scaled. All
    ranks must use the same parameters in a step.
    """

    def __init__(self, module: nn.Module, device: torch.device, *, world_size: int) -> None:
        super().__init__(module, device, world_size=world_size)
        self._watch = Stopwatch(device)
        self._is_last = False  # part of a batch
        self._handles: list[int] = []  # of what is on its way
        self._began: Any = None
        self._ended: Any = None
        _follow_the_first("weights", module.state_dict())
        for name, parameter in module.named_parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(self._hand_over(name))  # type: ignore[no-untyped-call, unused-ignore]

    def details(self) -> Mapping[str, object]:
        """Return how it talks."""
        on_nccl = self.devices[0].type == "cuda" and hvd.nccl_built()
        backend = "nccl" if on_nccl else os.environ.get("HOROVOD_CPU_OPERATIONS", "gloo")
        return {"backend": backend, "horovod": horovod.__version__}

    def part(self, *, is_last: bool) -> contextlib.AbstractContextManager[Any]:
        """Average gradients after the last part only."""
        return self._averaged() if is_last else contextlib.nullcontext()

    def metrics(self) -> Mapping[str, float]:
        """Return the metric ``communication_time_s`` of the last step, as `DataParallel` does.

        From the moment that all gradients of this rank are computed until those of all ranks are averaged.
        """
        return {"communication_time_s": self._watch.seconds(self._began, self._ended)}

    def restore(self, state: Mapping[str, Any], optimizer: torch.optim.Optimizer) -> None:
        """Take up what `state` returned, as the first rank has read it."""
        super().restore(state, optimizer)
        _follow_the_first("weights", self.module.state_dict())
        remembered = {
            f"{number}.{name}": value
            for number, values in optimizer.state_dict()["state"].items()
            for name, value in values.items()
            if isinstance(value, torch.Tensor)
        }
        _follow_the_first("optimizer", remembered)

    def summed(self, numbers: torch.Tensor) -> torch.Tensor:
        """Return the sums of *numbers* over all ranks; by all ranks."""
        total: torch.Tensor = hvd.allreduce(numbers, op=hvd.Sum)
        return total

    @contextlib.contextmanager
    def _averaged(self) -> Iterator[None]:
        self._is_last = True
        yield
        self._began = self._watch.now()
        for handle in self._handles:
            hvd.synchronize(handle)
        self._ended = self._watch.now()
        self._handles.clear()
        self._is_last = False

    def _hand_over(self, name: str) -> Any:  # noqa: ANN401 - a hook
        def hand_over(parameter: torch.Tensor) -> None:
            if self._is_last and parameter.grad is not None:
                flat = _as_in_memory(parameter.grad)
                self._handles.append(hvd.allreduce_async_(flat, name=f"gradient.{name}", op=hvd.Average))

        return hand_over


def _meet(run: Client) -> None:
    """Start Horovod, once all ranks have come to MASTER_ADDR and MASTER_PORT.

    Ranks leave their addresses with a server that Horovod's launcher would start; here the first rank has it, until it
    ends, and says its port.
    """
    if by_mpi(run):
        _begin_by_mpi(run)
        return
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    each = int(os.environ.get("LOCAL_WORLD_SIZE", run.world_size))
    nodes = ",".join(f"node{number}:{each}" for number in range(run.world_size // each))
    slots = get_host_assignments(parse_hosts(nodes), run.world_size)
    try:
        store = distributed.TCPStore(  # type: ignore[attr-defined, unused-ignore]
            host, port, run.world_size, run.rank == 0, _PATIENCE
        )
        if run.rank == 0:
            server = RendezvousServer()
            store.set("port", str(server.start()))
            server.init(slots)
        os.environ.update(_told(slots[run.rank], host, int(store.get("port"))))
        hvd.init()
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:300]
        raise RecipeError(
            f"strategy=horovod: rank {run.rank} of {run.world_size} met nobody at {host}:{port}: {reason}"
        ) from error


def _begin_by_mpi(run: Client) -> None:
    """Start Horovod in ranks that an MPI launcher has started, which find each other by MPI."""
    if not hvd.mpi_built():
        raise RecipeError("workload.launcher with strategy=horovod needs a Horovod that was built with MPI: see docs")
    os.environ.update(HOROVOD_CONTROLLER="mpi", HOROVOD_CPU_OPERATIONS="mpi")
    hvd.init()
    if hvd.size() != run.world_size:
        raise RecipeError(f"strategy=horovod: MPI has {hvd.size()} process(es), and the run {run.world_size}")


def _told(slot: Any, host: str, port: int) -> dict[str, str]:  # noqa: ANN401 - Horovod has no types
    """Return the variables that Horovod's launcher sets."""
    places = ("hostname", "rank", "size", "local_rank", "local_size", "cross_rank", "cross_size")
    found = {f"HOROVOD_{place.upper()}": str(getattr(slot, place)) for place in places}
    found.update(HOROVOD_GLOO_RENDEZVOUS_ADDR=host, HOROVOD_GLOO_RENDEZVOUS_PORT=str(port))
    found.update(HOROVOD_CONTROLLER="gloo", HOROVOD_CPU_OPERATIONS="gloo")
    if host == "127.0.0.1":  # else gloo looks up the host's name
        found["HOROVOD_GLOO_IFACE"] = "lo"
    return found


def _follow_the_first(what: str, tensors: Mapping[str, torch.Tensor]) -> None:
    """Set *tensors* to those of the first rank; by all ranks."""
    handles = [
        hvd.broadcast_async_(_as_in_memory(tensor), 0, name=f"{what}.{name}") for name, tensor in tensors.items()
    ]
    for handle in handles:
        hvd.synchronize(handle)


def _as_in_memory(tensor: torch.Tensor) -> torch.Tensor:
    """Return the numbers of a dense *tensor* in their order in memory: of `nhwc` Horovod would take no other."""
    return tensor.detach().as_strided((tensor.numel(),), (1,))
