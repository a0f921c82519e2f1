"""Stand-ins for what is not there in the smaller test tiers."""
