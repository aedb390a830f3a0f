"""What goes to the model's device and comes back: few copies, however many sessions there are."""
