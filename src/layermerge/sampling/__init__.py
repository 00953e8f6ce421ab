"""Sampling: images from a diffusion network, as files, and how near they are to real ones."""
