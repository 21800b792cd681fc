"""TC101: parameters that are trained but that no optimizer holds."""

from __future__ import annotations

from tests.builders import ADAM, MLP, MLP_BN, SGD, TraceBuilder
from tests.checking import BY_CODE, Alone, fires, net, quiet
from tests.golden import Golden, mentions
from traincheck.schema.findings import Symptom, Verdict
from traincheck.schema.torch_api import Families

ALL = [f"Net.{name}" for name in MLP]
HEAD = ["Net.fc2.bias", "Net.fc2.weight"]
BODY = ["Net.fc1.bias", "Net.fc1.weight"]


def start() -> TraceBuilder:
    return TraceBuilder().process()


def test_fires_when_the_optimizer_got_a_part(golden: Golden) -> None:
    finding = fires("TC101", start().model().optimizer(names=HEAD).steps(3).build())
    assert finding.variables == tuple(BODY)
    assert (finding.step, finding.first_step, finding.last_step) == (0, 0, 2)
    golden(finding)
    assert mentions(finding, "opt0 (Adam)", "Net.fc2.bias", "Net.fc2.weight", "train.py:40")


def test_fires_when_a_head_is_replaced_after_the_optimizer_was_built(golden: Golden) -> None:
    events = net().steps(2).replace(*HEAD).steps(2).build()
    finding = fires("TC101", events)
    assert finding.variables == tuple(HEAD)
    assert finding.first_step == 2
    golden(finding)


def test_one_sentence_says_what_was_replaced_and_where(golden: Golden) -> None:
    """Only if the new tensors were initialized after the optimizer was built, in one line."""
    wheres = {"one": ("train.py:44",) * 2, "two": ("train.py:44", "train.py:45"), "none": ()}
    for kind, places in wheres.items():
        events = net()
        events.replace(*HEAD)
        for place, name in zip(places, HEAD, strict=False):
            result = {"identity": events.parameters()[name].identity}
            events.call("torch.nn.init.uniform_", result=result, where=place)
        finding = fires("TC101", events.steps(2).build())
        golden(finding, case=kind)


def test_a_part_that_the_optimizer_never_had_was_not_replaced(golden: Golden) -> None:
    golden(fires("TC101", start().model().optimizer(names=BODY).steps(3).build()), case="part")
    golden(fires("TC101", net().replace(*ALL).steps(3).build()), case="copy")


def test_fires_when_the_model_is_created_again(golden: Golden) -> None:
    finding = fires("TC101", net(cls=SGD).replace(*ALL).steps(2).build())
    assert finding.variables == tuple(sorted(ALL))
    golden(finding)


def test_fires_when_the_optimizer_holds_a_twin_that_is_never_trained() -> None:
    events = start().model("Net").model("Net#2").optimizer(names=ALL)
    only = [name.replace("Net.", "Net#2.") for name in ALL]
    for _ in range(2):
        events.begin_step().zero_grad().forward("Net#2").backward(only).optimizer_step()
    assert fires("TC101", events.build()).variables == tuple(sorted(only))


def test_fires_and_says_that_the_optimizer_holds_frozen_parameters(golden: Golden) -> None:
    # forum 84911: all but batch norm is frozen, and the optimizer is over the last layer
    events = start().model("Net", MLP_BN, frozen=ALL).optimizer(names=HEAD).steps(3).build()
    finding = fires("TC101", events)
    assert finding.variables == ("Net.bn.bias", "Net.bn.weight")
    golden(finding)
    assert mentions(finding, "Net.fc2.bias", "Net.fc2.weight", "Net.bn.bias, Net.bn.weight")


def test_fires_on_the_discriminator_when_only_its_optimizer_is_stale() -> None:
    events = start().model("G").model("D")
    gen, dis = [[f"{m}.{name}" for name in MLP] for m in "GD"]
    events.optimizer(names=gen).optimizer(names=dis).replace(*dis)
    for _ in range(2):
        events.begin_step().zero_grad("opt0").zero_grad("opt1").forward().backward()
        events.optimizer_step("opt0").optimizer_step("opt1")
    assert fires("TC101", events.build()).variables == tuple(sorted(dis))


