"""The decision rule and its document. Standard library only: the engine, the operator and the simulator share it."""
