"""The command line: files in, a verdict on the screen, files out.

Each command reads, computes, renders everything, writes all files at once, and prints last; it returns its exit code.
"""
