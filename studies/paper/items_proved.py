"""Items of the paper that need no experiment: what was proved or checked, and the test that shows it."""

from __future__ import annotations

from typing import TypeAlias

REPRODUCED, IN_PART, ERROR, MISPRINT = "reproduced", "in part", "error of the paper", "misprint"
#: A mistake in the authors' code: the text means something else.
CODE_ERROR = "error of the code"
STAND_IN, NOT_COMPARABLE, OPEN, USED = "stand-in", "not comparable", "open", "used"
#: The rule by which a verdict is given, for the page.
VERDICTS = {
    REPRODUCED: "holds here",
    IN_PART: "holds in some cases, or under a condition, which the row names",
    ERROR: "the text is false: by a proof, by itself, or as a description of the code",
    CODE_ERROR: "a mistake in the code, so that printed numbers are not what the text says",
    MISPRINT: "a slip that changes no result",
    STAND_IN: "run on other data, because the paper's are not public",
    NOT_COMPARABLE: "times of another machine",
    USED: "a definition",
    OPEN: "not run, or not to the end",
}
#: What shows a misprint that needs no computation.
TEXT = "the text itself"
#: Item, printed, ours, held out, verdict, and what shows it: a test, or the section of an experiment.
Row: TypeAlias = tuple[str, str, str, str, str, str]


def theorems(*names: str) -> str:
    """Names of tests of theorems, as the page shows them.

    Examples
    --------
    >>> theorems("relu", "tensors")
    '`tests/theorems/test_relu.py`, `tests/theorems/test_tensors.py`'
    """
    return ", ".join(f"`tests/theorems/test_{name}.py`" for name in names)


COMPARATORS = "`tests/studies/test_comparators_theorems.py`"


