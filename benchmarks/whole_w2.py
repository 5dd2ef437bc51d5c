"""Twenty rounds of W2 by hand, from the first import to the accuracy at the end."""

import torch

from benchmarks import bare

if __name__ == "__main__":
    from pathlib import Path

    import numpy as np

    torch.set_num_threads(1)
    sample = np.load(Path(__file__).parents[1] / "fedlit" / "data" / "assets" / "fashion_mnist_7000.npz")
    x = {part: torch.from_numpy(sample[f"{part}_images"]).float()[:, None].div(255) for part in ("train", "test")}
    y = {part: torch.from_numpy(sample[f"{part}_labels"]).long() for part in ("train", "test")}
    mean, std = x["train"].mean(), x["train"].std()
    order = torch.randperm(6000, generator=torch.Generator().manual_seed(0)).view(100, 60)
    shards = [((x["train"][index] - mean) / std, y["train"][index]) for index in order]
    loop = bare.FedAvg(bare.mlp(), shards, 10, 2)
    for number in range(20):
        loop.round(number, torch.randperm(100)[:10].tolist())
    with torch.no_grad():
        accuracy = (loop.network((x["test"] - mean) / std).argmax(1) == y["test"]).float().mean()
    print(f"accuracy {accuracy:.4f}")