def test_quiet_when_all_is_held() -> None:
    assert quiet("TC101", net().steps(3).build()) is Verdict.HELD


def test_fires_and_says_which_of_those_that_the_optimizer_holds_are_frozen() -> None:
    events = start().model(frozen=BODY).optimizer(names=[*BODY, HEAD[0]]).steps(3).build()
    finding = fires("TC101", events)
    assert mentions(finding, f"(frozen: {', '.join(sorted(BODY))})")


def test_quiet_on_frozen_parameters_outside_the_optimizer() -> None:
    events = start().model(frozen=BODY).optimizer(names=HEAD).steps(3).build()
    assert quiet("TC101", events) is Verdict.HELD


def test_quiet_on_parameters_without_a_gradient() -> None:
    events = start().model().optimizer(names=HEAD).steps(3, no_gradient=BODY).build()
    assert quiet("TC101", events) is Verdict.HELD


def test_quiet_on_parameters_whose_gradient_is_zero() -> None:
    events = start().model().optimizer(names=HEAD)
    for _ in range(3):
        events.begin_step().zero_grad().forward().backward(HEAD)
        for name in BODY:
            events.state(events.models["Net"].parameters[name], "gradient", "set", zero=True)
        events.optimizer_step()
    assert quiet("TC101", events.build()) is Verdict.HELD


def test_quiet_on_a_loss_network() -> None:
    events = start().model("Net").model("VGG").optimizer(names=ALL).steps(3).build()
    assert quiet("TC101", events) is Verdict.HELD


def test_quiet_on_a_tensor_that_is_optimized_for_itself() -> None:
    # style transfer: the optimizer holds the image, gradients pass through a network
    events = start().model("VGG").optimizer(names=(), foreign={"opt0[0].0": 77})
    events.steps(3)
    assert quiet("TC101", events.build()) is Verdict.HELD


def test_quiet_on_a_gan() -> None:
    events = start().model("G").model("D")
    gen, dis = [[f"{m}.{name}" for name in MLP] for m in "GD"]
    events.optimizer(names=gen).optimizer(names=dis)
    for _ in range(3):
        events.begin_step().zero_grad("opt1").forward("D").backward(dis).optimizer_step("opt1")
        events.zero_grad("opt0").forward().backward().optimizer_step("opt0")
    assert quiet("TC101", events.build()) is Verdict.HELD


def test_quiet_on_an_optimizer_that_is_built_during_the_first_step() -> None:
    events = start().model().optimizer(names=HEAD).begin_step().forward().backward()
    events.optimizer(names=BODY).optimizer_step("opt0").optimizer_step("opt1")
    assert quiet("TC101", events.build()) is Verdict.HELD


def test_quiet_without_any_optimizer() -> None:
    events = start().model()
    for _ in range(3):
        events.begin_step().forward().backward()
    assert quiet("TC101", events.build()) is Verdict.NOT_TRIGGERED


def test_quiet_on_tied_weights() -> None:
    events = start().model()
    first, second = (events.models["Net"].parameters[f"Net.{n}.weight"] for n in ("fc1", "fc2"))
    second.identity = first.identity
    events.state(second, "parameter", "replaced")
    events.optimizer(names=[name for name in ALL if name != second.name]).steps(3)
    assert quiet("TC101", events.build()) is Verdict.HELD


def test_quiet_when_a_parameter_moves_between_optimizers() -> None:
    events = start().model().optimizer(names=HEAD).optimizer(names=BODY).steps(2)
    head, body = events.optimizers["opt0"], events.optimizers["opt1"]
    head.names.append(body.names.pop())
    head.identities.append(body.identities.pop())
    events.change_groups("opt0").change_groups("opt1").steps(2)
    assert quiet("TC101", events.build()) is Verdict.HELD


