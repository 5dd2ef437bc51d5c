"""Tables and folders of images that are not what they are taken for, and what is typed to have them read."""

from pathlib import Path

import numpy as np
import pandas as pd
from forked_command import Case
from PIL import Image

TABLE = ("fit", "--config", "table.yaml", "--trainer.fast_dev_run=true")
FOLDER = ("fit", "--config", "images.yaml", "--trainer.fast_dev_run=true")
ROWS = 60
HEAD = "a,b,label,who\n"
CSV: dict[str, bytes] = {  # name: content of a file given as data.dataset
    "empty": b"",
    "head_only": HEAD.encode(),
    "one_row": HEAD.encode() + b"1,2,0,x\n",
    "ragged": HEAD.encode() + b"1,2,0,x\n1,2,0,x,9,9\n" * 20,
    "short_rows": HEAD.encode() + b"1,2\n" * 30,
    "words": HEAD.encode() + b"x,y,0,w\n" * 30,
    "gaps": HEAD.encode() + b"1,,0,x\n" * 30,
    "no_classes": HEAD.encode() + b"1,2,,x\n" * 30,
    "infinite": HEAD.encode() + b"inf,nan,0,x\n" * 30,
    "same_names": b"a,a,label,label\n" + b"1,2,0,1\n" * 30,
    "no_target": b"a,b,c\n" + b"1,2,3\n" * 30,
    "target_only": b"label\n" + b"1\n" * 30,
    "quotes": HEAD.encode() + b'"1,2,0,x\n' * 30,
    "nul": HEAD.encode() + b"\x00,2,0,x\n" * 30,
    "latin": HEAD.encode() + "1,2,ä,ö\n".encode("latin-1") * 30,
    "utf16": (HEAD + "1,2,0,x\n" * 30).encode("utf-16"),
    "random": np.random.default_rng(5).bytes(3000),
    "far_class": HEAD.encode() + f"1,2,{2**62},x\n".encode() * 30,
    "wide": (",".join(f"c{i}" for i in range(20_000)) + ",label\n").encode() + (b"0," * 20_000 + b"1\n") * 3,
    "semicolons": b"a;b;label\n" + b"1;2;0\n" * 30,
    "long_field": HEAD.encode() + b"1,2,0," + b"x" * 200_000 + b"\n",
}
PARQUET = ["cut", "junk", "empty", "nested", "no_rows"]
FOLDERS = ["no_images", "no_png", "one_class", "one_each", "two_sizes", "cut_png", "bomb", "files_only", "deep"]


def write_tables(folder: Path) -> None:
    """Every file that the cases name, a whole one of each kind, and their recipes."""
    draw = np.random.default_rng(0)
    whole = pd.DataFrame(draw.normal(size=(ROWS, 2)), columns=["a", "b"])
    whole["label"] = np.arange(ROWS) % 3
    whole["who"] = np.array(list("xyz"))[np.arange(ROWS) // 20]
    whole.to_csv(folder / "table.csv", index=False)
    for name, content in CSV.items():
        (folder / f"{name}.csv").write_bytes(content)
    _write_parquets(folder, whole)
    _write_folders(folder)


def _write_parquets(folder: Path, whole: pd.DataFrame) -> None:
    if not has_parquet():
        return
    whole.to_parquet(folder / "table.parquet")
    content = (folder / "table.parquet").read_bytes()
    (folder / "cut.parquet").write_bytes(content[: len(content) // 2])
    (folder / "junk.parquet").write_bytes(b"PAR1" + np.random.default_rng(6).bytes(900) + b"PAR1")
    (folder / "empty.parquet").write_bytes(b"")
    whole.assign(a=[[1.0, 2.0]] * ROWS).to_parquet(folder / "nested.parquet")
    whole[:0].to_parquet(folder / "no_rows.parquet")


def has_parquet() -> bool:
    try:
        import pyarrow  # noqa: F401
    except ImportError:
        return False
    return True


def _write_folders(folder: Path) -> None:
    draw = np.random.default_rng(1)

    def picture(path: Path, size: int = 12) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(draw.integers(0, 256, (size, size, 3), dtype=np.uint8)).save(path)

    for number in range(45):
        picture(folder / "images" / "abc"[number % 3] / f"{number}.png")
        picture(folder / "two_sizes" / "ab"[number % 2] / f"{number}.png", size=8 + number % 2)
        picture(folder / "one_class" / "a" / f"{number}.png")
    for name in "abc":
        picture(folder / "one_each" / name / "1.png")
        picture(folder / "deep" / "x" / "y" / "z" / name / "1.png")
    picture(folder / "files_only" / "1.png")
    (folder / "no_images" / "a").mkdir(parents=True)
    for name in ("no_png", "cut_png", "bomb"):
        (folder / name / "a").mkdir(parents=True)
        (folder / name / "b").mkdir(parents=True)
    for name in "ab":
        (folder / "no_png" / name / "1.png").write_bytes(b"no picture")
        whole = (folder / "images" / "a" / "0.png").read_bytes()
        (folder / "cut_png" / name / "1.png").write_bytes(whole[: len(whole) // 2])
        Image.new("1", (20_000, 20_000)).save(folder / "bomb" / name / "1.png")  # 400 million pixels in 50 kB


def table_cases() -> list[Case]:
    """A file or folder in the place of a data set, and columns that are not there."""
    named = ("data.dataset", "data.target", "data.features", "data.test_size", "data.num_clients", "`model`")
    cases = [Case((*TABLE, f"--data.dataset={name}.csv"), (*named, f"{name}.csv")) for name in CSV]
    if has_parquet():
        cases += [Case((*TABLE, f"--data.dataset={name}.parquet"), (*named, f"{name}.parquet")) for name in PARQUET]
    cases += [Case((*FOLDER, f"--data.dataset={name}"), (*named, name, "data.image_size")) for name in FOLDERS]
    for option in ("target", "client"):
        cases += [Case((*TABLE, f"--data.{option}={name}"), (f"data.{option}",)) for name in ("z", "a,b", "", "\udcff")]
    for names in ("[z]", "[]", "[label]", "[a, a]", "[who]", "a"):
        cases.append(Case((*TABLE, f"--data.features={names}"), ("data.features",)))
    by_column = "--data.partition=ByColumn"
    cases += [Case((*TABLE, by_column)), Case((*TABLE, by_column, "--data.client=who", "--data.num_clients=2"))]
    named = ("data.client", "data.num_clients")
    cases += [Case((*TABLE, by_column, f"--data.client={name}"), named) for name in ("a", "z")]
    for name in ("print", "os.getcwd", "fedlit.nothing", "builtins.len", "torch.nn.Linear"):
        cases.append(Case((*TABLE, f"--data.collate_fn={name}"), ("data.collate_fn", name, "'in_features'")))
    cases.append(Case((*TABLE, "--data.dataset=wide.csv", "--data.target=z"), ("data.target",)))
    return cases
