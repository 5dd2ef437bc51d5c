"""Client-level differential privacy: numbers worked by hand, how far one client reaches, and what a run may spend."""

import json
import shutil
from math import inf, sqrt
from pathlib import Path

import pytest
import torch
from torch import tensor
from toys import SGD, Diary, SmallCNN, equal, fitted, linear, rows, toy_data

from fedlit import FedAvg, FineTuned, LocalOnly
from fedlit.aggregation import Median, Upload
from fedlit.callbacks import FederationCallback
from fedlit.methods import DLAD
from fedlit.privacy import Accountant, ClientLevelDP, NoisedMean, OpaqueUploads, clipped_sum
from fedlit.rng import derive_key, generator, secure_normal

OPEN = ClientLevelDP(clip=inf, noise_multiplier=0.0)


@pytest.fixture
def accounting():
    return pytest.importorskip("dp_accounting", reason="the extra `dp` is not installed")


def uniform(network=linear) -> FedAvg:
    torch.manual_seed(0)
    return FedAvg(network, SGD, weighting="uniform")


def updates(*values: list[float], weight: float = 1.0) -> list[Upload]:
    return [Upload(k, {"w": tensor(value)}, weight) for k, value in enumerate(values)]


def one_round(privacy: ClientLevelDP, uploads: list[Upload], expected: float = 2.0, seed: int = 0):
    rule = NoisedMean(privacy, expected, ["w"], derive_key(seed))
    return rule(OpaqueUploads(uploads), {"w": torch.ones(2), "kept": torch.ones(1)})


def test_clip_and_division_by_the_expected_cohort_by_hand():
    # From [1, 1]: [3, 4] has norm 5 and becomes [0.6, 0.8]; [0, 0.5] stays; their sum is halved, whoever came.
    privacy = ClientLevelDP(clip=1.0, noise_multiplier=0.0)
    both = updates([4.0, 5.0], [1.0, 1.5])
    torch.testing.assert_close(one_round(privacy, both)["w"], tensor([1.3, 1.65]))
    torch.testing.assert_close(one_round(privacy, both[:1])["w"], tensor([1.3, 1.4]))
    assert one_round(privacy, both).keys() == {"w"}


@pytest.mark.parametrize("seed", range(20))
def test_one_client_moves_the_sum_by_at_most_the_clip(seed):
    draw = torch.Generator().manual_seed(seed)
    base, like = torch.zeros(50, dtype=torch.float64), {"w": torch.zeros(50)}
    others = [Upload(k, {"w": torch.randn(50, generator=draw)}) for k in range(5)]
    size = 10 ** torch.randint(-3, 20, (), generator=draw)
    one = Upload(9, {"w": size * torch.randn(50, generator=draw)})
    moved = clipped_sum([*others, one], base, like, clip=0.7) - clipped_sum(others, base, like, clip=0.7)
    assert moved.norm() <= 0.7 * (1 + 1e-9)
    unclipped = clipped_sum([*others, one], base, like, inf) - clipped_sum(others, base, like, inf)
    assert (unclipped.norm() > 0.7) == (one.state["w"].norm() > 0.7)  # it is the clip that bounds it


def test_the_noise_is_as_large_as_it_says_and_that_of_the_seed():
    privacy = ClientLevelDP(clip=0.5, noise_multiplier=3.0)
    rule = NoisedMean(privacy, 4.0, ["w"], derive_key(1))
    noise = rule(OpaqueUploads([]), {"w": torch.zeros(100_000)})["w"]  # nobody came: noise alone
    assert float(noise.std()) == pytest.approx(3.0 * 0.5 / 4.0, rel=0.02)
    assert float(noise.mean()) == pytest.approx(0, abs=0.01)
    same, other = (one_round(privacy, updates([1.0, 2.0]), seed=seed)["w"] for seed in (0, 1))
    assert torch.equal(same, one_round(privacy, updates([1.0, 2.0]), seed=0)["w"])
    assert not torch.equal(same, other)


