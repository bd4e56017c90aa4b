"""What people read of a privacy statement: the report, its page, and the model card of an adapter.

In: the document that `tensafe_api.statement.contents` builds. Out: text. The modules, from the bottom:

- `sentences` has the claim as a sentence, and what an ε means.
- `report` computes all that a reader is shown, and checks the statement's own figures.
- `curve` places the figures of a report on the axes of a picture.
- `page` renders a report as HTML, and `model_card` the `README.md` of an adapter.
"""
