"""From uploads to what all agree on: the weighted mean, and rules that bear clients who lie (`trainer.aggregator`)."""

from fedlit.aggregation.classwise import check_class_counts, class_totals
from fedlit.aggregation.rules import (
    Aggregator,
    GeometricMedian,
    Krum,
    Mean,
    Median,
    MultiKrum,
    NormClipping,
    Rule,
    TooFewUploads,
    TrimmedMean,
    fewest_uploads,
    median,
    trimmed_mean,
)
from fedlit.aggregation.uploads import NOTHING, Spread, State, Upload, defect, num_bytes, watched, weighted_mean

__all__ = [
    "NOTHING",
    "Aggregator",
    "GeometricMedian",
    "Krum",
    "Mean",
    "Median",
    "MultiKrum",
    "NormClipping",
    "Rule",
    "Spread",
    "State",
    "TooFewUploads",
    "TrimmedMean",
    "Upload",
    "check_class_counts",
    "class_totals",
    "defect",
    "fewest_uploads",
    "median",
    "num_bytes",
    "trimmed_mean",
    "watched",
    "weighted_mean",
]