def test_without_noise_and_clip_and_with_everybody_it_is_fedavg_with_uniform_weights():
    data = toy_data(num_clients=4)
    private = fitted(uniform(), data, privacy=OPEN).global_state
    plain = fitted(uniform(), data).global_state
    for name, value in plain.items():
        torch.testing.assert_close(private[name], value)
    clipped = fitted(uniform(), data, privacy=ClientLevelDP(clip=1e-3, noise_multiplier=0.0)).global_state
    assert not all(torch.allclose(clipped[name], value) for name, value in plain.items())


class Counted(FedAvg):
    seen = Diary()

    def __init__(self):
        super().__init__(linear, SGD, weighting="uniform")

    def on_client_start(self, client):
        self.seen.append((client.round, client.id))


def test_clients_take_part_each_by_itself():
    method = Counted()
    fitted(method, toy_data(size=200, num_clients=20), num_rounds=12, fraction_fit=0.3, privacy=OPEN)
    counts = [sum(number == round for number, _ in method.seen) for round in range(1, 13)]
    assert len(set(counts)) > 3  # a fixed cohort would be 6 every time
    assert 12 * 6 - 4 * sqrt(12 * 20 * 0.21) < sum(counts) < 12 * 6 + 4 * sqrt(12 * 20 * 0.21)


def test_a_round_to_which_nobody_comes_is_one_of_noise_alone(accounting):
    method = Counted()
    before = {name: value.clone() for name, value in method.state_dict().items()}
    privacy = ClientLevelDP(clip=1.0, noise_multiplier=2.0)
    federation = fitted(method, num_rounds=1, fraction_fit=1e-6, privacy=privacy)
    assert not method.seen
    moved = torch.cat([(federation.global_state[name] - before[name]).flatten() for name in before])
    assert float(moved.std()) == pytest.approx(2.0 / 3e-6, rel=0.3)


def test_epsilon_is_that_of_dp_accounting_and_never_reported_too_low(accounting):
    from dp_accounting.pld import PLDAccountant

    event = accounting.PoissonSampledDpEvent(0.1, accounting.GaussianDpEvent(1.0))
    reference = PLDAccountant().compose(event, 20).get_epsilon(1e-5)
    ours = Accountant(ClientLevelDP(noise_multiplier=1.0, delta=1e-5), fraction=0.1).epsilon(20)
    assert reference - 1e-6 <= ours <= reference + 1e-3


