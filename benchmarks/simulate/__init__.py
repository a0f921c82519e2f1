"""The rule on a simulated engine, beside fixed step counts and other rules."""
