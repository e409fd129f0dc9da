"""TPU slices: what their chips can do, and what a program compiled for them asks of one."""
