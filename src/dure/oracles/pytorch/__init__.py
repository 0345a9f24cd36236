"""PyTorch models: the same local problem, solved by PyTorch in worker processes or in this one."""
