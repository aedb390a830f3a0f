"""What adapters that share one Redis know of each other: who they are, and whom they have let in."""
