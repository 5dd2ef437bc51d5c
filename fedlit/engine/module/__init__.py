"""The live module of a process: its values, modes, frozen parameters, precision, attributes, and what it logs."""
