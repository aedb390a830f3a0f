"""What the queue that adapters share costs its Redis, and how soon a free slot is somebody's."""
