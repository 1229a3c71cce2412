"""Launch plans, good and forged."""
