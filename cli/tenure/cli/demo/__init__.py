"""The main job on real input, run by make demo."""
