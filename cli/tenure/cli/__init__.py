"""The tenure command. The only package that may import all others."""
