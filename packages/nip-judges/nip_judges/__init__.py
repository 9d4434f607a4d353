"""Attack a judge that is not nip's: a prompt at an endpoint, a function, a grader's file."""
