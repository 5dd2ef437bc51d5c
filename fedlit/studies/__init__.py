"""Studies: many runs that answer one question, and what is written of them."""