def theory() -> list[Row]:
    """Return the rows of sections 1 to 3."""
    return [
        (
            "Sections 1.1 and 3.1, other orthogonalisations",
            "the measure is that of metadata normalisation (Lu et al.) and of identifiability; linked to double "
            "machine learning",
            "identifiability: `sq.pho`; effects of P Z are those of Z beside X, as in double machine learning; Lu et "
            "al. regress on the label, too: effects of X beside it vanish, those that go through the label stay",
            "",
            IN_PART,
            theorems("pho", "printed_remarks") + ", `tests/studies/test_two_groups.py`",
        ),
        (
            "Sections 1.1 and 3.1, fairness methods",
            "do not enforce it fully, in most cases have the L2 loss, and a linear effect of X",
            "so for the bound of those that are compared (above 0) and their linear X; their loss is the likelihood of "
            "the outcome",
            "",
            IN_PART,
            COMPARATORS,
        ),
        (
            "Section 2 (C^l)",
            "P Z gives a linear model without effects",
            "the same",
            "",
            REPRODUCED,
            theorems("lemma_3") + f", {COMPARATORS}",
        ),
        (
            "Section 2 and Limitations, sizes",
            "p <= n, q >= p; later n > p and q > p",
            "n = p: nothing is left (P = 0). q = p: with a linear h only a constant in general; with a sigmoid more "
            "may be left (29 of 50 draws at rho = 0, none at rho = 1)",
            "",
            IN_PART,
            theorems("printed_remarks"),
        ),
        (
            "Section 3.1, Example 1",
            "P Z: no effects before h, effects behind it",
            "the same",
            "",
            REPRODUCED,
            COMPARATORS,
        ),
        ("Definitions 1 and 2", "three parts; corrected: no effect", "`sq.audit`", "", USED, theorems("audit")),
        (
            "Section 3.1, fairness",
            "corrected is perfectly fair, not always the opposite",
            "with an intercept both say: no covariance, so the opposite is true, too; it fails if fairness is measured "
            "before h",
            "",
            IN_PART,
            theorems("printed_remarks"),
        ),
        (
            "Section 3.2, families",
            "sigmoid, softmax, exp",
            "all three are solved exactly",
            "",
            REPRODUCED,
            theorems("corollary_4"),
        ),
        (
            "Section 3.2, closed form",
            "none in general; convex, Newton-type procedures",
            "the same: for x = 1, 2, 3 exp(beta) is the root of a quintic without a formula in radicals, found in 4 "
            "steps; for two groups there is one",
            "",
            REPRODUCED,
            theorems("printed_remarks"),
        ),
        (
            "Section 3.2, iterates",
            "beta = (X'UX)^-1 X'U G(y - mu)",
            "X beta belongs to the working response; the same at beta = 0",
            "",
            MISPRINT,
            theorems("printed_remarks"),
        ),
        ("Lemma 3", "P y + h(0): no effect, no intercept", "holds", "", REPRODUCED, theorems("lemma_3_printed")),
        (
            "Section 3.2, intercept (E.1)",
            "that of the evaluation need not be zero; alone it is h^-1(mean)",
            "the same: the mean stays",
            "",
            REPRODUCED,
            theorems("lemma_3_printed", "printed_remarks"),
        ),
        (
            "Section 3.2, inversion",
            "h^-1(P y) may not be defined, whenever h is not linear",
            "as printed (without Lemma 3's h(0)) it is not; with the mean kept it can be, but Z times these "
            "coefficients does not give the predictions back, and effects remain",
            "",
            IN_PART,
            theorems("printed_remarks"),
        ),
        (
            "Corollary 4",
            "squared constraint: beta = 0",
            "holds if the evaluation model has an intercept (as in all code) or the centred X, as in the constraint; "
            "for X itself without one (as Section 3.2 has it, 'for better readability') not: constant 0.8, X = (1, 0)' "
            "has beta 1.39",
            "",
            IN_PART,
            theorems("corollary_4"),
        ),
        (
            "Corollary 4, identity h",
            "solved by C^l",
            "if P has an intercept (or X is centred) and span(Z) contains X; else for features P Z, in general not for "
            "Z",
            "",
            IN_PART,
            theorems("printed_remarks"),
        ),
        (
            "Section 3.3, title",
            "piece-wise linear activations",
            "only ReLU is treated; leaky ReLU and others here: generalised projection",
            "",
            IN_PART,
            theorems("more_activations"),
        ),
        ("Example 2", "ReLU(X b) is not in span(X)", "the same", "", REPRODUCED, theorems("relu")),
        (
            "Theorem 5, Corollary 7 (Appendix E.3, E.5)",
            "P before ReLU suffices; a'b: four products, all plus",
            "counterexample: two rows; two products are minus",
            "",
            ERROR,
            theorems("relu", "torch_relu"),
        ),
        (
            "Corollary 6 (E.4), Section 3.4",
            "P on the first axis of a tensor; extends to GLMs",
            "holds; generalised projection, `sq.audit(..., family=)`",
            "",
            REPRODUCED,
            theorems("tensors") + ", `tests/unit/auditing/test_unit_glms.py`",
        ),
    ]


