"""One way to ask: what the verbs want to know (``question``), who can answer (``source``), and which of them answers
for a place (``places``).

A verb makes questions and shows answers; a source of rows translates questions into what it speaks. Neither knows the
other.
"""
