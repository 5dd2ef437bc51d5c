"""What docs/data.md shows runs as printed."""

from functools import partial

import printed
import pytest
import yaml

from fedlit import FederatedData

PAGE = "docs/data.md"
blocks = partial(printed.blocks, PAGE)


@pytest.mark.filterwarnings("ignore::fedlit.notices.Notice")
def test_the_examples_run_one_after_the_other_and_each_can_be_dealt_out(capsys):
    names: dict = {}
    for block in blocks("python"):
        printed.run(block, PAGE, names)
        names["data"].setup()
        assert len(names["data"].assignment.train) == names["data"].num_clients
    assert capsys.readouterr().out == "True torch.Size([14])\n['ann', 'bob', 'cid']\n"
    for partition in ("sizes", "turned", "stream"):
        images = names["Crops"](names["images"], names["labels"])
        data = FederatedData(train_dataset=images, test_size=0.2, num_clients=4, partition=names[partition])
        data.setup()
    assert len(blocks("python")) == 6


def test_the_recipe_of_a_table_is_that_of_the_frame(capsys):
    recipe, _ = blocks("yaml")
    options = yaml.safe_load(recipe)["data"]["init_args"]
    names: dict = {}
    printed.run(f"from fedlit import FederatedData\n{blocks('python')[4]}", PAGE, names)
    data = FederatedData(**options)
    for some in (data, names["data"]):
        some.setup()
    assert data.splits.train.x.equal(names["data"].splits.train.x)
    assert data.client_names == ["a", "b", "c"]
