"""Parts of pages: charts, marks, matrices, queries and their checks."""
