"""Decoding of video files to pictures and sound, in a sandboxed process."""
