"""Privacy statements: what they say, their form, their signature, and how their figures are checked."""
