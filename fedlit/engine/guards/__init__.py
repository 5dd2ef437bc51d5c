"""Around a client's code: whatever it does, the others find everything as it was."""
