"""Tool calls: how models write them, how answers are parsed for them, how they are enforced."""
