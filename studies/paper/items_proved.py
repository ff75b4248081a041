"""Items of the paper that need no experiment: what was proved or checked, and the test that shows it."""

from __future__ import annotations

from typing import TypeAlias

REPRODUCED, IN_PART, ERROR, MISPRINT = "reproduced", "in part", "error of the paper", "misprint"
#: A mistake in the authors' code: the text means something else.
CODE_ERROR = "error of the code"
STAND_IN, NOT_COMPARABLE, OPEN = "stand-in", "not comparable", "open"
#: What shows a misprint that needs no computation.
TEXT = "the text itself"
#: Item, printed, ours, held out, verdict, and what shows it: a test, or the section of an experiment.
Row: TypeAlias = tuple[str, str, str, str, str, str]


def theory() -> list[Row]:
    """Return the rows of sections 2 and 3."""
    tests = "`tests/theorems/test_{}.py`".format
    return [
        ("Section 2 (C^l)", "P Z gives a linear model without effects", "the same", "", REPRODUCED, tests("lemma_3")),
        (
            "Section 3.1, Example 1",
            "P Z: no effects before h, effects behind it",
            "the same",
            "",
            REPRODUCED,
            "`tests/studies/test_comparators_theorems.py`",
        ),
        ("Definitions 1 and 2", "three parts; corrected: no effect", "`sq.audit`", "", REPRODUCED, tests("audit")),
        (
            "Section 3.1, fairness",
            "corrected is perfectly fair, not always the opposite",
            "yes; the opposite holds for R\N{SUPERSCRIPT TWO} of the predictions, not for one before h",
            "",
            IN_PART,
            tests("printed_remarks"),
        ),
        (
            "Section 3.2, families",
            "sigmoid, softmax, exp",
            "all three are solved exactly",
            "",
            REPRODUCED,
            tests("corollary_4"),
        ),
        (
            "Section 3.2, iterates",
            "beta = (X'UX)^-1 X'U G(y - mu)",
            "X beta belongs to the working response; the same at beta = 0",
            "",
            MISPRINT,
            tests("printed_remarks"),
        ),
        ("Lemma 3", "P y + h(0): no effect, no intercept", "holds", "", REPRODUCED, tests("lemma_3_printed")),
        (
            "Section 3.2, intercept",
            "that of the evaluation need not be zero",
            "the same: it is the link of the mean, which stays",
            "",
            REPRODUCED,
            tests("lemma_3_printed"),
        ),
        (
            "Section 3.2, inversion",
            "h^-1(P y) may not be defined",
            "the same; with the mean kept it can be, and leaves effects",
            "",
            REPRODUCED,
            tests("printed_remarks"),
        ),
        ("Corollary 4", "one squared constraint", "vector constraint, exact", "", REPRODUCED, tests("corollary_4")),
        (
            "Corollary 4, identity h",
            "solved by C^l",
            "if span(Z) contains X; else for features P Z, in general not for Z",
            "",
            IN_PART,
            tests("printed_remarks"),
        ),
        ("Example 2", "ReLU(X b) is not in span(X)", "the same", "", REPRODUCED, tests("relu")),
        ("Theorem 5", "P Z before ReLU suffices", "counterexample: two rows", "", ERROR, tests("relu")),
        ("Corollary 6 (E.4)", "P on the first axis of a tensor", "holds", "", REPRODUCED, tests("tensors")),
        (
            "Section 3.4, GLM tensors",
            "can be extended",
            "generalised projection; `sq.audit(..., family=)`",
            "",
            REPRODUCED,
            "`tests/unit/auditing/test_unit_glms.py`",
        ),
        ("Corollary 7", "P before ReLU, tensors", "counterexample: two rows", "", ERROR, tests("torch_relu")),
    ]


