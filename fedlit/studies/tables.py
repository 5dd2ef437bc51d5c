"""The table of a study, for a terminal."""

from fedlit.studies.results import Results


def terminal_table(results: Results) -> str:
    """Mean and standard deviation of every cell."""
    return results.summary[["row", "column", "n", "mean", "sd", "difference", "p"]].to_string(index=False)
