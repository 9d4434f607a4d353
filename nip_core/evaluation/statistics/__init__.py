"""Statistics that hold for questions with several variants, for few seeds, and for few events.

distributions   the quantiles that the rest needs: normal, Student's t, beta
clustered       intervals of rates and means of rows that come by question
differences     paired comparison with McNemar's test, Holm, equivalence, nothing seen in n trials
paired          a paired change with an interval and a p-value that agree
two_way         intervals over seeds and questions at once, which are nip_study's
power           the smallest change that a test batch would show

Rows of one question are not independent: `clusters` says, for each row, by a whole number from 0
which question it is of. Nothing here draws without a seed, and the order of rows does not matter.
Not covered: questions count as independent of each other. docs/statistics.md says which
method is used where, and docs/decisions/0022-statistics.md why.
"""
