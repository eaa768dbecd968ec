"""The streaming job of one generation. The only package that imports pyspark."""
