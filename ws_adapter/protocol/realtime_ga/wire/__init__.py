"""What is said in Realtime: events, their fields, and what is refused."""
