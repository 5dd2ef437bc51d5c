"""FedRep: the head first, then the body."""

import pytest
import torch
import torch.nn.functional as F
from by_hand import LOG3, PLAIN, chain, copied, local_batches, mean_of, one_class_each, slope
from toys import SGD, Diary, SmallCNN, equal, fitted, seeded, toy_data, uneven

from fedlit.methods import FedRep
from fedlit.notices import Notice

HEAD = ("6.weight", "6.bias")


@pytest.mark.parametrize(("body_epochs", "holds"), [(0, True), (1, False)])
def test_without_epochs_for_it_and_only_then_the_body_never_moves(body_epochs, holds):
    method = seeded(FedRep, SmallCNN, SGD, head_epochs=1, body_epochs=body_epochs)
    before = copied(dict(method.named_parameters()))
    federation = fitted(method, uneven())
    moved = {name: tensor for name, tensor in federation.global_state.items() if name in before}
    assert equal(moved, {name: before[name] for name in moved}) is holds
    assert not torch.equal(federation.personal_states[0]["network.6.weight"], before["network.6.weight"])


def test_without_epochs_for_it_the_head_never_moves():
    method = seeded(FedRep, SmallCNN, SGD, head_epochs=0, body_epochs=1)
    before = method.network[6].weight.detach().clone()
    assert torch.equal(fitted(method).personal_states[0]["network.6.weight"], before)


class Watched(FedRep):
    """Notes which parameters have gradients at the end of each epoch."""

    seen = Diary()

    def on_train_epoch_end(self):
        found = {name for name, parameter in self.network.named_parameters() if parameter.grad is not None}
        self.seen.append(found)


def test_what_is_frozen_has_no_gradient_and_is_thawed_when_local_training_ends():
    method = Watched(SmallCNN, SGD, head_epochs=2, body_epochs=1)
    fitted(method, num_rounds=1)
    head, body = set(HEAD), {"0.weight", "0.bias", "1.weight", "1.bias"}
    assert method.seen == [head, head, body] * 3
    assert all(parameter.requires_grad for parameter in method.parameters())


def test_what_a_user_froze_is_frozen_in_both_phases():
    def partly_frozen():
        network = SmallCNN()
        network[0].requires_grad_(False)
        return network

    method = Watched(partly_frozen, SGD, head_epochs=1, body_epochs=1)
    fitted(method, num_rounds=1)
    assert method.seen == [set(HEAD), {"1.weight", "1.bias"}] * 3
    assert not method.network[0].weight.requires_grad


def replay(data, rounds, head_epochs, body_epochs):
    """FedRep written out: bodies start anew from the server's, heads and their momentum go on."""
    torch.manual_seed(7)
    network = SmallCNN()
    server = copied(network.state_dict())
    body = [parameter for name, parameter in network.named_parameters() if name not in HEAD]
    head = [parameter for name, parameter in network.named_parameters() if name in HEAD]
    heads = [{name: server[name].clone() for name in HEAD} for _ in range(3)]
    momenta = [SGD(head).state_dict() for _ in range(3)]
    for number in range(1, rounds + 1):
        ended = []
        for k in range(3):
            network.load_state_dict(server | heads[k])
            head_optimizer, body_optimizer = SGD(head), SGD(body)
            head_optimizer.load_state_dict(momenta[k])
            for epoch, x, y in local_batches(data, number, k, head_epochs + body_epochs):
                optimizer = head_optimizer if epoch < head_epochs else body_optimizer
                network.zero_grad()
                F.cross_entropy(network(x), y).backward()
                optimizer.step()
            state = copied(network.state_dict())
            heads[k] = {name: state.pop(name) for name in HEAD}
            momenta[k] = head_optimizer.state_dict()
            ended.append(state)
        server |= mean_of(ended)
    return server, heads


def test_three_rounds_are_a_loop_written_out_bit_for_bit():
    data = toy_data()
    federation = fitted(seeded(FedRep, SmallCNN, SGD, head_epochs=2, body_epochs=1), data)
    server, heads = replay(data, rounds=3, head_epochs=2, body_epochs=1)
    assert equal(federation.global_state, {f"network.{name}": server[name] for name in server if name not in HEAD})
    for k, head in enumerate(heads):
        assert equal(federation.personal_states[k], {f"network.{name}": tensor for name, tensor in head.items()})


def test_local_training_by_hand():
    """The head steps from p = (1/4, 3/4) while b = 1; then the body steps by the gradient of the new head's logits."""
    federation = fitted(FedRep(chain, PLAIN, head_epochs=1, body_epochs=1), one_class_each(), num_rounds=1)
    heads = [(0.75, LOG3 - 0.75), (-0.25, LOG3 + 0.25)]
    bodies = []
    for y, head in enumerate(heads):
        d = slope(head, y)
        bodies.append(1 - (d[0] * head[0] + d[1] * head[1]))
        found = federation.personal_states[y]["network.1.weight"].flatten().tolist()
        assert found == pytest.approx(head)
    assert federation.global_state["network.0.weight"].item() == pytest.approx(sum(bodies) / 2)


@pytest.mark.parametrize("given", [{"local_epochs": 3}, {"local_steps": 3}, {"client_epochs": {0: 2}}])
def test_a_notice_says_that_other_options_for_epochs_play_no_part(given):
    (name,) = given
    with pytest.warns(Notice, match=f"`trainer.{name}` plays no part: FedRep has options of its own for epochs"):
        found = fitted(seeded(FedRep, SmallCNN, SGD, head_epochs=1), num_rounds=1, **given)
    assert equal(found.global_state, fitted(seeded(FedRep, SmallCNN, SGD, head_epochs=1), num_rounds=1).global_state)
