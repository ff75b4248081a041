# Checks of what the page says about the authors' code, in R (base packages only).
#
#     git clone https://github.com/davidruegamer/generalized_orthogonalization authors
#     Rscript studies/verify_authors.R authors
#
# Prints, one line each: the correlations along the paths of Figure 1, whether the gradient that lagrangianConstr gives
# to BFGS is that of its objective, and where it takes lambda.
folder <- commandArgs(trailingOnly = TRUE)[1]
lines <- readLines(file.path(folder, "simulations/common/functions.R"), warn = FALSE)
eval(parse(text = lines[!grepl("^library", lines)]))
script <- readLines(file.path(folder, "plot_optim.R"), warn = FALSE)
eval(parse(text = script[42:55]))  # the data of Figure 1

# The constrained fit: its own objective and gradient, taken from its environment by a tracing optim().
seen <- NULL
optim <- function(par, fn, gr, ...) { seen <<- list(fn = fn, gr = gr); stats::optim(par, fn, gr, ...) }
params <- lagrangianConstr(matrix(x), Z_with_intercept, y, "binomial", what = "params")
at <- c(1, 0.5, 0.3, -0.5)
numeric <- sapply(seq_along(at), function(j) {
  e <- replace(numeric(length(at)), j, 1e-6)
  (seen$fn(at + e) - seen$fn(at - e)) / 2e-6
})
cat("gradient given to BFGS, largest error relative to the numerical one:",
    max(abs(seen$gr(at) - numeric) / pmax(1, abs(numeric))), "\n")
start <- exp(1)
cat("lambda at the start", start, "and at the end", exp(params[1]), "(it is minimised over, not maximised)\n")
cat("correlation left by lagrangianConstr on the data of Figure 1:", cor(plogis(Z_with_intercept %*% params[-1]), x), "\n")

eval(parse(text = script[6:39]))  # the iteration of the figure
for (steps in c(110, 400, 1000)) {
  path <- fisher_scoring_glm_corr(Q, Z_with_intercept, y, max_iter = steps)
  cat("projected Fisher scoring,", steps, "steps:", cor(plogis(Z_with_intercept %*% path[[steps + 1]]), x), "\n")
}
fit <- glm(y ~ -1 + Zcor, family = binomial)
cat("classical, no intercept:", cor(fitted(fit), x), "\n")
Qi <- qr.Q(qr(cbind(1, x)))
Zi <- Z - Qi %*% crossprod(Qi, Z)
cat("classical, with intercept:", cor(fitted(glm(y ~ Zi, family = binomial)), x), "\n")