def test_quiet_on_an_unfinished_step() -> None:
    events = start().model().optimizer(names=HEAD).step().build(last_complete=False)
    assert quiet("TC101", events) is Verdict.NOT_TRIGGERED


def test_several_optimizers_are_all_named() -> None:
    events = (
        start().model("Net", MLP_BN).optimizer(ADAM, HEAD).optimizer(SGD, BODY).steps(2).build()
    )
    assert mentions(fires("TC101", events).observed, "opt0 (Adam)", "opt1 (SGD)")


def test_the_evidence_shows_the_optimizer_the_gradient_and_the_step() -> None:
    finding = fires("TC101", start().model().optimizer(names=HEAD).steps(2).build())
    assert [event.kind for event in finding.evidence] == ["optimizer", "state", "call"]


def test_the_evidence_is_of_where_the_optimizer_was_made() -> None:
    """Not of what a scheduler has changed since, which no line of the user's did."""
    trace = start().model().optimizer(names=HEAD).change_groups(lr=0.5).steps(2)
    made = fires("TC101", trace.build()).evidence[0]
    assert getattr(made, "change", "") == "created"


def test_says_its_symptom() -> None:
    monitor = Alone(BY_CODE["TC101"])
    events = start().model().optimizer(names=HEAD).steps(2).build()
    symptoms = {v.symptom for event in events for v in monitor.observe(event)}
    assert symptoms == {Symptom.NOT_IN_OPTIMIZER}


def test_a_parameter_that_is_made_while_training_is_told_as_such(golden: Golden) -> None:
    trace = net().train().steps(1)
    for _ in range(2):
        trace.begin_step().replace("Net.fc1.bias").zero_grad().forward().backward()
        trace.optimizer_step()
    finding = fires("TC101", trace.build())
    assert finding.first_step == 1
    golden(finding)
    assert mentions(finding, "Net.fc1.bias", "__init__")


def taught(*fed: int) -> TraceBuilder:
    """A student is trained with the optimizer of its teacher, which is fed in some steps."""
    trace = net().steps(3).model("Student", MLP)
    for step in range(12):
        models = {"Student", "Net"} if step in fed else {"Student"}
        silent = {name for name in trace.parameters() if name.partition(".")[0] not in models}
        trace.begin_step().zero_grad().forward().backward(skip=silent).optimizer_step()
    return trace


def test_fires_on_a_model_trained_with_the_optimizer_of_the_last() -> None:
    finding = fires("TC101", taught().build())
    assert finding.first_step == 3
    assert all(name.startswith("Student.") for name in finding.variables)


def test_quiet_while_its_own_model_gets_gradients_now_and_then() -> None:
    """Of a model that no optimizer touches nothing is certain: it may only pass gradients on."""
    assert quiet("TC101", taught(5).build()) is Verdict.HELD


def unfrozen(steps: int, *, owner: str = "opt1", keep: int = 0) -> TraceBuilder:
    """A body that opt0 has trained is unfrozen while opt1, which holds the head, trains."""
    body = ["Net.fc1.weight", "Net.fc1.bias"]
    trace = net().steps(3).freeze(*body).optimizer(names=HEAD)
    for step in range(5 + steps):
        trace.begin_step()
        if step == 5:
            trace.freeze(*body, frozen=False)
        silent = body if step < 5 else []
        trace.zero_grad("opt1").forward().backward(skip=silent).optimizer_step(owner)
        if keep and step % keep == 0:
            trace.optimizer_step("opt0")
    return trace


def test_fires_on_what_was_unfrozen_for_the_optimizer_of_an_earlier_phase() -> None:
    finding = fires("TC101", unfrozen(24).build())
    assert finding.first_step == 8
    assert finding.variables == ("Net.fc1.bias", "Net.fc1.weight")


