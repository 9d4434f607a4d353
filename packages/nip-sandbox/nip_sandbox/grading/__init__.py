"""Untrusted code, graded by its tests: rows in, rows out.

rows             rows and their tests, read from JSON Lines
outputs          whether an output, or a value, is the expected one
grade            the grades of rows, several at a time
judge            assertions, run on answers of the code
in_sandbox       the program that answers calls, and runs assertions, in the sandbox
graded_file      the file of grades: appended to, resumed
grading_command  the command `nip grade`, also by itself as `nip-grade`

The code is given what it reads, or the arguments of a call. The expected output or value stays in
the process that grades, or, of assertions, in another sandbox. So there is nothing to find that
would pass, and no stream on which a verdict could be forged: all that code can say is an answer.
"""
