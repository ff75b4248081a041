"""
A scikit-learn pipeline that ignores age and sex
================================================

A corrected model takes its place in a pipeline like any other, and grid search hands it the protected columns. The
data are 442 patients with diabetes, which ship inside scikit-learn: does the disease progress fast?
"""

import matplotlib.pyplot as plt
import numpy as np
import sklearn
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import SplineTransformer, StandardScaler

import setsquare as sq

data = sq.datasets.load_diabetes()
protected = data.protected_table()
measurements = data.features_table().drop(columns=["age", "sex"])
fast = (data.y > np.median(data.y)).astype(int)

# %%
# The model gets eight measurements, never age or sex; with splines it can recover them from the measurements.
# ``set_fit_request`` asks scikit-learn to pass ``protected=`` on to this step.
sklearn.set_config(enable_metadata_routing=True)
basis = make_pipeline(StandardScaler(), SplineTransformer(n_knots=4, degree=2, include_bias=False))
plain = make_pipeline(basis, LogisticRegression(C=1.0))
corrected = make_pipeline(basis, sq.OrthogonalGLMClassifier().set_fit_request(protected=True))

search = GridSearchCV(corrected, {"orthogonalglmclassifier__l2": [0.001, 0.01, 0.1]}, scoring="neg_log_loss", cv=5)
search.fit(measurements, fast, protected=protected)
print("ridge chosen by cross-validation:", search.best_params_["orthogonalglmclassifier__l2"])
print(search.best_estimator_[-1].solution_.certificate)

# %%
# The certificate is about the training rows. For rows that a model has not seen, audit it: ``audit_model`` refits the
# pipeline in folds, and its bounds allow for the fit.
audits = {
    name: sq.audit_model(model, measurements, fast, protected)
    for name, model in {"plain": plain, "corrected": search.best_estimator_}.items()
}
for name, audit in audits.items():
    print(f"{name}: {audit.verdict}. {audit.reason}")

# %%
# What it costs, on held-out predictions. Prediction needs no protected columns: they are passed to ``fit`` only.
held_out = {
    name: cross_val_predict(model, measurements, fast, cv=5, method="predict_proba", params=params)[:, 1]
    for name, model, params in (
        ("plain", plain, None),
        ("corrected", search.best_estimator_, {"protected": protected}),
    )
}
comparison = sq.compare(held_out, fast, protected)
print(comparison.table()[["model", "accuracy", "auc", "brier"]].round(3).to_string(index=False))

# %%
# Effects of age and sex on the held-out probabilities, with 95 % intervals (HC3 standard errors).
figure, axis = plt.subplots(figsize=(7, 2.8), layout="constrained")
spread = {"age": protected["age"].std(), "sex[2]": 1.0}
for shift, (name, colour) in zip((0.12, -0.12), {"plain": "#D55E00", "corrected": "#0072B2"}.items(), strict=True):
    effects = audits[name].table().set_index("term")
    for row, (term, unit) in enumerate(spread.items()):
        low, middle, high = effects.loc[term, ["ci_low", "estimate", "ci_high"]] * unit
        axis.plot([low, high], [row + shift] * 2, color=colour, linewidth=2)
        axis.plot(middle, row + shift, "o", color=colour, label=name if row == 0 else None)
axis.axvline(0.0, color="grey", linewidth=1)
axis.set(yticks=[0, 1], yticklabels=["age, per sd", "sex 2 against 1"], ylim=(-0.5, 1.5), xlabel="effect on the logit")
axis.legend(frameon=False)
plt.show()

# %%
# The correction costs accuracy: without age and sex at prediction time, everything related to them has to be removed.
# Where the protected columns are known at prediction time, :class:`setsquare.PredictionOrthogonalizer` keeps more.