@pytest.mark.parametrize(("noise", "fraction", "rounds"), [(1.0, 0.1, 100), (2.0, 0.5, 30), (0.8, 0.01, 200)])
def test_epsilon_agrees_with_the_accountant_of_opacus(accounting, noise, fraction, rounds):
    accountants = pytest.importorskip("opacus.accountants")
    theirs = accountants.PRVAccountant()
    theirs.history = [(noise, fraction, rounds)]
    ours = Accountant(ClientLevelDP(noise_multiplier=noise, delta=1e-5), fraction)
    assert ours.epsilon(rounds) == pytest.approx(theirs.get_epsilon(1e-5), rel=0.01)
    assert ours.epsilon(rounds // 2) < 0.95 * ours.epsilon(rounds)


def epsilons(federation) -> list[float]:
    found = [row for row in rows(federation) if row["metric"] == "epsilon"]
    assert {(row["client"], row["model"], row["data"]) for row in found} == {("all", "global", "server")}
    return [float(row["value"]) for row in found]


def events(federation) -> list[dict]:
    lines = (Path(federation.log_dir) / "events.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


@pytest.mark.filterwarnings("ignore:`trainer.privacy.noise_seed`")
def test_a_run_reports_what_it_has_spent_and_ends_before_it_spends_too_much(accounting, tmp_path):
    rate = Accountant(ClientLevelDP(noise_multiplier=2.0, delta=1e-3), fraction=0.5)
    target = (rate.epsilon(2) + rate.epsilon(3)) / 2
    privacy = ClientLevelDP(noise_multiplier=2.0, delta=1e-3, target_epsilon=target, noise_seed=1)
    options = {"fraction_fit": 0.5, "default_root_dir": str(tmp_path)}
    federation = fitted(uniform(), num_rounds=5, privacy=privacy, **options)
    assert epsilons(federation) == pytest.approx([rate.epsilon(1), rate.epsilon(2)], rel=1e-6)
    [spent] = [event for event in events(federation) if event["event"] == "budget_spent"]
    assert spent["round"] == 2
    assert spent["epsilon"] == rate.epsilon(2)
    again = fitted(uniform(), num_rounds=5, privacy=privacy, ckpt_path="last", **options)
    assert again.state.round == 2
    richer = ClientLevelDP(noise_multiplier=2.0, delta=1e-3, target_epsilon=100.0, noise_seed=1)
    longer = fitted(uniform(), num_rounds=4, privacy=richer, ckpt_path="last", **options)
    assert [event["epsilon"] for event in events(longer) if event["event"] == "fit"] == [0, *[rate.epsilon(2)] * 2]
    assert len(epsilons(longer)) == 4
    whole = fitted(uniform(), num_rounds=4, privacy=richer, fraction_fit=0.5)
    assert equal(longer.global_state, whole.global_state)  # the same noise and the same clients
    with pytest.raises(ValueError, match="of another experiment: its privacy differs"):
        fitted(uniform(), num_rounds=5, privacy=ClientLevelDP(delta=1e-3), ckpt_path="last", **options)


NOISY = {"noise_multiplier": 2.0, "delta": 1e-3}


def correlation(federation, seed: int) -> float:
    """Of a round of noise alone with what whoever knows a seed would take for that noise, now or as it was before."""
    moved = torch.cat([value.flatten() for value in federation.global_state.values()]).double()
    before = torch.randn(len(moved), generator=generator(seed, "privacy", "federate", 1), dtype=torch.float64)
    now = secure_normal(derive_key(str(seed), "privacy", "federate", 1), len(moved))
    return max(abs(float(torch.corrcoef(torch.stack([moved, guess]))[0, 1])) for guess in (before, now))


def lonely(privacy: ClientLevelDP, **options):
    """Rounds to which nobody comes."""
    return fitted(uniform(), fraction_fit=1e-6, privacy=privacy, **{"num_rounds": 1, **options})


@pytest.mark.filterwarnings("ignore:`trainer.privacy.noise_seed`")
def test_noise_cannot_be_computed_from_the_config_unless_asked_for(accounting, tmp_path):
    secret = lonely(ClientLevelDP(**NOISY), default_root_dir=str(tmp_path))
    assert correlation(secret, seed=0) < 0.4  # of 195 numbers
    reproducible = [lonely(ClientLevelDP(**NOISY, noise_seed=0)) for _ in range(2)]
    assert correlation(reproducible[0], seed=0) > 0.99
    assert equal(reproducible[0].global_state, reproducible[1].global_state)
    assert not equal(secret.global_state, lonely(ClientLevelDP(**NOISY)).global_state)


def test_the_secret_is_in_checkpoints_and_nowhere_else(accounting, tmp_path):
    federation = lonely(ClientLevelDP(**NOISY), default_root_dir=str(tmp_path))
    secret = federation.state.secret
    assert len(secret) == 64
    holders = {path.name for path in tmp_path.rglob("*") if path.is_file() and secret.encode() in path.read_bytes()}
    assert holders == {"last.ckpt", "previous.ckpt", "best.ckpt"}
    assert secret not in repr(federation.state.options)
    assert secret not in str(federation.network().state_dict())
    assert fitted(uniform(), privacy=OPEN, num_rounds=1).state.secret is None


class CopiedIn2(FederationCallback):
    """Copies the run's folder in round 2, as a kill would leave it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def on_round_start(self, federation, module, number, clients):
        if number == 2:
            shutil.copytree(federation.log_dir, self.folder)


def test_a_run_that_was_killed_goes_on_with_its_own_noise_and_clients(accounting, tmp_path):
    data = toy_data(num_clients=6)
    options = {"num_rounds": 3, "fraction_fit": 0.5, "privacy": ClientLevelDP(**NOISY)}
    copied = tmp_path / "killed"
    whole = fitted(uniform(), data, default_root_dir=str(tmp_path), callbacks=[CopiedIn2(copied)], **options)
    again = fitted(uniform(), data, ckpt_path=str(copied / "checkpoints/last.ckpt"), **options)
    assert equal(again.global_state, whole.global_state)
    assert rows(again, "ledger.csv") == rows(whole, "ledger.csv")
    other = fitted(uniform(), data, **options)
    assert not equal(other.global_state, whole.global_state)


def test_what_stays_on_the_client_costs_nothing(accounting, tmp_path):
    method = FineTuned(linear, SGD, finetune_epochs=1, weighting="uniform")
    privacy = ClientLevelDP(noise_multiplier=2.0, delta=1e-3)
    federation = fitted(method, num_rounds=2, privacy=privacy, default_root_dir=str(tmp_path))
    first, second, at_home = epsilons(federation)
    assert 0 < first < second == at_home


class Peeks(FedAvg):
    def aggregate(self, uploads, current):
        return self.combine(list(uploads), current)


class Twice(FedAvg):
    def aggregate(self, uploads, current):
        self.combine(uploads, current)
        return self.combine(uploads, current)


class Others(FedAvg):
    def aggregate(self, uploads, current):
        return self.combine([Upload(0, {name: current[name] for name in current})], current)


class Ignores(FedAvg):
    def aggregate(self, uploads, current):
        return dict(current)


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        (Peeks, {}, r"`trainer.privacy`.*`aggregate` may only pass uploads on to `self.combine`"),
        (Twice, {}, r"`trainer.privacy`.*may combine uploads only once"),
        (Others, {}, r"`trainer.privacy`.*must combine the uploads as they came"),
        (Ignores, {}, r"`trainer.privacy` would be ignored: `aggregate` of Ignores"),
        (LocalOnly, {}, r"`trainer.privacy`: LocalOnly uploads nothing"),
        (FedAvg, {"min_clients": 2}, r"`trainer.min_clients` is 2, but under `trainer.privacy`"),
        (FedAvg, {"aggregator": Median()}, r"`trainer.privacy` and `trainer.aggregator` exclude each other"),
        (FedAvg, {"privacy": ClientLevelDP(delta=0.5)}, r"`trainer.privacy.delta` must be below 1 .* got 0.5"),
        (
            FedAvg,
            {"privacy": ClientLevelDP(noise_multiplier=0.0, target_epsilon=8.0)},
            r"`trainer.privacy.target_epsilon` of 8.0 does not allow a single round; one costs inf",
        ),
    ],
)
def test_what_would_not_be_private_is_refused(method, options, message):
    with pytest.raises(ValueError, match=message):
        fitted(method(linear, SGD), **{"privacy": OPEN, **options})


def test_a_stage_that_collects_is_refused_by_name():
    with pytest.raises(ValueError, match=r"`trainer.privacy`: DLAD collects clients' states .* stage 'density'"):
        fitted(DLAD(linear, SGD), toy_data(public=0.5), privacy=OPEN)


def test_counters_are_refused_and_stay_on_the_client_where_batch_norm_does():
    with pytest.raises(ValueError, match=r"'network.1.num_batches_tracked' is a counter.*`trainer.batch_norm: local`"):
        fitted(uniform(SmallCNN), privacy=OPEN)
    fitted(uniform(SmallCNN), privacy=OPEN, num_rounds=1, batch_norm="local")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clip": 0.0}, r"`trainer.privacy.clip` is a norm and must be above 0, got 0.0"),
        ({"clip": float("nan")}, r"`trainer.privacy.clip` .* got nan"),
        ({"clip": inf}, r"`trainer.privacy.clip` must be finite where there is noise"),
        ({"noise_multiplier": -1.0}, r"`trainer.privacy.noise_multiplier` must be at least 0, got -1.0"),
        ({"delta": 0.0}, r"`trainer.privacy.delta` .* \(0, 1\), got 0.0"),
        ({"noise_seed": -1}, r"`trainer.privacy.noise_seed` must be a whole number from 0 on, got -1"),
        ({"target_epsilon": 0.0}, r"`trainer.privacy.target_epsilon` must be above 0, got 0.0"),
    ],
)
def test_what_cannot_be_private_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        ClientLevelDP(**options)


def test_without_the_extra_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setattr("fedlit.privacy.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"`trainer.privacy` needs dp-accounting; .* 'fedlit\[dp\]'"):
        fitted(uniform(), privacy=ClientLevelDP(noise_multiplier=1.2345, delta=1e-3))