def appendix() -> list[Row]:
    """Return the rows of the discussion and the appendices."""
    sets = "`tests/studies/test_paper_claims.py`"
    return [
        (
            "Section 4.2.1, level",
            "unlike Adult, on the level of probabilities",
            "Table 2 is of probabilities, too: it has odds ratios",
            "",
            MISPRINT,
            TEXT,
        ),
        (
            "Section 4.2.3, layer",
            "following Corollary 7 (before a ReLU)",
            "F.5: behind the embedding; a linear map keeps that (Corollary 6), so it holds before the LSTM's "
            "activations, not behind them",
            "",
            IN_PART,
            "`tests/studies/test_paper_networks.py`",
        ),
        (
            "Caveat, Limitations",
            "uncorrelated is not independent; what is to be protected must be known",
            "the same, found by audits; fits and audits are given X",
            "",
            REPRODUCED,
            theorems("audit_shape"),
        ),
        (
            "Appendix A, Figures 2 and 6",
            "x'y = 0, h(x)'h(y) is not; drawings",
            "the same for exp and sigmoid, which are drawn (not every h: ReLU keeps it); redrawn in docs/theory.md; "
            "the drawing swaps the x and y of the text",
            "",
            REPRODUCED,
            theorems("printed_remarks"),
        ),
        (
            "Appendix C.2, causes",
            "other approaches to Concept 1 must know them, C^h need not",
            "the same: X -> W and W -> X can have one distribution, so one fit, and other answers to a change of X",
            "",
            REPRODUCED,
            theorems("printed_remarks"),
        ),
        ("Appendix B, Komiyama", "same effects as PHO", "to 1e-12 at bound 1", "", REPRODUCED, theorems("pho")),
        (
            "Appendix B, penalties, GLMs and Xu",
            "fairness methods do not give the full effects; P Z before h is not orthogonal behind it; Xu: only "
            "predictions",
            "the same: their bound of 0.05 shrinks effects; as defined, Xu leaves effects",
            "",
            REPRODUCED,
            COMPARATORS,
        ),
        (
            "Appendix D and E.1, formulas",
            "weights by alpha; (h^-1)'(0); V(h(0)^(1/2)); E.1: X (X'X)^-1 X",
            "the same; (h^-1)'(h(0)); V(h(0))^(1/2); X (X'X)^-1 X'",
            "",
            MISPRINT,
            theorems("printed_remarks"),
        ),
        (
            "Lemma 8 (Appendix E.1), Appendix D",
            "weighted form, no intercept; G, \N{GREEK CAPITAL LETTER UPSILON} constant at no effect",
            "holds with the weights at zero effects; the same",
            "",
            REPRODUCED,
            theorems("lemma_3_printed"),
        ),
        (
            "Appendix E.1, solutions",
            "y = mu, which predicts nothing, or c P y + mu; the factor does not matter",
            "the same (the first is the second with c = 0)",
            "",
            REPRODUCED,
            theorems("printed_remarks"),
        ),
        (
            "Appendix E.1, intercept",
            "another constant, or centred predictions, suffice",
            "yes if the constant is in span(X), or X is centred; else in general neither does",
            "",
            IN_PART,
            theorems("lemma_3_printed"),
        ),
        (
            "Appendix E.2, one multiplier",
            "the squared constraint needs one, not p",
            "the same set; where it binds, no finite multiplier",
            "",
            IN_PART,
            theorems("corollary_4"),
        ),
        (
            "Appendix E.2, formulas",
            "adds zeta A to the direction, zeta = 1; A(lambda; gamma); argmin over lambda",
            "zeta A grad A, zeta = 1 here, too; A is of gamma alone; no minimum, the ascent step is right",
            "",
            MISPRINT,
            theorems("mdmm"),
        ),
        (
            "p-values (Tables 1, 2, 4; Figures 3, 7 to 12; movies)",
            "in the code R's errors, which are those of 0/1 outcomes or counts",
            "too wide for probabilities (one simulation: 0 % of true nulls rejected), too narrow for Poisson "
            "predictions after training",
            "",
            IN_PART,
            f"{sets}, section Movie reviews",
        ),
        *_data_sets(sets),
    ]


def _data_sets(sets: str) -> list[Row]:
    return [
        (
            "Table 5, health",
            "38653 rows, p = 4",
            "12766 complete rows are used; 4 protected columns with 5 effects (for the other sets p counts effects)",
            "",
            ERROR,
            sets,
        ),
        (
            "Table 5, other sets",
            "rows of adult, bank, compas, digits, faces, movies; p = 5, 1, 6, 1, 5, 2; q = 45, 49, 13, 25 (health), "
            "28 x 28, 100 x 100",
            "the same rows and p. q = 45, 13 are columns without the protected ones; so counted bank has 47 and health "
            "21 (49 and 25 may count others too, not said); digits: x 3 colours. Table 2 has 29170 rows of Adult, "
            "those born in the United States (not said), Figure 3 5000",
            "",
            IN_PART,
            sets,
        ),
        (
            "Table 5, reference",
            "Adult: female, White; and others; movies: female, female",
            "so in Figure 3 and Table 4; but Table 2 has an effect of White (reference: Amer-Indian-Eskimo), and in "
            "the code of movies gender is one number (unknown -1, female 0, male 1), without a reference",
            "",
            IN_PART,
            sets,
        ),
        (
            "Section 4.2.2; Table 5, UTKFace",
            "weights of the penultimate layer; q = 256",
            "F.4: activations; q = 32",
            "",
            MISPRINT,
            TEXT,
        ),
        (
            "Appendix G.1, formulas",
            "X = rho Z[:, 1:q] + E, dim(E) = dim(Z); Figures 8 and 9: rho = 0",
            "Z[:, 1:p], dim(X); rho = 0 and 1",
            "",
            MISPRINT,
            TEXT,
        ),
    ]