def appendix() -> list[Row]:
    """Return the rows of the discussion and the appendices."""
    tests = "`tests/theorems/test_{}.py`".format
    sets = "`tests/studies/test_paper_claims.py`"
    return [
        (
            "Caveat",
            "uncorrelated is not independent",
            "the same, found by audits",
            "",
            REPRODUCED,
            tests("audit_shape"),
        ),
        (
            "Appendix A",
            "x'y = 0, h(x)'h(y) is not",
            "the same (exp, sigmoid; ReLU keeps it); Figure 6 swaps x and y",
            "",
            REPRODUCED,
            tests("printed_remarks"),
        ),
        ("Figures 2 and 6", "drawings", "docs/theory.md", "", REPRODUCED, "docs/theory.md"),
        ("Appendix B, Komiyama", "same effects as PHO", "to 1e-12 at bound 1", "", REPRODUCED, tests("pho")),
        (
            "Appendix B, penalties",
            "fairness methods do not give the full effects",
            "the same: their bound of 0.05 shrinks them",
            "",
            REPRODUCED,
            "`tests/studies/test_comparators_theorems.py`",
        ),
        (
            "Appendix B, GLMs and Xu",
            "P Z before h is not orthogonal behind it; Xu: only predictions",
            "the same; as defined, Xu leaves effects",
            "",
            REPRODUCED,
            "`tests/studies/test_comparators_theorems.py`",
        ),
        (
            "Appendix D (GLM weights)",
            "G, \N{GREEK CAPITAL LETTER UPSILON} constant at no effect",
            "the same",
            "",
            REPRODUCED,
            tests("lemma_3_printed"),
        ),
        (
            "Appendix D, constants",
            "(h^-1)'(0); V(h(0)^(1/2))",
            "(h^-1)'(h(0)); V(h(0))^(1/2)",
            "",
            MISPRINT,
            tests("printed_remarks"),
        ),
        (
            "Lemma 8 (E.1)",
            "weighted form, no intercept",
            "holds with the weights at zero effects",
            "",
            REPRODUCED,
            tests("lemma_3_printed"),
        ),
        (
            "Appendix E.1, closed form",
            "intercept alone: h^-1(mean)",
            "the same",
            "",
            REPRODUCED,
            tests("printed_remarks"),
        ),
        (
            "Appendix E.1, intercept",
            "another constant, or centred predictions, suffice",
            "yes if the constant is in span(X), or X is centred; else neither does",
            "",
            IN_PART,
            tests("lemma_3_printed"),
        ),
        (
            "Appendix E.2, one multiplier",
            "the squared constraint needs one, not p",
            "the same set; where it binds, no finite multiplier",
            "",
            IN_PART,
            tests("corollary_4"),
        ),
        (
            "Appendix E.2, formulas",
            "adds zeta A to the direction; argmin over lambda",
            "zeta A grad A; no minimum, the ascent step is right",
            "",
            MISPRINT,
            tests("mdmm"),
        ),
        ("Appendix E.3, E.5", "a'b: four products, all plus", "two are minus", "", ERROR, tests("relu")),
        ("Table 5, health", "38653 rows, p = 4", "12766 complete rows, 5 effects", "", ERROR, sets),
        (
            "Table 5, other sets",
            "rows of adult, bank, compas, digits, faces, movies; p = 5, 1, 6; q = 45, 49, 13, 25 (health)",
            "the same, but q = 47 (bank), 21 (health); Table 2 has 29170 rows of Adult, Figure 3 5000",
            "",
            IN_PART,
            sets,
        ),
        (
            "Table 5, reference",
            "Adult: female, White",
            "so in Figure 3; Table 2 has an effect of White (reference: Amer-Indian-Eskimo)",
            "",
            IN_PART,
            "section Table 2",
        ),
        ("Table 5, UTKFace", "q = 256", "F.4: q = 32", "", MISPRINT, TEXT),
        (
            "All tables, p-values",
            "R's errors of 0/1 outcomes",
            "too wide for probabilities: 0 % of true nulls rejected",
            "",
            IN_PART,
            sets,
        ),
        (
            "Appendix G.1",
            "X = rho Z[:, 1:q] + E, dim(E) = dim(Z); Figures 8 and 9: rho = 0",
            "Z[:, 1:p], dim(X); rho = 0 and 1",
            "",
            MISPRINT,
            TEXT,
        ),
        (
            "Limitations",
            "n > p and q > p are needed",
            "n = p: P = 0; linear h, q = p: yes; sigmoid: at p = q more than a constant may be left",
            "",
            IN_PART,
            tests("printed_remarks"),
        ),
    ]