def test_quiet_while_its_optimizer_may_still_step() -> None:
    assert quiet("TC101", unfrozen(18).build()) is Verdict.HELD
    assert quiet("TC101", unfrozen(24, keep=9).build()) is Verdict.HELD
    assert quiet("TC101", unfrozen(24, owner="opt0").build()) is Verdict.HELD


G, D = ([f"{model}.{name}" for name in MLP] for model in "GD")


def gan(
    of_g: list[str],
    of_d: list[str] = D,
    *,
    steps: int = 9,
    critic: int = 1,
    wide: bool = False,
    eval_g: bool = False,
    apart: bool = False,
) -> TraceBuilder:
    """Steps of a GAN; "C" is a copy of G, which has another shape than G and D if ``wide``.

    apart: each update is a step, as it is in a loop without a loader.
    """
    trace = start().model("G").model("D").model("C", MLP_BN if wide else MLP).train()
    trace.optimizer(names=of_g).optimizer(names=of_d)
    if eval_g:
        trace.train(False, "G")
    for _ in range(steps):
        trace.begin_step()
        for _ in range(critic):
            trace.zero_grad("opt1").forward("D").backward(D).optimizer_step("opt1")
        if apart:
            trace.begin_step()
        trace.zero_grad("opt0").forward("G").forward("D").backward(G + D).optimizer_step("opt0")
    return trace


COPY = [f"C.{name}" for name in MLP]


def test_fires_on_a_generator_whose_optimizer_holds_the_discriminator(golden: Golden) -> None:
    for critic in (1, 3):
        finding = fires("TC101", gan(D, critic=critic).build())
        assert finding.variables == tuple(sorted(G))
        assert finding.first_step == 0
        golden(finding)
        assert mentions(finding, "opt0 (Adam)", "D.fc1.bias", "opt1 (Adam)")


def test_fires_on_a_generator_where_each_update_is_a_step() -> None:
    finding = fires("TC101", gan(D, apart=True).build())
    assert finding.variables == tuple(sorted(G))
    assert finding.first_step == 1
    assert quiet("TC101", gan(D, apart=True, steps=7).build()) is Verdict.HELD
    assert quiet("TC101", gan(G, apart=True).build()) is Verdict.HELD


def test_fires_on_a_generator_whose_optimizer_holds_a_copy_of_it(golden: Golden) -> None:
    finding = fires("TC101", gan(COPY).build())
    assert finding.variables == tuple(sorted(G))
    assert finding.first_step == 0
    golden(finding)
    assert mentions(finding, "opt0 (Adam)", "C.fc1.bias")
    assert not mentions(finding.observed, "opt1")


def test_quiet_on_a_gan_until_it_is_certain() -> None:
    assert quiet("TC101", gan(G, critic=3).build()) is Verdict.HELD
    assert quiet("TC101", gan(G + D).build()) is Verdict.HELD
    assert quiet("TC101", gan(D, steps=7).build()) is Verdict.HELD
    assert quiet("TC101", gan(COPY, steps=7).build()) is Verdict.HELD


def test_quiet_on_a_loss_network_in_evaluation_mode_beside_them() -> None:
    assert quiet("TC101", gan(D, eval_g=True).build()) is Verdict.HELD
    assert quiet("TC101", gan(COPY, eval_g=True).build()) is Verdict.HELD


def test_quiet_on_an_idle_optimizer_of_another_model_beside_a_loss_network() -> None:
    """A part that is trained later, and whose optimizer steps all the same."""
    trace = gan([f"C.{name}" for name in MLP_BN], wide=True)
    assert quiet("TC101", trace.build()) is Verdict.HELD


