"""The experiments of the paper, one file each: ``run(...)`` returns a plain dict."""
