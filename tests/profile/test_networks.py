"""Every network: times add up, retained memory is that of hooks, training is unchanged."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks

from tests.profile.networks import NETWORKS, Reused, of_logits
from tests.profile.profiling import layer, needs_nodes, profile_of, profiling, train, trained
from traincheck.collect.profile import graph
from traincheck.profile.layers import StepRecord
from traincheck.profile.tree import document, info_of

FIELDS = (
    "type", "num_parameters", "num_learnable_parameters", "param_memory_usage",
    "gradient_memory_usage", "input_shapes", "output_shapes", "input_memory_usage",
    "output_memory_usage", "grad_in_shape", "grad_out_shape", "effective_additional_memory_fwd",
    "effective_additional_memory_bwd", "forward_nan", "grad_in_nan", "grad_out_nan", "total_memory",
    "forward_latency", "backward_latency",
)  # fmt: skip
each_network = pytest.mark.parametrize("name", list(NETWORKS))


def retained_by_hooks(
    make: Callable[[], torch.nn.Module], loss_of: Callable[[Any], torch.Tensor]
) -> int:
    """Bytes of all saved tensors of one forward pass, without parameters and buffers."""
    torch.manual_seed(0)
    model = make()
    lasting = {
        tensor.untyped_storage().data_ptr() for tensor in [*model.parameters(), *model.buffers()]
    }
    seen: dict[int, tuple[int, torch.Tensor]] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in lasting and storage.nbytes():
            seen[storage.data_ptr()] = storage.nbytes(), tensor
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        loss_of(model)
    return sum(size for size, _ in seen.values())


def every_layer(step: StepRecord) -> list[Any]:
    return [step.outside, *step.layers()]


@each_network
@needs_nodes
def test_retained_bytes_are_those_that_hooks_see(name: str, tmp_path: Path) -> None:
    make, loss_of = NETWORKS[name]
    profile, _ = trained(tmp_path, make, loss_of)
    retained = sum(layer.retained for layer in every_layer(profile.steps[0]))
    assert retained == retained_by_hooks(make, loss_of) > 0


@each_network
def test_self_times_add_up_to_the_phase(name: str, tmp_path: Path) -> None:
    make, loss_of = NETWORKS[name]
    profile, _ = trained(tmp_path, make, loss_of)
    step = profile.steps[0]
    layers = every_layer(step)
    backward = step.phases["backward"] + step.phases.get("recompute", 0)
    assert sum(one.forward.own for one in layers) == step.phases["forward"] > 0
    assert sum(one.backward_own for one in layers) == backward > 0
    (root,) = step.roots
    assert root.forward.total == step.phases["forward"]
    assert root.backward_total + step.outside.backward_own == backward


@each_network
def test_a_container_has_at_least_the_time_of_each_child(name: str, tmp_path: Path) -> None:
    make, loss_of = NETWORKS[name]
    profile, _ = trained(tmp_path, make, loss_of)
    for outer in profile.steps[0].layers():
        assert outer.forward.total >= outer.forward.own
        for child in outer.children:
            assert child.forward.total <= outer.forward.total
            assert child.backward_total <= outer.backward_total


@each_network
def test_all_fields_are_there(name: str, tmp_path: Path) -> None:
    make, loss_of = NETWORKS[name]
    profile, model = trained(tmp_path, make, loss_of)
    for one in profile.steps[0].layers():
        info = info_of(one)
        assert not set(FIELDS) - set(info)
        assert len(FIELDS) == 19
    (root,) = document(profile)["tree"].values()
    distinct = {id(p): p for p in model.parameters()}.values()
    assert root["info"]["num_parameters"] == sum(p.numel() for p in distinct)
    assert root["info"]["gradient_memory_usage"] == root["info"]["param_memory_usage"] > 0
    assert root["info"]["output_shapes"]
    assert profile.origin is None


@each_network
def test_training_is_bit_identical(name: str, tmp_path: Path) -> None:
    make, loss_of = NETWORKS[name]
    plain = run_of(make, loss_of, None)
    profiled = run_of(make, loss_of, tmp_path)
    assert len(plain) == len(profiled)
    assert all(torch.equal(a, b) for a, b in zip(plain, profiled))


def run_of(
    make: Callable[[], torch.nn.Module], loss_of: Callable[[Any], torch.Tensor], folder: Path | None
) -> list[torch.Tensor]:
    """Weights, gradients, optimizer states and generator after six steps, the middle profiled."""
    torch.manual_seed(0)
    model = make()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    if folder is None:
        train(model, optimizer, loss_of, 6)
    else:
        with profiling(folder, model, optimizer, first=2, steps=2) as run:
            train(model, optimizer, loss_of, 6)
        assert [event.step for event in run.of("profile")] == [2, 3]
    states = [v for state in optimizer.state.values() for v in state.values()]
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    return [*model.parameters(), *model.buffers(), *gradients, *states, torch.get_rng_state()]


@needs_nodes
def test_a_checkpointed_block_computes_twice_and_keeps_its_inputs(tmp_path: Path) -> None:
    make, loss_of = NETWORKS["checkpointed"]
    profile, _ = trained(tmp_path, make, loss_of)
    block = layer(profile, "GPT.b.1")
    assert (block.calls, block.recomputed) == (1, 1)
    assert block.again.total > 0
    plain, _ = trained(tmp_path / "plain", *NETWORKS["gpt"])
    assert block.sum("retained") < layer(plain, "GPT.b.1").sum("retained") / 4


@needs_nodes
def test_a_layer_that_is_called_a_hundred_times(tmp_path: Path) -> None:
    profile, _ = trained(tmp_path, *NETWORKS["reused"])
    same = layer(profile, "Reused.same")
    assert same.calls == 100
    assert same.forward_flops == 100 * 2 * 16 * 32 * 32
    assert sum(one.elements for one in same.tensors()) == 32 * 33
    assert same.retained == 100 * 16 * 32 * 4


@needs_nodes
def test_tied_parameters_count_once_and_their_flops_twice(tmp_path: Path) -> None:
    profile, _ = trained(tmp_path, *NETWORKS["gpt"])
    embedding, head = layer(profile, "GPT.e"), layer(profile, "GPT.h")
    assert embedding.parameters[0].identity == head.parameters[0].identity
    assert head.forward_flops == 2 * 4 * 32 * 64 * 128
    total = sum(one.elements for one in layer(profile, "GPT").tensors())
    own = sum(one.elements for all_ in profile.steps[0].layers() for one in all_.parameters)
    assert own - total == 128 * 64


def test_containers_without_calls_have_the_time_of_their_layers(tmp_path: Path) -> None:
    profile, _ = trained(tmp_path, *NETWORKS["moe"])
    experts = layer(profile, "Experts.experts")
    assert experts.calls == 0
    assert experts.forward.own == 0
    assert experts.forward.total == sum(child.forward.total for child in experts.children)


def test_a_part_that_is_never_called_is_a_row(tmp_path: Path) -> None:
    class Spare(Reused):
        def __init__(self) -> None:
            super().__init__()
            self.spare = torch.nn.Linear(4, 4)

    profile, _ = trained(tmp_path, Spare, NETWORKS["reused"][1])
    spare = layer(profile, "Spare.spare")
    assert (spare.calls, spare.forward.total, spare.retained) == (0, 0, 0)
    assert sum(one.elements for one in spare.tensors()) == 20


@needs_nodes
def test_micro_batches_keep_what_one_of_them_keeps(tmp_path: Path) -> None:
    make, loss_of = NETWORKS["moe"]

    def twice(model: Any) -> torch.Tensor:
        loss_of(model).backward()
        return loss_of(model)

    profile, _ = trained(tmp_path, make, twice)
    assert layer(profile, "Experts").calls == 2
    retained = sum(layer.retained for layer in every_layer(profile.steps[0]))
    assert retained == retained_by_hooks(make, loss_of)


def test_shapes_of_keyword_arguments_tuples_and_dicts(tmp_path: Path) -> None:
    profile, _ = trained(tmp_path, *NETWORKS["lstm"])
    root, lstm = layer(profile, "Recurrent"), layer(profile, "Recurrent.r")
    assert [one.shape for one in root.inputs] == [(4, 12)]
    assert [one.shape for one in root.outputs] == [(4, 12, 64), (2, 4, 48)]
    assert [one.shape for one in lstm.outputs] == [(4, 12, 48), (2, 4, 48), (2, 4, 48)]
    assert lstm.gradient_out == ((4, 12, 48), (2, 4, 48), (2, 4, 48))


def test_an_exception_of_the_program_passes_through(tmp_path: Path) -> None:
    class Failing(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise KeyError("mine")

    model = torch.nn.Sequential(torch.nn.Linear(2, 2), Failing())
    with profiling(tmp_path, model) as run:
        with pytest.raises(KeyError, match="mine"):
            model(torch.ones(1, 2))
        of_logits(model[0](torch.ones(1, 2))).backward()
    (event,) = run.of("profile")
    assert event.layers[1]["calls"] == 1
    assert sum(event.phases.values()) > 0


def test_originals_are_back_after_the_window(tmp_path: Path) -> None:
    before = torch.nn.Module._call_impl, torch.autograd._engine_run_backward
    make, loss_of = NETWORKS["moe"]
    torch.manual_seed(0)
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen = []

    def watched(given: Any) -> torch.Tensor:
        seen.append((torch.nn.Module._call_impl, torch._C._len_torch_function_stack()))
        return loss_of(given)

    with profiling(tmp_path, model, optimizer, first=1, steps=1):
        train(model, optimizer, watched, 5)
    replaced = [call is not before[0] for call, _ in seen]
    assert replaced == [False, True, False, False, False]
    assert [modes for _, modes in seen] == [0, 1, 0, 0, 0]
    assert before == (torch.nn.Module._call_impl, torch.autograd._engine_run_backward)


def test_a_failure_of_ours_drops_the_profile_and_not_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from traincheck.collect.profile.step import StepProfile

    def fails(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("ours")

    monkeypatch.setattr(StepProfile, "leave", fails)
    make, loss_of = NETWORKS["moe"]
    torch.manual_seed(0)
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    from tests.collect.recording import recording
    from tests.profile.profiling import NEEDS

    with recording(tmp_path, must_be_whole=False, needs=NEEDS, profile=(0, 9)) as run:
        train(model, optimizer, loss_of, 3)
    assert not run.of("profile")
    assert run.marks("fault")
    assert not torch._C._len_torch_function_stack()


def test_the_exchange_of_gradients_is_not_time_of_a_layer(tmp_path: Path) -> None:
    from torch import distributed

    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 2))
    store = distributed.FileStore(str(tmp_path / "store"), 1)
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        wrapped = torch.nn.parallel.DistributedDataParallel(model)
        optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)

        def slow(_: Any, bucket: Any) -> Any:
            time.sleep(0.05)
            future = torch.futures.Future()
            future.set_result(bucket.buffer())
            return future

        slow.__annotations__.clear()  # torch compares them with its own classes
        wrapped.register_comm_hook(None, slow)
        with profiling(tmp_path / "run", wrapped, optimizer) as run:
            train(wrapped, optimizer, lambda m: of_logits(m(torch.ones(4, 8))), 2)
    finally:
        distributed.destroy_process_group()
    step = profile_of(run).steps[0]
    assert step.outside.backward_own > 50_000_000 > sum(one.backward_own for one in step.layers())


def test_an_evaluation_within_a_step_is_unchanged(tmp_path: Path) -> None:
    """Encoders of torch choose another path where they see a mode."""

    def results(folder: Path | None) -> list[torch.Tensor]:
        torch.manual_seed(0)
        layer = torch.nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
        model = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        found = []

        def loss_of(given: Any) -> torch.Tensor:
            with torch.no_grad():
                found.append(given.eval()(torch.ones(2, 4, 32)))
            return of_logits(given.train()(torch.ones(2, 4, 32)))

        if folder is None:
            train(model, optimizer, loss_of, 3)
            return [*found, *model.parameters()]
        with profiling(folder, model, optimizer) as run:
            train(model, optimizer, loss_of, 3)
        assert "operations of models in evaluation mode" in run.of("profile")[1].unseen
        return [*found, *model.parameters()]

    assert all(map(torch.equal, results(None), results(tmp_path)))
    assert not torch._C._len_torch_function_stack()


def test_a_torch_whose_nodes_tell_less_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As torch 2.4: no FLOPs and no retained memory, said in the report; times are there."""
    monkeypatch.setattr(graph, "IS_TOLD", False)
    monkeypatch.setattr(graph, "IS_READABLE", False)
    profile, _ = trained(tmp_path, *NETWORKS["moe"])
    (step,) = profile.steps
    assert "saved tensors of this version of torch" in step.unseen
    assert "AddmmBackward0" in step.uncounted
    assert sum(one.backward_own for one in step.layers())