def beside_a_loss_network(moves: str, steps: int = 12) -> TraceBuilder:
    """Two optimizers over one model, whose loss passes through a network that is not frozen.

    moves, in each step: b, a backward pass after zero_grad; 0 and 1, a step of that optimizer;
    w, one of opt1 that calls that of opt0.
    """
    trace = start().model("Net").model("VGG").train().optimizer(names=ALL).optimizer(SGD, ALL)
    for _ in range(steps):
        trace.begin_step()
        for move in moves:
            if move == "b":
                trace.zero_grad("opt0").forward().backward()
            elif move == "w":
                span = trace.new_span()
                trace.optimizer_step("opt0")
                family = Families.OPTIMIZER_STEP
                trace.call(f"{SGD}.step", span=span, family=family, owner="opt1")
            else:
                trace.optimizer_step(f"opt{move}")
    return trace


def test_quiet_on_a_loss_network_beside_two_optimizers_of_one_model() -> None:
    """One after the other, on the same gradients, or as a wrapper of the other."""
    assert quiet("TC101", beside_a_loss_network("b0").build()) is Verdict.HELD
    assert quiet("TC101", beside_a_loss_network("b01").build()) is Verdict.HELD
    assert quiet("TC101", beside_a_loss_network("bw").build()) is Verdict.HELD
    assert quiet("TC101", beside_a_loss_network("bbw").build()) is Verdict.HELD


def test_quiet_when_a_second_optimizer_takes_over() -> None:
    trace = start().model("Net").model("VGG").train().optimizer(names=ALL).optimizer(SGD, ALL)
    for step in range(24):
        owner = f"opt{step // 12}"
        trace.begin_step().zero_grad(owner).forward().backward().optimizer_step(owner)
    assert quiet("TC101", trace.build()) is Verdict.HELD


def by_hand(*written: int, steps: int = 5, skipped: int = 0) -> TraceBuilder:
    """The optimizer holds the body; the head is written to after these steps, of those recorded.

    What a program writes after the update is seen in the step after.
    """
    trace = start().model().optimizer(names=BODY)
    for step in range(steps):
        trace.begin_step()
        if step - 1 in written:
            trace.write(*HEAD)
        trace.zero_grad().forward().backward().optimizer_step().skipped_steps(skipped)
    return trace


def test_quiet_on_what_the_program_updates_by_hand() -> None:
    """A multiplier of Lagrange, which rises with its gradient, until it is held at a limit."""
    assert quiet("TC101", by_hand(0, 1, 2, 3, 4).build()) is Verdict.HELD
    assert quiet("TC101", by_hand(0, 1).build()) is Verdict.HELD
    assert quiet("TC101", by_hand(0, 1, 2, 3, 4, skipped=3).build()) is Verdict.HELD
    assert quiet("TC101", by_hand(0, steps=2).build()) is Verdict.HELD


def test_an_update_by_hand_may_be_seen_in_a_step_without_an_optimizer() -> None:
    trace = by_hand(steps=1)
    for _ in range(4):
        trace.begin_step().write(*HEAD).forward()
        trace.begin_step().zero_grad().forward().backward().optimizer_step()
    assert quiet("TC101", trace.build()) is Verdict.HELD


def test_fires_on_what_is_written_to_once() -> None:
    """As a limit on weights does, which none of them is beyond any more."""
    for trace in (by_hand(), by_hand(0), by_hand(2), by_hand(skipped=3)):
        finding = fires("TC101", trace.build())
        assert finding.variables == tuple(HEAD)
        assert (finding.first_step, finding.violations) == (0, 10)


def test_what_waits_for_the_next_step_is_told_when_there_is_none() -> None:
    assert fires("TC101", by_hand(steps=1).build()).first_step == 0
    assert fires("TC101", by_hand(steps=1).step().build(last_complete=False)).first_step == 0
    assert fires("TC101", by_hand(steps=1).skipped_steps(4).build()).first_step == 0


def test_each_parameter_is_told_as_soon_as_the_step_after_has_not_changed_it() -> None:
    monitor = Alone(BY_CODE["TC101"])
    told = [(v.step, e.step) for e in by_hand(steps=3).build() for v in monitor.observe(e)]
    assert told == [(0, 1), (0, 1), (1, 1), (1, 1), (2, 2), (2, 2)]
