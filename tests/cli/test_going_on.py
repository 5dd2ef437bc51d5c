"""Going on from the command line: the right run, what changed, a folder in use, a disk that is full."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from toy_recipe import write_recipe
from toys import equal, full_after

from fedlit.cli.app import main
from fedlit.records import checkpoint
from fedlit.records.run_folder import lock_folder

FIT = ["fit", "--config", "run.yaml", "--trainer.num_rounds=1"]
RUN = Path("lightning_logs/version_0")


@pytest.fixture(autouse=True)
def _recipe_here(_own_folder):
    write_recipe()


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """A folder with a run of one round, and with one that has a name."""
    place = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["fedlit"])
        patch.setattr(sys, "path", [*sys.path])
        patch.chdir(place)
        write_recipe()
        main(FIT)
        main([*FIT, "--trainer.run_name=mine"])
    return place / "lightning_logs"


@pytest.fixture
def one_round(finished) -> None:
    """As after a fit of one round where the test stands."""
    shutil.copytree(finished / "version_0", RUN)


@pytest.fixture
def named_round(finished) -> None:
    """As after a fit of one round, by the name of mine."""
    shutil.copytree(finished / "mine", "lightning_logs/mine")


def state(version: int) -> dict[str, torch.Tensor]:
    return checkpoint.load(Path(f"lightning_logs/version_{version}/checkpoints/last.ckpt"))["global_state"]


def events(what: str, run: Path = RUN) -> list[dict]:
    found = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    return [event for event in found if event["event"] == what]


def refusal(args: list[str], capsys, code: int = 2) -> str:
    capsys.readouterr()
    with pytest.raises(SystemExit) as stopped:
        main(args)
    said = capsys.readouterr().err
    assert stopped.value.code == code, said
    assert said.count("\n") == 1, said
    return said


# --- runs that have a name


@pytest.mark.usefixtures("one_round", "named_round")
def test_a_named_run_lies_in_its_folder_and_last_means_it():
    main(["fit", "--config=run.yaml", "--trainer.num_rounds=2", "--trainer.run_name=mine", "--ckpt_path=last"])
    found = checkpoint.load(Path("lightning_logs/mine/checkpoints/last.ckpt"))
    assert found["round"] == 2
    assert checkpoint.load(RUN / "checkpoints" / "last.ckpt")["round"] == 1
    main(["fit", "--config=run.yaml", "--trainer.num_rounds=2"])
    assert equal(found["global_state"], state(1))


def test_auto_begins_a_named_run_and_goes_on_with_it():
    auto = ["--config=run.yaml", "--trainer.run_name=mine", "--ckpt_path=auto"]
    main(["fit", *auto, "--trainer.num_rounds=1"])
    main(["fit", *auto, "--trainer.num_rounds=2"])
    assert [event["round"] for event in events("round", Path("lightning_logs/mine"))] == [1, 2]


@pytest.mark.usefixtures("named_round")
def test_a_name_is_refused_that_another_run_has(capsys):
    before = {path: path.stat().st_mtime_ns for path in Path("lightning_logs").rglob("*")}
    message = refusal([*FIT, "--trainer.run_name=mine"], capsys)
    assert (
        "`trainer.run_name` mine: there is such a run in lightning_logs; go on with it by `--ckpt_path last`" in message
    )
    assert {path: path.stat().st_mtime_ns for path in Path("lightning_logs").rglob("*")} == before
    message = refusal([*FIT, "--ckpt_path=last"], capsys)
    assert "none in lightning_logs without a name; `--trainer.run_name` says which of mine." in message
    message = refusal([*FIT, "--ckpt_path=last", "--trainer.run_name=other"], capsys)
    assert "`--ckpt_path last` means `trainer.run_name` other, but there is no" in message


@pytest.mark.usefixtures("named_round")
def test_a_named_run_that_was_killed_before_its_first_checkpoint_begins_anew():
    run = Path("lightning_logs/mine")
    shutil.rmtree(run / "checkpoints")
    lines = (run / "events.jsonl").read_text().splitlines(keepends=True)
    (run / "events.jsonl").write_text("".join(line for line in lines if '"event": "end"' not in line))
    main([*FIT, "--trainer.run_name=mine"])
    assert Path("lightning_logs/mine/checkpoints/last.ckpt").is_file()


@pytest.mark.parametrize("name", ["a/b", ".hidden", "version_3"])
def test_a_name_that_is_none_is_refused(name, capsys):
    assert "`trainer.run_name` must " in refusal([*FIT, f"--trainer.run_name={name}"], capsys)
    assert not Path("lightning_logs").exists()


@pytest.mark.usefixtures("one_round")
def test_a_config_goes_on_with_its_own_run_and_its_own_rate():
    main([*FIT, "--model.optimizer.lr=0.3"])
    again = ["fit", "--config=lightning_logs/version_0/config.yaml", "--trainer.num_rounds=2"]
    Path("more.yaml").write_text("ckpt_path: last\n")
    main([*again, "--config=more.yaml"])
    other = state(1)
    for rate in (0.1, 0.3):
        main(["fit", "--config=run.yaml", "--trainer.num_rounds=2", f"--model.optimizer.lr={rate}"])
    assert equal(state(0), state(2))  # two rounds at its own rate
    assert not equal(state(0), state(3))
    assert equal(other, state(1))
    assert checkpoint.load(Path("lightning_logs/version_1/checkpoints/last.ckpt"))["round"] == 1


@pytest.mark.usefixtures("one_round")
def test_what_changed_is_reported_a_line_each_and_recorded(capsys):
    changed = ["--model.optimizer.lr=0.2", "--data.batch_size=16", "--trainer.local_steps=3", "--data.std=0.5"]
    main(["fit", "--config=run.yaml", "--ckpt_path=last", *changed])
    said = capsys.readouterr().err.splitlines()
    changes = {
        "trainer.local_steps": ("none", "3"),
        "data.batch_size": ("8", "16"),
        "data.std": ("none", "0.5"),
        "model.optimizer.lr": ("0.1", "0.2"),
    }
    assert said == [
        f"fedlit: note: `{name}`: {before} -> {now}, from round 2 on." for name, (before, now) in changes.items()
    ]
    assert {event["option"]: (event["before"], event["now"]) for event in events("changed")} == changes


def test_an_optimiser_that_cannot_use_what_was_kept_is_refused_in_one_line(capsys):
    write_recipe("local.yaml", ("FedAvg", "LocalOnly"), ("lr: 0.1", "lr: 0.1, momentum: 0.9"))
    local = ["fit", "--config=local.yaml", "--trainer.num_rounds=1"]
    main(local)
    adam = ["fit", "--config=local.yaml", "--ckpt_path=last", "--model.optimizer=torch.optim.Adam"]
    adam += ["--model.optimizer.lr=0.01"]  # that of SGD would be inherited, with a notice
    said = refusal(adam, capsys)
    assert "`model.optimizer` is Adam and cannot use the state of SGD in `--ckpt_path`" in said
    main([*adam, "--trainer.optimizer_state=reset"])
    assert events("changed")[-1]["option"].startswith("model.optimizer")
    assert checkpoint.load(RUN / "checkpoints/last.ckpt")["round"] == 2


@pytest.mark.usefixtures("one_round")
def test_a_refused_second_fit_changes_nothing_of_the_first(capsys):
    before = {path: path.read_bytes() for path in RUN.rglob("*") if path.is_file()}
    held = lock_folder(RUN)
    for ckpt_path in ("last", str(RUN / "checkpoints/best.ckpt")):
        said = refusal([*FIT, f"--ckpt_path={ckpt_path}", "--model.optimizer.lr=0.7"], capsys)
        assert "is in use: another process is still writing this run" in said
    held.close()
    assert {path: path.read_bytes() for path in RUN.rglob("*") if path.is_file()} == before


def test_a_folder_that_is_deleted_in_the_middle_is_reported_in_one_line(capsys, monkeypatch):
    Path("vandal.py").write_text(
        "import shutil\nfrom fedlit.callbacks import FederationCallback\n\n\n"
        "class Vandal(FederationCallback):\n    def on_round_start(self, federation, module, round, clients):\n"
        "        if round == 2:\n            shutil.rmtree(federation.log_dir)\n"
    )
    monkeypatch.delitem(sys.modules, "vandal", raising=False)
    said = refusal([*FIT, "--trainer.num_rounds=3", "--trainer.callbacks=vandal.Vandal"], capsys, code=4)
    assert f"{RUN} is gone: it was deleted while the run was writing it." in said
    assert not RUN.exists()


WIDE = (("FedAvg", "LocalOnly"), ("hidden: [8]", "hidden: [2000]"), ("report: false", "report: false, local_steps: 1"))


def goes_on_to_the_same_bits(run: Path) -> bool:
    """Whether a run that found no room ends, where there is some, as one that always had it."""
    main(["fit", "--config=local.yaml", f"--ckpt_path={run}/checkpoints/last.ckpt"])
    main(["fit", "--config=local.yaml", "--trainer.default_root_dir=undisturbed"])
    folders = (run, Path("undisturbed") / RUN)
    one, other = (checkpoint.load(folder / "checkpoints/last.ckpt")["personal_states"] for folder in folders)
    same_records = len({(folder / "metrics.csv").read_text() for folder in folders}) == 1
    return same_records and all(equal(one[k], other[k]) for k in other)


def test_a_full_disk_is_reported_in_one_line_and_the_run_goes_on_when_there_is_room(capsys):
    write_recipe("local.yaml", *WIDE)
    with pytest.MonkeyPatch.context() as patch:
        full_after(700_000, patch)  # the checkpoint before the first round fits, one with clients' states does not
        said = refusal(["fit", "--config=local.yaml"], capsys, code=4)
    assert f"cannot be written: No space left on device; make room, and go on with --ckpt_path {RUN}" in said
    assert sorted(path.name for path in (RUN / "checkpoints").iterdir()) == ["last.ckpt", "previous.ckpt"]
    assert goes_on_to_the_same_bits(RUN)


@pytest.mark.slow
@pytest.mark.parametrize("room", ["ulimit", 1000, 2500])  # kB
def test_a_disk_that_is_really_full_is_reported_in_one_line(room, tmp_path):
    write_recipe("local.yaml", *WIDE)
    command = f"{sys.executable} -m fedlit fit --config local.yaml --trainer.logger true --trainer.report true"
    place = tmp_path / "small"
    place.mkdir()
    if room == "ulimit":
        command = f"ulimit -f 700; {command}"
    elif subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={room}k", "tmpfs", place]).returncode:
        pytest.skip("a file system cannot be mounted here")
    try:
        command = f"{command} --trainer.default_root_dir {place}"
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=240)
        shutil.copytree(place, "copied")
    finally:
        if room != "ulimit":
            subprocess.run(["umount", place], check=True)
    assert (done.returncode, len(done.stderr.splitlines())) == (4, 1), done.stderr
    assert not list(Path("copied").rglob("*.tmp"))
    assert goes_on_to_the_same_bits("copied" / RUN)


# --- records


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.usefixtures("one_round")
def test_junk_in_a_record_is_reported_in_one_line_and_nothing_is_written(capsys):
    with (RUN / "events.jsonl").open("a") as file:
        file.write("what is this?\n")
    before = contents(RUN)
    said = refusal([*FIT[:-1], "--trainer.num_rounds=2", "--ckpt_path=last"], capsys)
    assert "line 4 of lightning_logs/version_0/events.jsonl is none that a run has written: 'what is this?'" in said
    assert contents(RUN) == before
