"""Pages on what the papers claim and what we measured, built from committed runs: nothing is typed by hand."""
