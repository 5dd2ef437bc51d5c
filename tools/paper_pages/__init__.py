"""The pages on what the papers claim and what we measured, built from committed runs: nothing on them is typed by hand."""
