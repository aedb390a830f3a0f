"""Transcription: utterances of a buffer that clients fill and commit, and items of conversations."""
