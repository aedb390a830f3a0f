"""Many conversations with Moshi: simulated on an assumed GPU, and measured with a tiny model on the CPU."""
