"""Who gets a slot next: a queue of tickets in front of the workers' slots."""
