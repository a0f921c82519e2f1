"""A small deterministic engine, and traffic for it, to try policies on. Of ours it imports the policy alone."""
