"""From the bytes of a frame to structs and back, with the errors and limits that hold for all."""
