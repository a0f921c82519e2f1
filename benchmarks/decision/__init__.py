"""What the rule itself costs the scheduler's thread."""
