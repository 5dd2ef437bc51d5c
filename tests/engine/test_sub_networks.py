"""Clients whose networks have other shapes than the server's, by the HeteroFL of docs/methods_of_your_own.md."""

from functools import partial

import pytest
import torch
from test_methods_of_your_own import NAMES, SGD, perceptron
from toys import events, fitted, rows

HeteroFL = NAMES["HeteroFL"]


def seeded(method=HeteroFL, widths=(5, 3, 2)):
    torch.manual_seed(7)
    return method(perceptron, SGD, client_networks=[partial(perceptron, width) for width in widths])


@pytest.fixture(scope="module")
def narrow(tmp_path_factory):
    return fitted(seeded(), num_rounds=2, default_root_dir=str(tmp_path_factory.mktemp("narrow")))


def test_a_sub_network_is_sent_uploaded_and_recorded_as_it_is(narrow):
    lines = rows(narrow, "ledger.csv")
    sizes = [4 * (64 * width + width + 3 * width + 3) for width in (5, 3, 2)]
    assert [int(row["bytes"]) for row in lines if row["direction"] == "down"] == sizes * 2
    assert [int(row["bytes"]) for row in lines if row["direction"] == "up"] == sizes * 2
    weight = narrow.global_state["network.1.weight"]
    assert all(torch.equal(narrow.network(client=k)[1].weight, weight[:size]) for k, size in enumerate((5, 3, 2)))
    assert {row["client"] for row in rows(narrow) if row["model"] == "personal"} == {"0", "1", "2"}


def test_what_no_client_holds_stays_as_it_was_and_what_one_holds_is_its_own():
    federation = fitted(seeded(widths=(2, 3, 2)), num_rounds=1)
    initial = seeded().state_dict()["network.1.weight"]
    found = federation.global_state["network.1.weight"]
    assert torch.equal(found[3:], initial[3:])
    assert not torch.equal(found[2], initial[2])


def test_who_builds_another_shape_than_it_was_sent_is_left_out():
    class Wrong(HeteroFL):
        def configure_client(self, client):
            super().configure_client(client)
            if client.id == 1:
                self.network = perceptron(4)

    federation = fitted(seeded(Wrong), num_rounds=1)
    [left_out] = events(federation.log_dir, "left_out")
    assert left_out["reason"] == "ValueError: 'network.1.weight' is (4, 64), but its state is (3, 64)."


def test_norms_are_not_compared_where_shapes_differ_and_weights_are():
    with pytest.raises(ValueError, match=r"`trainer.max_norm_ratio` .* is \(5, 64\) there and \(3, 64\) in an"):
        fitted(seeded(), num_rounds=1, max_norm_ratio=5.0)
    assert fitted(seeded(), num_rounds=1, max_weight_ratio=5.0).state.round == 1
