"""The main job on real input: every file of a folder is one task, hashed and written downstream."""
